"""What must hold of FedAvg: it is SGD when there is one client, and a weighted mean when there are more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from coordinator.aggregation.server import ServerStrategy
from coordinator.aggregation.weighted_sum import WeightedSum
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, BlockShape, Floats, Layout
from edge.training.batches import LocalBatches
from edge.training.blocks import build
from tests.toy import Run, play, small_context, vector

IID = PartitionConfig("iid")


def plain_model(run: Run) -> nn.Sequential:
    """The run's model where it started, as an ordinary torch module."""
    model = nn.Sequential(*(module for _, module in build(run.federation.job.model, classes=10, inputs=1)))
    nn.utils.vector_to_parameters(torch.from_numpy(run.start), model.parameters())
    return model


def flat(model: nn.Module) -> NDArray[np.float32]:
    numbers: NDArray[np.float32] = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return numbers


def test_one_client_is_centralised_sgd_on_the_same_batches(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.1, lr_decay=0.5, batch=64)
    run = play(tmp_path, clients=1, rounds=2, train=train, partition=IID)
    site, model = run.workers.site, plain_model(run)
    for round, lr in enumerate((0.1, 0.05)):
        optimiser = torch.optim.SGD(model.parameters(), lr)
        for x, y in LocalBatches(site.train_set, site.client_indices.train[0], train, (0, round, 0))():
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    assert np.array_equal(run.model, flat(model))
    assert np.abs(run.model - run.start).max() > 1e-2


# --- the mean, by hand ------------------------------------------------------------------------------------------------


def mean(weighted: Sequence[tuple[Floats, float]]) -> Floats:
    total = WeightedSum()
    for numbers, weight in weighted:
        total.add(numbers, weight)
    result = total.mean()
    assert result is not None
    return result


def stepped(weights: str, samples: list[int], train: TrainConfig | None = None) -> list[float]:
    """A model of two numbers, (0, 0), after replies (1, 0), (2, 0) and (4, 8)."""
    more: dict[str, Any] = {"weights": weights, "train": train or TrainConfig()}
    server = ServerStrategy(small_context(Layout((BlockShape("w", 2),)), Options(), samples, **more))
    replies = [vector(1, 0), vector(2, 0), vector(4, 8)]
    for client, reply in enumerate(replies):
        server.accumulate(Update(client, 0, {}, {MODEL: {"w": reply}}))
    server.step()
    return [float(number) for number in server.model["w"].data]


def test_replies_weigh_what_their_clients_hold() -> None:
    assert stepped("size", [4, 2, 2]) == [2.0, 2.0]  # (4 + 4 + 8) / 8 and 16 / 8
    assert stepped("size", [1, 0, 0]) == [1.0, 0.0]


def test_or_what_fills_whole_batches() -> None:
    # 2, 1 and 1 batches of 64: (2 + 2 + 4) / 4 and 8 / 4.
    whole = TrainConfig(batch=64, drop_last=True)
    assert stepped("trained", [130, 127, 64], whole) == [2.0, 2.0]
    assert stepped("trained", [130, 63, 0], whole) == [1.0, 0.0]
    assert stepped("trained", [63, 63, 63], whole) == [0.0, 0.0]
    assert stepped("trained", [4, 2, 2], TrainConfig(batch=64)) == stepped("size", [4, 2, 2])


def test_or_all_weigh_the_same() -> None:
    assert np.allclose(stepped("uniform", [4, 2, 2]), [7 / 3, 8 / 3], rtol=1e-7)
