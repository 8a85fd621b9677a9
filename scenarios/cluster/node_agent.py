"""The node agent: a machine that joins a run elsewhere, with all its workers. It computes nothing itself.

To the run's coordinator it is one remote worker that does several tasks at a time. On its machine it is what a
coordinator is to local workers: a pool with a fork server, which replaces workers that die. Beforehand it checks that
it computes bit-identical results: with the same libraries and type of processor, and from the same data. The
coordinator can neither start nor end it, so it ends by itself: after a `Shutdown`, when the connection is refused, when
it is lost and does not come back, or by Ctrl-C, of which it tells the run.
"""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import QUIET, Pool
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.config import Job
from edge.protocol.messages import MAX_ERROR_TEXT, Error, printable
from edge.protocol.portable import PORTABLE
from edge.protocol.scratch import scratch
from edge.runtime.connection import CoordinatorConnection, Credentials, NoAnswerError
from edge.runtime.file_parts import RunEndedError, TransferError
from edge.runtime.file_transfer import fetch_files
from edge.runtime.gpu_memory import free_nbytes, gpu_workers
from edge.runtime.log import log
from edge.runtime.numerics import difference, fingerprint, lacking
from scenarios.cluster.task_forwarder import StateFiles, TaskForwarder
from scenarios.run.host import default_workers, logging_to

FINISHED, FAILED, STOPPED = 0, 3, 4
HEARTBEAT_SECONDS = 5.0
TRAINER = "edge.training.trainer:NodeTrainer"
AUTO = "auto"
REJOIN_SECONDS = 0.5
"""From a lost connection to the next."""
NOTE_SECONDS = 3.0
"""Silence of the run after which the agent says what it waits for."""
GOODBYE_SECONDS = 1.0
"""Longest wait until the coordinator has heard that the agent is stopped: whoever stops it may not wait for long."""
SHUTDOWN_SECONDS = 10.0
"""Longest wait for the coordinator's answer to an error of the start."""


