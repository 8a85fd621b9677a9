"""A visit does not depend on the one before it in the same worker, whatever a user's code leaves there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.protocol.config import CodecConfig, DataConfig, Job, ModelConfig, PartitionConfig
from edge.protocol.messages import GLOBAL, Evaluate, EvaluatedQuantity, Train
from edge.protocol.payload import MODEL
from edge.protocol.serialization import packed_text
from edge.training.client_update import ClientUpdate
from edge.training.trainer import LocalTrainer
from tests.crossed import every
from tests.plugins import leaking_client, leaking_parts
from tests.toy import DIGITS_CNN, TRAIN
from tests.toy_cache import cache_folder

PARTS = leaking_parts.__name__
CODEC = CodecConfig(up=({"kind": f"{PARTS}:CODEC"},), min_values=0, error_feedback=False)
DATA = DataConfig("digits", clients=4, partition=PartitionConfig("iid"))


class Worker:
    """A trainer that has described its model, as each worker of a run could have."""

    def __init__(self, client_side: str, model: ModelConfig = DIGITS_CNN, **more: Any) -> None:
        objective = client_side if ":" in client_side else f"tests.plugins.leaking_client:{client_side}"
        job = Job("", 0, "cpu", cache_folder(), model, DATA, TRAIN, objective)
        description, _ = LocalTrainer(job).describe(data=False)
        up, text = tuple(description.layout.sizes), packed_text(description)
        job = replace(job, up=up, description=text, reports=("loss",), **more)
        leaking_parts.Counting.calls = 0  # as in a new process
        self.trainer = LocalTrainer(job)
        self.initial = self.trainer.describe(data=False)[1][MODEL]

    def visit(self, *clients: int) -> bytes:
        """The upload of the last of these clients, visited one after another."""
        for client in clients:
            update = self.trainer.train(Train(client, 0, 0.1, {}, {MODEL: dict(self.initial)}), None, None)
        numbers = [vector.data for vector in update.payload.get(MODEL, {}).values()]
        frames = [np.asarray(frame) for frame in update.encoded.get(MODEL, {}).values()]
        return b"".join([each.tobytes() for each in numbers] + [frame.tobytes() for frame in frames])

    def score(self) -> Mapping[EvaluatedQuantity, tuple[float, int]]:
        """The values of one evaluation."""
        return self.trainer.evaluate(Evaluate(0, 360, GLOBAL, {MODEL: dict(self.initial)}), None).values


@pytest.fixture(autouse=True)
def default_dtype() -> Iterator[None]:
    """As torch has it after a test."""
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("way", every(2, leaking_client.WAYS))
def test_what_a_visit_leaves_in_the_process_does_not_reach_the_next(way: str) -> None:
    first, second = Worker(f"of_{way}"), Worker(f"of_{way}")
    alone = first.visit(1)
    assert second.visit(0, 2, 1) == alone
    assert first.visit(3, 1) == alone


@pytest.mark.parametrize("parts", [{"model": ModelConfig(f"{PARTS}:MODEL")}, {"codec": CODEC}], ids=["model", "codec"])
def test_neither_does_what_other_plug_ins_keep(parts: dict[str, Any]) -> None:
    first, second = (Worker(f"{ClientUpdate.__module__}:ClientUpdate", **parts) for _ in range(2))
    alone = first.visit(1)
    assert second.visit(0, 2, 1) == alone
    assert first.visit(3, 1) == alone


def test_a_metric_is_made_anew_for_each_evaluation() -> None:
    worker = Worker(f"{ClientUpdate.__module__}:ClientUpdate", metrics=(f"{PARTS}:METRIC",), eval_batch=500)
    first = worker.score()
    assert worker.score() == first
    assert first[EvaluatedQuantity("growing")] == (1.0, 1)  # 360 test examples


@pytest.mark.parametrize(
    ("client_side", "message"),
    [
        (
            "Forgets",
            "method: begin of Forgets ({file}, line {line}) has not loaded the model's conv1, conv2, "
            "conv3, head; call super().begin(net, down, state, visit) first, or load them with net.load",
        ),
        (
            "LoadsAPart",
            "method: begin of LoadsAPart ({file}, line {line}) has not loaded the model's head; call "
            "super().begin(net, down, state, visit) first, or load them with net.load",
        ),
        ("ChangesTheDownload", "assignment destination is read-only"),
    ],
)
def test_a_client_side_that_would_use_the_visit_before_is_refused_in_its_first(client_side: str, message: str) -> None:
    source = Path(leaking_client.__file__)
    code = getattr(leaking_client, client_side).begin.__code__
    with pytest.raises(ValueError, match=re.escape(message.format(file=source, line=code.co_firstlineno))):
        Worker(client_side).visit(2)
