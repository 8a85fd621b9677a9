"""The memory of this process as the system sees it: its peak above that of a moment before. Slows nothing down.

Memory that was free within the process at that moment is used again unseen, so a process of its own shows most.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class ResidentMemory:
    """Counts from now on."""

    def __init__(self) -> None:
        _reset()
        self._before = _peak()

    def peak_bytes(self) -> int:
        """Largest growth since the last call, or since the beginning; starts a new peak.

        Where the system cannot start a new one (elsewhere than on Linux), the peak since the beginning.
        """
        peak = _peak() - self._before
        _reset()
        return max(peak, 0)


def _reset() -> None:
    if _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text(_RESET_PEAK)


def _peak() -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "VmHWM":
                return 1024 * int(amount.split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
