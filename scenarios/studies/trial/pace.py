"""How many runs a trial still has to make, and about how long they take at the pace of those that have ended."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from costmodel.units import format_seconds
from scenarios.config.load import Loaded
from scenarios.host import Host


def say(text: str) -> None:
    """Show a line of progress."""
    print(text, file=sys.stderr)


def announced(host: Host, total: int, missing: int) -> Host:
    """The host, whose runs are announced: their number at once, and at the start of each but the first the rest."""
    say(f"{missing} of {total} runs are to be made; finished runs are kept")
    begun: list[float] = []

    def on_start(folder: Path, loaded: Loaded) -> None:
        begun.append(time.monotonic())
        ended = len(begun) - 1
        if ended:
            seconds = (begun[-1] - begun[0]) / ended * (missing - ended)
            say(f"{ended} of {missing} runs have ended; the others take about {format_seconds(seconds)} at their pace")
        host.on_start(folder, loaded)

    return replace(host, on_start=on_start)
