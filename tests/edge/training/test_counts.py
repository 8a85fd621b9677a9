"""What is counted of a model is what torch does: FLOPs of a method's step, what training keeps, operations by kind."""

from __future__ import annotations

import copy
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coordinator.methods.registry import resolve
from edge.data.registry import dataset
from edge.models.llama import GroupedAttention
from edge.protocol.config import ModelConfig
from edge.protocol.operations import KINDS
from edge.protocol.options.llama import LlamaOptions
from edge.protocol.payload import PASS_TYPES
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build, load_dotted
from edge.training.counts import count_blocks, flops_per_example
from edge.training.job_model import cached_counts
from tests.crossed import every
from tests.toy import CPU, one_example, shifted, tower_blocks, visit, whole

CASES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("fedavg", {}, {}),
    ("fedprox", {"mu": 0.1}, {}),
    ("fedmlb", {"order": "GL"}, {}),
    ("fedmlb", {"pathways": (2,), "order": "GL"}, {}),
    ("fedmlb", {"pathways": ()}, {}),
    ("fedbr", {}, {"alpha": 1, "full": 0}),
    ("fedbr", {}, {"alpha": 2, "full": 1}),
    ("fedbr", {"hybrid_ce": False}, {"alpha": 2, "full": 0}),
    ("fedavg-kd", {}, {}),
    ("fedavg-fitnet", {}, {}),
    ("fedavg-fitnet", {"layers": (2,)}, {}),
    ("fedntd", {}, {}),
    ("fedgkd", {}, {"distil": 1}),
    ("fedgkd", {}, {"distil": 0}),
    ("fedgkd", {"buffer": 1}, {}),
    ("fednova", {}, {}),
    ("pfedme", {"inner_steps": 1}, {}),
    ("mixup", {}, {}),
]


RESNET = ModelConfig("resnet18", width=4, blocks="balanced:4")


def small_resnet() -> list[Block]:
    """Four blocks of many layers."""
    return build(RESNET, 10, 3)


@pytest.mark.parametrize(("make", "shape"), every(2, [(tower_blocks, (1, 1, 5)), (small_resnet, (3, 16, 16))]))
@pytest.mark.parametrize(("name", "options", "choice"), every(4, CASES))
def test_a_row_foresees_the_flops_of_a_step(
    name: str, options: dict[str, Any], choice: dict[str, int], make: Any, shape: tuple[int, int, int]
) -> None:
    net, method = BlockModel(make, CPU), resolve(name)
    row, chosen = method.objective, method.options(**options)
    client_side = load_dotted(row.client)(chosen)
    client_side.begin(net, whole(net), {}, visit(net, **choice))
    shifted(net)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).squeeze()  # a tower takes (examples, 5)
    net.executed[:] = 0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(client_side.loss(net, x, torch.tensor([0, 1])))
    foreseen = row.costs.compute(one_example(4, np.zeros((4, PASS_TYPES)), chosen, choice)).passes
    assert (net.executed == 2 * foreseen).all()
    assert counter.get_total_flops() == 2 * (foreseen * flops_per_example(make, shape)).sum()


# --- what training keeps in memory ------------------------------------------------------------------------------------


def normalised() -> list[Block]:
    layers = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(inplace=True), nn.Flatten())
    return [("flat", nn.Flatten()), ("one", layers)]


def test_blocks_keep_what_is_counted_by_hand_however_a_model_is_cut() -> None:
    # Each tanh keeps its output, which is what the next linear layer keeps as its input: counted once, there.
    assert count_blocks(tower_blocks, (1, 1, 5)).activations.tolist() == [5.0, 7.0, 6.0, 4.0]
    # The input of each convolution, what its ReLU puts out if no later block keeps it, and where each maximum of the
    # pool was, as 8-byte integers.
    conv2, conv3 = 16 * 64 + 32 * 64 + 2 * 32 * 16, 32 * 16 + 32 * 16 + 2 * 32 * 4
    digits = count_blocks(lambda: build(ModelConfig("digits-cnn"), 10, 1), (1, 8, 8)).activations
    assert digits.tolist() == [64, conv2, conv3, 128]
    # Both inputs, the output, and the mean and deviation of the batch, shared by its two examples; no parameters.
    assert count_blocks(normalised, (1, 1, 5)).activations.tolist() == [0, 5 + 7 + 7 + 7]
    for config in (ModelConfig("resnet18", blocks=cut) for cut in ("stages", "balanced:6")):
        assert count_blocks(partial(build, config, 100, 3), (3, 32, 32)).activations.sum() == 1_175_120


