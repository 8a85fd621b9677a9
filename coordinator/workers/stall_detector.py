"""Whether workers do anything, by the CPU time of their main threads.

libzmq's own thread answers heartbeats whatever the main thread does, and a step may take minutes. But a main thread
that uses no CPU time at all over a visit for so long waits for something that will not come: a lock, a disk, a GPU.
"""

from __future__ import annotations

from pathlib import Path

STUCK_SECONDS = 120.0
"""Without any CPU time over the same task."""
LOOK_SECONDS = 5.0
"""Between two looks."""
PROC = Path("/proc")
UTIME, STIME = 11, 12
"""Fields of /proc/PID/task/TID/stat behind the name, in ticks: proc(5)."""


class Pulse:
    """What was last seen of each process."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int, float]] = {}  # pid -> (task, ticks, since when)
        self._looked_at = float("-inf")

    def look(self, now: float) -> bool:
        """Whether it is time to ask `is_stuck`. Who has not looked for long knows nothing of the time between."""
        if now - self._looked_at < LOOK_SECONDS:
            return False
        if now - self._looked_at > 2 * LOOK_SECONDS:
            self._seen.clear()
        self._looked_at = now
        return True

    def is_stuck(self, pid: int, task: int, now: float) -> bool:
        """Whether this process has done nothing over this task for too long."""
        ticks = cpu_ticks(pid)
        task_before, ticks_before, since = self._seen.get(pid, (-1, -1, now))
        if ticks is None or (task, ticks) != (task_before, ticks_before):
            self._seen[pid] = (task, -1 if ticks is None else ticks, now)
            return False
        return now - since > STUCK_SECONDS


def cpu_ticks(pid: int) -> int | None:
    """CPU time of a process's main thread, in ticks of the system; None where that is not told."""
    try:
        stat = (PROC / f"{pid}/task/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return int(fields[UTIME]) + int(fields[STIME])
