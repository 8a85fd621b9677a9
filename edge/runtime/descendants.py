"""Processes that a user's code has started, and that must not outlive the process that ran it: never their output.

Whoever calls `adopt` becomes the parent of every descendant whose own parent has ended (PR_SET_CHILD_SUBREAPER), even
of those that left session and process group. So all of them are found as children in the end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
END_SECONDS = 2.0
"""For the kernel to end processes that were killed"""
_PAUSE_SECONDS = 0.005


def adopt() -> None:
    """Become the parent of descendants whose own parents have ended. OSError where the kernel refuses."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Be killed when the process ``parent``, which has started this one, ends. OSError if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError(f"process {parent} has ended")


def end_children(others: Collection[int] = ()) -> None:
    """Kill all children but ``others``, and whatever these leave to this process, until there are no more."""
    deadline = time.monotonic() + END_SECONDS
    while (left := [pid for pid in children() if pid not in others]) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended = []
        for pid in left:
            with suppress(ChildProcessError):
                ended.append(os.waitpid(pid, os.WNOHANG)[0])
        if not any(ended):
            time.sleep(_PAUSE_SECONDS)


def children() -> list[int]:
    """Ids of the children of this process, those that have ended among them."""
    try:
        tasks = Path("/proc/self/task").glob("*/children")
        return [int(pid) for file in tasks for pid in file.read_text().split()]
    except OSError:  # a thread has ended meanwhile
        return [child.pid for child in psutil.Process().children()]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
