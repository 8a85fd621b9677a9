"""GradAug: the full model teaches sub-networks of itself on smaller images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coordinator.methods.gradaug import variants
from edge.methods.gradaug import GradAugUpdate
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.gradaug import SUBNETWORKS, GradAugOptions, draw_subnetworks
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.sgd import Sgd
from edge.training.slimmable import slimmable, slimmed
from tests.toy import CPU, visit, whole


def blocks(options: GradAugOptions) -> list[Block]:
    torch.manual_seed(0)
    return slimmable(build(ModelConfig("resnet18", width=4, norm="batch"), 10, 1), options, 10, 4)


def started(**options: Any) -> tuple[BlockModel, GradAugUpdate]:
    chosen = GradAugOptions(**{"multiple": 2, "width": 0.5, **options})
    net = BlockModel(lambda: blocks(chosen), CPU)
    declared = variants(chosen)
    client_side = GradAugUpdate(chosen)
    client_side.begin(net, whole(net), {}, replace(visit(net), variants=dict.fromkeys(declared, np.zeros((6, 4)))))
    return net, client_side


def digits() -> tuple[Tensor, Tensor]:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(6)


def test_a_step_is_the_sum_of_the_papers_losses() -> None:
    net, client_side = started(subnets=2)
    (x, y), start = digits(), net.flat.clone()
    buffers = net.buffers.clone()
    client_side.train(net, lambda: iter([(x, y)]), Sgd(net, TrainConfig(lr=1.0, batch=6), 1.0))
    found, after = start - net.flat, net.buffers.clone()
    net.flat.copy_(start)
    net.buffers.copy_(buffers)
    net.grad.zero_()
    drawn = draw_subnetworks(client_side.visit.rng(SUBNETWORKS), 2, 0.5, (1.0, 0.875, 0.75, 0.625), True)
    logits = net.run(x)
    loss = F.cross_entropy(logits, y)
    for width, height in drawn:
        side = round(8 * height)
        small = F.interpolate(x, (side, side), mode="bilinear", align_corners=True)
        with slimmed(net.modules, width):
            sub = net.run(small)
        taught = logits.detach().softmax(1)
        loss = loss + 1.75 * (taught * (taught.log() - sub.log_softmax(1))).sum(1).mean()
    torch.autograd.backward(loss)
    assert drawn[-1][0] == 0.5
    assert torch.allclose(found, net.grad, atol=1e-5)
    assert torch.equal(after, net.buffers)  # running statistics are those of the full width's pass


def test_weights_are_the_papers_by_the_number_of_sub_networks() -> None:
    found = [GradAugUpdate(GradAugOptions(subnets=count)).weight for count in (1, 2, 3, 4, 5)]
    assert found == [2, 1.75, 1.5, 1.25, 1.25]
    assert GradAugUpdate(GradAugOptions(subnets=2, weight=0.5)).weight == 0.5
