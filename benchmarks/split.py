"""Whole models, adapters or a cut: what a round costs on links of several rates and round trips (``split``).

``python benchmarks/split.py [SCENARIO ..]`` plays three rounds without training for each choice and link, and prints
which takes the least seconds, bytes and joules of all devices, and the memory of a device. What a cut trains is what
whole models train, so that the least a round is the least to any accuracy; adapters train something else, and are
compared by round alone. All clients have the link of the row, and their own devices. Nothing is measured of this host.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coordinator.rounds.budget import BYTES, JOULES, SECONDS
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.units import format_bytes, format_joules, format_rate, format_seconds
from edge.training.trainer import LocalTrainer
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup
from scenarios.studies.forecast.forecast import forecast

ROUND_TRIPS = (0.002, 0.02, 0.06, 0.2)
RATES = (1e6, 1e7, 1e8)
ROUNDS = 3
PLAIN = ("method=fedavg", f"rounds.max={ROUNDS}", "stop.target_accuracy=none", "fleet.jitter=0")
FRONT = ('adapter.on=["upper.0.attention.q"]', 'adapter.train=["head"]')
"""What learns behind a frozen front"""
CUTS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "har-people": [
        ("whole", ()),
        *((f"cut after {block}", (f"split.after={block}",)) for block in ("conv1", "conv2", "conv3")),
        ("u-shaped after conv1", ("split.after=conv1", "split.labels=u-shaped")),
    ],
    "fedbr-cifar10-cnn": [
        ("whole", ()),
        *((f"cut after {block}", (f"split.after={block}",)) for block in ("conv1", "conv2", "fc1", "fc2")),
        ("u-shaped after conv2", ("split.after=conv2", "split.labels=u-shaped")),
    ],
    "phone-keyboard": [
        ("whole", ("adapter.kind=none", 'adapter.on=["linear"]', "adapter.train=[]", "adapter.rank=8")),
        *((f"adapters of rank {rank}", (f"adapter.rank={rank}",)) for rank in (2, 8, 32)),
        *((f"rank 8, cut after {block}", (f"split.after={block}",)) for block in ("embedding", "lower", "upper")),
        (
            "frozen front, cut after lower",
            ("split.after=lower", "split.kind=frozen-front", *FRONT),
        ),
    ],
}
"""Scenario -> choices by name"""


class Costs(NamedTuple):
    """Of a round."""

    seconds: float
    nbytes: float
    joules: float


def setup_of(scenario: str, words: Sequence[str]) -> Setup:
    inputs = RunInputs(load(scenario, parse_all([*PLAIN, *words])))
    return Setup(inputs, LocalTrainer(inputs.job).describe(True)[0])


def costs(setup: Setup, rtt: float, rate: float) -> Costs:
    """Means of rounds in which all clients have this link; ``rate``: of the application, in both directions."""
    even = np.ones_like(setup.fleet.rtt)
    wire = rate * WIRE_FACTOR * even
    linked = copy.copy(setup)
    linked.__dict__["fleet"] = replace(setup.fleet, rtt=rtt * even, down=wire, up=wire)
    per_round = forecast(linked).per_round
    return Costs(*(per_round[name] for name in (SECONDS, BYTES, JOULES)))


def main(scenarios: Sequence[str]) -> None:
    """A table for each scenario."""
    for scenario in scenarios:
        setups = {}
        for name, words in CUTS[scenario]:
            try:
                setups[name] = setup_of(scenario, words)
            except ScenarioError as error:
                print(f"{scenario}, {name}: {error}")
        print(f"\n{scenario}")
        for name, setup in setups.items():
            print(f"  {name}: a device needs {format_bytes(setup.training_nbytes())}")
        for rate in RATES:
            for rtt in ROUND_TRIPS:
                found = {name: costs(setup, rtt, rate) for name, setup in setups.items()}
                best = [min(found, key=lambda name, of=of: found[name][of]) for of in range(3)]  # type: ignore[misc]
                of_all = "; ".join(
                    f"{what} {name}" for what, name in zip(("seconds", "bytes", "joules"), best, strict=True)
                )
                print(f"  {format_rate(rate)}, {format_seconds(rtt)}: {of_all}")
                for name, each in found.items():
                    shown = format_seconds(each.seconds), format_bytes(each.nbytes), format_joules(each.joules)
                    print(f"    {name}: {', '.join(shown)}")


if __name__ == "__main__":
    main(sys.argv[1:] or [*CUTS])
