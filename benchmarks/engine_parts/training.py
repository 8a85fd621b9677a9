"""Seconds per round of real runs beside the floor of the same clients: parts A, B and C of ``benchmarks/engine.py``.

In each repetition the product and the floors work one after the other on the same rounds, in turning order, so that a
noisy machine hits all of them. A ratio is of one repetition; what is shown is the median of ratios. The first round of
each is not timed. A floor that waits for its turn only reads from a pipe.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.engine_parts.run import Request
from benchmarks.engine_parts.tools import (
    AS_WORKER,
    BF16,
    Asked,
    Federation,
    Helper,
    Line,
    answer,
    command,
    ratio,
    request,
    why_no_bf16,
)
from coordinator.workers.launcher import THREADS

LAYOUTS = ("contiguous", "channels_last")
WORKERS = 2
TOLERANCE = 1e-5
RUN_BARS = {"A": 0.93, "B": 0.95}
"""Of the seconds of a round, by those of the floor in torch's own layout."""
PARTIAL_SUMS = "aggregate.sum=fixed_point"
SHARE_BAR = 0.05
"""Of the wall time that the coordinator may be at work, workload A."""


@dataclass(frozen=True)
class Workload:
    """What is trained, and how often."""

    federation: Federation
    timed: int
    """Rounds of one repetition, less the first"""
    repeats: int


def workload(part: str, quick: bool) -> Workload:
    """The workload of a part; small ones for a trial."""
    if quick:
        tiny = {
            "A": Federation(40, 40, 8, 1),
            "B": Federation(8, 100, 4, 2),
            "C": Federation(2, 40, 2, 1, "resnet18", 16),
        }
        return Workload(tiny[part], 2, 1)
    return {
        "A": Workload(Federation(1000, 100, 100, 1), 5, 7),
        "B": Workload(Federation(100, 500, 10, 2), 3, 5),
        "C": Workload(Federation(10, 200, 10, 1, "resnet18", 16), 2, 3),
    }[part]


class Contest:
    """The product under some settings, and the floor in both layouts, on the same rounds."""

    def __init__(self, part: str, asked: Asked, settings: Sequence[str]) -> None:
        self.asked, self.work = asked, workload(part, asked.quick)
        self.toml = self.work.federation.written(asked.folder, part)
        self.settings = settings
        self.rounds: list[list[int]] = []
        self.seconds: dict[str, list[float]] = {name: [] for name in (*(f"run {s}" for s in settings), *LAYOUTS)}
        """Competitor -> median seconds per round, by repetition"""
        self.shares: dict[str, list[float]] = {setting: [] for setting in settings}
        """CPU seconds of the coordinator per second of the wall, by repetition"""

    def play(self) -> None:
        """All repetitions."""
        with ExitStack() as stack:
            environment = AS_WORKER if self.asked.malloc else THREADS
            floors = {
                layout: stack.enter_context(Helper(command("floor", str(self.toml), layout), environment))
                for layout in LAYOUTS
            }
            turns: list[Callable[[], None]] = [
                *(lambda s=setting: self._run(s) for setting in self.settings),
                *(lambda n=name, f=floor: self._floor(n, f) for name, floor in floors.items()),
            ]
            # A run is the first of all: its ledger says who takes part in which round.
            for number in range(self.work.repeats):
                for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                    turn()

    def _run(self, setting: str) -> None:
        overrides = (setting,) if setting else ()
        first = None if setting else str(self.first("run"))
        found = answer(request(Request(str(self.toml), overrides, WORKERS, 1 + self.work.timed, first)))
        self.rounds = found["clients"]
        ends, cpu = found["ends"], found["cpu"]
        self.seconds[f"run {setting}"].append(statistics.median(after - before for before, after in pairwise(ends)))
        self.shares[setting].append((cpu[-1] - cpu[0]) / (ends[-1] - ends[0]))

    def _floor(self, name: str, floor: Helper) -> None:
        taken = floor.ask({"rounds": self.rounds, "save": str(self.first(name))})
        self.seconds[name].append(statistics.median(taken[1:]))

    def first(self, whose: str) -> Path:
        """Where somebody's model after the first round is."""
        return self.asked.folder / f"first-{whose}.npy"

    def off(self, layout: str) -> float:
        """The largest difference of any parameter between the run's and the floor's model after the first round."""
        run, floor = np.load(self.first("run")), np.load(self.first(layout))
        return float(np.abs(run - floor).max())

    def against(self, setting: str, layout: str) -> float:
        """Median over repetitions of the run's seconds over the floor's; ``best`` is the faster layout on the whole."""
        if layout == "best":
            layout = min(LAYOUTS, key=lambda name: statistics.median(self.seconds[name]))
        pairs = zip(self.seconds[f"run {setting}"], self.seconds[layout], strict=True)
        return float(statistics.median(run / floor for run, floor in pairs))

    def lines(self, part: str) -> Iterator[Line]:
        """What every part shows first."""
        for name, seconds in self.seconds.items():
            who = f"floor, {name}" if name in LAYOUTS else name.strip()
            median = statistics.median(seconds)
            yield Line(part, f"{who}: seconds per round", f"{median:.3f} s", median)
        off = {layout: self.off(layout) for layout in LAYOUTS}
        found, least = ", ".join(f"{value:.1e} ({layout})" for layout, value in off.items()), min(off.values())
        # Another layout sums in another order, and steps carry such differences on.
        what = "floor = run after one round, in the run's layout"
        yield Line(part, what, f"off by {found}", least, f"< {TOLERANCE:.0e}", least < TOLERANCE)


def small_cnn(part: str, asked: Asked) -> Iterator[Line]:
    """Parts A and B; A also with sums in the workers, which is what a fleet of many short visits is for."""
    contest = Contest(part, asked, ["", PARTIAL_SUMS] if part == "A" else [""])
    contest.play()
    asked.details[part] = contest.seconds
    yield from contest.lines(part)
    for setting, shares in contest.shares.items():
        run = f"run {setting}".strip()
        yield ratio(part, f"{run} / floor, contiguous", contest.against(setting, "contiguous"), RUN_BARS[part])
        yield ratio(part, f"{run} / floor, channels_last", contest.against(setting, "channels_last"))
        share = statistics.median(shares)
        bar = (f"<= {SHARE_BAR:.0%}", share <= SHARE_BAR) if part == "A" else ()
        yield Line(part, f"{run}: coordinator's CPU time / wall time", f"{share:.1%}", share, *bar)


def resnet(part: str, asked: Asked) -> Iterator[Line]:
    """Part C."""
    refusal = why_no_bf16(workload(part, asked.quick).federation.written(asked.folder, part))
    contest = Contest(part, asked, [""] if refusal else ["", BF16])
    contest.play()
    asked.details[part] = contest.seconds
    yield from contest.lines(part)
    yield ratio(part, "run fp32 / best floor", contest.against("", "best"), 1.05)
    if refusal:
        yield Line(part, "run bf16 / best floor", f"not measured: {refusal}")
    else:
        yield ratio(part, "run bf16 / best floor", contest.against(BF16, "best"), 0.70)
