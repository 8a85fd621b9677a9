"""An exported app on real links: round times of Flower's own programs against the model's, and what Flower adds.

flwr 1.41.0 waits at fixed intervals: a node without a message for 3 s, its executor for a task every second, and the
node for the answer every 0.5 s; the exported server asks for replies every 0.1 s. The node that ends a round has just
asked in vain when the next one begins, so it waits for the whole 3 s. Beside that a visit starts a process, which
imports Flower, and fetches and sends the objects of its messages one by one, two at a time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
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
from tests.network.measure import error_percent
from tests.network.predict import clock

pytestmark = pytest.mark.timeout(1800)

DOWN, UP = (20e6, 20e6, 20e6, 20e6, 5e6), (5e6, 5e6, 5e6, 5e6, 1.25e6)
RTT = 0.040
ROUNDS = 6
WAITS_SECONDS = 3.0 + (1.0 + 0.5 + 0.1) / 2
"""Of the node that ends a round"""
REQUESTS_SECONDS = 2 * 0.7
"""Beside the link's time of a message, in each direction: a request for each of its objects, two at a time, and those
before and after. Measured for 14 objects at 40 ms, the same with 1.15 and 4.54 MB"""
STARTS = 3
BAR_PERCENT = 10.0
APP = (
    "method=fedavg",
    *("data.clients=5", "rounds.participants=5", f"rounds.max={ROUNDS}", "data.partition.kind=iid"),
    *("train.local_epochs=1", "stop.target_accuracy=1.0", f"eval.every={ROUNDS}"),
)


def start_seconds() -> float:
    """Seconds that five processes at once take to start and to import what a ClientApp does."""
    code = "from flwr.supernode.cli.flwr_clientapp import flwr_clientapp; import edge.flower.device_client"
    begun = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-c", code]) for _ in DOWN]:
        assert process.wait() == 0
    return time.monotonic() - begun


@pytest.mark.parametrize("width", [72, 144], ids=["1.2 MB", "4.6 MB"])
def test_rounds_of_a_deployment_take_as_long_as_foreseen(
    width: int, make_lab: Callable[..., Lab], show: Callable[[str], None], tmp_path: Path
) -> None:
    export(load("digits", parse_all([*APP, f"model.width={width}"])), tmp_path / "app")
    before = np.median([start_seconds() for _ in range(STARTS)])
    with make_lab(RTT, DOWN, UP) as lab, Deployment(lab, tmp_path / "app", tmp_path / "deployment") as deployment:
        deployment.run()
        rows = deployment.rounds(ROUNDS, 1200.0)
    started = float(np.median([before, *(start_seconds() for _ in range(STARTS))]))
    (ledger,) = (tmp_path / "deployment").glob("runs/*/*/ledger.sqlite")
    columns = "round, client, down_end_s - start_s, compute_end_s - down_end_s, bytes_down, bytes_up"
    visits = read(ledger, f"SELECT {columns} FROM visits WHERE round > 0 ORDER BY round, client")
    ways, links, foreseen = [], [], []
    for number in range(1, ROUNDS):  # in the first, devices open their data
        times, works = [], []
        for _, _, way, seconds, down, up in (row for row in visits if row[0] == number):
            times.append((way, seconds))
            works.append(Work(down, up, seconds))
        timeline = clock(np.zeros(5), works, DOWN, UP, Links(), RTT)
        computed = np.array(times)[:, 1]
        ways += np.array(times)[:, 0].tolist()
        links += (timeline.up_end - computed).tolist()
        foreseen.append(float(timeline.up_end.max()) + WAITS_SECONDS + REQUESTS_SECONDS + started)
    real = np.array([float(row["seconds"]) for row in rows[1:]])
    errors = error_percent(np.array(foreseen), real)
    added = np.array(ways) - links
    show(
        f"\nmodel.width = {width}: rounds of {' '.join(f'{seconds:.1f}' for seconds in real)} s, "
        f"median error {np.median(errors):+.1f} % (each {' '.join(f'{error:+.1f}' for error in errors)}); Flower adds "
        f"{np.median(added):.1f} s to a visit ({added.min():.1f} .. {added.max():.1f}), {started:.1f} s of them the "
        "start of its process"
    )
    assert added.min() > 0
    assert abs(float(np.median(errors))) <= BAR_PERCENT
