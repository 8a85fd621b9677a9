"""What the training engine achieves on this machine, beside its floors: ``python benchmarks/engine.py [--parts A,B]``.

Each figure stands beside a floor that was measured in the same run, in turns with it; figures are medians of a few
repetitions. Exits with 1 if a bar is missed. It writes nothing but temporary files, and ends the processes it starts.

A  1,000 clients of 100 examples, 100 a round, 1 epoch; small CNN    D  steps of FedMLB and FedBR, ResNet-18
B  100 clients of 500 examples, 10 a round, 2 epochs; small CNN      E  start-up to the first round
C  ResNet-18 of width 16, 10 clients of 10 steps                     F  memory, with more clients and more workers
H  steps with portable and with native numerics

Where the time of a run goes, is seen with ``py-spy record --subprocesses -- fedbr run ...``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import (  # noqa: E402
    AS_WORKER,
    BF16,
    FEDBR,
    MIB,
    Line,
    Options,
    Part,
    Turns,
    answer,
    at_most,
    committed,
    end,
    in_turns,
    lines_of,
    main,
    module,
    wait_until,
    why_no_bf16,
)
from benchmarks.product import Federation, Request, differences  # noqa: E402
from coordinator.workers.launcher import THREADS, environment  # noqa: E402
from edge.protocol.portable import NATIVE, PORTABLE, Instructions  # noqa: E402
from edge.runtime.numerics import lacking  # noqa: E402

LAYOUTS = ("contiguous", "channels_last")
WORKERS = 2
TOLERANCE = 1e-5


def play(request: Request) -> dict[str, Any]:
    """The answer of a run in a process of its own."""
    found: dict[str, Any] = answer(module("product", json.dumps(asdict(request))))
    return found


# --- A, B, C: seconds per round beside those of a hand-written loop ---------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """One federation and its bars; a bar of a ratio is relative to the floor."""

    federation: Federation
    timed: int
    """Rounds of one repetition, less the first."""
    repeats: int
    bar: float
    settings: Sequence[str] = ("",)
    """Overrides of runs that are measured beside each other."""
    coordinator_bar: float | None = None
    """Of the wall time that the coordinator may be at work."""


CONTESTS = {
    "A": Workload(Federation(1000, 100, 100), 5, 7, 0.93, ("", "aggregate.sum=fixed_point"), coordinator_bar=0.05),
    "B": Workload(Federation(100, 500, 10, "local_epochs = 2"), 3, 5, 0.95),
    "C": Workload(Federation(10, 200, 10, model="resnet18", width=16), 2, 3, 1.05, ("", BF16)),
}
BF16_BAR = 0.70
"""Of C in bf16."""


class Contest:
    """The product under some settings, and the floor in both layouts, on the same rounds. The first is not timed."""

    def __init__(self, part: str, work: Workload, settings: Sequence[str], options: Options) -> None:
        self.work, self.options, self.settings = work, options, settings
        small = replace(work.federation, clients=4, samples=40, participants=4)
        self.toml = (small if options.quick else work.federation).write(options.folder, part)
        self.timed = 2 if options.quick else work.timed
        self.clients: list[list[int]] = []
        """Of each round, as the latest run has selected them."""
        self.shares: dict[str, list[float]] = {setting: [] for setting in settings}
        """CPU seconds of the coordinator per second of the wall, by repetition."""

    def play(self) -> Turns:
        """All repetitions: each competitor's median seconds per round. A run is the first of all: its ledger says which
        clients take part in which round."""
        variants = {f"run {setting}".strip(): partial(self._run, setting) for setting in self.settings}
        variants |= {layout: partial(self._floor, layout) for layout in LAYOUTS}
        return in_turns(variants, self.options.cycles(self.work.repeats))

    def _run(self, setting: str) -> float:
        first, overrides = (None, (setting,)) if setting else (self.first("run"), ())
        found = play(Request(self.toml, overrides, WORKERS, 1 + self.timed, first=first))
        self.clients = found["clients"]
        seconds, cpu = (differences(found["rounds"], key) for key in ("seconds", "cpu_seconds"))
        self.shares[setting].append(sum(cpu) / sum(seconds))
        return statistics.median(seconds)

    def _floor(self, layout: str) -> float:
        request = {"scenario": self.toml, "layout": layout, "rounds": self.clients, "save": self.first(layout)}
        seconds: list[float] = answer(module("engine_parts.floor", json.dumps(request)), THREADS)
        return statistics.median(seconds[1:])

    def first(self, competitor: str) -> str:
        """The file of a competitor's model after the first round."""
        return str(self.options.folder / f"first-{competitor}.npy")

    def off(self, layout: str) -> float:
        """The largest difference of any parameter between the run's and the floor's model after the first round."""
        return float(np.abs(np.load(self.first("run")) - np.load(self.first(layout))).max())


