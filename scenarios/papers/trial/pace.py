"""How many runs a trial still has to make, and about how long they take at the pace of those that have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from costmodel.units import format_seconds
from scenarios.config.load import Loaded
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver


def say(text: str) -> None:
    """Show a line of progress."""
    print(text, file=sys.stderr)


def say_left_out(left_out: Mapping[str, str]) -> None:
    """Show the variants that a part does without, before hours are spent on the others."""
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")


def announced(host: Host, total: int, missing: int) -> Host:
    """The host, whose runs are announced: their number at once, then each by name with the time that the rest takes."""
    say(f"{missing} of {total} runs are to be made; finished runs are kept")
    return replace(host, observers=(_Announcement(missing), *host.observers))


class _Announcement(RunObserver):
    """Shows the name of each run, and the time that the rest takes."""

    def __init__(self, missing: int) -> None:
        self._missing, self._begun = missing, list[float]()

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        self._begun.append(time.monotonic())
        ended, rest = len(self._begun) - 1, ""
        if ended:
            seconds = (self._begun[-1] - self._begun[0]) / ended * (self._missing - ended)
            rest = f"; this and the later ones take about {format_seconds(round(seconds))} at the pace so far"
        say(f"run {ended + 1} of {self._missing}: {folder.name}{rest}")
