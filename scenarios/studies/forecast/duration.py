"""The expected duration of a study on this machine, from a few rounds of each kind of run that it has.

A kind is measured in a short run of its own in a scratch folder, with the whole engine and as many workers as the
study, so that checkpoints, messages and the cores that workers share are in it. Where a whole round takes long, its
visits are cut to a few steps and their number to one per worker, and seconds are carried over by FLOPs. Nothing of the
study itself is run or changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec import Struct
from msgspec.structs import replace as replace_fields

from coordinator.rounds import amounts
from coordinator.rounds.budget import BYTES, SECONDS, RunLimits
from coordinator.rounds.evaluation import TRAINING_PASSES
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.rounds.tier_schedule import TierSchedule
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from costmodel.units import format_bytes, format_seconds
from edge.protocol.config import CPU, scored_examples
from edge.protocol.payload import FORWARD
from edge.protocol.scratch import scratch
from edge.runtime.numerics import fingerprint
from scenarios.config.load import Loaded
from scenarios.experiment.run_set import PlannedRun, RunSet, known_folder, pending
from scenarios.report.tables import Table, of_texts
from scenarios.run import evaluated_clients, runner
from scenarios.run.host import Host, StopFlag, choose_device
from scenarios.run.observer import InnerRun, RunObserver
from scenarios.run.progress import TARGET
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import read_json
from scenarios.run.session import choose_workers
from scenarios.run.setup import Setup, on_device
from scenarios.studies.forecast.forecast import NOMINAL, PlayedRounds, median_samples
from scenarios.studies.forecast.pace import (
    Pace,
    RoundWork,
    busiest,
    earlier_run,
    pace_keys,
    read_rounds,
    seconds_per_round,
)
from scenarios.studies.forecast.profiles import Profiles

LONG_FLOPS = {"cpu": 5e10, "cuda": 1e14}
"""Type of device -> work of one worker in a round above which the round is cut: about half a second of a core, and
several seconds of a GPU, whose pace depends on what surrounds the steps."""
FEWEST_STEPS = 2
"""Steps of a visit that is cut"""
WARM_UP_ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 2, 4, 12
"""Rounds of a short run; after its warm-up, every second one is evaluated."""
ENOUGH_SECONDS = 1.5
"""Measured rounds that took so long are enough."""
EVALUATED_BATCH = 50
"""Examples that each worker evaluates where an evaluation is cut"""


@dataclass(frozen=True)
class RunDuration:
    """How long a run of a study is expected to take."""

    name: str
    rounds: int
    """For its needs; as many as the run may have, if it has to reach an accuracy."""
    seconds_per_round: float
    nbytes: float = 0.0
    """Bytes of messages of clients, in all of these rounds; the mean of the least and the most"""

    @property
    def seconds(self) -> float:
        return self.rounds * self.seconds_per_round


@dataclass
class Durations:
    """Durations of runs on this machine; a kind of run is measured once."""

    host: Host
    launcher: WorkerLauncher
    stopped: Callable[[], bool]
    tell: Callable[[str], None] = lambda text: None
    """Called with a line before each measurement."""
    _paces: dict[Hashable, Pace] = field(default_factory=dict)

    def of(self, run: PlannedRun) -> RunDuration:
        """The expected duration of a run from its beginning; ScenarioError, RunFailed, PoolError, Stopped."""
        loaded = on_device(run.loaded, self.host.device)
        played = PlayedRounds(Setup.of(loaded, self._profiles.of(loaded)))
        work = round_work(played)
        short = short_scenario(played.setup, work, self.host)
        kind = kind_of(loaded, self.host.device, is_cut=short.scenario.train != loaded.scenario.train)
        if kind not in self._paces:
            self.tell(f"measuring rounds of {loaded.scenario.method} on {loaded.scenario.data.name}")
            self._paces[kind] = self._measured(Setup.of(short, played.setup.description, self.host.device))
        rounds = expected_rounds(run, played)
        seconds = self._paces[kind].round_seconds(work, self.host.workers)
        return RunDuration(run.name, rounds, seconds, played.until(rounds).get(BYTES, 0.0))

    @cached_property
    def _profiles(self) -> Profiles:
        return Profiles(self.host.device, self.launcher, self.stopped)

    def _measured(self, setup: Setup) -> Pace:
        """The pace of a short run, which ends as soon as its rounds are enough."""
        short = setup.loaded
        with scratch() as folder:
            observers = (InnerRun(self.host.observers), EnoughRounds())
            host = replace(self.host, out=folder, run_id=None, observers=observers, remote_access=None)
            summary = runner.run(short, host, self.launcher, self.stopped, stop_at_target=False)
            if self.stopped():
                raise Stopped
            made = read_rounds(Path(summary["run_dir"]), with_flops=True)
        # A last round that no other of its sort goes with is left out, too.
        pairs = made[WARM_UP_ROUNDS : len(made) // 2 * 2]
        if len(pairs) < FEWEST_ROUNDS - WARM_UP_ROUNDS:
            reason = summary["stopped_by"]
            raise RunFailed(f"{short.name}: its duration cannot be measured: {reason} ends it within its first rounds")
        if {pair.is_evaluated for pair in pairs if any(pair.flops)} != {False, True}:
            raise RunFailed(f"{short.name}: its duration cannot be measured: in its first rounds no visit is trained")
        return Pace.of(pairs, self.host.workers, evaluation_flops(setup))


def measure_here(loaded: Loaded) -> tuple[float, int]:
    """(wall seconds of a round, workers) of a run on this machine, from a few rounds in a scratch folder.

    Errors as of `Durations.of`.
    """
    interrupt, device = StopFlag(), choose_device("auto", [loaded])
    with interrupt.watching(), WorkerLauncher(instructions=loaded.scenario.train.instructions) as launcher:
        workers = choose_workers([loaded], device, launcher, interrupt)
        durations = Durations(Host(Path(), workers, device), launcher, interrupt)
        return durations.of(PlannedRun(loaded.name, loaded, {})).seconds_per_round, workers


class EnoughRounds(RunObserver):
    """Ends a short run once its measured rounds are enough."""

    def __init__(self) -> None:
        self._rounds, self._began = 0, 0.0

    def on_round(self, progress: RoundFinished) -> bool:
        self._rounds += 1
        if self._rounds == WARM_UP_ROUNDS:
            self._began = time.monotonic()
        is_pair = self._rounds >= FEWEST_ROUNDS and self._rounds % 2 == 0
        return is_pair and time.monotonic() - self._began >= ENOUGH_SECONDS


# --- a short run ------------------------------------------------------------------------------------------------------


def kind_of(loaded: Loaded, device: str, is_cut: bool) -> Hashable:
    """Runs of one kind have the same pace.

    On a CPU, long steps take time by their FLOPs whatever the images and batches are. Otherwise the pace depends on
    the length of visits, too.
    """
    scenario = loaded.scenario
    model = (device, scenario.method, repr(scenario.model), scenario.train.precision, scenario.train.memory_format)
    if is_cut and device == CPU:
        return model
    train = replace(scenario.train, lr=1.0)
    options = sorted(scenario.method_options.items()), scenario.server, sorted(scenario.server_options.items())
    data = scenario.data.name, scenario.data.clients, repr(scenario.data.partition)
    return (*model, repr((train, options, data, scenario.rounds, scenario.eval, scenario.fleet)))


def short_scenario(setup: Setup, work: RoundWork, host: Host) -> Loaded:
    """The scenario of a short run of its kind: visits and evaluations are cut where they are long."""
    loaded, workers = setup.loaded, host.workers
    scenario, train, long = loaded.scenario, loaded.scenario.train, LONG_FLOPS[host.device.partition(":")[0]]
    rounds = replace(scenario.rounds, max=MOST_ROUNDS)
    visit = fmean(flops for cohort in work.cohorts for flops in cohort)
    if fmean(busiest(cohort, workers) for cohort in work.cohorts) > long:
        train = train.of_typical_visit()
        planned = train.plan(median_samples(setup)).steps
        train = replace(train, local_steps=min(planned, max(FEWEST_STEPS, int(planned * long / visit))))
        if not rounds.is_asynchronous:
            rounds = replace(rounds, participants=min(workers, rounds.participants))
    evaluation = replace(scenario.eval, every=2)
    is_global = evaluated_clients.evaluation_scope(setup).on == "global"
    if work.evaluation > long * workers and is_global:
        batch = min(EVALUATED_BATCH, evaluation.batch)
        evaluation = replace(evaluation, batch=batch, subset=min(batch * workers, _scored(setup)))
    # With aggregators the model is evaluated after steps of the server alone, here after each round.
    tiers = replace(TierSchedule(), participants=scenario.tiers.participants)
    settings = {"train": train, "rounds": rounds, "tiers": tiers, "eval": evaluation, "budget": RunLimits()}
    return replace(loaded, scenario=scenario.model_copy(update=settings))


def round_work(played: PlayedRounds) -> RoundWork:
    """The work of the rounds that were played; of one visit, where none of their visits counts."""
    cohorts = [[visit.work.flops for visit in round.visits] for round in played.rounds]
    cohorts = [cohort for cohort in cohorts if cohort]
    if not cohorts:
        run = played.run.run
        cohorts = [[run.prepare(client, 0).work.flops] for client in run.candidates[:1]]
    return RoundWork(cohorts, evaluation_flops(played.setup), played.setup.scenario.eval.every)


def evaluation_flops(setup: Setup) -> float:
    """FLOPs of one evaluation, of the global model, of the clients' models or of both; with aggregators, the mean."""
    loaded, profile, config = setup.loaded, setup.description, setup.scenario.eval
    on = evaluated_clients.evaluation_scope(setup).on
    examples = float(_scored(setup)) if on != "clients" else 0.0
    if config.aggregators:  # of those that have models of their own, in the share of rounds in which they do
        cycle = loaded.scenario.tiers.cycle
        examples *= 1 + loaded.scenario.fleet.tiers.count * (1 - 1 / cycle if cycle else 1)
    if on != "global":
        adapted = TRAINING_PASSES * config.adapt.epochs * profile.samples
        examples += float((evaluated_clients.examples_of_clients(setup) + adapted).sum())
    return examples * float(profile.flops[:, FORWARD].sum())