def contest(part: str, options: Options) -> Iterator[Line]:
    """Part A, B or C; A also with sums in the workers, which is meant for fleets of many short visits."""
    work = CONTESTS[part]
    scenario = work.federation.write(options.folder, f"{part}-bf16")
    refusal = why_no_bf16(scenario) if BF16 in work.settings else None
    settings = [setting for setting in work.settings if not (refusal and setting == BF16)]
    competition = Contest(part, work, settings, options)
    turns = competition.play()
    options.details[part] = turns.seconds
    for name in turns.seconds:
        yield at_most(
            f"{'floor, ' if name in LAYOUTS else ''}{name}: seconds per round", turns.median(name), form="{:.3f} s"
        )
    off = {layout: competition.off(layout) for layout in LAYOUTS}
    # Another layout sums in another order, and steps carry such differences on.
    layouts = " (" + ", ".join(f"{layout} {value:.1e}" for layout, value in off.items()) + ")"
    yield at_most("floor = run after one round, in the run's layout", min(off.values()), TOLERANCE, "{:.1e}", layouts)
    best = min(LAYOUTS, key=turns.median)
    for setting, shares in competition.shares.items():
        run = f"run {setting}".strip()
        if part == "C":
            bar = BF16_BAR if setting == BF16 else work.bar
            yield at_most(f"{run} / best floor", turns.ratio(run, best), bar)
            continue
        yield at_most(f"{run} / floor, contiguous", turns.ratio(run, "contiguous"), work.bar)
        yield at_most(f"{run} / floor, channels_last", turns.ratio(run, "channels_last"))
        share = statistics.median(shares)
        yield at_most(f"{run}: coordinator's CPU time / wall time", share, work.coordinator_bar, "{:.1%}")
    if refusal:
        yield Line("run bf16 / best floor", f"not measured: {refusal}")


# --- D, H: steps ------------------------------------------------------------------------------------------------------


def method_steps(options: Options) -> Iterator[Line]:
    """Steps of FedMLB and FedBR beside a plain formulation, and beside their FLOPs."""
    for width, cycles in ({16: 9} if options.quick else {16: 9, 64: 4}).items():
        toml = Federation(1, 80, 1, model="resnet18", width=width).write(options.folder, "D")
        refusal = why_no_bf16(toml) or ""
        request = {"scenario": toml, "cycles": options.cycles(cycles), "no_bf16": refusal}
        for line in lines_of(
            f"width {width}", module("engine_parts.steps", "methods", json.dumps(request)), environment=AS_WORKER
        ):
            yield Line(**asdict(line) | {"what": f"width {width}: {line.what}"})


