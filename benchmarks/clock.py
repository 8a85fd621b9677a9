"""What the clock achieves on this machine, beside its bars: ``python benchmarks/clock.py [--parts rounds,links]``.

rounds   a round of 1,000,000 clients, and memory per client
links    flows on one full link, contended rounds
streams  asynchronous clients
large    1,000,000 contended clients: minutes and gigabytes, only if it is named

Speeds are medians of a few repetitions by the clock on the wall, so other work on the machine shows in them.
`tests/costmodel` holds that fair shares are those of a plain solver, and that a batch is SimPy to the bit;
``fedbr check --calibrate`` shows how far predicted steps are from measured ones.
"""

from __future__ import annotations

import json
import statistics
import sys
import timeit
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.clock_alone import clock_alone
from benchmarks.harness import Line, Options, Part, answer, at_most, main, module
from costmodel.network.transfers import transfer_batch


def rounds(options: Options) -> Iterator[Line]:
    clients = 1_000_000
    yield played(f"{clients:,} clients, one round", options, 1.0, clients, clients, "sync", False)
    memory = in_own_process(clients=clients)["peak_bytes_per_client"]
    yield at_most("the same, peak", memory, 200, "{:.3g} B/client")


def links(options: Options) -> Iterator[Line]:
    for flows, bar in ((10_000, 1.0), (100_000, 10.0)):
        rng = np.random.default_rng(0)
        start, bits, cap = rng.random(flows), rng.lognormal(16, 0.5, flows), rng.lognormal(17, 1, flows)
        shares = partial(transfer_batch, start, bits, cap, 0.05 * float(cap.sum()))
        seconds = timeit.repeat(shares, number=1, repeat=options.cycles(3))
        yield at_most(f"{flows:,} flows on one full link", statistics.median(seconds), bar, "{:.3g} s")
    command = partial(in_own_process, clients=100_000, contended=True)
    seconds = timeit.repeat(command, number=1, repeat=options.cycles(3))
    yield at_most("100,000 contended clients, the whole command", statistics.median(seconds), 30.0, "{:.3g} s")
    what, clients = "10,000 of 1,000,000 clients, contended round", 10_000
    yield played(what, options, 1.0, 100 * clients, clients, "sync", True)


def streams(options: Options) -> Iterator[Line]:
    results = [clock_alone(10_000, 10_000, "fedasync", True) for _ in range(options.cycles(3))]
    events, bar = results[0]["simpy_events"], 30_000
    rate, by_cpu = (events / median(results, key) for key in ("wall_seconds", "cpu_seconds"))
    what, result = "10,000 clients asynchronously, contended", f"{rate:,.0f} events/s ({by_cpu:,.0f} by CPU time)"
    yield Line(what, result, rate, f">= {bar:,} events/s", rate >= bar)
    # Events are few here, since a message takes one: the visit is what has to be quick.
    results = [clock_alone(10_000, 10_000, "fedbuff", False) for _ in range(options.cycles(3))]
    visit = 1e3 * median(results, "cpu_seconds") / results[0]["visits"]
    yield at_most("10,000 clients, fedbuff, uncontended", visit, 0.2, "{:.3g} ms of CPU a visit")


def large(options: Options) -> Iterator[Line]:
    clients = 100_000 if options.quick else 1_000_000
    result = in_own_process(clients=clients, contended=True)
    yield at_most(f"{clients:,} contended clients, one round", result["cpu_seconds"], 60.0, "{:.3g} s of CPU")
    yield at_most("the same, peak", result["peak_bytes_per_client"] * clients / 1e9, 1.5, "{:.3g} GB")
    gateways = clients // 1000
    result = in_own_process(clients=clients, gateways=gateways, contended=True)
    what = f"{clients:,} contended clients below {gateways:,} gateways, one round"
    yield at_most(what, result["cpu_seconds"], 60.0, "{:.3g} s of CPU")
    yield at_most("the same, peak", result["peak_bytes_per_client"] * clients / 1e9, 1.5, "{:.3g} GB")
    result = clock_alone(clients, 10_000, "fedbuff", False)
    visit = 1e3 * result["cpu_seconds"] / result["visits"]
    what = f"{clients:,} clients, fedbuff, 10,000 visits at a time"
    yield at_most(what, visit, 0.2, "{:.3g} ms of CPU a visit")


def played(what: str, options: Options, bar: float, *arguments: Any) -> Line:
    """Seconds of `clock_alone`, in this process."""
    results = [clock_alone(*arguments) for _ in range(options.cycles(3))]
    cpu = f" ({median(results, 'cpu_seconds'):.3g} s of CPU)"
    return at_most(what, median(results, "wall_seconds"), bar, "{:.3g} s", cpu)


def in_own_process(clients: int, **how: Any) -> dict[str, Any]:
    """The result of `clock_alone` with all clients in a process of its own, whose memory is its own."""
    return dict(answer(module("clock_alone", json.dumps({"clients": clients, "cohort": clients, **how}))))


def median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(float(result[key]) for result in results)


PARTS: dict[str, Part] = {"rounds": rounds, "links": links, "streams": streams, "large": large}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS, on_request=("large",)))