def _scored(setup: Setup) -> int:
    """Test examples of one evaluation of the global model."""
    evaluation, batch = setup.scenario.eval, setup.scenario.train.batch
    return scored_examples(setup.description.test_count, evaluation.subset, batch if evaluation.drop_last else 1)


# --- rounds that a run needs ------------------------------------------------------------------------------------------


def expected_rounds(run: PlannedRun, played: PlayedRounds) -> int:
    """Rounds that the run is expected to make for its needs."""
    most, pace = run.loaded.scenario.rounds.max, played.pace
    spent = {"bytes": pace.get(BYTES, 0.0), "nominal": pace.get(NOMINAL, 0.0), "time": pace.get(SECONDS, 0.0)}
    return rounds_needed(run.needs, most, {"rounds": 1.0, **spent})


def rounds_needed(needs: Mapping[str, float], most: int, spent: Mapping[str, float]) -> int:
    """Rounds until the needs of a run are met, at most ``most``; ``spent``: what one round takes of each kind.

    It is not foreseen when an accuracy is reached: a run that needs one counts with ``most`` rounds.
    """
    if not needs or TARGET in needs or any(spent.get(kind, 0.0) <= 0 for kind in needs):
        return most
    return min(most, max(math.ceil(need / spent[kind]) for kind, need in needs.items()))