def portable_steps(options: Options) -> Iterator[Line]:
    """Steps of FedAvg with portable numerics beside steps with this processor's own kernels, in CPU time."""
    if lacks := lacking():
        yield Line("portable numerics", f"not measured: {lacks}")
        return
    federations = {
        "small CNN": (Federation(1, 200, 1), 10),
        "ResNet-18 of width 16": (Federation(1, 200, 1, model="resnet18", width=16), 2),
        "ResNet-18 of width 64": (Federation(1, 200, 1, model="resnet18", width=64), 1),
    }
    models: Mapping[str, tuple[str, int]] = {"digits": ("digits", 20)} | {
        name: (federation.write(options.folder, "H"), steps) for name, (federation, steps) in federations.items()
    }
    seconds: dict[str, dict[str, list[float]]] = {model: {NATIVE: [], PORTABLE: []} for model in models}

    def measure(instructions: Instructions) -> float:
        words = module("engine_parts.steps", instructions, json.dumps(models))
        for model, step in answer(words, environment(instructions)).items():
            seconds[model][instructions].append(step)
        return 0.0

    in_turns({NATIVE: partial(measure, NATIVE), PORTABLE: partial(measure, PORTABLE)}, options.cycles(15))
    options.details["H"] = seconds
    for model, turns in ((model, Turns(taken)) for model, taken in seconds.items()):
        for name in (NATIVE, PORTABLE):
            yield at_most(f"{model}: {name}, CPU", 1e3 * turns.median(name), form="{:.2f} ms")
        yield at_most(f"{model}: portable / native", turns.ratio(PORTABLE, NATIVE))


# --- E, F: start-up and memory ----------------------------------------------------------------------------------------


def start_up(options: Options) -> Iterator[Line]:
    """Seconds from the start of ``fedbr run digits`` to its first committed round."""
    first_round(options, 2)  # decodes the data
    for workers, bar in ((2, 5.0), (8 if options.quick else 64, None)):
        seconds = statistics.median(first_round(options, workers) for _ in range(options.cycles(3)))
        what = f"fedbr run digits --workers {workers}: first round committed"
        yield at_most(what, seconds, bar, "{:.2f} s")


def first_round(options: Options, workers: int) -> float:
    folder = options.folder / "runs" / "digits" / f"start-{time.monotonic_ns()}"
    words = ["run", "digits", "stop.target_accuracy=1", "--workers", str(workers), "--quiet", "--run-id", folder.name]
    begun = time.monotonic()
    process = subprocess.Popen([*FEDBR, *words, "--out", str(folder.parent.parent)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: committed(folder) >= 1)
        return time.monotonic() - begun
    finally:
        process.terminate()
        end(process)


def memory(options: Options) -> Iterator[Line]:
    """Memory of all processes of a run, without mapped files: its growth with clients and with workers."""
    cohorts = {4: 4, 40: 2} if options.quick else {10: 40, 100: 5, 1000: 1}
    """Clients a round -> rounds beside the first."""
    counts, peaks = (1, 2, 8), dict[tuple[int, int], float]()
    for (cohort, rounds), workers in product(cohorts.items(), counts):
        toml = Federation(cohort, 100, cohort, eval_every=1).write(options.folder, "F")
        found = play(Request(toml, (), workers, 1 + rounds, memory=True))["memory"]
        peaks[cohort, workers] = found["anonymous"]
        options.details[f"F {cohort} clients, {workers} workers"] = found
        what = f"{cohort:,} clients a round, {workers} workers: memory but files"
        yield at_most(what, found["anonymous"] / MIB, form="{:,.0f} MiB", more=f" (PSS {found['pss'] / MIB:,.0f} MiB)")
    few, many = min(cohorts), max(cohorts)
    for workers in counts:
        growth = peaks[many, workers] / peaks[few, workers]
        yield at_most(f"memory but files, {workers} workers, {few} to {many:,} clients", growth, 1.10, "x {:.2f}")
    each = (peaks[few, max(counts)] - peaks[few, min(counts)]) / (max(counts) - min(counts))
    yield at_most("memory but files of one more worker", each / MIB, form="{:.0f} MiB")


PARTS: dict[str, Part] = {
    **{part: partial(contest, part) for part in CONTESTS},
    "D": method_steps,
    "E": start_up,
    "F": memory,
    "H": portable_steps,
}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS, empty_cache=True))
