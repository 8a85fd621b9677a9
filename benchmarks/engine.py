"""What the training engine achieves on this machine, beside its floors: ``python benchmarks/engine.py [--parts A,B]``.

Each figure stands beside a floor that was measured in the same run, in turns with it; figures are medians of a few
repetitions. Exits with 1 if a bar is missed. It writes nothing but temporary files, and ends the processes it starts.

A  1,000 clients of 100 examples, 100 a round, 1 epoch; small CNN    D  steps of FedMLB and FedBR, ResNet-18
B  100 clients of 500 examples, 10 a round, 2 epochs; small CNN      E  start-up to the first round
C  ResNet-18 of width 16, 10 clients of 10 steps                     F  memory, with more clients and more workers
G  the coordinator alone, with sums and with updates                 H  steps with portable and with native numerics
I  codecs: encoding and decoding of 250 kB and of 25 MB

For G, a thousand clients of `digits` take part in each round, and the two workers answer at once
(``fedbr stress``). So a round is the coordinator's work: selection, prices, the clock, messages, checks, the
weighted sum, the server's step, and rows of the ledger. With ``aggregate.sum`` =
``fixed_point`` workers add updates up, and replies have numbers only; with ``client_order`` every update of 250 kB
comes, and is checked and added. The workers share the processor: on two cores, they and the coordinator are three
processes.

Where the time of a run goes, is seen with ``py-spy record --subprocesses -- fedbr run ...``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.harness import (
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
from benchmarks.product import Federation, Request, differences
from coordinator.workers.launcher import THREADS, environment
from edge.protocol.codecs.registry import make_codec
from edge.protocol.portable import NATIVE, PORTABLE, Instructions
from edge.protocol.rng import keyed_generator
from edge.runtime.numerics import lacking

LAYOUTS = ("contiguous", "channels_last")
WORKERS = 2
TOLERANCE = 1e-5


def play(request: Request) -> dict[str, Any]:
    """The answer of a run in a process of its own."""
    return dict(answer(module("product", json.dumps(asdict(request)))))


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

    def __init__(self, part: str, options: Options) -> None:
        work, self.options = CONTESTS[part], options
        small = replace(work.federation, clients=4, samples=40, participants=4)
        self.toml = (small if options.quick else work.federation).write(options.folder, part)
        self.timed = 2 if options.quick else work.timed
        self.clients: list[list[int]] = []
        """Of each round, as the latest run has selected them."""
        self.refusal = why_no_bf16(self.toml) if BF16 in work.settings else None
        self.shares = {each: list[float]() for each in work.settings if not (self.refusal and each == BF16)}
        """CPU seconds of the coordinator per second of the wall, by setting and repetition."""

    def run(self, setting: str) -> float:
        """Median seconds per round of the product."""
        first, overrides = (None, (setting,)) if setting else (self.first("run"), ())
        found = play(Request(self.toml, overrides, WORKERS, 1 + self.timed, first=first))
        self.clients = found["clients"]
        seconds, cpu = (differences(found["rounds"], key) for key in ("seconds", "cpu_seconds"))
        self.shares[setting].append(sum(cpu) / sum(seconds))
        return statistics.median(seconds)

    def floor(self, layout: str) -> float:
        """Median seconds per round of the floor."""
        request = {"scenario": self.toml, "layout": layout, "rounds": self.clients, "save": self.first(layout)}
        seconds: list[float] = answer(module("engine_parts.plain", json.dumps(request)), THREADS)
        return statistics.median(seconds[1:])

    def first(self, competitor: str) -> str:
        """The file of a competitor's model after the first round."""
        return str(self.options.folder / f"first-{competitor}.npy")


def contest(part: str, options: Options) -> Iterator[Line]:
    """Part A, B or C; A also with sums in the workers, which is meant for fleets of many short visits."""
    work, competition = CONTESTS[part], Contest(part, options)
    variants = {f"run {setting}".strip(): partial(competition.run, setting) for setting in competition.shares}
    # A run is the first of all: its ledger says which clients take part in which round.
    turns = in_turns(
        variants | {each: partial(competition.floor, each) for each in LAYOUTS}, options.cycles(work.repeats)
    )
    options.details[part] = turns.seconds
    for name in turns.seconds:
        what = f"{'floor, ' if name in LAYOUTS else ''}{name}: seconds per round"
        yield at_most(what, turns.median(name), form="{:.3f} s")
    model = np.load(competition.first("run"))
    off = {layout: float(np.abs(model - np.load(competition.first(layout))).max()) for layout in LAYOUTS}
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
    if competition.refusal:
        yield Line("run bf16 / best floor", f"not measured: {competition.refusal}")


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


# --- G: the coordinator -----------------------------------------------------------------------------------------------