def test_counts_are_made_anew_where_a_models_layers_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make() -> list[Block]:
        made.append("blocks")
        return build(ModelConfig("vgg9", 2), 10, 1)

    def count() -> int:
        cached_counts(ModelConfig("vgg9", 2), make, dataset("mnist"), tmp_path)
        return len(made)

    once = count()
    assert once > 0
    assert count() == once
    source = inspect.getsource
    changed = {"edge.models.layers": "as it was, and another line"}
    monkeypatch.setattr(inspect, "getsource", lambda module: changed.get(module.__name__) or source(module))
    assert count() == 2 * once


# --- operations by kind -----------------------------------------------------------------------------------------------


def counted(*layers: nn.Module, shape: tuple[int, ...]) -> dict[str, list[float]]:
    """Kind -> [per example, per step], of the kinds that occur."""
    found = count_blocks(lambda: [("all", nn.Sequential(*copy.deepcopy(layers)).to("meta"))], shape).operations
    return {kind: pair for kind, pair in zip(KINDS, found.tolist(), strict=True) if any(pair)}


def test_a_first_convolution_has_a_pass_forward_and_one_for_its_weights() -> None:
    # 16 * 16 * 9 MACs at 8 * 8 places = 147,456; two passes of 2 FLOPs each. 2304 weights and 16 biases.
    found = counted(nn.Conv2d(16, 16, 3, padding=1), shape=(16, 8, 8))
    assert found == {
        "conv.w16": [589_824, 0],
        "parameters": [0, 2320],
        "convolutions": [0, 1],
        "calls": [0, 2],
    }


def test_depthwise_and_1x1_convolutions_are_kinds_of_their_own() -> None:
    # 8 channels at 4 * 4 places. Depthwise: 8 * 9 * 16 = 1152 MACs, two passes. 1x1: 8 * 8 * 16 = 1024, three,
    # which take as long as with the 16 output channels of a whole vector.
    found = counted(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1), shape=(8, 4, 4))
    assert found["channelwise"] == [4 * 1152, 0]
    assert found["pointwise.w8"] == [2 * 6 * 1024, 0]
    assert "linear" not in found


def test_flops_of_no_convolution_are_linear_and_a_transposed_one_has_places_of_its_input() -> None:
    # 4 * 4 * 4 weights at the 9 places of the input: 576 MACs, two passes. A quarter of a vector takes as long as a
    # whole one. 4 * 6 * 6 numbers to 5: 720 MACs, three passes.
    found = counted(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Flatten(), nn.Linear(144, 5), shape=(4, 3, 3))
    assert found["conv.w4"] == [4 * 4 * 576, 0]
    assert found["linear"] == [6 * 720, 0]


def test_products_of_attention_are_a_kind_of_their_own() -> None:
    """A layer of width 16 with four heads of 4, on 10 tokens: queries by keys and scores by values are 4 x 10 x 10 x 4
    MACs each, and twice as many in the backward pass; the projections have 16 (16 + 8 + 8 + 16) weights."""
    torch.manual_seed(0)

    def make() -> list[Block]:
        return [("all", GroupedAttention(16, LlamaOptions()))]

    counts = count_blocks(make, (10, 16), "features")
    found = dict(zip(KINDS, counts.operations.tolist(), strict=True))
    assert found["attention"] == [3 * 2 * 2 * 4 * 10 * 10 * 4, 0]
    # The input of the first block needs no gradient: two passes of q, k and v, and three of the output.
    assert found["linear"] == [10 * 2 * 16 * (2 * 32 + 3 * 16), 0]
