"""What the clock achieves on this machine, beside its bars: ``python benchmarks/clock.py [--parts rounds,links]``.

rounds       a round of 1,000,000 clients, and memory per client
links        flows on one full link, contended rounds
streams      asynchronous clients
large        1,000,000 contended clients: minutes and gigabytes, only if it is named
load         one scenario, really trained, by one worker on this machine as it is, and by eight beside busy processes
calibration  predicted CPU time of steps of models to which no calibrated device is fitted, against measured
neighbours   CPU time of a step beside other processes that train

Speeds are medians of a few repetitions by the clock on the wall, so other work on the machine shows in them; nothing
else does. `tests/costmodel` holds that fair shares are those of a plain solver, and that a batch is SimPy to the bit.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.harness import (
    AS_WORKER,
    CORES,
    FEDBR,
    Helper,
    Line,
    Options,
    Part,
    answer,
    at_most,
    identical,
    in_turns,
    main,
)
from costmodel.network.transfers import transfer_batch
from scenarios.studies import doctor
from scenarios.studies.stress import stress

BUSY = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
STEPS = """
import json, time, torch
from edge.profile.calibrate import measure
from edge.models.registry import MODELS
torch.set_num_threads(1)
row = MODELS["digits-cnn"]
list(measure(row, row.width, (32,), range(5, 6)))
print("ready", flush=True)
input()
start = time.perf_counter()
(found,) = measure(row, row.width, (32,), range(300, 301))
print(json.dumps([found.seconds, time.perf_counter() - start]))
"""
"""Training steps in a process of its own: [CPU seconds of the median step, wall seconds of all]."""


# --- speed ------------------------------------------------------------------------------------------------------------


def rounds(options: Options) -> Iterator[Line]:
    clients = 1_000_000
    yield played(f"{clients:,} clients, one round", options, 1.0, clients, clients, "sync", False)
    memory = stress_command("--clients", str(clients))["peak_bytes_per_client"]
    yield at_most("the same, peak", memory, 200, "{:.3g} B/client")


def links(options: Options) -> Iterator[Line]:
    for flows, bar in ((10_000, 1.0), (100_000, 10.0)):
        rng = np.random.default_rng(0)
        start, bits, cap = rng.random(flows), rng.lognormal(16, 0.5, flows), rng.lognormal(17, 1, flows)
        seconds = median_seconds(partial(transfer_batch, start, bits, cap, 0.05 * float(cap.sum())), options)
        yield at_most(f"{flows:,} flows on one full link", seconds, bar, "{:.3g} s")
    seconds = median_seconds(partial(stress_command, "--clients", "100000", "--contended"), options)
    yield at_most("100,000 contended clients, the whole command", seconds, 30.0, "{:.3g} s")
    what, clients = "10,000 of 1,000,000 clients, contended round", 10_000
    yield played(what, options, 1.0, 100 * clients, clients, "sync", True)


def streams(options: Options) -> Iterator[Line]:
    results = [stress(10_000, 10_000, "fedasync", True) for _ in range(options.cycles(3))]
    events, bar = results[0]["simpy_events"], 30_000
    rate, by_cpu = (events / median(results, key) for key in ("wall_seconds", "cpu_seconds"))
    what, result = "10,000 clients asynchronously, contended", f"{rate:,.0f} events/s ({by_cpu:,.0f} by CPU time)"
    yield Line(what, result, rate, f">= {bar:,} events/s", rate >= bar)
    # Events are few here, since a message takes one: the visit is what has to be quick.
    results = [stress(10_000, 10_000, "fedbuff", False) for _ in range(options.cycles(3))]
    visit = 1e3 * median(results, "cpu_seconds") / results[0]["visits"]
    yield at_most("10,000 clients, fedbuff, uncontended", visit, 0.2, "{:.3g} ms of CPU a visit")


def large(options: Options) -> Iterator[Line]:
    clients = 100_000 if options.quick else 1_000_000
    result = stress_command("--clients", str(clients), "--contended")
    yield at_most(f"{clients:,} contended clients, one round", result["cpu_seconds"], 60.0, "{:.3g} s of CPU")
    yield at_most("the same, peak", result["peak_bytes_per_client"] * clients / 1e9, 1.5, "{:.3g} GB")
    result = stress(clients, 10_000, "fedbuff", False)
    visit = 1e3 * result["cpu_seconds"] / result["visits"]
    what = f"{clients:,} clients, fedbuff, 10,000 visits at a time"
    yield at_most(what, visit, 0.2, "{:.3g} ms of CPU a visit")


def played(what: str, options: Options, bar: float, *arguments: Any) -> Line:
    """Seconds of ``fedbr stress``, in this process."""
    results = [stress(*arguments) for _ in range(options.cycles(3))]
    cpu = f" ({median(results, 'cpu_seconds'):.3g} s of CPU)"
    return at_most(what, median(results, "wall_seconds"), bar, "{:.3g} s", cpu)


def stress_command(*words: str) -> dict[str, Any]:
    """The result of ``fedbr stress`` in a process of its own, whose memory is its own."""
    result: dict[str, Any] = answer([*FEDBR, "stress", *words, "--json"])
    return result


def median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(float(result[key]) for result in results)


def median_seconds(call: Callable[[], object], options: Options) -> float:
    def seconds() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return in_turns({"call": seconds}, options.cycles(3)).median("call")


# --- what must not matter ---------------------------------------------------------------------------------------------


def load(options: Options) -> Iterator[Line]:
    """Twice as many processes spin beside the second run as there are cores."""
    results = []
    with contextlib.ExitStack() as stack:
        for workers in (1, 8):
            for _ in range(2 * CORES if workers > 1 else 0):
                busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
                stack.callback(busy.kill)
            words = ("run", "digits", "rounds.max=5", "--workers", str(workers), "--json")
            run = answer([*FEDBR, *words, "--out", str(options.folder)])
            results.append([run[key] for key in ("virtual_seconds", "joules", "model_sha256")])
    yield identical(f"1 worker, and 8 while {2 * CORES} processes spin", results[0] == results[1])


# --- computing --------------------------------------------------------------------------------------------------------


def calibration(options: Options) -> Iterator[Line]:
    """The user's own cache is left alone."""
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(options.folder)):
        result = doctor.calibrate("benchmark")
    worst: dict[str, float] = {}
    for row in result["measurements"]:
        if not row["fitted"]:
            name = row["model"] if row["width"] is None else f"{row['model']}, width {row['width']}"
            worst[name] = max(worst.get(name, 0.0), abs(row["relative_error"]))
    for name, off in worst.items():
        yield at_most(f"step of {name}: predicted against measured", off, doctor.BAR, "off by {:.0%}")
    spread = result["not_fitted"]["spread"]
    yield at_most("  the measurements themselves, from pass to pass", spread, form="differ by {:.0%}")


