"""FjORD: the steps of a visit train parts of drawn widths, nested in the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from coordinator.methods.compute import ComputeContext, fedavg_passes
from coordinator.methods.fjord import compute
from edge.methods.fjord import FjordUpdate
from edge.protocol.config import Job, ModelConfig, TrainConfig
from edge.protocol.options.fjord import WIDTHS, FjordOptions, draw_rates
from edge.protocol.payload import BUFFERS, MODEL, BlockShape, Layout, Vector
from edge.protocol.rng import keyed_generator
from edge.protocol.serialization import unpacked_text
from edge.protocol.submodels import SliceMap
from edge.protocol.variant import Variant
from edge.training.block_model import BlockModel
from edge.training.client_update import NarrowerPart
from edge.training.sgd import Sgd
from edge.training.trainer import LocalTrainer
from tests.crossed import every
from tests.toy import direct, federation, model_sha256, play, visit

NARROW = ModelConfig("digits-cnn", width=5)
NORMED = ModelConfig("digits-cnn", width=4, norm="batch")
THREE = {"rate": "client", "rates": (1.0, 0.75, 0.5)}
BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


def worker(folder: Path, model: ModelConfig, submodel: Mapping[str, Any] = THREE, **options: Any) -> LocalTrainer:
    return direct(federation(folder, "fjord", model=model, submodel=submodel, **options)).site


def axes(job: Job) -> Any:
    return unpacked_text(job.description).axes


def held(site: LocalTrainer, rate: float, numbers: Mapping[str, Vector]) -> BlockModel:
    """The model of a visit of this rate, with its numbers of the whole model's."""
    net, slices = site.part(Variant(rate)).net, SliceMap(axes(site.job), rate)
    net.train_mode(True)
    net.load(slices.taken(numbers))
    return net


def counted(site: LocalTrainer) -> dict[str, Vector]:
    """A model whose numbers are their places, as thousandths."""
    shapes = site.net.layout.sizes
    return {key: Vector((np.arange(size) / 1000).astype(np.float32)) for key, size in shapes.items()}


def digits() -> tuple[Tensor, Tensor]:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(6)


def started(
    site: LocalTrainer, rate: float, **options: Any
) -> tuple[BlockModel, FjordUpdate, dict[float, NarrowerPart]]:
    """A client side in a visit of this rate, and the narrower networks in its model."""
    net = held(site, rate, site.net.dump(site.net.layout.sizes))
    client_side = FjordUpdate(FjordOptions(**options))
    context = replace(visit(net), variant=Variant(rate), narrower=lambda: site.narrower(Variant(rate)))
    client_side.begin(net, {MODEL: net.dump(net.layout.sizes)}, {}, context)
    return net, client_side, site.narrower(Variant(rate))


def gradient_of(net: BlockModel, x: Tensor, y: Tensor) -> dict[str, NDArray[np.float32]]:
    net.grad.zero_()
    torch.autograd.backward(F.cross_entropy(net.run(x), y))
    return {key: vector.data.copy() for key, vector in net.views(net.layout.keys(), of=net.grad).items()}


# --- nested parts -----------------------------------------------------------------------------------------------------


