"""Runs whose clients are a clockwork (`tests.toy.clockwork`), for the tests of round policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.rounds.policy import RoundPolicy
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.tcp import wire_bits
from edge.protocol.config import PartitionConfig, TrainConfig
from tests.toy import Run, play

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
IID = PartitionConfig("iid")
FOUR = [(1.0, 1.0, 2.0), (1.0, 2.0, 1.0), (2.0, 2.0, 4.0), (4.0, 4.0, 8.0)]
"""Down, computing, up: visits end after 4, 4, 8 and 16 s."""
EVER = (0.0, 1e6)
DOWN_NBYTES, UP_NBYTES = 5344, 5398
"""What goes down and up in a visit of FedAvg, headers and all"""
VALUES_NBYTES = 135
"""An update without vectors"""
FORWARD, STEP = 60_544, 177_024
"""FLOPs of an example of digits-cnn: forward, and a training step"""
TRAINED = 64 * STEP
EVALUATED = 90 * FORWARD
"""360 test examples over four clients"""


def ran(
    folder: Path, rules: RoundPolicy | None = None, seconds: Sequence[tuple[float, float, float]] = FOUR, **how: Any
) -> Run:
    """A run of clients whose visits take so many seconds; one round by default."""
    how = {"method": "fedavg", "train": BRIEF, "partition": IID, "rounds": 1, "clients": len(seconds), **how}
    return play(folder, seconds=seconds, rules=rules, **how)


def windows(*of_clients: Sequence[tuple[float, float]], on_loss: str = "abort") -> ClientDynamics:
    """Clients that are there at these times alone."""
    return ClientDynamics(RecordedIntervals(of_clients, None), on_loss)


def evaluation_ends(client: int, start: float = 16.0) -> tuple[float, float, float]:
    """When the parts of a client's evaluation visit end."""
    down, compute, up = FOUR[client]
    sent = float(wire_bits(np.array([VALUES_NBYTES]))[0] / wire_bits(np.array([UP_NBYTES]))[0])
    received = start + down
    return received, received + compute * EVALUATED / TRAINED, received + compute * EVALUATED / TRAINED + up * sent