def coordinator_alone(options: Options) -> Iterator[Line]:
    """Visits per second of wall time and the coordinator's CPU per visit, medians of rounds. The first two rounds are
    left out, since workers and caches are new in them."""
    clients = 100 if options.quick else 1000
    fleet = ("method=fedavg", 'data.partition={kind="iid"}', "eval.every=100000")
    scale = (f"--{name}={number}" for name, number in (("clients", clients), ("participants", clients)))
    command = [*FEDBR, "stress", "digits", *fleet, *scale, f"--workers={WORKERS}", "--json"]
    sums, updates = ("aggregate.sum=fixed_point",), ("aggregate.sum=client_order", "model.width=33")
    encoded = (*updates, 'codec.up={kind="quantize",bits=4}')
    spent: list[float] = []
    for overrides, least_per_second in ((sums, 5000.0), (updates, 2000.0), (encoded, 2000.0)):
        rounds = answer([*command, f"--rounds={options.cycles(20) + 2}", *overrides])["by_round"][2:]
        rates = [clients / each["wall_seconds"] for each in rounds]
        rate, received = statistics.median(rates), statistics.median(each["nbytes_received"] for each in rounds)
        what, bar = f"visits a second, {received / clients / 1e3:.0f} kB received each", f">= {least_per_second:,.0f}"
        result = f"{rate:,.0f} ({min(rates):,.0f} .. {max(rates):,.0f})"
        yield Line(what, result, rate, bar, rate >= least_per_second)
        spent.append(1e3 * statistics.median(each["coordinator_cpu_seconds"] for each in rounds) / clients)
        yield at_most("the coordinator's CPU a visit", spent[-1], 0.4, "{:.3f} ms")
    yield at_most("the same with 4 bits a number, over float32", spent[2] / spent[1], 1.5, "x {:.2f}")


# --- I: codecs --------------------------------------------------------------------------------------------------------

LEVELS = {"kind": "quantize", "levels": 250, "norm": "l2", "bucket": 62_500}
"""QSGD with as many levels as the root of a bucket"""
CODECS_TIMED: dict[str, tuple[list[dict[str, Any]], float, float]] = {
    "fp16": ([{"kind": "fp16"}], 0, 0),
    "bf16": ([{"kind": "bf16"}], 0, 0),
    "quantize, 4 bits": ([{"kind": "quantize"}], 200, 250 / 0.15),
    "quantize, 8 bits": ([{"kind": "quantize", "bits": 8}], 200, 0),
    "ternary": ([{"kind": "ternary"}], 0, 0),
    "sign": ([{"kind": "sign"}], 200, 0),
    "topk": ([{"kind": "topk"}], 50, 0),
    "randk": ([{"kind": "randk"}], 0, 0),
    "powersgd": ([{"kind": "powersgd"}], 0, 0),
    "quantize, 4 bits, zstd": ([{"kind": "quantize"}, {"kind": "zstd"}], 0, 0),
    "quantize, 250 levels, elias": ([LEVELS, {"kind": "elias"}], 5, 5),
    "topk, elias": ([{"kind": "topk"}, {"kind": "elias"}], 5, 5),
}
"""Chain -> its stages, and the least MB/s of float32 numbers in encoding and decoding of 250 kB"""


def codec_rates(options: Options) -> Iterator[Line]:
    """MB of float32 numbers a second of the processor, medians. No codec has threads."""

    def seconds(repeat: int, call: Callable[..., object], *arguments: object) -> float:
        generators = [keyed_generator(0, "codec") for _ in range(repeat)]
        begun = time.thread_time()
        for generator in generators:
            call(*arguments, generator)
        return (time.thread_time() - begun) / repeat

    for side, repeat, cycles in ((250, 20, 10), (2500, 1, 5)):
        values = np.random.default_rng(0).normal(size=side * side).astype(np.float32)
        nbytes, tensors = values.nbytes, ((side, side),)
        variants = dict[str, Callable[[], float]]()
        for name, (stages, *_) in CODECS_TIMED.items():
            codec = make_codec(stages)
            frame = codec.encode(values, tensors, keyed_generator(0, "codec")).frame.data
            variants[f"{name}, encode"] = partial(seconds, repeat, codec.encode, values, tensors)
            variants[f"{name}, decode"] = partial(seconds, repeat, codec.decode, frame, tensors)
        turns = in_turns(variants, options.cycles(cycles), warm_up=1)
        for name, (_, *bars) in CODECS_TIMED.items():
            for does, bar in zip(("encode", "decode"), bars, strict=True):
                rate = nbytes / turns.median(f"{name}, {does}") / 1e6
                least = (f">= {bar:,.0f}", rate >= bar) if bar and side == 250 else ("", None)
                yield Line(f"{nbytes / 1e6:g} MB: {name}, {does}", f"{rate:,.0f} MB/s", rate, *least)


PARTS: dict[str, Part] = {
    **{part: partial(contest, part) for part in CONTESTS},
    "D": method_steps,
    "E": start_up,
    "F": memory,
    "G": coordinator_alone,
    "H": portable_steps,
    "I": codec_rates,
}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS, empty_cache=True))
