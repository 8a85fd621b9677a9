"""SplitFed V2 by hand: two clients with a weight each, in front of one server weight that both train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from edge.protocol.config import TrainConfig, TrainingPlan
from edge.protocol.options.base import Options
from edge.training.block_model import BlockModel
from edge.training.client_update import Batch, Batches, BegunVisit, ClientUpdate, VisitContext
from edge.training.sgd import Sgd
from edge.training.splitfed import SplitFedV2
from tests.toy import CPU

PAIRS = {7: [(1.0, 0.0), (1.0, 1.0)], 9: [(1.0, 2.0)]}
"""Client -> input and target of each of its steps"""


class Squares(ClientUpdate):
    """The squared error of a product."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        return self.record_loss((net.run(x) - y).square().mean())


def weights(dropout: float = 0.0) -> BlockModel:
    """A front of one weight, and a server part of one."""
    front = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(dropout))
    return BlockModel(lambda: [("front", front), ("server", nn.Linear(1, 1, bias=False))], CPU)


def begun(net: BlockModel, client: int, config: TrainConfig) -> BegunVisit:
    """A visit at its beginning, where all weights are 1."""
    net.flat.fill_(1.0)
    torch.manual_seed(client)
    plan, empty = TrainingPlan(2, 2, 2), ()
    visit = VisitContext(client, 0, 0, 0.1, 2.0, {}, plan, empty, empty, no_examples, CPU)
    return BegunVisit(visit, Squares(Options()), [], Sgd(net, config, 0.1))


def trained(net: BlockModel, order: list[int], config: TrainConfig, clients: dict[int, list[Batch]]) -> SplitFedV2:
    def batches(client: int) -> Batches:
        return lambda: iter(clients[client])

    together = SplitFedV2(net, ("front",), lambda client: begun(net, client, config))
    together.train(order, batches)
    return together


def no_examples() -> Iterator[Batch]:
    return iter(())


def batches_of(pairs: dict[int, list[tuple[float, float]]]) -> dict[int, list[Batch]]:
    return {client: [(torch.tensor([[x]]), torch.tensor([[y]])) for x, y in each] for client, each in pairs.items()}


def test_each_front_is_its_own_and_the_server_part_goes_from_step_to_step() -> None:
    """Loss (u v x - y)^2, lr 0.1, momentum 0.5; all weights begin at 1.

    Client 7: gradients 2 and 2; u = 0.8, v = 0.8. Client 9: error -1.2, gradients -1.92 and -2.4; its u = 1.192, and v
    moves by the momentum 0.5 x 2 - 2.4 = -1.4 to 0.94. Client 7 again: error 0.8 x 0.94 - 1 = -0.248, gradients
    -0.46624 and -0.3968; u = 0.8 - 0.1 (1 - 0.46624) = 0.746624, v = 0.94 - 0.1 (-0.7 - 0.3968) = 1.04968.
    """
    net = weights()
    together = trained(net, [7, 9, 7], TrainConfig(momentum=0.5), batches_of(PAIRS))
    ended = together.end(7)
    assert net.flat.tolist() == pytest.approx([0.746624, 1.04968], rel=1e-6)
    assert [float(loss) for loss in ended.objective.losses] == pytest.approx([1.0, 0.061504], rel=1e-5)
    assert net.executed[:, 0].tolist() == [2, 2]
    together.end(9)
    assert net.flat.tolist() == pytest.approx([1.192, 1.04968], rel=1e-6)
    assert net.executed[:, 0].tolist() == [1, 1]
    together.end(11)  # which has made no step
    assert net.flat.tolist() == pytest.approx([1.0, 1.04968], rel=1e-6)


def test_the_client_of_a_step_that_fails_is_known() -> None:
    net, clients = weights(), batches_of(PAIRS)
    together = SplitFedV2(net, ("front",), lambda client: begun(net, client, TrainConfig()))
    clients[9] = [(torch.ones(1, 3), torch.zeros(1, 1))]
    with pytest.raises(RuntimeError, match="shapes"):
        together.train([7, 9, 7], lambda client: lambda: iter(clients[client]))
    assert together.at == 9


def test_another_order_of_arrival_trains_other_numbers() -> None:
    net = weights()
    trained(net, [7, 7, 9], TrainConfig(momentum=0.5), batches_of(PAIRS)).end(7)
    assert net.flat[1].item() != pytest.approx(1.04968, rel=1e-3)


def test_the_random_numbers_of_a_client_do_not_depend_on_who_else_arrives() -> None:
    """A server part that does not move, and masks of dropout: of two clients in any order each has its own."""
    many = [(torch.ones(64, 1), torch.zeros(64, 1))] * 3
    found = []
    for order in ([7, 9, 7, 9, 7, 9], [9, 9, 7, 7, 7, 9], [7, 7, 7]):
        net = weights(dropout=0.5)
        net.modules[1].requires_grad_(False)
        trained(net, order, TrainConfig(), {7: many, 9: many}).end(7)
        found.append(net.flat[0].item())
    assert found[0] == found[1] == found[2] != 1.0
