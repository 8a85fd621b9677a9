"""SplitFed V2: clients train one server part, step by step in the order in which their activations arrive.

C. Thapa, M. A. P. Chamikara, S. Camtepe and L. Sun, SplitFed: When Federated Learning Meets Split Learning, AAAI 2022,
https://arxiv.org/abs/2004.12088. Each client has a front of its own, with what the optimizer keeps of it and its own
random stream; the server's blocks go from one client's step to the next one's, and so does what the optimizer keeps of
those. The step size is that of the arriving client's own step.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.client_update import Batch, Batches, BegunVisit
from edge.training.cuts import Way
from edge.training.sgd import Sgd


class Side:
    """The numbers of some blocks in a net, with what a step keeps of them: taken from it, and put back."""

    def __init__(self, net: BlockModel, blocks: Container[str], step: Sgd) -> None:
        places = [net.slices[name] for name in net.layout.names if name in blocks]
        self._homes = net.homes(blocks) + [kept[place] for kept in step.state.values() for place in places]
        self._numbers = [home.clone() for home in self._homes]

    def take(self) -> None:
        """Keep the numbers that the net has now."""
        for kept, home in zip(self._numbers, self._homes, strict=True):
            kept.copy_(home)

    def put(self) -> None:
        """Let the net have these numbers."""
        for kept, home in zip(self._numbers, self._homes, strict=True):
            home.copy_(kept)


@dataclass
class ClientSide:
    """A client between two of its steps."""

    begun: BegunVisit
    batches: Iterator[Batch]
    front: Side
    random: Tensor
    """State of torch's generator"""
    ways: Mapping[int, Way]
    """`BlockModel.cuts`"""
    executed: NDArray[np.int64]
    """Passes of its steps, as of `BlockModel.executed`"""


class SplitFedV2:
    """The visits of one round, trained together, each of which can then be ended."""

    def __init__(self, net: BlockModel, fronts: Container[str], begin: Callable[[int], BegunVisit]) -> None:
        """``fronts``: the blocks that clients hold; ``begin``: lets the net be as a client's visit begins."""
        self._net, self._fronts, self._begin = net, fronts, begin
        self._servers = [name for name in net.layout.names if name not in fronts]
        self._clients: dict[int, ClientSide] = {}
        self.at: int | None = None
        """The client whose step is made, for errors"""

    def train(self, order: Sequence[int], batches: Callable[[int], Batches]) -> None:
        """Make all steps. ``order``: the client of each, in order of arrival."""
        net, servers = self._net, [self._net.layout.names.index(name) for name in self._servers]
        for self.at in sorted({*order}):
            begun, own = self._begin(self.at), batches(self.at)()
            front, random = Side(net, self._fronts, _sgd(begun)), _random_state(net.device)
            self._clients[self.at] = ClientSide(begun, own, front, random, net.cuts, net.executed.copy())
        counts = [0] * len(servers)  # steps that what the optimizer keeps of each of the server's blocks has behind it
        for self.at, steps in groupby(order):
            side = self._clients[self.at]
            side.front.put()
            net.executed[:], net.cuts = side.executed, side.ways
            _set_random_state(side.random, net.device)
            of_blocks = _sgd(side.begun).steps_of_blocks
            for index, count in zip(servers, counts, strict=True):
                of_blocks[index] = count
            for batch in islice(side.batches, len([*steps])):
                side.begun.objective.train(net, partial(iter, (batch,)), side.begun.step)
            counts = [of_blocks[index] for index in servers]
            side.front.take()
            side.executed, side.random = net.executed.copy(), _random_state(net.device)
        self._server_part = Side(net, self._servers, _sgd(side.begun))

    def end(self, client: int) -> BegunVisit:
        """Let the net be as at the end of a client's visit, with the server part that all have trained."""
        if client not in self._clients:  # it makes no step
            begun = self._begin(client)
        else:
            side = self._clients[client]
            side.front.put()
            self._net.executed[:], self._net.further_flops = side.executed, 0.0
            begun = side.begun
        self._server_part.put()
        return begun


def _sgd(begun: BegunVisit) -> Sgd:
    assert isinstance(begun.step, Sgd), begun.step  # of a model that is cut no step is replayed
    return begun.step


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
