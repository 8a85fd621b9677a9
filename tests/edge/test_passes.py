"""What a method's row says is executed is what torch itself counts while a step runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from coordinator.methods import resolve
from coordinator.methods.fedbr import FedBROptions
from edge.blocks import Net, build, load_dotted
from edge.config import ModelConfig
from edge.describe import flops_per_example
from edge.local import first_last
from tests.toy import CPU, batch, shifted, tower, tower_blocks, visit, whole

CASES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("fedavg", {}, {}),
    ("fedprox", {"mu": 0.1}, {}),
    ("fedmlb", {}, {}),
    ("fedmlb", {"order": "GL"}, {}),
    ("fedmlb", {"pathways": (1, 3)}, {}),
    ("fedmlb", {"pathways": (2,), "order": "GL"}, {}),
    ("fedmlb", {"pathways": ()}, {}),
    ("fedmlb", {"pathways": (), "order": "GL"}, {}),
    ("fedmlb", {"detach_hybrid_target": True}, {}),
    ("fedbr", {}, {"alpha": 1, "full": 0}),
    ("fedbr", {}, {"alpha": 2, "full": 1}),
    ("fedbr", {}, {"alpha": 3, "full": 0}),
    ("fedbr", {"hybrid_ce": False}, {"alpha": 2, "full": 0}),
    ("fedbr", {"hybrid_ce": False, "detach": True}, {"alpha": 2, "full": 0}),
]


@pytest.mark.parametrize(("name", "options", "choice"), CASES)
def test_a_row_foresees_the_flops_of_a_step(name: str, options: dict[str, Any], choice: dict[str, int]) -> None:
    net, method = tower(), resolve(name)
    row, chosen = method.objective, method.options(**options)
    half = load_dotted(row.client)(method.share(chosen, row))
    half.begin(net, whole(net), {}, visit(net, **choice))
    shifted(net)
    flops = flops_per_example(tower_blocks, (1, 1, 5))
    x, y = batch(8)
    net.executed[:] = 0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(half.loss(net, x, y))
    foreseen = row.passes(4, chosen, choice)
    assert (net.executed == 8 * foreseen).all()
    assert counter.get_total_flops() == (foreseen * flops).sum() * 8


@pytest.mark.parametrize(("name", "options", "choice"), CASES)
def test_so_it_is_for_blocks_of_many_layers(name: str, options: dict[str, Any], choice: dict[str, int]) -> None:
    config = ModelConfig("resnet18", width=4, blocks="balanced:4")
    net, method = Net(lambda: build(config, 10, 3), CPU), resolve(name)
    row, chosen = method.objective, method.options(**options)
    half = load_dotted(row.client)(method.share(chosen, row))
    half.begin(net, whole(net), {}, visit(net, **choice))
    flops = flops_per_example(lambda: build(config, 10, 3), (3, 16, 16))
    x, y = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(half.loss(net, x, y))
    assert counter.get_total_flops() == 2 * (row.passes(4, chosen, choice) * flops).sum()


def test_the_exact_drop_runs_all_local_data_forward_twice() -> None:
    net, method = tower(), resolve("fedbr")
    chosen, choice = FedBROptions(drop="exact"), {"alpha": 1, "full": 1}
    half = load_dotted(method.objective.client)(method.share(chosen, method.objective))
    half.begin(net, whole(net), {}, visit(net, **choice))
    half.end(net, visit(net))
    # The visit's client holds one batch of 8.
    assert (net.executed == 8 * method.objective.whole_passes(4, chosen, choice)).all()
    assert net.executed.sum() == 2 * 8 * 4


def test_first_and_last_epoch_or_else_the_two_halves() -> None:
    losses = [torch.tensor(value) for value in (5.0, 4.0, 3.0, 2.0, 1.0)]
    assert first_last(losses, 2) == (4.5, 1.5)  # two epochs of 2 steps and a bit
    assert first_last(losses, 4) == (4.5, 1.5)  # less than two epochs: halves of 2, the middle one left out
    assert first_last(losses[:1], 4) == (5.0, 5.0)