# --- a run set --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunsLeft:
    runs_ended: int
    runs: int
    rounds_done: int
    rounds_left: int
    """At most"""
    seconds_left: float | None
    """Wall seconds; None if no round has been made or foreseen"""

    def __str__(self) -> str:
        text = f"{self.runs_ended} of {self.runs} runs ended, {self.rounds_done:,} rounds done, "
        text += f"at most {self.rounds_left:,} left"
        return text if self.seconds_left is None else f"{text}; about {about(self.seconds_left)} left"


def runs_left(run_set: RunSet, out: Path, device: str, expected: Sequence[RunDuration] = ()) -> RunsLeft:
    """How far a run set is, and how long the rest takes.

    A run goes on at its own pace so far; one that has not begun at the expected pace, or at the mean pace of others.
    """
    durations, folder = {run_duration.name: run_duration for run_duration in expected}, known_folder(run_set, out)
    unfinished = {run.name for run in (run_set.runs if folder is None else pending(run_set, out, device))}
    rounds_done, rests = 0, list[tuple[int, float | None]]()  # (rounds left, seconds per round) of each run
    for run in run_set.runs:
        most, duration = run.loaded.scenario.rounds.max, durations.get(run.name)
        made = [] if folder is None else read_rounds(folder / run.name)
        if folder is None or not made:
            rests.append((most, None) if duration is None else (duration.rounds, duration.seconds_per_round))
            continue
        points = RunFolder(folder / run.name).trail
        spent = {amount.kind: amount.at(points[-1]) / len(points) for amount in amounts.of("clients")}
        rest = max(0, rounds_needed(run.needs, most, spent) - len(points)) if run.name in unfinished else 0
        rests.append((rest, seconds_per_round(made)))
        rounds_done += len(points)
    paces = [seconds for _, seconds in rests if seconds is not None]
    rounds_left = sum(rounds for rounds, _ in rests)
    seconds_left: float | None = None if rounds_left else 0
    if paces:
        seconds_left = sum(rounds * (fmean(paces) if seconds is None else seconds) for rounds, seconds in rests)
    return RunsLeft(len(run_set.runs) - len(unfinished), len(run_set.runs), rounds_done, rounds_left, seconds_left)


