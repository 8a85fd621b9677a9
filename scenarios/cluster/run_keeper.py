"""The keeper of one run of a run set on some machine of a cluster: starts a run process there, and passes on what it
sends.

The run folder is made in place where this machine sees the files of the one that asks; else in a temporary folder, and
travels as an archive, once each way.
"""

from __future__ import annotations

import io
import queue
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coordinator.workers.launcher import how_ended
from edge.protocol.portable import PORTABLE, numpy_environment
from edge.protocol.scratch import scratch
from scenarios.cluster.agent_keeper import agent_environment
from scenarios.run.child_process import ChildProcess, Message

RUN_PROCESS = "scenarios.experiment.run_process"
WAIT_SECONDS = 0.5
"""Longest wait for a message of a run."""
END_SECONDS = 5.0
OUTCOMES = {"ended", "failed", "stopped"}
"""The last message of a run is one of these."""


@dataclass(frozen=True)
class RunOrder:
    """One run."""

    request: dict[str, Any]
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
        """The next messages, after at most `WAIT_SECONDS`."""
        messages: list[Message] = []
        is_over = False
        with suppress(queue.Empty):
            while not is_over:
                message = self._messages.get(timeout=0.0 if messages else WAIT_SECONDS)
                if message is None:
                    why = f"its process {how_ended(self._process.end(END_SECONDS))}"
                    message = {"failed": why, "is_users": False}
                messages.append(message)
                is_over = not OUTCOMES.isdisjoint(message)
        if is_over:
            self._process.channel.send({"run": None})
            self._process.end(END_SECONDS)
        return RunNews(messages, is_over, packed_folder(self._path) if is_over and self._is_elsewhere else b"")

    def stop(self, why: str) -> None:
        """Have the run end with its round."""
        self._process.channel.send({"stop": why})

    def end(self) -> None:
        """End it now, and remove what was only here."""
        self._process.end(END_SECONDS)
        self._exits.close()


def run_environment(scenario: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a run's process: NumPy, which computes virtual times and server steps there, is limited for
    portable numerics, as in a command's own process (`scenarios.run.own_numpy`).

    ``scenario``: its resolved tables.
    """
    is_portable = scenario["train"]["instructions"] == PORTABLE
    return numpy_environment(agent_environment()) if is_portable else agent_environment()


def packed_folder(folder: Path) -> bytes:
    """An archive of what is in a folder; empty if there is no such folder."""
    if not folder.is_dir():
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Write what `packed_folder` made into a folder; nothing outside of it is ever written. tarfile.TarError."""
    if not packed:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
