"""A slimmable model is torch's, and has narrower sub-networks that share its first channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from edge.data.registry import dataset
from edge.protocol.config import ModelConfig
from edge.protocol.options.gradaug import GradAugOptions
from edge.protocol.payload import FORWARD, INPUT_GRADIENT
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.counts import flops_per_example, output_shapes, subnetwork_flops
from edge.training.slimmable import slimmable, slimmed
from tests.toy import CPU

MULTIPLE = GradAugOptions(multiple=2)
DIGITS = dataset("digits")


def made(name: str, width: int | None, norm: str | None = None, slim: bool = True) -> list[Block]:
    torch.manual_seed(0)
    blocks = build(ModelConfig(name, width=width, norm=norm), classes=10, inputs=64 if name == "mlp" else 1)  # type: ignore[arg-type]
    return slimmable(blocks, MULTIPLE, 10, width) if slim else blocks


def module(blocks: list[Block]) -> nn.Sequential:
    return nn.Sequential(*(each for _, each in blocks))


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def passed(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Logits, gradients of all parameters, and buffers after it."""
    net.zero_grad()
    y = net(x)
    (y**2).sum().backward()
    return [y, *(p.grad for p in net.parameters() if p.grad is not None), *net.buffers()]


@pytest.mark.parametrize(
    ("name", "width", "norm"), [("resnet18", 4, "batch"), ("digits-cnn", 4, "group"), ("mlp", 8, None)]
)
def test_at_the_full_width_it_is_torchs_model_to_the_bit(name: str, width: int, norm: str | None) -> None:
    x = images() if name != "mlp" else images().flatten(1)
    plain, slim = (passed(module(made(name, width, norm, slim)), x) for slim in (False, True))
    assert len(plain) == len(slim) and all(map(torch.equal, plain, slim))
    keys = [
        BlockModel(lambda slim=slim: made(name, width, norm, slim), CPU, by_layer=True).layout.sizes  # type: ignore[misc]
        for slim in (False, True)
    ]
    assert list(keys[0].items()) == list(keys[1].items())


def narrowed(slim: nn.Module, narrow: nn.Module) -> None:
    """Copy the first numbers of each parameter."""
    for large, small in zip(slim.parameters(), narrow.parameters(), strict=True):
        small.data.copy_(large.data[tuple(slice(size) for size in small.shape)])


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_half_the_width_is_the_model_that_has_half_the_channels(norm: str) -> None:
    slim, narrow = module(made("resnet18", 8, norm)), module(made("resnet18", 4, norm, slim=False))
    narrowed(slim, narrow)
    x, statistics = images(), [buffer.clone() for buffer in slim.buffers()]
    with slimmed([slim], 0.5):
        found = slim(x)
    (found**2).sum().backward()
    wanted = narrow(x)
    (wanted**2).sum().backward()
    assert torch.allclose(found, wanted, atol=1e-5)
    for large, small in zip(slim.parameters(), narrow.parameters(), strict=True):
        assert large.grad is not None and small.grad is not None
        inside = tuple(slice(size) for size in small.shape)
        assert torch.allclose(large.grad[inside], small.grad, atol=1e-3, rtol=1e-3)
        large.grad[inside] = 0
        assert not large.grad.any()  # exactly 0 outside of its channels
    assert all(map(torch.equal, slim.buffers(), statistics))


def test_flattened_maps_keep_their_first_channels() -> None:
    slim, narrow = module(made("digits-cnn", 8, "none")), module(made("digits-cnn", 4, "none", slim=False))
    narrowed(slim, narrow)
    with slimmed([slim], 0.5):
        assert torch.allclose(slim(images()), narrow(images()), atol=1e-6)


