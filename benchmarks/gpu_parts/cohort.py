"""A cohort as one batched model beside its clients one after the other: ``-m benchmarks.gpu_parts.cohort REQUEST``.

The batched form stacks the clients' models (`torch.func.stack_module_state`) and runs one step of all of them at once
(`vmap` of `functional_call`); it trains on the product's own batches of these clients, gathered for all at once. The
other form is the product's: visits of `edge.training.trainer.LocalTrainer`. Both count downloads, batches, steps and
uploads. It is a measurement alone: the product has no batched form.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from benchmarks.engine_parts.plain import load as load_blocks
from benchmarks.gpu_parts.visits import ROUND, SHARE, Client, Measurement, flat, run
from benchmarks.harness import in_turns
from edge.protocol.payload import MODEL, Floats
from edge.training.batches import LocalBatches, cut

PLAIN = ("train.precision=fp32", "train.memory_format=contiguous")
ONE, BATCHED, GRAPHS = "one after the other", "one batched model", "one after the other, CUDA graphs"


class BatchedCohort:
    """All clients' models as one, for plain SGD without momentum."""

    def __init__(self, client: Client, clients: int) -> None:
        self.trainer, self.clients, self.lr = client.trainer, clients, client.lr
        blocks = [module for _, module in client.trainer.model.blocks()]
        load_blocks(blocks, {key: vector.data for key, vector in client.start[MODEL].items()})
        self.model = nn.Sequential(*blocks).to(client.trainer.device)

    def train(self) -> Floats:
        """(clients, parameters): the models after a visit to each client."""
        parameters, buffers = stack_module_state([self.model] * self.clients)  # copies, (clients, ...) each
        for x, y in self._batches():
            losses = vmap(self._loss)(parameters, buffers, x, y)
            # The clients' losses share no number, so the gradient of the sum is each client's own.
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()))
            with torch.no_grad():
                torch._foreach_add_(list(parameters.values()), gradients, alpha=-self.lr)
        models: Floats = torch.cat([each.detach().flatten(1) for each in parameters.values()], 1).cpu().numpy()
        return models

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self.model, (parameters, buffers), (x,)), y)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """((clients, batch, ...), (clients, batch)) of each step, with the examples that visits have."""
        for chosen in zip(*(self._orders(client) for client in range(self.clients)), strict=True):
            x, y = self.trainer.train_set.fetch(np.concatenate(chosen))
            yield x.reshape(self.clients, -1, *x.shape[1:]), y.reshape(self.clients, -1)

    def _orders(self, client: int) -> Iterator[NDArray[np.int64]]:
        """Indices of the examples of each step of a client's visit, in the order of `LocalBatches`."""
        indices, job = self.trainer.client_indices.train[client], self.trainer.job
        batches = LocalBatches(self.trainer.train_set, indices, job.train, (job.seed, ROUND, client))
        left = batches.plan.steps
        while left > 0:
            for chosen in cut(indices[batches.order.permutation(len(indices))], job.train.batch, True):
                if left == 0:
                    return
                left -= 1
                yield chosen


def main(scenario: str, clients: int, device: str, seconds: float, cycles: int) -> None:
    """``seconds``: limit of this process."""
    began, measurement = time.monotonic(), Measurement(device)

    def visits(client: Client) -> Floats:
        return np.stack([client.visit(number) for number in range(clients)])

    client = Client(scenario, PLAIN, device)
    forms: dict[str, Callable[[], Floats]] = {
        ONE: partial(visits, client),
        BATCHED: BatchedCohort(client, clients).train,
    }
    if client.trainer.device.type == "cuda":
        forms[GRAPHS] = partial(visits, Client(scenario, [*PLAIN, "train.graphs=true"], device))
    variants = {name: partial(measurement.seconds, name, form, clients) for name, form in forms.items()}
    turns = in_turns(variants, cycles, 1, began + SHARE * seconds, keep_going=True)
    start, notes = flat(client.start), {}
    for name in set(turns.seconds) - {ONE}:
        pairs = zip(measurement.models[name], measurement.models[ONE], strict=True)
        off = [float(np.linalg.norm(own - other) / np.linalg.norm(other - start)) for own, other in pairs]
        notes[name] = f"models off by {statistics.median(off):.1e} of their way, by {max(off):.1e} at most"
    measurement.send(turns, {BATCHED: ONE, GRAPHS: ONE}, notes)


if __name__ == "__main__":
    run(main)
