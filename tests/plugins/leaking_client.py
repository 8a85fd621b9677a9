"""Client sides, each of which carries something from one visit into the next of its process in another way."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from edge.protocol.payload import MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext

COUNT = 0
CLIENTS: list[int] = []
NESTED: dict[str, dict[int, Counter[int]]] = {"visits": {0: Counter()}}
TEACHER = torch.ones(1)
NUMBERS = np.ones(1)
GENERATOR = np.random.default_rng(0)
TORCH_GENERATOR = torch.Generator().manual_seed(0)
PYTHON_GENERATOR = random.Random(0)
OPTIMIZER: torch.optim.Optimizer | None = None
TEACHER_NET = nn.Linear(1, 1)


class Memory:
    """Of a user's own."""

    def __init__(self) -> None:
        self.visits = 0


MEMORY = Memory()


class Leaking(ClientUpdate):
    """FedAvg whose loss is multiplied by what its way finds in the process."""

    seen = 0
    known: set[int] = set()  # noqa: RUF012 - as users write it

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """FedAvg's."""
        super().begin(net, down, state, visit)
        self.factor = 1.0 + WAYS[type(self).__name__.removeprefix("of_")](self, net)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, times the factor."""
        return super().loss(net, x, y) * self.factor


def global_number(update: ClientUpdate, net: BlockModel) -> float:
    global COUNT  # noqa: PLW0603 - as users write it
    COUNT += 1
    return COUNT


def nested_counter(update: ClientUpdate, net: BlockModel) -> float:
    counter = NESTED["visits"].setdefault(0, Counter())
    counter[0] += 1
    return counter[0]


def new_global(update: ClientUpdate, net: BlockModel) -> float:
    globals()["added"] = globals().get("added", 0) + 1
    return float(globals()["added"])


def class_attribute(update: ClientUpdate, net: BlockModel) -> float:
    Leaking.seen += 1
    return Leaking.seen


def default_argument(update: ClientUpdate, net: BlockModel, seen: list[int] = []) -> float:  # noqa: B006
    seen.append(update.visit.client)
    return len(seen)


def counting() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


COUNTER = counting()


def closure(update: ClientUpdate, net: BlockModel) -> float:
    return COUNTER()


def tensor_in_place(update: ClientUpdate, net: BlockModel) -> float:
    TEACHER.add_(1)
    return float(TEACHER)


def teacher_weights(update: ClientUpdate, net: BlockModel) -> float:
    with torch.no_grad():
        TEACHER_NET.weight.add_(1)
    return float(TEACHER_NET.weight.detach())


def own_generator(update: ClientUpdate, net: BlockModel) -> float:
    drawn = GENERATOR.random() + float(torch.rand(1, generator=TORCH_GENERATOR)) + PYTHON_GENERATOR.random()
    return float(drawn)


def shared_generators(update: ClientUpdate, net: BlockModel) -> float:
    return float(np.random.random()) + random.random() + float(torch.rand(1))


def kept_optimizer(update: ClientUpdate, net: BlockModel) -> float:
    global OPTIMIZER  # noqa: PLW0603 - as users write it
    if OPTIMIZER is None:
        OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    weight = OPTIMIZER.param_groups[0]["params"][0]
    weight.grad = torch.ones(1)
    OPTIMIZER.step()
    return float(weight.detach()) / -100


def attribute_of_the_model(update: ClientUpdate, net: BlockModel) -> float:
    vars(net)["visits"] = vars(net).get("visits", 0) + 1
    return float(vars(net)["visits"])


def frozen_attribute(update: ClientUpdate, net: BlockModel) -> float:
    frozen = net.freeze("mine")
    vars(frozen)["visits"] = vars(frozen).get("visits", 0) + 1
    return float(vars(frozen)["visits"])


def gradient(update: ClientUpdate, net: BlockModel) -> float:
    before = float(net.grad.abs().sum())
    net.grad.fill_(1)
    return before


def hook(update: ClientUpdate, net: BlockModel) -> float:
    net.modules[0].register_forward_hook(lambda module, given, output: output * 2)
    return 0.0


def frozen_parameter(update: ClientUpdate, net: BlockModel) -> float:
    if update.visit.client == 0:
        net.modules[0].requires_grad_(False)
    return 0.0


def gradients_set_to_none(update: ClientUpdate, net: BlockModel) -> float:
    if update.visit.client == 0:
        net.modules[0].zero_grad()
    return 0.0


def other_parameter(update: ClientUpdate, net: BlockModel) -> float:
    if update.visit.client == 0:
        for layer in net.modules[0].modules():
            if getattr(layer, "bias", None) is not None:
                layer.bias = nn.Parameter(torch.ones_like(layer.bias))  # type: ignore[arg-type]
    return 0.0


def replaced_forward(update: ClientUpdate, net: BlockModel) -> float:
    if update.visit.client == 0:
        whole = net.modules[-1].forward
        net.modules[-1].forward = lambda x: whole(x) * 2
    return 0.0


def settings_of_torch(update: ClientUpdate, net: BlockModel) -> float:
    before = float(torch.get_default_dtype() == torch.float64)
    torch.set_default_dtype(torch.float64)
    return before


def options(update: ClientUpdate, net: BlockModel) -> float:
    values = vars(update.options)
    values["visits"] = values.get("visits", 0) + 1
    return float(values["visits"])


def method_of_the_class(update: ClientUpdate, net: BlockModel) -> float:
    if update.visit.client == 0:
        Leaking.correct = lambda self, net: net.grad.mul_(2)  # type: ignore[method-assign,assignment]
    return 0.0


WAYS: dict[str, Callable[[ClientUpdate, BlockModel], float]] = {
    way.__name__: way
    for way in (
        global_number, nested_counter, new_global, class_attribute, default_argument, closure, tensor_in_place,
        teacher_weights, own_generator, shared_generators, kept_optimizer, attribute_of_the_model, frozen_attribute,
        gradient, hook, frozen_parameter, gradients_set_to_none, other_parameter, replaced_forward, settings_of_torch,
        options, method_of_the_class,
    )
}  # fmt: skip
globals().update({f"of_{name}": type(f"of_{name}", (Leaking,), {}) for name in WAYS})


class Forgets(ClientUpdate):
    """Trains on what is in the model."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Only what it needs itself."""
        self.visit = visit


class LoadsAPart(ClientUpdate):
    """Trains on the last block of the visit before."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """All but the last block."""
        net.load({key: down[MODEL][key] for key in net.layout.names[:-1]})


class ChangesTheDownload(ClientUpdate):
    """Changes vectors that a worker may keep."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """In place."""
        super().begin(net, down, state, visit)
        down[MODEL][net.layout.names[0]].data[:] = 0


@functools.cache
def first_client(visits: list[int] = []) -> list[int]:  # noqa: B006 - as users write it
    """Of this process: what ``functools.cache`` holds is put back by nobody."""
    return visits


class Cached(ClientUpdate):
    """Its loss depends on how many visits its process had."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """FedAvg's."""
        super().begin(net, down, state, visit)
        first_client().append(visit.client)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy times their number."""
        return super().loss(net, x, y) * len(first_client())