def test_a_part_within_a_part_has_the_first_channels_of_the_whole_model(tmp_path: Path) -> None:
    """Of 5 channels, 0.75 has ⌈3.75⌉ = 4 and 0.5 has ⌈2.5⌉ = 3, where half of 4 would be 2."""
    site = worker(tmp_path, NARROW)
    numbers = counted(site)
    held(site, 0.75, numbers)
    first, second = site.narrower(Variant(0.75))[0.5].modules[:2]
    weights = [torch.from_numpy(numbers[key].data) for key in ("conv1", "conv2")]
    conv1, conv2 = weights[0][: 5 * 9].view(5, 1, 3, 3), weights[1][: 10 * 5 * 9].view(10, 5, 3, 3)
    assert torch.equal(next(first.parameters()), conv1[:3])
    assert torch.equal(next(second.parameters()), conv2[:5, :3])
    assert [*site.narrower(Variant(1.0))] == [0.75, 0.5]
    assert [*site.narrower(Variant(0.5))] == []


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_a_step_has_the_gradient_of_the_part_alone_and_none_elsewhere(tmp_path: Path, memory_format: Any) -> None:
    train = replace(BRIEF, memory_format=memory_format)
    site, (x, y) = worker(tmp_path, NARROW, train=train), digits()
    net, client_side, parts = started(site, 0.75)
    step = Sgd(net, train, 1.0)
    start = net.flat.clone()
    step(client_side.narrower_loss(parts[0.5], 0.5), x, y)
    moved = {key: vector.data.copy() for key, vector in net.views(net.layout.keys(), of=start - net.flat).items()}
    alone = held(site, 0.5, site.net.dump(site.net.layout.sizes))
    expected = gradient_of(alone, x, y)
    wide, narrow = SliceMap(axes(site.job), 0.75), SliceMap(axes(site.job), 0.5)
    for key, change in moved.items():
        within = np.isin(wide.places(key), narrow.places(key))
        assert np.allclose(change[within], expected[key], atol=1e-6)
        assert np.abs(expected[key]).max() > 1e-4
        assert not change[~within].any()


# --- draws and their price --------------------------------------------------------------------------------------------


def test_a_plan_charges_each_step_at_its_width() -> None:
    """Batches of 4, 4 and 2 examples; a step of the whole model takes 23 FLOPs an example, of half 7."""
    flops = {1.0: np.array([[5.0, 5, 4, 1], [3, 3, 1, 2]]), 0.5: np.array([[1.0, 1, 1, 1], [1, 1, 1, 1]])}
    layout = Layout((BlockShape("a", 1), BlockShape("b", 1)))
    train = TrainConfig(batch=4)
    drawn_ever = set()
    for client in range(8):
        context = ComputeContext(
            layout, FjordOptions(), {}, train, train.plan(10), 10, flops[1.0], client=client, part_flops=flops
        )
        drawn = draw_rates(keyed_generator(0, WIDTHS, 0, client), [1.0, 0.5], 3)
        drawn_ever.add(tuple(drawn))
        wide, narrow = (sum(n for n, p in zip((4, 4, 2), drawn, strict=True) if p == rate) for rate in (1.0, 0.5))
        plan = compute(context)
        assert plan.flops(flops[1.0]) == 23 * wide + 7 * narrow
        assert np.array_equal(plan.passes, wide * fedavg_passes(2))
        distils = compute(replace(context, options=FjordOptions(distil=1)))
        assert distils.flops(flops[1.0]) == 23 * 10 + 7 * narrow
        half = compute(replace(context, variant=Variant(0.5), flops=flops[0.5]))
        assert half.flops(flops[0.5]) == 7 * 10
    assert len(drawn_ever) > 3


# --- where it is FedAvg, and what a narrow client leaves --------------------------------------------------------------


@pytest.mark.parametrize("model", every(2, [NARROW, NORMED]), ids=["plain", "batch"])
@pytest.mark.parametrize("options", [{}, {"distil": 1}, {"statistics": "shared"}], ids=str)
def test_with_the_whole_model_alone_it_is_fedavg(tmp_path: Path, model: ModelConfig, options: Any) -> None:
    train = TrainConfig(lr=0.1, batch=32, local_steps=3, momentum=0.5, weight_decay=1e-3, clip=1.0)
    fedavg = play(tmp_path / "fedavg", model=model, train=train)
    alike = play(tmp_path / "fjord", "fjord", model=model, train=train, submodel={"rate": 1.0}, **options)
    assert model_sha256(alike.federation) == model_sha256(fedavg.federation)


