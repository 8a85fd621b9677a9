"""Secure aggregation on modelled links: seconds and bytes by phase, against clients that leave in the middle.

A round of 100 clients, phones on LTE and Wi-Fi, without training data: their messages, computing, barriers and losses
are those of a run (`scenarios.run.untrained`). A share of the clients leaves at times that are uniform over the round
that would be without them. Each cell is a mean over rounds with other leavers; rounds without a quorum are lost, and
their time and bytes count as well. Prints a table in Markdown.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.clock import Clock
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.dynamics import ClientDynamics
from edge.protocol.config import ModelProfile
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup
from scenarios.run.untrained import UntrainedRound, UntrainedRun

CLIENTS, ROUNDS = 100, 20
SCENARIO = (
    *("method=fedavg", f"data.clients={CLIENTS}", f"rounds.participants={CLIENTS}", "rounds.max=1"),
    *("fleet.devices={phone-high=0.3,phone-mid=0.4,phone-low=0.3}", "fleet.networks={lte=0.5,wifi-4=0.5}"),
    *("fleet.server.down=inf", "fleet.server.up=inf"),
)
PROTOCOLS = {
    "none": (),
    "secagg": ("privacy.secagg=secagg",),
    "secagg+, k = 15": ("privacy.secagg=secagg+",),
    "secagg+, k = 51": ("privacy.secagg=secagg+", "privacy.secagg_shares=51"),
    "the same as Flower sends it": (
        *("privacy.secagg=secagg+", "privacy.secagg_shares=51", "privacy.secagg_wire=flower"),
    ),
    "lightsecagg": ("privacy.secagg=lightsecagg",),
}
LEAVING = (0.0, 0.1, 0.2, 0.3)
PHASES = ("setup", "share", "train", "unmask")


@dataclass(frozen=True)
class Cost:
    """Of one round."""

    seconds: float
    phases: dict[str, float]
    """Phase -> seconds until its barrier"""
    nbytes_up: float
    """Bytes up of a client, mean"""
    nbytes_down: float
    joules: float
    is_lost: bool


def cost(round: UntrainedRound) -> Cost:
    """The cost of a round."""
    ends: dict[str, list[float]] = defaultdict(list)
    starts: dict[str, list[float]] = defaultdict(list)
    for visit in round.record.visits:
        kind = "train" if visit.kind in ("lost", "late") else visit.kind
        starts[kind].append(visit.start_s)
        ends[kind].append(visit.up_end_s)
    phases = {kind: max(ends[kind]) - min(starts[kind]) for kind in PHASES if kind in ends}
    row = round.row
    return Cost(
        round.virtual_seconds,
        phases,
        row.bytes_up / CLIENTS,
        row.bytes_down / CLIENTS,
        row.joules / CLIENTS,
        row.participants == 0,
    )


def played(setup: Setup, leaving: float, seed: int, whole: float) -> Cost:
    """A round from which this share of the clients leaves, of ``whole`` seconds without them."""
    rng = np.random.default_rng(seed)
    leavers = set(rng.permutation(CLIENTS)[: round(leaving * CLIENTS)].tolist())
    windows = [[(0.0, float(rng.uniform(1e-3, whole)) if client in leavers else 1e9)] for client in range(CLIENTS)]
    fleet = setup.fleet
    if leaving:
        fleet = replace(fleet, behaviour=ClientDynamics(RecordedIntervals(windows, None), "abort"))
    run = UntrainedRun(setup, Clock(fleet))
    run.play(1)
    return cost(run.rounds[0])


def rows(profile: ModelProfile | None) -> Iterator[list[str]]:
    """A row for each protocol and share of leavers."""
    for name, how in PROTOCOLS.items():
        inputs = RunInputs(load("fedbr-cifar10-cnn", parse_all([*SCENARIO, *how])))
        profile = profile or LocalTrainer(inputs.job).describe(False)[0]
        setup = Setup(inputs, profile).with_examples
        whole = played(setup, 0.0, 0, 0.0).seconds
        for leaving in LEAVING:
            found = [played(setup, leaving, seed, whole) for seed in range(ROUNDS if leaving else 1)]

            def mean(values: list[float]) -> float:
                return statistics.fmean(values) if values else 0.0

            phases = [mean([each.phases[kind] for each in found if kind in each.phases]) for kind in PHASES]
            yield [
                name,
                f"{100 * leaving:.0f} %",
                *(f"{seconds:.2f}" if seconds else "–" for seconds in phases),
                f"{mean([each.seconds for each in found]):.2f} s",
                f"{mean([each.nbytes_down for each in found]) / 1e6:.2f} MB",
                f"{mean([each.nbytes_up for each in found]) / 1e6:.2f} MB",
                f"{mean([each.joules for each in found]):.1f} J",
                f"{sum(each.is_lost for each in found)} of {len(found)}",
            ]


def main() -> None:
    """Print the table."""
    head = ["", "leave", *PHASES, "round", "down a client", "up a client", "energy", "lost rounds"]
    print("|".join(["", *head, ""]))
    print("|".join(["", *["---"] * len(head), ""]))
    for row in rows(None):
        print("|".join(["", *row, ""]))


if __name__ == "__main__":
    main()