def neighbours(options: Options) -> Iterator[Line]:
    """CPU time of a step beside how many others run the same; the wall's clock shows why it is not asked."""
    alone = steps(1)
    for processes in (CORES, 2 * CORES, 4 * CORES)[: 1 if options.quick else 3]:
        beside = steps(processes)
        cpu, wall = beside[0] / alone[0] - 1, beside[1] / alone[1]
        yield Line(f"CPU time of a step, {processes} processes", f"{cpu:+.1%}", cpu, "within 10 %", abs(cpu) <= 0.1)
        yield at_most("  on the wall (negative control)", wall, form="x {:.2f}")


def steps(processes: int) -> tuple[float, float]:
    """Medians over so many processes of `STEPS`, all of which begin together."""
    with contextlib.ExitStack() as stack:
        words = [sys.executable, "-c", STEPS]
        helpers = [stack.enter_context(Helper(words, AS_WORKER)) for _ in range(processes)]
        for helper in helpers:
            helper.send("")
        answers = [helper.receive() for helper in helpers]
    return statistics.median(cpu for cpu, _ in answers), statistics.median(wall for _, wall in answers)


PARTS: dict[str, Part] = {
    "rounds": rounds,
    "links": links,
    "streams": streams,
    "large": large,
    "load": load,
    "calibration": calibration,
    "neighbours": neighbours,
}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS, on_request=("large",)))