class StopSignal:
    """A user's wish that the agent stops, by SIGINT or SIGTERM."""

    name = ""
    """That of the signal; '' as long as there was none."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the first, so that no message to the run breaks off; KeyboardInterrupt at the end of the context.

        The second raises it at once, for code that does not ask for `name`; all further ones are ignored.
        """
        _set_handlers(self._note)
        try:
            yield
        finally:
            _set_handlers(signal.SIG_IGN if self.name else _on_signal)
        if self.name:
            _on_signal(0, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.name:
            _on_signal(number, frame)
        self.name = signal.Signals(number).name


class JoinError(ValueError):
    """This machine cannot serve the run; the text has the reason."""


@dataclass(frozen=True)
class NodeOptions:
    workers: int | None
    """None: one per core; on GPUs as many as have memory."""
    device: str
    """As in `Job.device`, or ``auto`` for the type that the run computes on."""
    root: str | None
    """Folder of data sets, searched first."""
    cache: str
    wait_seconds: float
    """How long to wait for a run, and for one that was lost."""
    takes_sources: bool = True
    """Whether the run's own modules may be fetched, and run here."""


def join_run(endpoint: str, credentials: Credentials, options: NodeOptions) -> int:
    """Join, serve, and leave; the exit code of ``fedbr worker``.

    After a run that was joined is lost, tries to join it again: it may have been stopped, or be resumed.
    """
    _set_handlers(_on_signal)
    until, seconds, lost_why = float("-inf"), options.wait_seconds, ""
    with ExitStack() as stack:
        try:
            agent = NodeAgent(endpoint, credentials, options, stack)
            while True:
                with agent.stop_signal.noted():
                    session = agent.serve(seconds)
                if session.is_lost and session.has_joined:
                    _say(f"{endpoint}: {session.why}; trying again for {options.wait_seconds:g} s")
                    until, lost_why = time.monotonic() + options.wait_seconds, session.why
                seconds = until - time.monotonic() - REJOIN_SECONDS
                if not session.is_lost or seconds <= 0:
                    break
                time.sleep(REJOIN_SECONDS)
            _set_handlers(signal.SIG_IGN)
        except KeyboardInterrupt:
            _say("stopped")
            return STOPPED
    why = (session.is_lost and lost_why) or session.why
    _say(f"{endpoint}: {why}" if why else "the run has ended")
    return FAILED if why else FINISHED


@dataclass
class ServedConnection:
    why: str = ""
    has_joined: bool = False
    """Whether the run has answered."""
    is_lost: bool = False
    """Whether the connection was lost, or the run never answered."""


class NodeAgent:
    """A machine for one run, over as many connections as it takes."""

    def __init__(self, endpoint: str, credentials: Credentials, options: NodeOptions, stack: ExitStack) -> None:
        """``stack``: holds the fork server, which outlives a connection."""
        self._endpoint, self._credentials, self._options = endpoint, credentials, options
        self._launchers, self._path = stack.enter_context(ExitStack()), list[str]()
        self._workers = options.workers or default_workers()
        self._launcher: WorkerLauncher | None = None
        self._is_noted = False
        self.stop_signal = StopSignal()

    def serve(self, wait_seconds: float) -> ServedConnection:
        """Serve the run until its end, or until the connection is lost or a `stop_signal` comes."""
        session, lost = ServedConnection(), threading.Event()

        def on_lost(why: str) -> None:
            session.why = why
            lost.set()

        identity, heartbeat_ms = f"remote-{secrets.token_hex(8)}", round(HEARTBEAT_SECONDS * 1000)
        try:
            connection = CoordinatorConnection(
                self._endpoint, identity, heartbeat_ms, on_lost, self._credentials, wait_seconds, reuses_vectors=False
            )
        except ConnectionError as error:
            return ServedConnection(str(error))

        def is_over() -> bool:
            return lost.is_set() or bool(self.stop_signal.name)

        with closing(connection), self._goodbye(connection, session):
            try:
                self._serve(connection, session, is_over)
            except NoAnswerError:
                session.is_lost = True
                if not is_over():
                    why = unknown_host(self._endpoint) or "the run has ended, or has not begun to listen"
                    session.why = f"no answer within {wait_seconds:g} s: {why}"
            except Stopped:
                shutdown = connection.last_shutdown()  # sent just before the connection was closed
                session.is_lost = shutdown is None
                session.why = session.why if shutdown is None else shutdown.why
            except (JoinError, TransferError, PoolError, OSError) as error:
                session.why = str(error)
                connection.send(Error(type(error).__name__, str(error)[:MAX_ERROR_TEXT]))
                connection.await_shutdown(SHUTDOWN_SECONDS)
        return session

    def _serve(self, connection: CoordinatorConnection, session: ServedConnection, is_over: Callable[[], bool]) -> None:
        job = connection.welcome(self._workers, self._noting_silence(is_over))
        session.has_joined = self._is_noted = True
        _say(f"joined run {job.run_id}")
        local = localized_job(job, self._options)
        check_numerics(job, local)

        def check() -> None:
            if is_over():
                raise Stopped

        try:
            local = fetch_files(connection, local, self._options.takes_sources, _say, check)
        except RunEndedError:
            raise Stopped from None
        workers = self._options.workers or default_count(local)
        if workers < self._workers:  # the GPUs of this machine have memory for so many, perhaps for more later
            self._workers, session.is_lost = workers, True
            session.why = f"its GPUs have memory for {workers} workers, not for one per core"
            return
        if self._launcher is None or self._path != sys.path:  # it lives on, unless another run brings other modules
            self._launchers.close()
            self._path = list(sys.path)
            launcher = WorkerLauncher(instructions=local.train.instructions)
            self._launcher = self._launchers.enter_context(launcher)
        telemetry = list[str]()

        def on_event(event: HostEvent) -> None:
            if event.kind == "worker_memory":
                telemetry.append(event.detail)
            elif event.kind not in QUIET:
                _say(f"{event.kind}: {event.detail}")

        with (
            scratch() as folder,
            logging_to(folder / "agent.log"),
            Pool(local, self._workers, self._launcher, folder, on_event, is_over, TRAINER, HEARTBEAT_SECONDS) as pool,
            self._goodbye(connection, session),  # its tasks are done elsewhere while its workers end
        ):
            check_data(job, pool)
            forwarder = TaskForwarder(connection, pool, StateFiles(folder / "states"), telemetry, self._workers)
            while connection.shutdown is None:
                forwarder.turn()
        session.why = connection.shutdown.why

    @contextmanager
    def _goodbye(self, connection: CoordinatorConnection, session: ServedConnection) -> Iterator[None]:
        """At the end, tell a run that was joined if the agent is stopped: else it would take it for unreachable."""
        try:
            yield
        finally:
            if self.stop_signal.name and session.has_joined and not session.why and connection.shutdown is None:
                session.why = f"by {self.stop_signal.name}"
                connection.send(Error(Stopped.__name__, session.why))
                connection.await_shutdown(GOODBYE_SECONDS)

    def _noting_silence(self, is_lost: Callable[[], bool]) -> Callable[[], bool]:
        """``is_lost``, which is asked while the run's answer is awaited, and a line if that takes long: one only."""
        due = time.monotonic() + NOTE_SECONDS

        def check() -> bool:
            if not self._is_noted and time.monotonic() >= due:
                self._is_noted = True
                why = unknown_host(self._endpoint)
                _say(
                    f"{self._endpoint}: waiting for a run, {self._options.wait_seconds:g} s at most{why and '; ' + why}"
                )
            return is_lost()

        return check


def unknown_host(endpoint: str) -> str:
    """That the name in ``tcp://HOST:PORT`` has no address; '' if it has one."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return f"no machine is known here as {host}"
    return ""


def localized_job(job: Job, options: NodeOptions) -> Job:
    """The job with this machine's device and paths; JoinError for a device of another type."""
    kind = job.device.partition(":")[0]
    device = kind if options.device == AUTO else options.device
    if device.partition(":")[0] != kind:
        raise JoinError(f"--device {device}: the run computes on {job.device}, and other devices are not bit-identical")
    return replace(job, device=device, cache=options.cache, data=replace(job.data, root=options.root))


def check_numerics(job: Job, local: Job) -> None:
    """JoinError if this machine's results would not be those of the run's."""
    if not job.fingerprint:
        return
    instructions = job.train.instructions
    if instructions == PORTABLE and (lacks := lacking()):
        asked = "the run has train.instructions = portable"
        raise JoinError(f"{asked}, which needs an x86-64 processor with AVX2 and FMA, and {lacks}")
    change = difference(fingerprint(local.device, instructions), job.fingerprint)
    if change:
        raise JoinError(f"not bit-identical to the run's machine: {change}; fedbr run --any-machine allows it")


def check_data(job: Job, pool: Pool) -> None:
    """JoinError if the data set here is another than the run's."""
    sha256 = pool.describe()[0].data_sha256
    if sha256 != job.data_sha256:
        raise JoinError(
            f"data set {job.data.name}: this machine's is {sha256[:16]}, the run's is {job.data_sha256[:16]}"
        )


def default_count(job: Job) -> int:
    """One worker per core; on GPUs as many as have memory for a visit of the run."""
    free = free_nbytes(job.device)
    return gpu_workers(free, job.visit_nbytes, default_workers(), default_workers()) if free else default_workers()


def _set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Stop; a further signal must not interrupt the end of the fork server, which takes some seconds at most."""
    _set_handlers(signal.SIG_IGN)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    log(f"fedbr worker: {printable(text, MAX_ERROR_TEXT)}")