def test_width_1_has_batch_statistics_and_leaves_the_running_ones() -> None:
    slim = module(made("resnet18", 4, "batch"))
    slim.eval()
    before = [buffer.clone() for buffer in slim.buffers()]
    with slimmed([slim], 1.0):
        found = slim(images())
    assert all(map(torch.equal, slim.buffers(), before))
    slim.train()
    assert torch.equal(slim(images()), found)
    slim.eval()
    assert not torch.allclose(slim(images()), found, atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), "convolutions in 2 groups"),
        (nn.Embedding(3, 4), "Embedding: a layer of this kind"),
        (nn.ReLU(), "neither a convolution nor a linear layer"),
    ],
)
def test_layers_without_narrower_sub_networks_are_refused(layer: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        slimmable([("only", layer)], MULTIPLE, 10, None)


@pytest.mark.parametrize("name", ["mobilenetv2", "shufflenet", "squeezenet"])
def test_models_of_such_layers_are_refused(name: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"convolutions in 32? groups|fire modules"):
        made(name, None)


def test_a_strided_convolution_of_few_channels_takes_every_stride_th_pixel() -> None:
    """oneDNN writes past its memory in the weight gradient of the strided one (`edge.models.layers.FEW`)."""
    plain = nn.Conv2d(16, 4, 1, stride=2)
    ((_, slim),) = slimmable([("only", plain)], MULTIPLE, 10, None)
    x = torch.randn(2, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    strides: list[object] = []
    with slimmed([slim], 0.5), ConvolutionStrides(strides):
        found = slim(x[:, :8])
    assert torch.allclose(found, nn.functional.conv2d(x[:, :8], plain.weight[:, :8], plain.bias, 2), atol=1e-6)
    assert strides == [[1, 1]]


class ConvolutionStrides(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Appends the stride of each convolution."""

    def __init__(self, strides: list[object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strides = strides

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.convolution:
            self.strides.append(args[3])
        return func(*args, **(kwargs or {}))


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def counted(variants: list[tuple[float, float]], name: str = "resnet18", width: int = 8, **how: Any) -> Any:
    return subnetwork_flops(lambda: made(name, width, "batch"), DIGITS, how.get("flexible", True), variants)


def test_flops_are_those_of_the_model_and_of_narrower_ones() -> None:
    found = counted([(1.0, 1.0), (0.5, 0.625)])
    plain = [
        flops_per_example(lambda width=width: made("resnet18", width, "batch", slim=False), (1, side, side))  # type: ignore[misc]
        for width, side in ((8, 8), (4, 5))
    ]
    assert np.array_equal(found, plain)
    assert found[0, 0, INPUT_GRADIENT] > 0


def test_a_model_of_one_size_is_charged_for_that_size() -> None:
    found = counted([(0.5, 1.0), (0.5, 0.625)], "digits-cnn", flexible=False)
    assert np.array_equal(found[0], found[1])
    # One to 4 channels of 8x8, 4 to 8 of 8x8, 8 to 8 of 4x4, and 8x2x2 numbers to 10 classes.
    macs = [9 * 4 * 64, 9 * 4 * 8 * 64, 9 * 8 * 8 * 16, 32 * 10]
    assert found[0, :, FORWARD].tolist() == [2 * count for count in macs]


class Flattening(nn.Module):
    """A user's layer, for maps of so many channels alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 8 * 64)


def test_a_model_that_does_not_run_at_a_width_is_refused() -> None:
    def make() -> list[Block]:
        convolution, flattening = nn.Conv2d(1, 8, 3, padding=1), Flattening()
        return slimmable(
            [("body", convolution), ("head", nn.Sequential(flattening, nn.Linear(512, 10)))], MULTIPLE, 10, 8
        )

    with pytest.raises(ValueError, match=r"does not run at 0\.5 of its width: .*512"):
        subnetwork_flops(make, DIGITS, False, [(1.0, 1.0), (0.5, 1.0)])


def test_shapes_of_outputs() -> None:
    shapes = output_shapes(lambda: made("digits-cnn", 8), DIGITS)
    assert shapes.tolist() == [[8, 8, 8], [16, 4, 4], [64, 1, 1], [10, 1, 1]]