def forecast(
    run_set: RunSet, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], tell: Callable[[str], None]
) -> list[RunDuration]:
    """The expected duration of each run of a run set: as its folder records it for this machine, or as measured now."""
    folder = known_folder(run_set, host.out)
    earlier = None if folder is None else msgspec.convert(read_json(folder / run_set.mark), _Recorded).estimate
    if earlier is not None and replace_fields(earlier, runs=[]) == _conditions(host):
        recorded = {duration.name: duration for duration in earlier.durations}
        if {run.name for run in run_set.runs} <= recorded.keys():
            return [recorded[run.name] for run in run_set.runs]
    return list(map(Durations(host, launcher, stopped, tell).of, run_set.runs))


class EstimatedRun(Struct, frozen=True):
    """A whole run, as `RunDuration`."""

    name: str
    rounds: int
    seconds_per_round: float
    nbytes: float
    seconds: float


class Estimate(Struct, frozen=True):
    """The expected duration of whole runs, and the conditions that it depends on beside the run set."""

    workers: int
    device: str
    machine: dict[str, str]
    runs: list[EstimatedRun]

    @property
    def durations(self) -> list[RunDuration]:
        """Those of its runs."""
        return [RunDuration(run.name, run.rounds, run.seconds_per_round, run.nbytes) for run in self.runs]


class _Recorded(Struct, frozen=True):
    """The file of a study's result."""

    estimate: Estimate | None = None


class StudyDuration(Struct, frozen=True):
    """The result that ``--estimate --json`` prints."""

    name: str
    estimate: Estimate
    left: RunsLeft
    estimated_seconds: float | None
    """Of the rounds that are left"""


def _conditions(host: Host) -> Estimate:
    """The estimate without its runs."""
    return Estimate(host.workers, host.device, fingerprint(host.device), [])


def result(run_set: RunSet, host: Host, expected: Sequence[RunDuration]) -> StudyDuration:
    """The result for a run set whose runs are expected to take so long."""
    rest = runs_left(run_set, host.out, host.device, expected)
    runs = [EstimatedRun(one.name, one.rounds, one.seconds_per_round, one.nbytes, one.seconds) for one in expected]
    return StudyDuration(run_set.name, replace_fields(_conditions(host), runs=runs), rest, rest.seconds_left)


def table(result: StudyDuration) -> Table:
    """`result` for people."""
    estimate = result.estimate
    rows = [
        [run.name, f"{run.rounds:,}", about(run.seconds_per_round), about(run.seconds), format_bytes(run.nbytes)]
        for run in estimate.runs
    ]
    workers = f"{estimate.workers} worker{'s' if estimate.workers > 1 else ''} ({estimate.device})"
    left = "an unknown time" if result.estimated_seconds is None else about(result.estimated_seconds)
    return of_texts(
        f"{len(rows)} runs, about {left} left on {workers}",
        ["run", "rounds", "a round", "in all", "bytes"],
        rows,
        ["Measured in a few rounds of each kind. A run that has to reach an accuracy counts with all its rounds."],
    )


MOST_LOOKED_UP = 8
"""Kinds of run of which an earlier one is looked for"""


def announced(runs: Sequence[PlannedRun], out: Path, device: str) -> str:
    """How many runs begin, and about how long they take by earlier ones in ``out``, in words."""
    rounds = sum(run.loaded.scenario.rounds.max for run in runs)
    text = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, at most {rounds:,} rounds"
    kinds: dict[Hashable, list[PlannedRun]] = {}
    for run in runs:
        kinds.setdefault(repr(pace_keys(run.loaded, device)), []).append(run)
    known, seconds = 0, 0.0
    for alike in list(kinds.values())[:MOST_LOOKED_UP]:
        if (earlier := earlier_run(alike[0].loaded, out, device)) is not None:
            count = sum(run.loaded.scenario.rounds.max for run in alike)
            known, seconds = known + count, seconds + count * earlier.seconds_per_round
    if not known:
        return f"{text}; the duration is known after the first, and --estimate measures it"
    return f"{text}; about {about(seconds * rounds / known)} here at the pace of earlier runs in {out}"


def about(seconds: float) -> str:
    """A duration with two digits: ``41 d``, ``3.2 h``."""
    number, unit = format_seconds(seconds).split()
    return f"{float(number):.0f} {unit}" if float(number) >= 10 else f"{float(number):.2g} {unit}"
