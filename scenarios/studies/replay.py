"""``fedbr replay``: the times and energy of a run on another fleet, server link or deadline, without training.

Times and joules are bit-identical to those of a new run with the same overrides, as long as that trains the same
visits; otherwise the replay is refused with the first round that differs. Nothing is written; only a replay with draws
(`scenarios.studies.uncertainty`) keeps its times in the run folder.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from coordinator.records.schema import ANY_FLEET, BOTTLENECKS, RoundRow
from coordinator.rounds.amounts import CO2E, VIRTUAL_SECONDS
from costmodel.fleet.carbon import intensity
from scenarios.config import plugin_errors
from scenarios.config.errors import COMMAND_LINE, ReportError
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import KeyValues, words
from scenarios.report.columns import BYTES, GRAMS, JOULES, SECONDS, Quantity, cells
from scenarios.report.run_reader import open_runs
from scenarios.run.app_folder import runnable_app
from scenarios.run.folder_files import DESCRIPTION
from scenarios.run.progress import accumulated
from scenarios.run.run_folder import SCENARIO, RunFolder
from scenarios.run.score import RunScore, named_score, score_of
from scenarios.run.setup import RunInputs, Setup
from scenarios.studies import app_replay
from scenarios.studies.replayed_run import OtherVisits, PreparedReplay, RecordedRounds, RetimedRun

TABLES = ("fleet", "budget")
KEYS = (
    "stop.target_accuracy",
    "stop.target",
    "rounds.policy",
    "rounds.over_select",
    "rounds.deadline",
    "rounds.min_fraction",
    "rounds.on_late",
    "split.after",
    "split.labels",
    "split.server",
)
"""Keys that may be overridden, beside whole tables: they do not change how a visit is trained."""
NONE: KeyValues = MappingProxyType({})
Prepared = PreparedReplay | app_replay.PreparedApp
"""A run that is read once, and can be replayed on several fleets"""
POLICY_OPTIONS = "rounds.policy_options"
"""So do the options of a user's policy."""


class ReplayedRound(Struct, frozen=True):
    """A round; pairs are (recorded, replayed)."""

    round: int
    seconds: list[float]
    end_s: list[float]
    joules: list[float]
    wasted_bytes: list[int]
    critical: list[int | None]
    """Visits on which the round waited"""
    bottleneck: list[str]


class BottleneckCounts(Struct, frozen=True):
    """Bottleneck -> rounds that have it."""

    before: dict[str, int]
    after: dict[str, int]


class ReplayResult(Struct, frozen=True):
    """The output of ``replay --json``; pairs are (recorded, replayed)."""

    run_dir: str
    method: str
    seed: int
    overrides: list[str]
    rounds: int
    other_end: str | None
    """Why one is longer than the other"""
    metric: str
    """By which the run is judged"""
    target_accuracy: float | None
    """Of that metric"""
    virtual_seconds: list[float]
    time_to_target_s: list[float | None]
    joules: list[float]
    co2e_grams: list[float | None]
    """None without a carbon intensity"""
    wasted_s: list[float]
    wasted_bytes: list[int]
    wasted_joules: list[float]
    slowest_round: list[int]
    slowest_round_s: list[float]
    bottlenecks: BottleneckCounts
    per_round: list[ReplayedRound]


