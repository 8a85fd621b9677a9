"""Seconds from the start of ``fedbr run digits`` to its first round: part E of ``benchmarks/engine.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.engine_parts.tools import Asked, Line, answer, command

BAR_SECONDS = 5.0
REPEATS = 3
MANY = 64


def start_up(part: str, asked: Asked) -> Iterator[Line]:
    """Part E."""
    _first_round(asked, 2)  # decodes the data
    few = [_first_round(asked, 2) for _ in range(1 if asked.quick else REPEATS)]
    committed = statistics.median(each["committed"] for each in few)
    yield Line(
        part,
        "fedbr run digits: first round committed",
        f"{committed:.2f} s",
        committed,
        f"< {BAR_SECONDS:.0f} s",
        committed < BAR_SECONDS,
    )
    # Nobody waits for the last worker: the run must outlast its start.
    many = [_first_round(asked, 8 if asked.quick else MANY, 60) for _ in range(1 if asked.quick else REPEATS)]
    asked.details[part] = {"few": few, "many": many}
    workers = 8 if asked.quick else MANY
    for what, key in (("all ready", "ready"), ("first round committed", "committed")):
        value = statistics.median(each[key] for each in many)
        yield Line(part, f"--workers {workers}: {what}", f"{value:.2f} s", value)


def _first_round(asked: Asked, workers: int, rounds: int = 1) -> dict[str, float]:
    """Seconds from before the process starts until its workers were ready, and until its first round was there."""
    words = [
        "run",
        "digits",
        f"rounds.max={rounds}",
        "stop.target_accuracy=1",
        "--workers",
        str(workers),
        "--json",
        "--out",
        str(asked.folder / "runs"),
    ]
    started = time.time()
    found = answer(command("watch", *words))
    if None in found.values():
        raise RuntimeError(f"not seen: {', '.join(name for name, second in found.items() if second is None)}")
    return {name: second - started for name, second in found.items()}
