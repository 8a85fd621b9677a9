"""Shares of links as SimGrid's, an oracle of other people's: `make test-simgrid` builds it in its own environment.

The second topology is FedDES's published configuration (Chen et al., ACM/IEEE SEC 2025): 16 nodes with 64 clients each,
which train for 30 s and send 38,123,587 bytes over links of 200 GB/s to the server's node.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from costmodel.network.transfers import transfer_batch

ORACLE = Path(__file__).parent / "oracle.py"
TOPOLOGIES = 40
NODES, CLIENTS, TRAINING_SECONDS, NBYTES, NODE_RATE = 16, 64, 30.0, 38_123_587, 8 * 200e9

Flow = tuple[float, float, list[int]]
"""Start, bits, and the links on its way"""


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of an environment with SimGrid."""
    if "FEDBR_SIMGRID" not in os.environ:
        pytest.skip("needs SimGrid in an environment of its own: run `make test-simgrid`")
    return os.environ["FEDBR_SIMGRID"]


def simgrid(python: str, links: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    """When each flow ends, by SimGrid."""
    topology = json.dumps({"links": list(links), "flows": list(flows)})
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    library = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    environment = os.environ | {"LD_LIBRARY_PATH": library}  # its wheel does not say where its own library is
    done = subprocess.run(
        [python, str(ORACLE)], input=topology, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    ends: list[float] = json.loads(done.stdout)
    return ends


@pytest.mark.parametrize("seed", range(TOPOLOGIES))
def test_flows_of_random_topologies_end_when_simgrid_says(python: str, seed: int) -> None:
    """A server's link, up to four sites or none, and a link of each client's own; starts, sizes and rates are drawn."""
    rng = np.random.default_rng(seed)
    sites, clients = int(rng.integers(0, 5)), int(rng.integers(1, 30))
    server, behind = float(rng.uniform(1e7, 1e8)), rng.uniform(5e6, 5e7, sites).tolist()
    own, bits = rng.uniform(1e6, 3e7, clients), 8.0 * rng.integers(100_000, 12_500_000, clients)  # whole bytes
    start, site = rng.uniform(0, 5, clients), rng.integers(0, max(sites, 1), clients)
    ways = [[0, *([1 + int(site[i])] if sites else []), 1 + sites + i] for i in range(clients)]
    flows = [(float(start[i]), float(bits[i]), ways[i]) for i in range(clients)]
    times = transfer_batch(start, bits, own, server, access_link=site if sites else None, access_capacity=behind)
    assert times.finish == pytest.approx(simgrid(python, [server, *behind, *own.tolist()], flows), rel=1e-9)


def test_the_clients_of_feddes_send_as_simgrid_says(python: str) -> None:
    flows = [(TRAINING_SECONDS, 8.0 * NBYTES, [node]) for node in range(NODES) for _ in range(CLIENTS)]
    assert simgrid(python, [NODE_RATE] * NODES, flows) == pytest.approx(_ended(), rel=1e-9)


def test_a_round_of_feddes_by_hand() -> None:
    # 64 x 38,123,587 B over 200 GB/s take 12.2 ms.
    assert _ended() == pytest.approx([TRAINING_SECONDS + CLIENTS * NBYTES / 200e9] * (NODES * CLIENTS), rel=1e-12)
    assert max(_ended()) == pytest.approx(30.0122, abs=1e-4)


def _ended() -> list[float]:
    clients = NODES * CLIENTS
    access_link = np.repeat(np.arange(NODES), CLIENTS)
    start, bits = np.full(clients, TRAINING_SECONDS), np.full(clients, 8.0 * NBYTES)
    times = transfer_batch(
        start, bits, np.full(clients, NODE_RATE), math.inf, access_link=access_link, access_capacity=[NODE_RATE] * NODES
    )
    ended: list[float] = times.finish.tolist()
    return ended
