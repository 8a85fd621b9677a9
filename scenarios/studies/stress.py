"""``fedbr stress``: a run at scale whose workers answer at once (`edge.training.answering`).

Selection, method, budgets, clock, coordinator, sockets, worker processes and ledger are those of any run; nothing is
trained, so that accuracies mean nothing. Data sets have fewer examples than a large fleet needs: the clients that the
scenario divides them among are repeated, with their numbers of examples and their labels. Virtual results follow from
scenario and seed, all else is this machine's. Its folder is no run folder: nobody may take it for a result.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from coordinator.rounds.run import FederatedRun, RoundFinished, RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import Stopped
from costmodel.fleet.fleet import Fleet
from costmodel.units import format_bytes, format_seconds
from edge.protocol.config import Job, ModelProfile
from edge.protocol.files import write_text
from edge.protocol.scratch import scratch
from scenarios.config import plugin_errors
from scenarios.config.errors import COMMAND_LINE, Argument, ScenarioError
from scenarios.config.load import Loaded, Source, load
from scenarios.config.tables import TomlValue
from scenarios.report import terminal
from scenarios.run import evaluated_clients, folder_files, run_problems
from scenarios.run.federation import federated_run, largest_message
from scenarios.run.host import Host, logging_to
from scenarios.run.observer import Observers, RunObserver
from scenarios.run.runner import StoppableClock, probe_worker
from scenarios.run.setup import RunInputs, Setup, on_device

ROUNDS = 5
ANSWERING = "edge.training.answering:AnsweringTrainer"
"""The task executor of the workers"""
LEDGER, RESULT, PAGE = "stress.sqlite", "stress.json", "stress.html"
"""Files of the folder of ``--out``, which is none of a run"""
STATUS = Path("/proc/self/status")
TIMED = (
    *("conditions", "first_available", "solve", "solve_if_faster", "solve_beside", "leave", "passed"),
    *("begin", "cut", "next", "advance"),
)
"""Methods of the clock whose processor time is its own"""


@dataclass(frozen=True)
class StressPlan:
    """A scenario at another scale."""

    described: Loaded
    """The scenario with the clients that its data are divided among"""
    loaded: Loaded
    """With the clients of the run, its participants and its rounds"""

    @classmethod
    def of(
        cls,
        named: Source,
        overrides: Mapping[str, TomlValue],
        clients: int | None,
        participants: int | None,
        rounds: int | None,
        origin: str = COMMAND_LINE,
    ) -> StressPlan:
        """ScenarioError for numbers that cannot be; None: as the scenario has it, and `ROUNDS` rounds.

        ``origin``: of the overrides, for messages.
        """
        described = load(named, overrides, origin=origin)
        if described.method.app is not None:
            raise ScenarioError(f"{described.name}: stress has workers that answer at once, and no Flower app")
        scenario = described.scenario
        clients, participants = clients or scenario.data.clients, participants or scenario.rounds.participants
        if participants > clients:
            why = f": must be at most the number of clients, {clients}, not {participants}"
            raise ScenarioError(Argument("participants"), why)
        scale = {"data.clients": clients, "rounds.participants": participants, "rounds.max": rounds or ROUNDS}
        return cls(described, load(named, {**overrides, **scale}, origin=origin))


@dataclass(frozen=True)
class StressRound:
    """One round, and the host's state at its end."""

    wall_seconds: float
    visits: int
    """Visits whose updates counted"""
    nbytes_sent: int
    """On the sockets, by the coordinator"""
    nbytes_received: int
    coordinator_cpu_seconds: float
    clock_cpu_seconds: float
    """The part of these that the clock took"""
    workers_cpu_seconds: float
    resident_nbytes: int
    """Memory of the coordinator"""
    descriptors: int
    """Open in the coordinator"""
    virtual_seconds: float


@dataclass(frozen=True)
class StressResult:
    """The numbers of ``stress --json``; rates are those of all rounds but the first, in which workers are new."""

    scenario: str
    method: str
    policy: str
    seed: int
    clients: int
    described_clients: int
    """Clients that the data are divided among, and that are repeated"""
    participants: int
    workers: int
    rounds: int
    stopped_by: str
    virtual_seconds: float
    visits: int
    wall_seconds: float
    """From the description of the data to the last commit"""
    setup_seconds: float
    """The part of it before the first round"""
    visits_per_second: float
    nbytes_per_second: float
    """On the sockets, both directions"""
    coordinator_cpu_seconds_per_visit: float
    workers_cpu_seconds_per_visit: float
    clock_share: float
    """Of the coordinator's processor time"""
    growth_nbytes: int
    """Peak of the coordinator's memory above that before the fleet was drawn"""
    growth_nbytes_per_client: float
    worker_pss_nbytes: float
    """Proportional set size of a worker at the end: pages that several share count in part"""
    worker_private_nbytes: float
    descriptors: int
    """Open in the coordinator at the end"""
    by_round: Sequence[StressRound]


