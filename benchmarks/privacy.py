"""The bars of privacy: clipping and noise on a million weights, and the price of a round of secure aggregation.

Medians of wall-clock time on one core. ``clip``: a client's update is clipped at the server; ``noise``: the server's
noise on a sum, or a client's own. ``round``: what secagg+ among 10,000 clients costs is foreseen, from the cohort to
the end of the last phase. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from coordinator.privacy.central_noise import CentralNoise
from costmodel.clock import Clock
from edge.protocol.config import PrivacyConfig
from edge.protocol.payload import Vector
from edge.protocol.privacy import clipped, with_noise
from edge.protocol.rng import keyed_generator
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup
from scenarios.run.untrained import UntrainedRun

WEIGHTS, CLIENTS = 1_000_000, 10_000
BARS = {"clip and noise, ms a client": 10.0, "a round of secagg+ for 10,000 clients, s": 1.0}
COHORT = (f"data.clients={CLIENTS}", f"rounds.participants={CLIENTS}", "rounds.max=1", "method=fedavg")


def median(call: Callable[[], object], calls: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    call()
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def of_updates() -> dict[str, float]:
    """Milliseconds of clipping and noise."""
    rng = np.random.default_rng(0)
    start = {"all": Vector(rng.standard_normal(WEIGHTS, np.float32))}
    model = {"all": Vector(start["all"].data + 0.1 * rng.standard_normal(WEIGHTS, np.float32))}
    central = CentralNoise(PrivacyConfig("client"), 0, 100.0, 100.0)
    clip = median(lambda: clipped(model, start, 1.0), 20)
    local = median(lambda: with_noise(model, 0.1, keyed_generator(0, "noise")), 20)
    server = median(lambda: central.mean("all", start["all"].data, model["all"].data), 20)
    return {
        "clip, ms": 1e3 * clip,
        "a client's own noise, ms": 1e3 * local,
        "clip and noise, ms a client": 1e3 * (clip + local),
        "the server's noise, ms a step": 1e3 * server,
    }


def of_rounds() -> dict[str, float]:
    """Seconds of a round without training, with and without phases."""
    seconds = {}
    wide = ("fleet.server.down=inf", "fleet.server.up=inf")
    for name, more in (
        ("plain", wide),
        ("secagg+", ("privacy.secagg=secagg+", *wide)),
        ("secagg+ on one shared link", ("privacy.secagg=secagg+",)),
    ):
        loaded = load("digits", parse_all([*COHORT, *more]))
        inputs = RunInputs(loaded)
        setup = Setup(inputs, LocalTrainer(inputs.job).describe(False)[0])
        times = []
        for _ in range(3):
            run = UntrainedRun(setup.with_examples, Clock(setup.with_examples.fleet))
            begun = time.perf_counter()
            run.play(1)
            times.append(time.perf_counter() - begun)
        seconds[f"a round of {name} for 10,000 clients, s"] = statistics.median(times)
    return seconds


def main() -> None:
    """Measure, print one JSON object, and compare with the bars."""
    figures = of_updates() | of_rounds()
    print(json.dumps({name: float(f"{figure:.3g}") for name, figure in figures.items()}, indent=2))
    missed = [name for name, bar in BARS.items() if figures[name] > bar]
    for name in missed:
        print(f"missed: {name}: {figures[name]:.3g}, more than {BARS[name]:g}", file=sys.stderr)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