@pytest.mark.parametrize("options", [{}, {"distil": 0.5}], ids=str)
def test_replayed_steps_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    """Each rate has its own tape, which begins after some steps."""
    train = TrainConfig(lr=0.1, batch=8, local_steps=30, momentum=0.5)
    how: dict[str, Any] = {"model": NORMED, "submodel": THREE, "train": train, "clients": 2} | options
    taped = play(tmp_path / "taped", "fjord", **how)
    stepper = direct(taped.federation).site.part(Variant(1.0)).stepper
    monkeypatch.setattr(FjordUpdate, "capturable", False)
    plain = play(tmp_path / "plain", "fjord", **how)
    assert sum(step.graph is not None for step in stepper._captured.values()) == 3
    assert model_sha256(taped.federation) == model_sha256(plain.federation)


# --- distillation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_a_distilling_step_trains_the_widest_and_teaches_the_narrower(tmp_path: Path, weight: float) -> None:
    """∇(CE(z) + (1 - α)·CE(z_p) + α·Σ σ(z)·(log σ(z) - log σ(z_p))), with σ(z) fixed in the last."""
    site, (x, y) = worker(tmp_path, NARROW), digits()
    net, client_side, parts = started(site, 1.0, distil=weight)
    start, seed = net.flat.clone(), next(seed for seed in range(9) if drawn_first(seed) == 0.5)
    client_side.visit = replace(client_side.visit, seed=seed, plan=TrainConfig(batch=6).plan(6))
    client_side.train(net, lambda: iter([(x, y)]), Sgd(net, TrainConfig(lr=1.0, batch=6), 1.0))
    moved = start - net.flat
    net.flat.copy_(start)
    net.grad.zero_()
    logits, narrow = net.run(x), net.run_through(parts[0.5].modules, x)
    taught = logits.detach().softmax(1)
    divergence = (taught * (taught.log() - narrow.log_softmax(1))).sum(1).mean()
    loss = F.cross_entropy(logits, y) + (1 - weight) * F.cross_entropy(narrow, y) + weight * divergence
    torch.autograd.backward(loss)
    assert torch.allclose(moved, net.grad, atol=1e-6)
    assert float(client_side.losses[0]) == pytest.approx(float(F.cross_entropy(logits, y).detach()))


def drawn_first(seed: int) -> float:
    return draw_rates(keyed_generator(seed, WIDTHS, 0, 0), [1.0, 0.75, 0.5], 1)[0]


# --- running statistics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statistics", ["width", "shared"])
def test_a_step_updates_the_statistics_of_its_width(tmp_path: Path, statistics: Any) -> None:
    """To 0.9 of those before and 0.1 of the batch's, as torch does."""
    site, (x, y) = worker(tmp_path, NORMED, statistics=statistics), digits()
    net, client_side, parts = started(site, 0.75, statistics=statistics)
    with torch.no_grad():
        weight, bias = [*net.modules[0].parameters()][:2]
        means = F.conv2d(x, weight, bias, padding=1).mean((0, 2, 3)).numpy()
    before = net.dump(["conv1" + BUFFERS])["conv1" + BUFFERS].data
    step = Sgd(net, BRIEF, 0.0)
    step(client_side.narrower_loss(parts[0.5], 0.5), x, y)
    after = net.dump(["conv1" + BUFFERS])["conv1" + BUFFERS].data
    first = 6 if statistics == "width" else 0
    assert len(after) == (10 if statistics == "width" else 6)
    assert np.allclose(after[first : first + 2], 0.1 * means[:2], atol=1e-6)
    assert [*np.flatnonzero(after != before)] == [first, first + 1, *(np.arange(2) + (8 if first else 3))]
    step(client_side.loss, x, y)
    whole = net.dump(["conv1" + BUFFERS])["conv1" + BUFFERS].data
    assert np.allclose(whole[:3], 0.9 * after[:3] + 0.1 * means, atol=1e-6)
    if statistics == "width":
        assert np.array_equal(whole[6:], after[6:])