@dataclass(frozen=True, eq=False)
class StressSetup(Setup):
    """The setup of a run whose workers answer at once, and know the clients of the data alone."""

    described: Job = field(kw_only=True)

    @cached_property
    def job(self) -> Job:
        """The job of every worker."""
        return replace(super().job, data=self.described.data, is_untrained=True)


def repeated(description: ModelProfile, clients: int) -> ModelProfile:
    """The description of so many clients: those of the data in turn."""
    return replace(
        description,
        samples=np.resize(description.samples, clients),
        histogram=np.resize(description.histogram, (clients, description.histogram.shape[1])),
        test_samples=np.resize(description.test_samples, clients),
        validation_samples=np.resize(description.validation_samples, clients),
    )


class TimedClock(StoppableClock):
    """A clock that adds up its own processor time."""

    def __init__(self, fleet: Fleet) -> None:
        self.cpu_seconds = 0.0
        self._is_timed = False
        super().__init__(fleet)
        for name in TIMED:
            setattr(self, name, self.timed(getattr(self, name)))

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the clock's, whose calls within are not counted twice."""

        @wraps(method)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if self._is_timed:
                return method(*args, **kwargs)
            self._is_timed, begun = True, time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self._is_timed = False
                self.cpu_seconds += time.thread_time() - begun

        return compute

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        """As of the clock's."""
        test = super().is_there
        return None if test is None else self.timed(test)


class HostWatch(RunObserver):
    """The host's state at the end of each round, without what it costs to look."""

    def __init__(self) -> None:
        self.rounds: list[StressRound] = []
        self._process = psutil.Process()
        self._children: list[psutil.Process] = []
        self._is_known = False
        self._own = 0.0

    def open(self, pool: Pool, clock: TimedClock) -> None:
        """The first round begins."""
        self._pool, self._clock, self._virtual = pool, clock, 0.0
        self._last = self._look()

    def on_event(self, event: HostEvent) -> None:
        """A worker has come or gone."""
        self._is_known = False

    def on_round(self, progress: RoundFinished) -> None:
        """Take note of a round."""
        before, self._last = self._last, self._look()
        spent = (after - old for old, after in zip(before, self._last, strict=True))
        seconds, sent, received, cpu, clock, workers = spent
        end = float(progress.row.end_s)
        virtual, self._virtual = end - self._virtual, end
        resident, descriptors = self._process.memory_info().rss, self._process.num_fds()
        amounts = (cpu, clock, workers, resident, descriptors, virtual)
        self.rounds.append(StressRound(seconds, progress.row.participants, int(sent), int(received), *amounts))

    def _look(self) -> tuple[float, ...]:
        """(wall seconds, bytes sent, bytes received, CPU seconds of coordinator, clock and workers) so far."""
        now = time.perf_counter(), *self._pool.physical_bytes, time.process_time() - self._own, self._clock.cpu_seconds
        begun = time.thread_time()
        if not self._is_known:
            self._children, self._is_known = self._process.children(recursive=True), True
        cpu = 0.0
        for child in self._children:
            with contextlib.suppress(psutil.Error):  # it has just ended
                times = child.cpu_times()
                cpu += times.user + times.system
        self._own += time.thread_time() - begun
        return *now, cpu

    def worker_nbytes(self) -> tuple[float, float]:
        """(proportional set size, private memory) of a worker, in the mean."""
        sizes = []
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.ppid() != self._process.pid:  # that is the fork server
                    memory = child.memory_full_info()
                    sizes.append((getattr(memory, "pss", memory.rss), memory.uss))
        pss, private = np.mean(sizes or [(0.0, 0.0)], axis=0).tolist()
        return pss, private


