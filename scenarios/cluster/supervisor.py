"""A process that runs one node agent (`fedbr worker`) on a machine of a cluster, and outlives whoever started it:
``scenarios.cluster.supervisor FOLDER ARGUMENT...`` (`edge.protocol.interpreter`).

The cluster's engine may lose its own processes in mid-run, and the agent must not end with them: it ends by itself when
its run has ended or is lost. So this process leaves the session and the parent that it was started in. In ``FOLDER``
the agent finds its keys; ``log`` is what it says, ``pid`` this process, and ``status`` the agent's exit code. The
folder is locked as long as this process lives, and removed at its end. SIGTERM ends the agent.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from edge.protocol import interpreter
from edge.protocol.files import folder_lock, write_text

LOG, PID, STATUS = "log", "pid", "status"
READ_SECONDS = 10.0
"""From the agent's end to that of the folder, unless it has been read and removed before."""
GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL of the agent."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def supervise(folder: Path, arguments: Sequence[str]) -> None:
    """Run ``fedbr worker ARGUMENTS`` to its end, in a locked folder that is removed afterwards."""
    with folder_lock(folder), (folder / LOG).open("ab") as log:
        # before the agent is started: an end that is asked for now leaves none behind
        agent: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGTERM, lambda number, frame: _end(agent, number, frame))
        write_text(folder / PID, str(os.getpid()))
        agent.append(
            subprocess.Popen(
                interpreter.command("scenarios.cli.main", "worker", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - there is no other thread
            )
        )
        status = agent[0].wait()
        if folder.exists():
            write_text(folder / STATUS, str(status))
        until = time.monotonic() + READ_SECONDS
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.2)
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent() -> None:
    """Have the kernel end the agent if this process is killed; its own workers then end with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end(agent: Sequence[subprocess.Popen[bytes]], number: int, frame: FrameType | None) -> None:
    if not agent:
        raise SystemExit(1)
    agent[0].terminate()
    signal.signal(signal.SIGALRM, lambda number, frame: agent[0].kill())
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)


def main(folder: Path, arguments: Sequence[str]) -> None:
    """Leave the parent, which returns at once, and supervise an agent."""
    if os.fork():
        os._exit(0)
    os.setsid()
    supervise(folder, arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
