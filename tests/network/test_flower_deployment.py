"""An exported app on real links: round times of Flower's own programs against the model's, and what Flower adds.

flwr 1.41.0 waits at fixed intervals: a node without a message for 3 s, its executor for a task every second, and the
node for the answer every 0.5 s; the exported server asks for replies every 0.1 s. The node that ends a round has just
asked in vain when the next one begins, so it waits for the whole 3 s. Beside that a visit starts a process, which
imports Flower, and fetches and sends the objects of its messages one by one, two at a time. The process starts while
its message is still being fetched: the longer of both counts.

What all of that adds to a visit, the start, and the seconds of the training are measured apart: one node of the same
kind alone, on links that are fast. From these and the model's links follow the rounds of five nodes on slow ones, of
which nothing is used. Each node has a part of the machine's processors to itself, as a device has: where five starts of
a process compete for two cores, rounds tell of that and not of links.

Seen on two cores of an AMD EPYC, 2026-11-26, rounds 2 to 6 of five nodes (docs/evidence/flower.md has more):
1.15 MB: 21.3 21.2 21.4 22.4 21.5 s, foreseen 21.3 s, median error -0.7 %;
4.54 MB: 49.9 49.9 50.4 50.4 48.2 s, foreseen 48.5 s, median error -2.8 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from coordinator.records.store import read
from costmodel.network.links import Links
from costmodel.visits.work import Work
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.flower.export import export
from tests.network.flower_deployment import Deployment
from tests.network.lab import Lab
from tests.network.measure import Doubles, error_percent
from tests.network.predict import clock

pytestmark = pytest.mark.timeout(1800)

CLIENTS = 5
DOWN, UP = (20e6, 20e6, 20e6, 20e6, 5e6), (5e6, 5e6, 5e6, 5e6, 1.25e6)
FAST = (1e9,)
RTT = 0.040
NODE_CORES = 0.3
"""Of each node, so that five nodes leave a quarter of two cores to the server and the network"""
ROUNDS = 6
AGAIN = np.cumsum([0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0])
"""Seconds after its start at which a process asks for an object of its message, each step within 20 %"""
BAR_PERCENT = 10.0
APP = (
    "method=fedavg",
    *(f"data.clients={CLIENTS}", f"rounds.max={ROUNDS}", "data.partition.kind=iid"),
    *("train.local_epochs=1", "stop.target_accuracy=1.0", f"eval.every={ROUNDS}"),
)


@dataclass(frozen=True)
class Rounds:
    """What a deployment measured, without the first round, in which devices open their data."""

    seconds: Doubles
    """(rounds)"""
    visits: Doubles
    """(rounds, nodes): seconds"""
    training: Doubles
    """(rounds, nodes): seconds, of the visits'"""
    starts: Doubles
    """(rounds): seconds from a message's announcement to the first node until the process for it has started"""
    work: Work
    """Bytes of a visit"""


def deploy(lab: Lab, folder: Path, width: int) -> Rounds:
    """An app whose rounds have all nodes of the lab, which are the scenario's first clients."""
    nodes = len(lab.clients)
    settings = (f"model.width={width}", f"rounds.participants={nodes}")
    export(load("digits", parse_all([*APP, *settings])), folder / "app")
    with Deployment(lab, folder / "app", folder / "deployment", CLIENTS) as deployment:
        deployment.run(f"min-nodes={nodes}")
        rows = deployment.rounds(ROUNDS, 1200.0)
        first = lab.clients[0]
        announced, started = deployment.times(first, "Receiving: "), deployment.times(first, "Start `flwr-clientapp`")
    (ledger,) = (folder / "deployment").glob("runs/*/*/ledger.sqlite")
    columns = "up_end_s - start_s, compute_end_s - down_end_s, bytes_down, bytes_up"
    found: Doubles = np.array(read(ledger, f"SELECT {columns} FROM visits WHERE round > 0 ORDER BY round, client"))
    found = found.reshape(ROUNDS - 1, nodes, 4)
    down, up = np.median(found[:, :, 2:], axis=(0, 1)).astype(int).tolist()
    return Rounds(
        seconds=np.array([float(row["seconds"]) for row in rows[1:]]),
        visits=found[:, :, 0],
        training=found[:, :, 1],
        starts=np.subtract(started, announced)[2:],  # after that of the join, and the first round's
        work=Work(down, up, 0.0),
    )


def ready(download: Doubles, start: float) -> Doubles:
    """Seconds from a message's announcement until its process has it: the start goes on beside the download."""
    late = np.maximum(download - start, 0.0)
    return start + AGAIN[np.searchsorted(AGAIN, late)]


@pytest.mark.parametrize("width", [72, 144], ids=["1.2 MB", "4.6 MB"])
def test_rounds_of_a_deployment_take_as_long_as_foreseen(
    width: int,
    make_lab: Callable[..., Lab],
    show: Callable[[str], None],
    cell: Callable[[float, float], None],
    tmp_path: Path,
) -> None:
    alone = deploy(make_lab(RTT, FAST, FAST, client_cores=NODE_CORES), tmp_path / "alone", width)
    training, start = float(np.median(alone.training)), float(np.median(alone.starts))
    fast = clock(np.zeros(1), [alone.work], FAST, FAST, Links(), RTT)
    adds = alone.seconds - alone.training[:, 0] - ready(fast.down_end, start) - (fast.up_end - fast.compute_end)
    slow = clock(np.zeros(CLIENTS), [alone.work] * CLIENTS, DOWN, UP, Links(), RTT)
    visits = np.median(adds) + ready(slow.down_end, start) + training + (slow.up_end - slow.compute_end)
    real = deploy(make_lab(RTT, DOWN, UP, client_cores=NODE_CORES), tmp_path / "five", width)
    errors = error_percent(float(visits.max()), real.seconds)
    show(
        f"\n{alone.work.bytes_down / 1e6:.2f} MB. Alone: rounds of {_text(alone.seconds)} s, the start of the process "
        f"{_text(alone.starts)}, training {_text(alone.training[:, 0])}, and else {_text(adds)} beside the links. "
        f"Five nodes: rounds of {_text(real.seconds)} s, foreseen {visits.max():.1f} s, median error "
        f"{np.median(errors):+.1f} % (each {_text(errors)}). Visits, median: {_text(np.median(real.visits, axis=0))} "
        f"s, foreseen {_text(visits)} s"
    )
    cell(float(visits.max()), float(np.median(real.seconds)))
    assert abs(float(np.median(errors))) <= BAR_PERCENT


def _text(values: Doubles) -> str:
    return " ".join(f"{value:.1f}" for value in values)
