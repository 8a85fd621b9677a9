"""A slimmable model is torch's, and has narrower sub-networks that share its first channels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coordinator.methods import fedavg
from coordinator.methods.spec import Costs
from coordinator.workers.launcher import WorkerLauncher
from edge.data.registry import dataset
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.gradaug import GradAugOptions
from edge.protocol.payload import INPUT_GRADIENT
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.counts import flops_per_example, subnetwork_flops
from edge.training.slimmable import slimmable, slimmed
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import parsed
from scenarios.studies.replay import replay
from tests.scenarios.runs import undisturbed
from tests.toy import CPU, objective, play

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


# --- variants in whole runs -------------------------------------------------------------------------------------------


SMALLER = replace(fedavg.SPEC, name="smaller", costs=Costs(variants=lambda options: ((1.0, 0.5),)))
RESNET = ModelConfig("resnet18", norm="none")
"""Norms have no FLOPs, but take most of the time of counting."""
SLIM = objective("slim", costs=Costs(variants=lambda options: ((0.5, 1.0), (0.25, 0.5))))


def test_variants_are_counted_as_the_narrower_models_that_they_are(tmp_path: Path) -> None:
    run = play(tmp_path, SLIM, rounds=1, train=TrainConfig(local_steps=0), model=replace(RESNET, width=4))
    # Half of 4; a quarter of 4 is 1, and widths are multiples of 2.
    counted = [flops_per_example(lambda: build(replace(RESNET, width=2), 10, 1), (1, side, side)) for side in (8, 4)]
    assert np.array_equal(run.federation.description.variant_flops, counted)


def test_a_run_with_variants_is_replayed_from_its_records(tmp_path: Path, launcher: WorkerLauncher) -> None:
    brief = (
        "model.name=resnet18",
        "model.width=4",
        "model.norm=none",
        "rounds.max=2",
        "data.clients=4",
        "rounds.participants=4",
    )
    gradaug = ("method=gradaug", "method_options.multiple=2", "train.local_steps=2")
    folder = undisturbed(tmp_path, launcher, *gradaug, *brief)
    assert replay(folder, parsed(["fleet.server.down=3 Mbit/s"])).rounds == 2


def test_a_model_for_images_of_one_size_has_no_variant_of_another(tmp_path: Path, launcher: WorkerLauncher) -> None:
    with pytest.raises(ScenarioError, match="'digits-cnn': the method needs one that takes images of height 4"):
        undisturbed(tmp_path, launcher, f"method={__name__}:SMALLER")
