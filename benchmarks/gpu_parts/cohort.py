"""A cohort as one batched model beside its clients one after the other: ``-m benchmarks.gpu_parts.cohort REQUEST``.

The batched form stacks the clients' models (`torch.func.stack_module_state`) and runs one step of all of them at once
(`vmap` of `functional_call`); it trains on the product's own batches of these clients, gathered for all at once. The
other form is the product's: visits of `edge.training.trainer.LocalTrainer`. Both count downloads, batches, steps and
uploads. One process, one thread of the CPU. It is a measurement alone: the product has no batched form.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from benchmarks.engine_parts.plain import load as load_blocks
from benchmarks.gpu_parts.children import tell
from benchmarks.gpu_parts.report import in_turns
from benchmarks.gpu_parts.visits import ROUND, SHARE, Client, distance, flat, peak, reported, reset_peak
from edge.protocol.payload import MODEL, Floats
from edge.training.batches import LocalBatches, cut

WARM_UP = 1
PLAIN = ("train.precision=fp32", "train.memory_format=contiguous")
ONE, BATCHED, GRAPHS = "one after the other", "one batched model", "one after the other, CUDA graphs"


@dataclass(frozen=True)
class Request:
    """What is measured."""

    tomls: dict[str, str]
    """Number of clients -> a scenario in which all of them have full batches alone"""
    device: str
    name: str
    """Of the model, for tables"""
    seconds: float
    """Limit of this process"""
    cycles: int
    """Most turns"""


class BatchedCohort:
    """All clients' models as one, for plain SGD without momentum."""

    def __init__(self, client: Client, clients: int) -> None:
        self.trainer, self.clients = client.trainer, clients
        self.lr = client.lr
        self.config = client.trainer.job.train
        blocks = [module for _, module in client.trainer.model.blocks()]
        load_blocks(blocks, {key: vector.data for key, vector in client.start[MODEL].items()})
        self.model = nn.Sequential(*blocks).to(client.trainer.device)

    def train(self) -> NDArray[np.float32]:
        """(clients, parameters): the models after a visit to each client."""
        parameters, buffers = stack_module_state([self.model] * self.clients)  # copies, (clients, ...) each
        for x, y in self._batches():
            losses = vmap(self._loss)(parameters, buffers, x, y)
            # The clients' losses share no number, so the gradient of the sum is each client's own.
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()))
            with torch.no_grad():
                torch._foreach_add_(list(parameters.values()), gradients, alpha=-self.lr)
        return torch.cat([each.detach().flatten(1) for each in parameters.values()], 1).cpu().numpy()

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self.model, (parameters, buffers), (x,)), y)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """((clients, batch, ...), (clients, batch)) of each step, with the examples that visits have."""
        for chosen in zip(*(self._orders(client) for client in range(self.clients)), strict=True):
            x, y = self.trainer.train_set.fetch(np.concatenate(chosen))
            yield x.reshape(self.clients, -1, *x.shape[1:]), y.reshape(self.clients, -1)

    def _orders(self, client: int) -> Iterator[NDArray[np.int64]]:
        """Indices of the examples of each step of a client's visit, in the order that `LocalBatches` draws."""
        indices = self.trainer.client_indices.train[client]
        batches = LocalBatches(self.trainer.train_set, indices, self.config, (self.trainer.job.seed, ROUND, client))
        left = batches.plan.steps
        while left > 0:
            for chosen in cut(indices[batches.order.permutation(len(indices))], self.config.batch, True):
                if left == 0:
                    return
                left -= 1
                yield chosen


def forms_of(toml: str, clients: int, device: str) -> tuple[Client, dict[str, Callable[[], Floats]]]:
    """A client, and name -> all models after a visit to each client, (clients, parameters)."""
    client = Client(toml, list(PLAIN), device)

    def one_by_one(by: Client = client) -> Floats:
        return np.stack([by.visit(number) for number in range(clients)])

    forms: dict[str, Callable[[], Floats]] = {ONE: one_by_one, BATCHED: BatchedCohort(client, clients).train}
    if client.trainer.device.type == "cuda":
        captured = Client(toml, [*PLAIN, "train.graphs=true"], device)
        forms[GRAPHS] = lambda: one_by_one(captured)
    return client, forms


def measured(request: Request, clients: int, until: float) -> None:
    """One size of the cohort; no further turn begins after ``until``, on the monotonic clock."""
    client, forms = forms_of(request.tomls[str(clients)], clients, request.device)
    prefix, start = f"{request.name}, {clients} clients: ", flat(client.start)
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    results: dict[str, Floats] = {}
    nbytes: dict[str, int] = {}
    for cycle in range(WARM_UP + request.cycles):
        if cycle > WARM_UP and time.monotonic() > until:
            break
        for name in list(seconds):
            taken = None
            with reported(prefix + name):
                before, started = reset_peak(client.trainer.device), time.perf_counter()
                results[name] = forms[name]()
                taken = (time.perf_counter() - started) / clients
                nbytes[name] = peak(client.trainer.device) - before
            if taken is None:
                del seconds[name]
            elif cycle >= WARM_UP:
                seconds[name].append(taken)
    for found in in_turns(seconds, {BATCHED: ONE, GRAPHS: ONE}):
        note = ""
        if found.to:
            pairs = zip(results[found.what], results[found.to], strict=True)
            off = [distance(own, other, start) for own, other in pairs]
            note = f"models off by {statistics.median(off):.1e} of their way, by {max(off):.1e} at most"
        to, memory = prefix + found.to if found.to else "", nbytes[found.what] or None
        tell(replace(found, what=prefix + found.what, to=to, nbytes=memory, note=note))


def main(text: str) -> None:
    request, began = Request(**json.loads(text)), time.monotonic()
    for number, clients in enumerate(map(int, request.tomls), 1):
        measured(request, clients, began + SHARE * request.seconds * number / len(request.tomls))


if __name__ == "__main__":
    main(sys.argv[1])
