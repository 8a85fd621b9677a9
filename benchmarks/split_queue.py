"""A server's device that serves steps one by one: waits simulated step by step, and as the cost model has them.

    python benchmarks/split_queue.py

Clients make 100 steps each, at speeds that differ up to tenfold. A step computes, waits for its turn at one device,
which serves whoever came first, and computes again: simulated step by step in SimPy, and foreseen at once by
`costmodel.visits.server_queue`. Printed are foreseen over simulated seconds of the last client and of the median one.
Times are virtual; nothing is measured of this host.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from costmodel.network.links import Links
from costmodel.visits.timeline import solve
from costmodel.visits.work import StepExchange, Work, Works
from tests.costmodel.worlds import connected

STEPS, SEEDS = 100, 20
LOADS = (0.2, 0.5, 0.8, 1.0, 1.5, 3.0)
"""What all clients together would ask of the device if none waited"""


def simulated(own: list[float], service: float) -> list[float]:
    """When each client has made its steps; ``own``: seconds of a step without the device."""
    environment = simpy.Environment()
    device = simpy.Resource(environment)
    ends = [0.0] * len(own)

    def client(number: int) -> Generator[simpy.Event, Any, Any]:
        for _ in range(STEPS):
            yield environment.timeout(own[number] / 2)
            with device.request() as turn:
                yield turn
                yield environment.timeout(service)
            yield environment.timeout(own[number] / 2)
        ends[number] = environment.now

    for number in range(len(own)):
        environment.process(client(number))
    environment.run()
    return ends


def foreseen(own: list[float], service: float) -> list[float]:
    """The same by the cost model."""
    exchange = StepExchange(STEPS, 0, 0, STEPS * service)
    works = [Work(0, 0, STEPS * seconds, exchange=exchange) for seconds in own]
    fleet = connected(len(own), rtt=0.0, flops_per_second=1.0)
    ends: list[float] = solve([0.0] * len(own), Works.of(works), fleet, Links()).up_end.tolist()
    return ends


def main() -> None:
    """Print a row for each number of clients and load."""
    print(f"{'clients':>7} {'load':>5} {'last client':>12} {'median client':>14}")
    for clients in (4, 20, 100):
        for load in LOADS:
            ratios = []
            for seed in range(SEEDS):
                own = np.exp(np.random.default_rng(seed).uniform(0, np.log(10), clients)).tolist()
                # A client alone asks for service / (own + service) of the device.
                service = _service(own, load)
                pair = simulated(own, service), foreseen(own, service)
                ratios.append([each(pair[1]) / each(pair[0]) for each in (max, statistics.median)])
            last, median = (statistics.median(column) for column in zip(*ratios, strict=True))
            print(f"{clients:>7} {load:>5.1f} {last:>12.3f} {median:>14.3f}")


def _service(own: list[float], load: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        asked = sum(middle / (seconds + middle) for seconds in own)
        low, high = (middle, high) if asked < load else (low, middle)
    return low


if __name__ == "__main__":
    main()
