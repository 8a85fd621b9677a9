"""The keeper of one machine's node agent, which a cluster's engine places there: starts the agent, and says how it is.

It never computes. If the engine starts it anew while its agent still works, it finds the agent by the name of its
folder, and goes on with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from edge.protocol.files import folder_lock
from edge.protocol.scratch import PREFIX, SUFFIX
from edge.runtime.keys import KeyPair, write_pair, write_public
from scenarios.cluster import supervisor

END_SECONDS = 2 * supervisor.GRACE_SECONDS
START_SECONDS = 30.0
LOG_NBYTES = 1 << 16
"""Of an agent's log that are read at a time."""


@dataclass(frozen=True)
class AgentOrder:
    """How a node's agent is started."""

    name: str
    """Eight letters, different for each node of each run: of the folder."""
    endpoint: str
    server: bytes
    """The run's public key, in Z85."""
    pair: KeyPair = field(repr=False)
    """The agent's own."""
    arguments: Sequence[str] = ()
    """Further arguments of ``fedbr worker``."""


class AgentLook(NamedTuple):
    """How an agent is."""

    status: int | None
    """Its exit code, negative for a signal; None while it works."""
    lines: list[str]
    """Of its log since the last look."""
    pid: int | None
    """The process that supervises it."""


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
            [sys.executable, "-P", "-m", "scenarios.cluster.supervisor", str(self._folder), *words],
            stdin=subprocess.DEVNULL,
            check=True,
            env=agent_environment(),
        )
        until = time.monotonic() + START_SECONDS
        while self._pid() is None and time.monotonic() < until:
            time.sleep(0.02)

    def look(self) -> AgentLook:
        """How the agent is."""
        status: int | None = None
        with suppress(FileNotFoundError):
            status = int((self._folder / supervisor.STATUS).read_text())
        if status is None and not self._is_locked():
            status = -signal.SIGKILL  # with its supervisor
        return AgentLook(status, self._new_lines(), self._pid())

    def end(self) -> None:
        """End the agent if it works, and remove its folder."""
        pid = self._pid()
        if pid is not None and self._is_locked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)  # which its supervisor waits for
        until = time.monotonic() + END_SECONDS
        while pid is not None and _is_alive(pid) and time.monotonic() < until:
            time.sleep(0.05)

    def _is_locked(self) -> bool:
        try:
            with folder_lock(self._folder):
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def _pid(self) -> int | None:
        try:
            return int((self._folder / supervisor.PID).read_text())
        except FileNotFoundError:
            return None

    def _new_lines(self) -> list[str]:
        """Whole lines of the log since the last call."""
        try:
            with (self._folder / supervisor.LOG).open("rb") as log:
                log.seek(self._read_nbytes)
                read = log.read(LOG_NBYTES)
        except FileNotFoundError:
            return []
        whole = read[: read.rfind(b"\n") + 1] or (read if len(read) == LOG_NBYTES else b"")
        self._read_nbytes += len(whole)
        return whole.decode(errors="replace").splitlines()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def agent_environment() -> dict[str, str]:
    """The environment of what is started here: modules are found where this process finds them, but not the engine's
    own copies of libraries."""
    own = ("/ray/thirdparty_files", "/ray/_private/workers")
    path = [entry or str(Path.cwd()) for entry in sys.path if not entry.endswith(own)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
