"""Keepers, which a cluster's engine places on machines: of a node agent (`AgentKeeper`), and of one run of a run set
(`RunKeeper`). A keeper starts a process on its machine and passes on what that says; it never computes.

An agent outlives its keeper: if the engine starts the keeper anew while the agent still works, it finds the agent by
the name of its folder, and goes on with it. A run ends with its keeper. Its folder is made in place where this machine
sees the files of the one that asks; else in a temporary folder, and travels as an archive, once each way.
"""

from __future__ import annotations

import io
import os
import queue
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from coordinator.workers.launcher import how_ended
from edge.protocol import interpreter
from edge.protocol.files import folder_lock
from edge.protocol.portable import PORTABLE, numpy_environment
from edge.protocol.scratch import PREFIX, SUFFIX, scratch
from edge.runtime.keys import KeyPair, write_pair, write_public
from scenarios.cluster import supervisor
from scenarios.config.tables import TomlValue, value_at
from scenarios.experiment.executors import ProcessRun
from scenarios.run.child_process import ChildProcess, Message

AGENT_END_SECONDS = 2 * supervisor.GRACE_SECONDS
AGENT_START_SECONDS = 30.0
LOG_NBYTES = 1 << 16
"""Of an agent's log that are read at a time"""
RUN_PROCESS = "scenarios.experiment.run_process"
NEWS_SECONDS = 0.5
"""Longest wait for a message of a run"""
RUN_END_SECONDS = 5.0
OUTCOMES = {"ended", "failed", "stopped"}
"""The last message of a run is one of these."""


def agent_environment() -> dict[str, str]:
    """The environment of processes that are started here: modules are found where this process finds them, but not the
    engine's own copies of libraries."""
    own = ("/ray/thirdparty_files", "/ray/_private/workers")
    return dict(os.environ) | interpreter.variables([entry for entry in sys.path if not entry.endswith(own)])


# --- agents -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentOrder:
    name: str
    """Eight letters, different for each node of each run: of the folder"""
    endpoint: str
    server: bytes
    """The run's public key, in Z85"""
    pair: KeyPair = field(repr=False)
    arguments: Sequence[str] = ()
    """Further arguments of ``fedbr worker``"""


class AgentLook(NamedTuple):
    status: int | None
    """Its exit code, negative for a signal; None while it works"""
    lines: list[str]
    """Whole lines of its log since the last look"""
    pid: int | None
    """The process that supervises it"""


class AgentKeeper:
    """Starts an agent when it is made, unless one of its order works here."""

    def __init__(self, order: AgentOrder) -> None:
        self._order = order
        self._folder = Path(tempfile.gettempdir()) / f"{PREFIX}{order.name}{SUFFIX}"
        self._read_nbytes = 0
        if not self._is_locked():
            self.start()

    def start(self) -> None:
        """Start the agent, once more if it has ended. OSError if that is impossible."""
        if self._folder.exists():
            self.end()
        self._folder.mkdir(mode=0o700)
        self._read_nbytes = 0
        own = write_pair(self._order.pair, "agent", self._folder)
        run = write_public(self._order.server, "run", self._folder)
        words = ["--connect", self._order.endpoint, "--keys", str(own), "--server", str(run), *self._order.arguments]
        subprocess.run(
            interpreter.command("scenarios.cluster.supervisor", str(self._folder), *words),
            stdin=subprocess.DEVNULL,
            check=True,
            env=agent_environment(),
        )
        until = time.monotonic() + AGENT_START_SECONDS
        while self._number(supervisor.PID) is None and time.monotonic() < until:
            time.sleep(0.02)

    def look(self) -> AgentLook:
        status = self._number(supervisor.STATUS)
        if status is None and not self._is_locked():
            status = -signal.SIGKILL  # with its supervisor
        read = b""
        with suppress(FileNotFoundError), (self._folder / supervisor.LOG).open("rb") as log:
            log.seek(self._read_nbytes)
            read = log.read(LOG_NBYTES)
        whole = read[: read.rfind(b"\n") + 1] or (read if len(read) == LOG_NBYTES else b"")
        self._read_nbytes += len(whole)
        return AgentLook(status, whole.decode(errors="replace").splitlines(), self._number(supervisor.PID))

    def end(self) -> None:
        """End the agent if it works, and remove its folder."""
        pid = self._number(supervisor.PID)
        with suppress(ProcessLookupError):
            if pid is not None and self._is_locked():
                os.kill(pid, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)  # which its supervisor waits for
        until = time.monotonic() + AGENT_END_SECONDS
        with suppress(ProcessLookupError):
            while pid is not None and time.monotonic() < until:
                os.kill(pid, 0)  # raises once it is gone
                time.sleep(0.05)

    def _is_locked(self) -> bool:
        try:
            with folder_lock(self._folder):
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def _number(self, name: str) -> int | None:
        """The number in a file of the supervisor's; None if it is not there."""
        with suppress(FileNotFoundError):
            return int((self._folder / name).read_text())
        return None


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOrder:
    request: ProcessRun
    """As `scenarios.experiment.run_process` receives it, with the paths of the machine that asks"""
    token: str
    """The name of a file beside the folder of the run set, by which its files are recognized"""
    begun: bytes = b""
    """The archive of a run that is to go on, for a machine that does not see it"""


