"""The summary of a run."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from scenarios.run import aggregators


class RunSummary(TypedDict):
    """The result that ``run --json`` prints; `run_records.SummaryRecord` is what may be read of a recorded one."""

    run_dir: str
    method: str
    seed: int
    data: str
    rounds: int
    accuracy: float | None
    best_accuracy: float | None
    """As the accuracy None for runs that are judged by another metric (``train.loss``)"""
    metric: str
    """By which the run is judged"""
    score: float | None
    """Its last value"""
    best_score: float | None
    baselines: dict[str, dict[str, float]]
    """Forecasts that need no model -> metric -> its value on the test examples; empty unless examples are windows"""
    evaluation: dict[str, object] | None
    """A `client_values.ClientSummary`"""
    clients_left_out: int
    """Clients without examples of ``eval.split``, which are not in these means"""
    method_notes: list[str]
    """Sentences on the method and this model"""
    best_round: dict[str, object] | None
    """A `BestRound`, with ``by_device`` of that round; None before the first evaluation"""
    virtual_seconds: float
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    flops: float
    nominal_flops: float
    joules: float
    wasted_bytes: int
    wasted_joules: float
    joules_by_part: dict[str, float]
    aggregators: aggregators.AggregatorsSummary | None
    """Other bytes and joules are those of clients"""
    paid: dict[str, object] | None
    """A `Paid`"""
    carbon: CarbonSummary | None
    """Without a carbon intensity None"""
    privacy: dict[str, object] | None
    """A `PrivacySpent`; None without differential privacy"""
    phases: dict[str, dict[str, float]]
    """Phase of secure aggregation, and the training between -> visits, bytes down and up, seconds of visits, joules"""
    steps: dict[str, float]
    """Of a model that is cut, as of `scenarios.run.visits.by_step`"""
    wasted_seconds: float
    bottlenecks: dict[str, int]
    visits: dict[str, int]
    seconds_by_basis: dict[str, float] | None
    target_accuracy: float | None
    target: float | None
    """Of the score; that of accuracies, too"""
    time_to_target_s: float | None
    bytes_to_target: int | None
    rounds_to_target: int | None
    stopped_by: str
    cut_round: CutRoundSummary | None
    wall_seconds: float
    model_sha256: str
    warnings: NotRequired[list[str]]
    """Of a run that has ended"""


class CarbonSummary(TypedDict):
    """The CO2e of a run: its joules times an `Intensity`, whose fields are here too."""

    co2e_grams: float
    joules: float
    grams_per_kwh: float
    zone: str | None
    year: int | None
    source: str
    counts: str
    leaves_out: str


class CutRoundSummary(TypedDict):
    """A `CutRound`."""

    round: int
    participants: int
    accuracy: float | None
    cut_by: str
