"""How many runs a trial still has to make, and about how long they take at the pace of those that have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.units import format_seconds
from scenarios.config.load import Loaded
from scenarios.run.host import Host


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
    begun: list[float] = []

    def on_start(folder: Path, loaded: Loaded) -> None:
        begun.append(time.monotonic())
        ended = len(begun) - 1
        rest = f"; this and the later ones take about {_rest(begun, missing)} at the pace so far" if ended else ""
        say(f"run {len(begun)} of {missing}: {folder.name}{rest}")
        host.on_start(folder, loaded)

    return replace(host, on_start=on_start)


def _rest(begun: Sequence[float], missing: int) -> str:
    ended = len(begun) - 1
    return format_seconds(round((begun[-1] - begun[0]) / ended * (missing - ended)))
