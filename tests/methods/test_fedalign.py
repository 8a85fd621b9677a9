"""FedAlign: spectral norms of transmitting matrices, and the gradient of the last stage's first channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from edge.data.registry import dataset
from edge.methods.fedalign import FedAlignUpdate, aligned, spectral_norm
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.fedalign import FedAlignOptions, alignment_flops
from edge.protocol.payload import INPUT_GRADIENT
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.counts import subnetwork_flops
from edge.training.slimmable import slimmed
from tests.toy import CPU, visit, whole

DIGITS = dataset("digits")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# --- norms ------------------------------------------------------------------------------------------------------------


def test_the_norm_of_a_matrix_of_rank_one_by_hand() -> None:
    """[3, 4]ᵀ·[1, 2, 2] has the norm 5·3; its gradient is u·vᵀ."""
    matrix = (torch.tensor([[3.0], [4.0]]) * torch.tensor([1.0, 2.0, 2.0])).unsqueeze(0).requires_grad_()
    norm = spectral_norm(matrix, 2)
    torch.autograd.backward(norm.sum())
    assert torch.allclose(norm, torch.tensor([15.0]))
    assert matrix.grad is not None
    assert torch.allclose(matrix.grad[0], torch.outer(torch.tensor([0.6, 0.8]), torch.tensor([1.0, 2.0, 2.0]) / 3))


def test_dead_features_have_the_norm_0_and_no_gradient() -> None:
    matrices = torch.cat([torch.zeros(1, 3, 4), random(1, 3, 4)]).requires_grad_()
    norms = spectral_norm(matrices, 10)
    torch.autograd.backward(norms.sum())
    assert norms[0] == 0 and norms[1] > 0 and matrices.grad is not None
    assert not matrices.grad[0].any() and torch.isfinite(matrices.grad).all() and matrices.grad[1].any()


# --- the term ---------------------------------------------------------------------------------------------------------


def blocks(options: FedAlignOptions, width: int = 4, norm: str = "batch", name: str = "resnet18") -> list[Block]:
    torch.manual_seed(0)
    inputs = 64 if name == "mlp" else 1
    config = ModelConfig(name, width=width, norm=norm if name != "mlp" else None)  # type: ignore[arg-type]
    return aligned(build(config, 10, inputs), options, 10, width)


def started(clip: float = 0.0, name: str = "resnet18", **options: Any) -> tuple[BlockModel, FedAlignUpdate]:
    chosen = FedAlignOptions(**{"multiple": 2, **options})
    net = BlockModel(lambda: blocks(chosen, name=name), CPU)
    client_side = FedAlignUpdate(chosen)
    variant = (chosen.width, 1.0)
    counted = subnetwork_flops(lambda: blocks(chosen, name=name), DIGITS, True, [variant])[0]
    context = replace(visit(net), variants={variant: counted}, train=TrainConfig(lr=0.1, batch=8, clip=clip))
    client_side.begin(net, whole(net), {}, context)
    return net, client_side


def digits() -> tuple[Tensor, Tensor]:
    return random(6, 1, 8, 8, seed=3), torch.arange(6)


def term(net: BlockModel, client_side: FedAlignUpdate) -> tuple[Tensor, Tensor]:
    """(ℓ, cross-entropy) on the batch."""
    x, y = digits()
    before = net.run(x, 0, 4)
    after = net.run(before, 4, 5)
    return client_side.difference(net, before.detach(), after.detach()), F.cross_entropy(net.run(after, 5), y).detach()


def test_the_term_is_the_papers_with_singular_values() -> None:
    net, client_side = started(iterations=50)
    found, _ = term(net, client_side)
    x, _ = digits()
    before = net.run(x, 0, 4)
    after = net.run(before, 4, 5)
    with slimmed(net.modules, 0.25):
        slim = net.modules[4](before[:, :4])
    pooled = F.adaptive_avg_pool2d(before, 1)  # stage4 has one place

    def norms(a: Tensor, b: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(torch.einsum("ncij,ndij->ncd", a, b) / a[0, 0].numel())
        return values[:, 0]

    wanted = (norms(pooled[:, :4], slim) - norms(pooled, after)).square().mean()
    assert slim.shape[1] == 8 and torch.allclose(found, wanted, rtol=1e-3)


@pytest.mark.parametrize("scale", ["code", "paper"])
def test_its_value_is_that_of_the_cross_entropy_or_its_own(scale: str) -> None:
    net, client_side = started(align_scale=scale)
    difference, cross_entropy = term(net, client_side)
    loss = client_side.loss(net, *digits())
    added = cross_entropy if scale == "code" else difference
    assert torch.allclose(loss, cross_entropy + 0.45 * added, rtol=1e-5)


def test_its_gradient_reaches_the_first_channels_of_the_last_stage_alone() -> None:
    net, client_side = started()
    difference, cross_entropy = term(net, client_side)
    torch.autograd.backward(client_side.scaled(difference, cross_entropy))
    stage = net.layout.names[4]
    assert stage == "stage4" and net.grad[net.slices[stage]].any()
    for parameter in net.modules[4].parameters():  # 32 channels, of which 8; 16 inputs, of which 4
        assert parameter.grad is not None
        inside = tuple(slice(max(1, size // 4)) for size in parameter.shape[:2])
        parameter.grad[inside] = 0
    assert not net.grad.any()


def test_its_own_clipping_is_for_runs_that_do_not_clip() -> None:
    for clip, limited in ((0.0, True), (5.0, False)):
        net, client_side = started(clip=clip, weight=0.0)
        net.grad.fill_(1.0)
        client_side.correct(net)
        assert (abs(float(net.grad.norm()) - 10) < 1e-3) == limited
    net, client_side = started(clip=0.0, weight=0.0)
    net.grad.zero_()[0] = 1.0
    client_side.correct(net)
    assert float(net.grad.norm()) == 1.0


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def test_flops_are_what_torch_counts() -> None:
    net, client_side = started()
    x, _ = digits()
    with torch.no_grad():
        before = net.run(x, 0, 4)
        after = net.run(before, 4, 5)
    net.further_flops = 0.0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(client_side.difference(net, before, after))
    assert net.further_flops == counter.get_total_flops()
    block = client_side.visit.variants[0.25, 1.0][4]
    matrices = alignment_flops((16, 2, 2), (32, 1, 1), 0.25, 2, 10)
    assert net.further_flops == 6 * (block.sum() - block[INPUT_GRADIENT] + matrices)
