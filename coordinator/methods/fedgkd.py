"""FedGKD: the mean of the last global models teaches local training.

Yao, Pan, Dai, Wan, Ding, Jin, Xu and Sun, Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
Non-IID Data, 2021, https://arxiv.org/abs/2107.00051. The client side is `edge.methods.fedgkd`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from coordinator.aggregation.server import Model, Models, ServerContext, ServerExtension, ServerStrategy, State
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import Costs, ObjectiveSpec, Refusals, Traffic
from edge.protocol.messages import Choice
from edge.protocol.options.fedgkd import FedGKDOptions
from edge.protocol.payload import TEACHER, Payload, Vector


class FedGKDServer(ServerStrategy):
    """Stores the last models, and sends their mean beside the newest."""

    options: FedGKDOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.sends_teacher = self.options.buffer > 1 and self.options.weight > 0
        self._push(())

    def choose(self, client: int, round: int) -> Choice:
        """Whether the visit distils."""
        return {"distil": int(round >= self.options.silent_rounds)} if self.sends_teacher else {}

    def payload(self, client: int, round: int, choice: Choice) -> Payload:
        """The model and the teacher, also in silent rounds, so that all messages have the same shapes."""
        payload = self.with_extensions(client, self.select(self.setup.down))
        teacher = {key: self.teacher[key] for key in self.setup.down}
        return payload | {TEACHER: teacher} if self.sends_teacher else payload

    def step(self) -> None:
        """FedAvg's step; the new model replaces the oldest stored one."""
        super().step()
        self._push(self.last)

    def _push(self, models: Sequence[Model]) -> None:
        """Append the current model to these, and compute the teacher."""
        size = self.options.buffer if self.sends_teacher else 1
        self.last = deque([*models, dict(self.model)], size)
        """Oldest first"""
        self.teacher = mean(self.last)

    def state(self) -> State:
        """The stored models without the newest, which is the global model."""
        older = enumerate(list(self.last)[:-1])
        arrays = {f"last/{age}/{key}": vector.data for age, model in older for key, vector in model.items()}
        return super().state() | arrays

    def restore(self, models: Models, state: State) -> None:
        super().restore(models, state)
        ages = sorted({int(name.split("/")[1]) for name in state if name.startswith("last/")})
        older = [
            {key: Vector(np.asarray(state[f"last/{age}/{key}"], np.float32)) for key in self.model} for age in ages
        ]
        self._push(older)


def mean(models: Sequence[Model]) -> Model:
    """The mean of models, including buffers; of one model, the model itself."""
    if len(models) == 1:
        return models[0]
    averages: Model = {}
    for key in models[0]:
        total = WeightedSum()
        for model in models:
            total.add(model[key].data, 1.0)
        average = total.mean()
        assert average is not None
        averages[key] = Vector(average)
    return averages


def compute(context: ComputeContext) -> Compute:
    """The teacher runs forward once, if the visit distils."""
    distils = context.options.weight and context.choice.get("distil", 1)
    return trained(context, distillation_passes(context.blocks, context.blocks if distils else 0))


SPEC = ObjectiveSpec(
    name="fedgkd",
    title="distillation from the mean of the last global models",
    source="Yao, Pan, Dai, Wan, Ding, Jin, Xu and Sun, 2021",
    options=FedGKDOptions,
    neutral="weight = 0",
    client="edge.methods.fedgkd:FedGKDUpdate",
    server=FedGKDServer,
    # All downloads have the same shapes.
    traffic=Traffic(choices=("distil",), decides_without_updates=lambda options: True),
    costs=Costs(compute=compute),
    refusals=Refusals(tiers="its teachers are earlier models of the server, which aggregators do not have"),
)
