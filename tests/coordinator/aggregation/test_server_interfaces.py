"""The interfaces admit more than the shipped methods use: each such method is written in its smallest form, and run.

Local training in two phases, and corrections with a last word.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from coordinator.aggregation.server import Model, ServerExtension
from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, trained
from coordinator.methods.registry import Method
from coordinator.methods.spec import CorrectionSpec, Costs, numbers_of_model
from coordinator.rounds.budget import ROUNDS
from edge.protocol import client_state
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import FORWARD, Payload, Vector
from edge.training import client_update
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step
from tests.toy import objective, play, state_file

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=4)
BODY = ("conv1", "conv2", "conv3")


# --- two phases of local training, and a number that the client keeps -------------------------------------------------


class Phases(ClientUpdate):
    """First the body learns under a fixed head, then the head on a fixed body; keeps how often it was visited."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: client_update.VisitContext) -> None:
        super().begin(net, down, state, visit)
        self.visits = float(state["branch"]["visits"].data[0]) if "branch" in state else 0.0

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        self.seen = []
        for only in (BODY, ("head",)):
            net.train_only(only)
            before = net.flat.clone()
            for x, y in batches():
                self.seen.append(y)
                step(self.loss, x, y, only=only)
            moved = [name for name, part in net.slices.items() if not torch.equal(net.flat[part], before[part])]
            assert moved == list(only)
        half = len(self.seen) // 2
        assert any(not torch.equal(a, b) for a, b in zip(self.seen[:half], self.seen[half:], strict=True))

    def end(self, net: BlockModel, visit: client_update.VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        up, kept, numbers = super().end(net, visit)
        visits = Vector(np.array([self.visits + 1], dtype=np.float32))
        return up, {**kept, "branch": {"visits": visits}}, numbers


def phases(context: ComputeContext) -> Compute:
    passes = fedavg_passes(context.blocks)  # the first phase: gradients through all blocks, but no weight gradient
    passes[:, FORWARD] += 1  # of the head; the second: all forward, and the weight gradient that the first left out
    return dataclasses.replace(trained(context, passes), steps=2 * context.plan.steps)


def test_local_training_in_two_phases(tmp_path: Path) -> None:
    method = objective("phases", f"{__name__}:Phases", client_state=numbers_of_model, costs=Costs(compute=phases))
    run = play(tmp_path, method, rounds=3, train=dataclasses.replace(BRIEF, momentum=0.5, clip=1.0, weight_decay=0.01))
    assert run.stopped_by == ROUNDS
    kept = [client_state.read(state_file(run.federation, client)) for client in range(4)]
    assert [{slot: list(named) for slot, named in one.items()} for one in kept] == [{"branch": ["visits"]}] * 4
    assert [float(one["branch"]["visits"].data[0]) for one in kept] == [3, 3, 3, 3]


# --- a correction that has the last word on the global model: FedDyn --------------------------------------------------


class Idle(client_update.GradientCorrection):
    """Corrects nothing."""


class Halfway(ServerExtension):
    """Makes half a step."""

    def step(self, before: Model, after: Model) -> Model:
        return {key: Vector(np.float32(0.5) * (before[key].data + after[key].data)) for key in after}


def test_a_correction_may_have_the_last_word_on_the_global_model(tmp_path: Path) -> None:
    idle = CorrectionSpec("halfway", "halfway", "a test", Options, "", f"{__name__}:Idle", Halfway)
    damped = Method("halfway", objective("fedavg").objective, (idle,))
    run = play(tmp_path / "run", damped, rounds=1, train=BRIEF)
    whole = play(tmp_path / "whole", rounds=1, train=BRIEF)
    assert np.array_equal(run.model, (whole.start + whole.model) / 2)
