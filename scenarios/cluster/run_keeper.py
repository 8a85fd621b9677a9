"""The keeper of one run of a run set on some machine of a cluster: starts a run process there, and passes on its words.

The run folder is made in place where this machine sees the files of the one that asks; else in a temporary folder, and
travels as an archive, once each way.
"""

from __future__ import annotations

import io
import json
import selectors
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edge.protocol.portable import PORTABLE, numpy_environment
from edge.protocol.scratch import scratch
from scenarios.cluster.agent_keeper import agent_environment

RUN_PROCESS = "scenarios.experiment.run_process"
WAIT_SECONDS = 0.5
"""Longest wait for something that a run says."""


@dataclass(frozen=True)
class RunOrder:
    """One run."""

    host: dict[str, Any]
    run: dict[str, Any]
    """Both as `scenarios.experiment.run_process` reads them, with the paths of the machine that asks"""
    token: str
    """The name of a file in the folder of the run set, by which its files are recognized"""
    begun: bytes = b""
    """The archive of a run that is to go on, for a machine that does not see it"""


class RunNews(NamedTuple):
    """What a run has said since."""

    said: list[dict[str, Any]]
    is_over: bool
    status: int | None
    """Exit code of its process, if that has ended before its run"""
    archive: bytes = b""
    """Of the run folder, if it is over and was made elsewhere"""


class RunKeeper:
    """One run process, which ends with this one."""

    def __init__(self, order: RunOrder) -> None:
        self._exits = ExitStack()
        self._path = Path(order.run["path"])
        self._is_elsewhere = not (self._path.parent / order.token).exists()
        out = Path(order.host["out"])
        if self._is_elsewhere:
            below = self._path.relative_to(out)
            out = self._exits.enter_context(scratch())
            self._path = out / below
            self._path.parent.mkdir(parents=True)
            unpack(order.begun, self._path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", RUN_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=run_environment(order.run["scenario"]),
            start_new_session=True,
        )
        self._pending = b""
        self._selector = self._exits.enter_context(selectors.DefaultSelector())
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._send({"host": {**order.host, "out": str(out)}})
        self._send({"run": {**order.run, "path": str(self._path)}})

    def news(self) -> RunNews:
        """What the run has said, after at most `WAIT_SECONDS`."""
        if not self._selector.select(WAIT_SECONDS):
            return RunNews([], False, None)
        assert self._process.stdout is not None
        received = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]  # of a buffered reader
        *lines, self._pending = (self._pending + received).split(b"\n")
        said = [json.loads(line) for line in lines]
        is_over = any({"ended", "failed", "stopped"} & each.keys() for each in said)
        if is_over:
            self._send({"end": True})
        status = self._process.wait() if is_over or not received else None
        archive = packed_folder(self._path) if is_over and self._is_elsewhere else b""
        return RunNews(said, is_over, status, archive)

    def stop(self, reason: str) -> None:
        """The run is to end with its round."""
        self._send({"stop": reason})

    def end(self) -> None:
        """End it now, and remove what was only here."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS * 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._exits.close()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # its end is found by `news`
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()


def run_environment(scenario: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a run's process: NumPy, which computes virtual times and server steps there, is limited for
    portable numerics, as in a command's own process (`scenarios.cli.own_numpy`).

    ``scenario``: its tables, as `scenarios.experiment.slots.told_of` has them.
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