def replay(folder: Path, overrides: KeyValues = NONE, allow_code: bool = False) -> ReplayResult:
    """A run beside its replay.

    If a budget makes the replay longer or shorter than the record, both are compared over the rounds that they share,
    and ``other_end`` says so. ScenarioError for overrides of other keys, and, with the round, for those with which
    other visits would have been trained, or before whose first round's end a budget would end the run. ReportError for
    a folder without a run.
    """
    new = replayed(folder, overrides, allow_code)
    after = new.rounds_done
    before = new.record.rounds if new.other_end is None else new.record.rounds[: len(after)]
    if not (before and after):
        raise OtherVisits(str(new.other_end), new.fresh)
    target, scenario = new.loaded.scenario.stop.goal, new.loaded.scenario
    both = (before, after)
    lengths = [[row.end_s - row.start_s for row in rows] for rows in both]
    joules = [sum(row.joules for row in rows) for rows in both]
    intensities = (RunFolder(folder).carbon, new.carbon)
    counts = [Counter(row.bottleneck for row in rows) for rows in both]
    names = [name for name in BOTTLENECKS if name in ANY_FLEET or any(count[name] for count in counts)]
    before_names, after_names = ({name: count[name] for name in names} for count in counts)
    return ReplayResult(
        run_dir=str(folder),
        method=scenario.method,
        seed=scenario.seed,
        overrides=words(overrides),
        rounds=new.rounds,
        other_end=new.other_end,
        metric=scenario.train.score,
        target_accuracy=target,
        virtual_seconds=[rows[-1].end_s for rows in both],
        time_to_target_s=[time_to(target, rows, score_of(scenario.train)) for rows in both],
        joules=joules,
        co2e_grams=[
            None if carbon is None else carbon.co2e_grams(spent)
            for carbon, spent in zip(intensities, joules, strict=True)
        ],
        wasted_s=[sum(row.wasted_s for row in rows) for rows in both],
        wasted_bytes=[sum(row.wasted_bytes for row in rows) for rows in both],
        wasted_joules=[sum(row.wasted_joules for row in rows) for rows in both],
        slowest_round=[max(rows, key=lambda row: row.end_s - row.start_s).round for rows in both],
        slowest_round_s=list(map(max, lengths)),
        bottlenecks=BottleneckCounts(before_names, after_names),
        per_round=[
            ReplayedRound(
                round=pair[0].round,
                seconds=list(seconds),
                end_s=[row.end_s for row in pair],
                joules=[row.joules for row in pair],
                wasted_bytes=[row.wasted_bytes for row in pair],
                critical=[row.critical for row in pair],
                bottleneck=[row.bottleneck for row in pair],
            )
            for pair, seconds in zip(zip(*both, strict=True), zip(*lengths, strict=True), strict=True)
        ],
    )


def replayed(
    folder: Path, overrides: KeyValues = NONE, allow_code: bool = False
) -> RetimedRun | app_replay.ReplayedApp:
    """The run, replayed to its end. Errors as of `replay`."""
    ready = prepared(folder, overrides, allow_code)
    return ready.play(ready.fleet, may_end_elsewhere=True)


def prepared(folder: Path, overrides: KeyValues = NONE, allow_code: bool = False) -> Prepared:
    """The run of a folder, read and checked. ScenarioError and ReportError as of `replay`.

    ``allow_code``: modules of the user's own are imported from wherever `RunFolder.modules` finds them.
    """
    (run,) = open_runs([folder])
    file = str(folder / SCENARIO)
    with run.modules(allow_code):
        recorded, loaded = load(file), load(file, overrides)
        app = None if recorded.method.app is None else runnable_app(recorded)
    fresh = shlex.join(["fedbr", "run", file, *words(overrides)])
    for key in overrides:
        if key.split(".")[0] not in TABLES and key not in KEYS and not key.startswith(f"{POLICY_OPTIONS}."):
            raise ScenarioError(
                f"{key}: would change the training; a replay takes {', '.join(TABLES)} and {', '.join(KEYS)}; to train "
                f"anew: {fresh}",
                key=key,
                source=COMMAND_LINE,
            )
    inputs, before = RunInputs(loaded), RunInputs(recorded)
    _check_files(run, before, inputs)
    record = RecordedRounds.of(run, recorded.method.objective.records.table)
    if not record.rounds:
        raise ScenarioError(f"{folder}: there is nothing to replay before the first round has ended")
    is_same = loaded.scenario.fleet.carbon == recorded.scenario.fleet.carbon
    carbon = run.carbon if is_same else intensity(loaded.scenario.fleet.carbon)
    if app is not None:
        if app.sha256 != run.app_sha256():
            raise ScenarioError(f"{app.folder}: the app has changed since the run; to run it anew: {fresh}")
        return app_replay.PreparedApp(record, loaded, app, folder, fresh, carbon)
    for rounds in (recorded.scenario.rounds, loaded.scenario.rounds):
        if rounds.is_asynchronous:
            raise ScenarioError(
                f"rounds.policy = {rounds.policy}: the order of its updates depends on times, so it cannot be "
                f"replayed; to train anew: {fresh}"
            )
    for scenario in (recorded.scenario, loaded.scenario):
        if scenario.split.is_shared:
            raise ScenarioError(
                f"split.kind = splitfed-v2: the order of its steps depends on times, so it cannot be replayed; "
                f"to train anew: {fresh}"
            )
    if not loaded.method.decides_without_updates(loaded.options):
        raise ScenarioError(
            f"{loaded.method.name}: its downloads may depend on the updates themselves, which a ledger does not keep, "
            f"so it cannot be replayed; to train anew: {fresh}"
        )
    if recorded.scenario.eval.charged:
        raise ScenarioError(
            f"eval.charged = true: the clients that are evaluated depend on times, so it cannot be replayed; to train "
            f"anew: {fresh}"
        )
    description, clients = run.description, range(recorded.scenario.data.clients)
    if len(description.samples) != len(clients) or description.data_sha256 != run.environment.data.sha256:
        raise ReportError(f"{folder / DESCRIPTION} is of other data than the run's")
    setup, made = Setup(inputs, description), Setup(before, description)
    _ = setup.fleet  # so that one that cannot be is refused first
    if reason := _other_members(made, setup):
        raise ScenarioError(f"{reason}; to train anew: {fresh}")
    target = recorded.scenario.stop.goal
    with plugin_errors.named(loaded.scenario.model_dump(), ScenarioError, loaded.name):
        _ = setup.refused
    if description.rates and any(made.rates.of_client(client) != setup.rates.of_client(client) for client in clients):
        raise ScenarioError(f"submodel.rate: clients would have other parts of the model; to train anew: {fresh}")
    was, now = before.loaded.scenario.split, loaded.scenario.split
    if was != now and (recorded.scenario.changes_steps or loaded.scenario.changes_steps):
        raise OtherVisits("split: messages change numbers, so that another cut would train others", fresh)
    return PreparedReplay(record, setup, target, fresh, carbon, was != now)


