"""The answer of a decision, as its JSON, its pages and the file of its analysis have it: keys are names of fields.

A field that has a default is left out where there is nothing to say.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from edge.protocol.better import HIGHER, Better
from edge.protocol.bounds import MOST_NUMBER
from edge.protocol.messages import ACCURACY
from scenarios.run.progress import Mean
from scenarios.run.score import RunScore

Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Count = Annotated[int, Meta(ge=0)]


class ChanceOfBetter(Struct, frozen=True):
    """How probably the chosen candidate is better than what comes second."""

    than: str
    """Name of the second finalist"""
    probability: Number | None
    """That in a seed which has not chosen; None for one seed"""
    low: Number | None
    high: Number | None
    """Ends of its 90 % interval"""
    by_seed: list[Number]
    """Share of draws in which the first finalist is better"""
    draws: Count
    """Of the uncertain figures; 0: seeds alone"""


class UncertainFigure(Struct, frozen=True):
    """A figure of a device or network that the lead over the second finalist rests on."""

    row: str
    figure: str
    basis: str
    share: Number
    """Of the lead's variance that it explains alone"""


class Choice(Struct, frozen=True):
    """The finalist that would be chosen on another fleet, or within other budgets."""

    chosen: str | None
    """None: none has a value, or it is open"""
    values: dict[str, Number | None]
    """Finalist -> the mean of its values"""
    unknown: list[str]
    """Finalists that would have to be trained"""


class Point(Struct, frozen=True):
    """The `Choice` at a value of an axis."""

    at: Number
    chosen: str | None
    values: dict[str, Number | None]
    unknown: list[str]


class LabelledAxis(Struct, frozen=True):
    words: str
    points: list[Point]


class Place(Struct, frozen=True):
    """The `Choice` at factors on all links and on all devices."""

    links: Number
    devices: Number
    chosen: str | None
    unknown: list[str]


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `Choice` after a change that an answer should survive."""

    change: str
    how: str
    """Replayed, or trained"""
    at: Number | None = None
    """Value of the axis that was replayed"""
    chosen: str | None
    values: dict[str, Number | None]
    unknown: list[str]


class ScoreOnTest(Struct, frozen=True):
    """The chosen candidate's `Mean` on test examples."""

    seeds: list[Count]
    rounds: list[Count]
    """Until the model that is scored, by seed"""
    mean: Number | None
    deviation: Number | None
    values: list[Number | None]
    half_width: Number | None


class Findings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How sure an answer is, and where it flips."""

    not_replayed: dict[str, str]
    """Finalist -> why it cannot be replayed"""
    probability: ChanceOfBetter | None = None
    rests_on: list[UncertainFigure] | None = None
    flips: dict[str, LabelledAxis] | None = None
    map: list[Place] | None = None
    robust: list[Change] | None = None
    test: ScoreOnTest | None = None


class Sought(Struct, frozen=True):
    """An `Objective`, and its words."""

    text: str
    target: float | None
    cost: str
    budgets: dict[str, float]
    metric: str = ACCURACY
    better: Better = HIGHER
    """Of the metric"""
    is_share: bool = True

    @property
    def score(self) -> RunScore:
        """The metric by which runs are judged."""
        return RunScore(self.metric, self.better, self.is_share)


class CandidateRow(Struct, frozen=True):
    """A candidate: the values that it has reached and spent, over the seeds that it was judged by."""

    name: str
    method: str
    settings: dict[str, str]
    trained_as: str
    state: str
    why: str
    rung: int
    """The last one that it was judged in, from 0; -1: none"""
    seeds: list[int]
    rounds: list[int]
    score: Mean
    """The last on validation examples within the budgets"""
    reached: int
    """Seeds with the target within the budgets"""
    value: Mean
    spent: dict[str, Mean]
    """By name of an amount"""


class FinalistDifference(Struct, frozen=True):
    """The `Mean` of differences, paired by seed."""

    seeds: list[int]
    mean: float | None
    deviation: float | None
    half_width: float | None
    values: list[float | None]


class FinalistComparison(Struct, frozen=True):
    """A finalist against the chosen one."""

    name: str
    difference: FinalistDifference
    reached: int
    p: float | None
    p_corrected: float | None
    """By Holm, for all pairs of finalists"""
    is_tie: bool


class Nearest(Struct, frozen=True):
    """The candidate that gets nearest, where none reaches the target, or is evaluated, within the budgets."""

    name: str | None
    score: float | None
    budgets_needed: dict[str, dict[str, float]]
    """Candidate -> name of an amount -> as much as it would need"""


class Effort(Struct, frozen=True):
    """The training of a decision, and at most that of an exhaustive grid."""

    candidates: int
    trainings: int
    """Candidates that are trained themselves"""
    runs: int
    seeds: int
    rounds: int
    flops: float
    changed_runs: int
    """On changed fleets, as the next two"""
    changed_rounds: int
    changed_flops: float
    exhaustive_runs: int
    exhaustive_rounds: int


class EndedRun(Struct, frozen=True):
    """The fields of a run's summary that a decision reads."""

    name: str
    run_dir: str
    stopped_by: str


class DecisionAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer; without ``chosen`` if the decision was interrupted."""

    scenario: str
    overrides: list[str]
    objective: Sought
    seeds: list[int]
    candidates: list[CandidateRow]
    runs_of: dict[str, list[str]]
    """Candidate -> the runs that it was judged by"""
    effort: Effort
    chosen: str | None = None
    finalists: list[str] | None = None
    """The best first"""
    tests: list[FinalistComparison] | None = None
    ties: list[str] | None = None
    nearest: Nearest | None = None
    seconds_by_basis: dict[str, float] | None = None
    """Basis of figures -> the chosen candidate's virtual seconds that rest on it"""
    not_replayed: dict[str, str] | None = None
    probability: ChanceOfBetter | None = None
    rests_on: list[UncertainFigure] | None = None
    flips: dict[str, LabelledAxis] | None = None
    map: list[Place] | None = None
    test: ScoreOnTest | None = None
    robust: list[Change] | None = None
    folder: str | None = None
    runs: list[EndedRun] | None = None
    """These and the next one are those of `executors.make_runs`, in whose full form JSON has them"""
    missing: list[str] | None = None
