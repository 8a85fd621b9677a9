"""The expected duration of a study on this machine, from a few rounds of each kind of run that it has.

A kind is measured in a short run of its own in a scratch folder, with the whole engine and as many workers as the
study, so that checkpoints, messages and the cores that workers share are in it. Where a whole round takes long, its
visits are cut to a few steps and their number to one per worker, and seconds are carried over by FLOPs. Nothing of the
study itself is run or changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from coordinator.records.schema import TRAINED
from coordinator.records.store import read
from coordinator.rounds.budget import RunLimits
from coordinator.rounds.evaluation import TRAINING_PASSES
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.rounds.visit import VisitPricing
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from edge.protocol.config import CPU, Job, ModelProfile, scored_examples
from edge.protocol.payload import FORWARD, shapes
from edge.protocol.rng import keyed_generator
from edge.protocol.scratch import scratch
from edge.runtime.numerics import fingerprint
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded
from scenarios.experiment.run_set import PlannedRun, RunSet, known_folder
from scenarios.report.pages import PageTable
from scenarios.run import builder, evaluated_clients, runner
from scenarios.run.host import Host, StopFlag, choose_device, logging_to
from scenarios.run.observer import InnerRun, RunObserver
from scenarios.run.progress import TARGET
from scenarios.run.run_records import read_json
from scenarios.run.session import choose_workers
from scenarios.studies.forecast import estimate, typical_visits
from scenarios.studies.forecast.wall_time import (
    MeasuredRound,
    Pace,
    RoundWork,
    RunDuration,
    about,
    busiest,
    durations,
    left,
    pace,
    round_seconds,
    rounds_needed,
)

LONG_FLOPS = {"cpu": 5e10, "cuda": 1e14}
"""Type of device -> work of one worker in a round above which the round is cut: about half a second of a core, and
several seconds of a GPU, whose pace depends on what surrounds the steps."""
FEWEST_STEPS = 2
"""Steps of a visit that is cut"""
FEWEST_ROUNDS, MOST_ROUNDS = 4, 12
"""The first two are for warm-up; of the others, every second is evaluated."""
ENOUGH_SECONDS = 1.5
"""Measured rounds that took so long are enough."""
EVALUATED_BATCH = 50
"""Examples that each worker evaluates where an evaluation is cut"""
COHORTS = 20
"""Cohorts drawn for a typical round"""


@dataclass
class Durations:
    """Durations of runs on this machine; a kind of run is measured once."""

    host: Host
    launcher: WorkerLauncher
    stopped: Callable[[], bool]
    tell: Callable[[str], None] = lambda text: None
    """Called with a line before each measurement."""
    _profiles: dict[str, ModelProfile] = field(default_factory=dict)
    _paces: dict[Hashable, Pace] = field(default_factory=dict)

    def of(self, runs: Sequence[PlannedRun]) -> list[RunDuration]:
        """The expected duration of each run from its beginning; ScenarioError, RunFailed, PoolError, Stopped."""
        return [self._of_run(run) for run in runs]

    def _of_run(self, run: PlannedRun) -> RunDuration:
        loaded = builder.on_device(run.loaded, self.host.device)
        profile = self._profile(loaded)
        work = round_work(loaded, profile)
        short = shortened(loaded, profile, work, self.host)
        kind = kind_of(loaded, self.host.device, is_cut=short.scenario.train != loaded.scenario.train)
        if kind not in self._paces:
            self.tell(f"measuring rounds of {loaded.scenario.method} on {loaded.scenario.data.name}")
            self._paces[kind] = self._measured(short, profile)
        seconds = round_seconds(work, self._paces[kind], self.host.workers)
        return RunDuration(run.name, needed(run, profile), seconds)

    def _profile(self, loaded: Loaded) -> ModelProfile:
        job = builder.job(loaded, None, CPU, cache_folder())
        key = repr((job.data, job.model, job.wrap_model, job.variants, job.initial_models, job.by_layer))
        if key not in self._profiles:
            with (
                scratch() as logs,
                logging_to(logs / "coordinator.log"),
                runner.probe_worker(loaded, self.host.device, self.launcher, logs, self.stopped) as pool,
            ):
                self._profiles[key], _ = pool.describe(data=True)
        return self._profiles[key]

    def _measured(self, short: Loaded, profile: ModelProfile) -> Pace:
        with scratch() as folder:
            watch = (InnerRun(self.host.observers), _Watch())
            host = replace(self.host, out=folder, run_id=None, observers=watch, remote_access=None)
            summary = runner.run(short, host, self.launcher, self.stopped, stop_at_target=False)
            if self.stopped():
                raise Stopped
            rounds = measured_rounds(Path(summary["run_dir"]))
        if len(rounds) < FEWEST_ROUNDS - 2:
            reason = summary["stopped_by"]
            raise RunFailed(f"{short.name}: its duration cannot be measured: {reason} ends it within its first rounds")
        if {one.is_evaluated for one in rounds if any(one.flops)} != {False, True}:
            raise RunFailed(f"{short.name}: its duration cannot be measured: in its first rounds no visit is trained")
        return pace(rounds, self.host.workers, evaluation_flops(short, profile))


def measured_here(loaded: Loaded) -> tuple[float, int]:
    """(wall seconds of a round, workers) of a run on this machine, from a few rounds in a scratch folder.

    Errors as of `Durations.of`.
    """
    interrupt, device = StopFlag(), choose_device("auto")
    with interrupt.watching(), WorkerLauncher() as launcher:
        workers = choose_workers([loaded], device, launcher, interrupt)
        host = Host(Path(), workers, device)
        (found,) = Durations(host, launcher, interrupt).of([PlannedRun(loaded.name, loaded, {})])
    return found.seconds_per_round, workers


def foreseen(
    run_set: RunSet, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], tell: Callable[[str], None]
) -> list[RunDuration]:
    """The expected duration of each run of a run set: as its folder records it for this machine, or as measured now."""
    known = _recorded(run_set, host)
    return Durations(host, launcher, stopped, tell).of(run_set.runs) if known is None else known


def _recorded(run_set: RunSet, host: Host) -> list[RunDuration] | None:
    folder = known_folder(run_set, host.out)
    found = {} if folder is None else read_json(folder / run_set.mark)
    here = _conditions(host)
    if "estimate" not in found or {key: found["estimate"][key] for key in here} != here:
        return None
    runs = {one.name: one for one in durations(found)}
    return [runs[run.name] for run in run_set.runs] if {run.name for run in run_set.runs} <= runs.keys() else None


def _conditions(host: Host) -> dict[str, Any]:
    return {"workers": host.workers, "device": host.device, "machine": fingerprint(host.device)}


def result(run_set: RunSet, host: Host, expected: Sequence[RunDuration]) -> dict[str, Any]:
    """What ``--estimate --json`` prints: each whole run, and the seconds of the rounds that are left."""
    rest = left(run_set, host.out, host.device, expected)
    runs = [{**asdict(one), "seconds": one.seconds} for one in expected]
    return {
        "name": run_set.name,
        "estimate": {**_conditions(host), "runs": runs},
        "left": rest,
        "estimated_seconds": rest["seconds_left"],
    }


def table(found: Mapping[str, Any]) -> PageTable:
    """`result` for people."""
    estimate = found["estimate"]
    rows = [
        [run["name"], f"{run['rounds']:,}", about(run["seconds_per_round"]), about(run["seconds"])]
        for run in estimate["runs"]
    ]
    workers = f"{estimate['workers']} worker{'s' if estimate['workers'] > 1 else ''} ({estimate['device']})"
    return PageTable(
        f"about {about(found['estimated_seconds'])} left on {workers}",
        ["run", "rounds", "a round", "in all"],
        rows,
        ["Measured in a few rounds of each kind. A run that has to reach an accuracy counts with all its rounds."],
    )


class _Watch(RunObserver):
    """Ends a short run once its measured rounds are enough."""

    def __init__(self) -> None:
        self._rounds, self._began = 0, 0.0

    def on_round(self, progress: RoundFinished) -> bool:
        self._rounds += 1
        if self._rounds == FEWEST_ROUNDS - 2:
            self._began = time.monotonic()
        is_pair = self._rounds >= FEWEST_ROUNDS and self._rounds % 2 == 0
        return is_pair and time.monotonic() - self._began >= ENOUGH_SECONDS


def measured_rounds(folder: Path) -> list[MeasuredRound]:
    """The rounds of a short run without its warm-up, and without a last round that no other of its sort goes with."""
    ledger = folder / "ledger.sqlite"
    rounds = read(ledger, "SELECT round, wall_s, accuracy FROM rounds JOIN host_rounds USING (round) ORDER BY round")
    visits = read(ledger, "SELECT round, kind, flops FROM visits")
    pairs = rounds[FEWEST_ROUNDS - 2 : len(rounds) // 2 * 2]
    return [
        MeasuredRound(
            row["wall_s"],
            [one["flops"] for one in visits if one["round"] == row["round"] and one["kind"] in TRAINED],
            row["accuracy"] is not None,
        )
        for row in pairs
    ]


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


def shortened(loaded: Loaded, profile: ModelProfile, work: RoundWork, host: Host) -> Loaded:
    """The scenario of a short run of its kind: visits and evaluations are cut where they are long."""
    scenario, workers = loaded.scenario, host.workers
    long, train, rounds = LONG_FLOPS[host.device.partition(":")[0]], scenario.train, scenario.rounds
    rounds = replace(rounds, max=MOST_ROUNDS)
    visit = fmean(flops for cohort in work.cohorts for flops in cohort)
    if fmean(busiest(cohort, workers) for cohort in work.cohorts) > long:
        planned = train.plan(_typical_samples(profile)).steps
        train = replace(train, local_steps=min(planned, max(FEWEST_STEPS, int(planned * long / visit))))
        if not rounds.is_asynchronous:
            rounds = replace(rounds, participants=min(workers, rounds.participants))
    evaluation = replace(scenario.eval, every=2)
    if work.evaluation > long * workers and evaluated_on(loaded, profile) == "global":
        batch = min(EVALUATED_BATCH, evaluation.batch)
        evaluation = replace(evaluation, batch=batch, subset=min(batch * workers, _scored(loaded, profile)))
    settings = {"train": train, "rounds": rounds, "eval": evaluation, "budget": RunLimits()}
    return replace(loaded, scenario=scenario.model_copy(update=settings))


def needed(run: PlannedRun, profile: ModelProfile) -> int:
    """Rounds that the run is expected to make for its needs."""
    most = run.loaded.scenario.rounds.max
    if not run.needs or TARGET in run.needs or set(run.needs) == {"rounds"}:
        return rounds_needed(run.needs, most, {"rounds": 1.0})
    costs = estimate.estimate(run.loaded, profile)
    totals = {
        "bytes": fmean(costs["bytes"]),
        "nominal": costs["nominal_bytes"],
        "time": costs["virtual_seconds"] or 0.0,
    }
    return rounds_needed(run.needs, most, {"rounds": 1.0, **{kind: total / most for kind, total in totals.items()}})


def round_work(loaded: Loaded, profile: ModelProfile) -> RoundWork:
    """The work of typical rounds, all of whose visits count; of methods that choose, the mean over their choices."""
    flops = _flops_by_samples(loaded, profile)
    cohorts = [[flops(int(profile.samples[client])) for client in cohort] for cohort in _cohorts(loaded, profile)]
    return RoundWork(cohorts, evaluation_flops(loaded, profile), loaded.scenario.eval.every)


def _flops_by_samples(loaded: Loaded, profile: ModelProfile) -> Callable[[int], float]:
    server, last = typical_visits.server_of_zeros(loaded, profile), loaded.scenario.rounds.max - 1
    job: Job = builder.job(loaded, profile, CPU, Path())
    pricing = VisitPricing(job, loaded.method, loaded.options, profile, server.up_shapes())
    choices = server.possible_choices() or [server.download(typical_visits.ANY, last).choice]
    downloads = [(choice, shapes(server.payload(typical_visits.ANY, choice))) for choice in choices]

    @cache
    def flops(samples: int) -> float:
        return fmean(
            pricing.train(choice, down, samples, typical_visits.ANY, last).work.flops for choice, down in downloads
        )

    return flops


def _cohorts(loaded: Loaded, profile: ModelProfile) -> list[list[int]]:
    rules, clients = loaded.scenario.rounds, np.flatnonzero(profile.samples)
    visits = rules.visits_per_round if rules.is_asynchronous else min(rules.participants, len(clients))
    draws = keyed_generator(loaded.scenario.seed, "cohort", 0)
    again = visits > len(clients)
    return [draws.choice(clients, size=visits, replace=again).tolist() for _ in range(COHORTS)]


def _typical_samples(profile: ModelProfile) -> int:
    return int(np.median(profile.samples[profile.samples > 0]))


def _scored(loaded: Loaded, profile: ModelProfile) -> int:
    evaluation, batch = loaded.scenario.eval, loaded.scenario.train.batch
    return scored_examples(profile.test_count, evaluation.subset, batch if evaluation.drop_last else 1)


def evaluated_on(loaded: Loaded, profile: ModelProfile) -> str:
    """``global``, ``clients`` or ``both``."""
    return evaluated_clients.evaluation_scope(loaded, profile).on


def evaluation_flops(loaded: Loaded, profile: ModelProfile) -> float:
    """FLOPs of one evaluation, of the global model, of the clients' models or of both."""
    config, on = loaded.scenario.eval, evaluated_on(loaded, profile)
    examples = float(_scored(loaded, profile)) if on != "clients" else 0.0
    if on != "global":
        adapted = TRAINING_PASSES * config.adapt.epochs * profile.samples
        examples += float((evaluated_clients.examples_of_clients(loaded, profile) + adapted).sum())
    return examples * float(profile.flops[:, FORWARD].sum())
