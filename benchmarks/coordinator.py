"""What the coordinator costs per visit, whoever trains: ``python benchmarks/coordinator.py``.

Runs of `digits` with a thousand clients, all of them in each round, whose two workers answer at once: each trains one
visit and repeats its update for all others (`benchmarks.echo`). So a round is the coordinator's work: selection,
prices, the clock, messages, checks, the weighted sum, the server's step, and rows of the ledger. Two workloads:

    sums      aggregate.sum = fixed_point: workers add updates up, and replies have numbers only
    updates   aggregate.sum = client_order, 250 kB each: every update comes, and is checked and added

For each: visits per second of wall time and the coordinator's CPU per visit (medians of rounds). The workers share the
processor: on two cores, two of them and the coordinator are three processes. Bars: 5,000 and 2,000 visits per second,
0.4 ms of CPU.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # or this file would hide the package of its name

from benchmarks.harness import Line, Options, at_most, main
from benchmarks.product import Request, differences, play

CLIENTS, WORKERS, ROUNDS, MOST_CPU_MS = 1000, 2, 20, 0.4
FLEET = ("method=fedavg", 'data.partition={kind="iid"}', "eval.every=100000", "rounds.max=100000")


def workload(overrides: Sequence[str], least_per_second: float, options: Options) -> Iterator[Line]:
    """One run, whose first two rounds are left out, since workers and caches are new in them."""
    clients = CLIENTS // 10 if options.quick else CLIENTS
    every = (*FLEET, *overrides, f"data.clients={clients}", f"rounds.participants={clients}")
    rounds = play(Request("digits", every, WORKERS, options.cycles(ROUNDS) + 2, site="benchmarks.echo:EchoSite")).rounds
    wall, cpu = (differences(rounds[1:], key) for key in ("seconds", "cpu_seconds"))
    rates = [clients / seconds for seconds in wall]
    rate, charged = statistics.median(rates), rounds[-1]["charged_up"] / clients / 1e3
    yield Line(
        f"visits a second, {charged:.0f} kB charged up each",
        f"{rate:,.0f} ({min(rates):,.0f} .. {max(rates):,.0f})",
        rate,
        f">= {least_per_second:,.0f}",
        rate >= least_per_second,
    )
    yield at_most("the coordinator's CPU a visit", 1e3 * statistics.median(cpu) / clients, MOST_CPU_MS, "{:.3f} ms")


PARTS = {
    "sums": partial(workload, ("aggregate.sum=fixed_point",), 5000.0),
    "updates": partial(workload, ("aggregate.sum=client_order", "model.width=33"), 2000.0),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS))