class ResidentMemory:
    """The memory of this process as the system sees it: its peak above what was resident at the beginning.

    The system's record of the peak is read and never reset, so that ``time`` and a batch system read the true one.
    A process that has had a higher peak before hides one that is lower: it tells what is resident then. Memory that was
    free within the process at the beginning is used again unseen. So a process of its own shows most.
    """

    def __init__(self) -> None:
        self._before = psutil.Process().memory_info().rss
        self._peak_before = self._peak()
        self._growth = 0

    def peak_bytes(self) -> int:
        """Largest growth since the beginning."""
        peak = self._peak()
        if peak <= self._peak_before:
            peak = psutil.Process().memory_info().rss
        self._growth = max(peak - self._before, self._growth)
        return self._growth

    def _peak(self) -> int:
        if STATUS.exists():
            for line in STATUS.read_text().splitlines():
                name, _, amount = line.partition(":")
                if name == "VmHWM":
                    return 1024 * int(amount.split()[0])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def stress(
    plan: StressPlan, out: Path | None, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> StressResult:
    """Make the run, in the new or empty folder ``out`` or in one that is removed.

    ScenarioError, RunFailed and Stopped as of `scenarios.run.runner.run`.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch()) if out is None else out
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise ScenarioError(Argument("out"), f": {out}: is not empty; name a new folder")
        for name in folder_files.MADE:
            (folder / name).mkdir()
        stack.enter_context(run_problems.named(folder))
        stack.enter_context(logging_to(folder / folder_files.LOGS / "coordinator.log"))
        result = _made(plan, folder, host, launcher, stopped)
        if out is not None:
            write_text(folder / RESULT, json.dumps(asdict(result), indent=1))
        return result


def _made(
    plan: StressPlan, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> StressResult:
    started, watch = time.perf_counter(), HostWatch()
    described, inputs = (
        RunInputs(on_device(loaded, host.device), host.device) for loaded in (plan.described, plan.loaded)
    )
    observers = Observers([*host.observers, watch], stopped)
    loaded, scenario = inputs.loaded, inputs.scenario
    observers.on_start(folder, loaded)
    logs = folder / folder_files.LOGS
    with probe_worker(described, launcher, logs, observers) as probe:
        profile, initial = probe.describe(True)
    memory = ResidentMemory()
    setup = StressSetup(inputs, repeated(profile, scenario.data.clients), described=described.job)
    evaluated_clients.check_validation(setup)
    refused = setup.refused
    for note in (*run_problems.notes(setup), *run_problems.foreseen(setup, host.device)):
        observers.on_note(note)
    table, chain = loaded.method.objective.records.table, inputs.genesis(setup.description.data_sha256)
    with contextlib.closing(Ledger(folder / LEDGER, chain, table, scenario.checkpoints)) as ledger:

        def on_event(event: HostEvent) -> None:
            ledger.event(event)
            observers.on_event(event)

        server = setup.server(initial, folder)
        most = largest_message(setup, server)
        pool = Pool(setup.job, host.workers, launcher, logs, on_event, observers, ANSWERING, most_nbytes=most)
        with pool, plugin_errors.named(scenario.model_dump(), RunFailed):
            clock = TimedClock(setup.fleet)
            parts = (setup, server, clock, pool, ledger, observers)
            run, _ = federated_run(*parts, refused=refused, stop_at_target=False)
            _ = run.candidates
            setup_seconds = time.perf_counter() - started
            watch.open(pool, clock)
            stopped_by = None
            with contextlib.suppress(Stopped):
                stopped_by = run_rounds(run)
            if not watch.rounds:
                raise Stopped
            sizes = watch.worker_nbytes()
    wall = time.perf_counter() - started
    growth = memory.peak_bytes()
    observers.on_end(None)
    ended_by = stopped_by or host.stopped_by()
    return _result(plan, run, watch.rounds, host.workers, ended_by, wall, setup_seconds, growth, sizes)


def _result(
    plan: StressPlan,
    run: FederatedRun,
    rounds: Sequence[StressRound],
    workers: int,
    stopped_by: str,
    wall_seconds: float,
    setup_seconds: float,
    growth: int,
    worker_nbytes: tuple[float, float],
) -> StressResult:
    scenario = plan.loaded.scenario
    warm = rounds[1:] or rounds

    def total(name: str, of: Sequence[StressRound] = warm) -> float:
        return float(sum(getattr(each, name) for each in of))

    seconds, visits, cpu = total("wall_seconds"), max(total("visits"), 1), total("coordinator_cpu_seconds")
    return StressResult(
        scenario=plan.loaded.name,
        method=scenario.method,
        policy=scenario.rounds.policy,
        seed=scenario.seed,
        clients=scenario.data.clients,
        described_clients=plan.described.scenario.data.clients,
        participants=scenario.rounds.participants,
        workers=workers,
        rounds=run.committed.rounds,
        stopped_by=stopped_by,
        virtual_seconds=run.committed.virtual_seconds,
        visits=int(total("visits", rounds)),
        wall_seconds=wall_seconds,
        setup_seconds=setup_seconds,
        visits_per_second=total("visits") / seconds,
        nbytes_per_second=(total("nbytes_sent") + total("nbytes_received")) / seconds,
        coordinator_cpu_seconds_per_visit=cpu / visits,
        workers_cpu_seconds_per_visit=total("workers_cpu_seconds") / visits,
        clock_share=total("clock_cpu_seconds") / cpu if cpu else 0.0,
        growth_nbytes=growth,
        growth_nbytes_per_client=growth / scenario.data.clients,
        worker_pss_nbytes=worker_nbytes[0],
        worker_private_nbytes=worker_nbytes[1],
        descriptors=rounds[-1].descriptors,
        by_round=rounds,
    )


# --- output -----------------------------------------------------------------------------------------------------------


def show(result: StressResult, page: Path | None, stream: IO[str] | None = None) -> None:
    """Print the summary."""
    terminal.print_facts([*rows(result), *([("page", str(page))] if page else [])], stream, width=100)


def rows(result: StressResult) -> Iterator[tuple[str, str]]:
    """(name, text) of the summary."""
    repeats = f", those of {result.described_clients:,} repeated" if result.clients > result.described_clients else ""
    yield "fleet", f"{result.clients:,} clients{repeats}, {result.participants:,} a round, policy {result.policy}"
    virtual = format_seconds(result.virtual_seconds)
    yield "rounds", f"{result.rounds:,} of {result.method}, {result.visits:,} visits, {virtual} of virtual time"
    setup = format_seconds(result.setup_seconds)
    yield "wall time", f"{format_seconds(result.wall_seconds)}, {setup} of it before the first round"
    rate = f"{result.visits_per_second:,.0f} visits a second, {format_bytes(result.nbytes_per_second)} a second"
    yield "rate", f"{rate} over the sockets, {result.workers} workers"
    cpu, others = (
        f"{1e3 * seconds:.3g} ms"
        for seconds in (result.coordinator_cpu_seconds_per_visit, result.workers_cpu_seconds_per_visit)
    )
    yield "CPU a visit", f"{cpu} of the coordinator, {result.clock_share:.0%} of it the clock's; {others} of workers"
    growth = f"{format_bytes(result.growth_nbytes)} more, {result.growth_nbytes_per_client:,.0f} B per client"
    private, pss = (format_bytes(nbytes) for nbytes in (result.worker_private_nbytes, result.worker_pss_nbytes))
    yield "memory", f"coordinator: {growth}; each worker: {pss} (PSS), {private} of it its own"
    yield "descriptors", f"{result.descriptors} open"


PANELS: Mapping[str, tuple[str, Callable[[StressRound], float]]] = {
    "visits a second": ("1/s", lambda each: each.visits / each.wall_seconds),
    "bytes a second on the sockets": (
        "MB/s",
        lambda each: (each.nbytes_sent + each.nbytes_received) / each.wall_seconds / 1e6,
    ),
    "coordinator's CPU a visit": ("ms", lambda each: 1e3 * each.coordinator_cpu_seconds / max(each.visits, 1)),
    "clock's share of it": ("%", lambda each: 100 * each.clock_cpu_seconds / (each.coordinator_cpu_seconds or 1)),
    "workers' CPU a visit": ("ms", lambda each: 1e3 * each.workers_cpu_seconds / max(each.visits, 1)),
    "coordinator's memory": ("MB", lambda each: each.resident_nbytes / 1e6),
    "open descriptors": ("", lambda each: each.descriptors),
    "virtual time of the round": ("s", lambda each: each.virtual_seconds),
}
"""Title of a plot over rounds -> (unit, its value)"""


def write_page(result: StressResult, folder: Path) -> Path:
    """Write the page with a plot of each number over rounds."""
    from scenarios.report import html, html_figures

    page = folder / PAGE
    drawn = html_figures.inline("rounds", partial(_figure, result.by_round))
    caption = "Each round; in the first one, workers and caches are new."
    sentence = "The coordinator, its sockets, ledger and clock are real; workers answer without training."
    answer = html.ExperimentAnswer(sentence, dict(rows(result)), [("rounds", drawn, caption)])
    return html.write_experiment(page, f"stress: {result.scenario}", answer, ())


def _figure(rounds: Sequence[StressRound]) -> Any:
    from matplotlib.figure import Figure

    from scenarios.report.plot_style import PIXELS_PER_INCH, WIDTH_PIXELS, over_rounds, wide_title

    columns = 2
    lines = -(-len(PANELS) // columns)
    figure = Figure(figsize=(WIDTH_PIXELS / PIXELS_PER_INCH, lines * 180 / PIXELS_PER_INCH))
    numbers = range(1, len(rounds) + 1)
    for axes, (title, (unit, value)) in zip(figure.subplots(lines, columns).flatten(), PANELS.items(), strict=True):
        axes.plot(numbers, [value(each) for each in rounds], marker="." if len(rounds) < 60 else "", label=title)
        axes.set_title(wide_title(title, columns))
        over_rounds(axes, ylabel=unit)
        axes.set_ylim(0, None)
    return figure