def _check_files(run: RunFolder, recorded: RunInputs, replayed: RunInputs) -> None:
    """ScenarioError for a file of the fleet that has another content than when the run was made, unless it is replaced
    by one of another name."""
    before, names = run.environment.files, recorded.scenario.fleet.file_names
    for key, sha256 in replayed.file_hashes.items():
        name = replayed.scenario.fleet.file_names.get(key)
        if name is not None and name == names.get(key) and before.get(key, sha256) != sha256:
            raise ScenarioError(
                f"{run.folder}: {key} = {name!r}: its content has changed since the run; restore it, or replay with a "
                f"file of another name: {key}=..",
                key=key,
            )


def _other_members(recorded: Setup, replayed: Setup) -> str:
    """Why aggregators might have averaged other clients than they did; empty if they did not."""
    tiers = [setup.scenario.fleet.tiers for setup in (recorded, replayed)]
    if not any(config.count for config in tiers):
        return ""
    if any(config.on_loss == "move" and config.availability.form != "always" for config in tiers):
        return "fleet.tiers.on_loss = move: which aggregator a client trains with depends on times"
    before, now = tiers
    are_as_many = (before.count, before.above.count) == (now.count, now.above.count)
    if are_as_many and np.array_equal(recorded.aggregator_of, replayed.aggregator_of):
        return ""
    return "fleet.tiers: clients would belong to other aggregators"


# --- side by side -----------------------------------------------------------------------------------------------------


def time_to(target: float | None, rows: Sequence[RoundRow], score: RunScore) -> float | None:
    """Virtual seconds until the score first reached the target; None if it did not."""
    point = accumulated(rows, better=score.better).until(target)
    return None if point is None else point.virtual_seconds


def show(result: ReplayResult, stream: IO[str] | None = None) -> None:
    """Print both side by side."""
    table = Table(show_edge=False, header_style="bold", pad_edge=False)
    table.add_column(f"{result.method}, {result.rounds} rounds", no_wrap=True)
    for name in ("recorded", "replayed"):
        table.add_column(name, justify="right")

    def add(name: str, pair: Sequence[float | None], quantity: Quantity) -> None:
        table.add_row(name, *cells(quantity, pair, missing="not reached"))

    add(VIRTUAL_SECONDS.heading, result.virtual_seconds, SECONDS)
    if result.target_accuracy is not None:
        target = named_score(result.metric).text_of_target(result.target_accuracy)
        add(f"{VIRTUAL_SECONDS.heading} to {target}", result.time_to_target_s, SECONDS)
    add("energy", result.joules, JOULES)
    if any(grams is not None for grams in result.co2e_grams):
        table.add_row(CO2E.heading, *cells(GRAMS, result.co2e_grams, missing="-"))
    for name, pair, quantity in (
        ("time, wasted", result.wasted_s, SECONDS),
        ("bytes, wasted", result.wasted_bytes, BYTES),
        ("energy, wasted", result.wasted_joules, JOULES),
    ):
        if any(pair):
            add(name, pair, quantity)
    slowest = zip(result.slowest_round, cells(SECONDS, result.slowest_round_s, missing=""), strict=True)
    table.add_row("slowest round", *(f"{number + 1}: {seconds}" for number, seconds in slowest))
    before, after = result.bottlenecks.before, result.bottlenecks.after
    for name in before:
        if before[name] or after[name]:
            table.add_row(f"rounds with bottleneck {name}", str(before[name]), str(after[name]))
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    console.print()
    console.print(table)
    if result.other_end:
        console.print(f"\nof the rounds that both have; {result.other_end}", soft_wrap=True)
    console.print()