class RunNews(NamedTuple):
    """The messages of a run since the last ones."""

    messages: list[Message]
    is_over: bool
    archive: bytes = b""
    """Of the run folder, if it is over and was made elsewhere"""


class RunKeeper:
    """One run process, which ends with this one."""

    def __init__(self, order: RunOrder) -> None:
        self._exits = ExitStack()
        out, self._path = Path(order.request["out"]), Path(order.request["path"])
        self._is_elsewhere = not (self._path.parents[1] / order.token).exists()
        if self._is_elsewhere:
            below = self._path.relative_to(out)
            out = self._exits.enter_context(scratch())
            self._path = out / below
            self._path.parent.mkdir(parents=True)
            unpack(order.begun, self._path)
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._process = ChildProcess(RUN_PROCESS, env=run_environment(order.request["scenario"]))
        self._process.channel.listen(self._messages.put)
        self._process.channel.send({"run": {**order.request, "out": str(out), "path": str(self._path)}})

    def news(self) -> RunNews:
        """The next messages, after at most `NEWS_SECONDS`."""
        messages: list[Message] = []
        is_over = False
        with suppress(queue.Empty):
            while not is_over:
                message = self._messages.get(timeout=0.0 if messages else NEWS_SECONDS)
                if message is None:
                    why = f"its process {how_ended(self._process.end(RUN_END_SECONDS))}"
                    message = {"failed": why, "is_users": False}
                messages.append(message)
                is_over = not OUTCOMES.isdisjoint(message)
        if is_over:
            self._process.channel.send({"run": None})
            self._process.end(RUN_END_SECONDS)
        return RunNews(messages, is_over, packed_folder(self._path) if is_over and self._is_elsewhere else b"")

    def stop(self, why: str) -> None:
        """Have the run end with its round."""
        self._process.channel.send({"stop": why})

    def end(self) -> None:
        """End it now, and remove what was only here."""
        self._process.end(RUN_END_SECONDS)
        self._exits.close()


def run_environment(scenario: Mapping[str, TomlValue]) -> dict[str, str]:
    """The environment of a run's process: NumPy, which computes virtual times and server steps there, is limited for
    portable numerics, as in a command's own process (`scenarios.run.own_numpy`).

    ``scenario``: its resolved tables.
    """
    is_portable = value_at(scenario, "train.instructions") == PORTABLE
    return numpy_environment(agent_environment()) if is_portable else agent_environment()


def packed_folder(folder: Path) -> bytes:
    """An archive of a folder's content; empty if there is no such folder."""
    if not folder.is_dir():
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Write an archive of `packed_folder` into a folder; nothing outside of it is ever written. tarfile.TarError."""
    if not packed:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
