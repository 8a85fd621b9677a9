"""One local step: clip, then weight decay, then momentum; the same numbers as torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.protocol.config import TrainConfig
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd, clip
from tests.toy import CPU, batch, tower


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def push(amount: float, block: str | None = None) -> Callable[[BlockModel], None]:
    """A correction that adds ``amount`` to the gradient of one block, or of all."""

    def correct(net: BlockModel) -> None:
        net.grad[net.slices[block] if block else slice(None)].add_(amount)

    return correct


def weight(value: float) -> BlockModel:
    """A net of one weight."""
    net = BlockModel(lambda: [("w", nn.Linear(1, 1, bias=False))], CPU)
    net.flat.fill_(value)
    return net


def walk(config: TrainConfig, value: float, slope: float, steps: int) -> list[float]:
    """Where one weight goes, from ``value``, under a loss of constant slope at lr 0.5."""
    net = weight(value)
    step = Sgd(net, config, lr=0.5)
    x = torch.full((1, 1), slope)
    path = []
    for _ in range(steps):
        step(lambda net, x, y: net.run(x).sum(), x, x)
        path.append(net.flat.item())
    return path


@pytest.mark.parametrize(
    ("config", "value", "slope", "path"),
    [
        (TrainConfig(), 2.0, 4.0, [0.0, -2.0, -4.0]),
        # |g| = 5 is clipped to 1; then 0.1 x 2 of decay: 2 - 0.5 (1 + 0.2). The other order would give 2 - 0.5 = 1.5.
        (TrainConfig(clip=1.0, weight_decay=0.1), 2.0, 5.0, [1.4]),
        (TrainConfig(clip=10.0), 2.0, 4.0, [0.0]),
        # Velocities 1, 1.5, 1.75 at lr 0.5; with Nesterov's, steps of 1 + 0.5 x (1, 1.5, 1.75).
        (TrainConfig(momentum=0.5), 0.0, 1.0, [-0.5, -1.25, -2.125]),
        (TrainConfig(momentum=0.5, nesterov=True), 0.0, 1.0, [-0.75, -1.625, -2.5625]),
    ],
)
def test_steps_by_hand(config: TrainConfig, value: float, slope: float, path: list[float]) -> None:
    assert walk(config, value, slope, len(path)) == pytest.approx(path, abs=1e-6)


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay", "clip"),
    [case for case in product((0.0, 0.9), (False, True), (0.0, 1e-2), (0.0, 0.05)) if case[0] or not case[1]],
)
def test_it_walks_as_torch_does(momentum: float, nesterov: bool, decay: float, clip: float) -> None:
    net = tower()
    plain = nn.Sequential(*copy.deepcopy(net.modules))
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    ours = Sgd(net, TrainConfig(momentum=momentum, nesterov=nesterov, weight_decay=decay, clip=clip), lr=0.1)
    for seed in range(5):
        x, y = batch(seed=seed)
        theirs.zero_grad()
        F.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
        if clip:
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        theirs.step()
        ours(cross_entropy, x, y)
    assert torch.allclose(net.flat, nn.utils.parameters_to_vector(plain.parameters()), rtol=0, atol=1e-7)
    assert ours.steps == 5


@pytest.mark.parametrize("sizes", [(614_452,), (11_220_132,), (5, 0, 4096, 10_000_001)])
def test_the_norm_of_millions_of_numbers_is_that_in_double(sizes: tuple[int, ...]) -> None:
    # One float32 sum gives 4.4e-4 too little for the 11,220,132 numbers of ResNet-18, and clips too little.
    rng = torch.Generator().manual_seed(0)
    grads = [1e-3 * torch.randn(size, generator=rng) for size in sizes]
    clip(grads, 0.5)
    assert sum(float(grad.double().square().sum()) for grad in grads) ** 0.5 == pytest.approx(0.5, rel=3e-6)


def test_corrections_are_inside_the_clipped_gradient_or_join_where_weight_decay_does() -> None:
    net = weight(0.0)
    step = Sgd(net, TrainConfig(clip=1.0), lr=0.5, corrections=[push(4.0)])
    step(lambda net, x, y: net.run(x).sum(), torch.ones(1, 1), torch.ones(1, 1))
    assert net.flat.item() == pytest.approx(-0.5, abs=1e-6)
    net = weight(2.0)
    step = Sgd(net, TrainConfig(clip=1.0, weight_decay=0.1), lr=0.5, corrections=[push(4.0)], unclipped=[push(3.0)])
    step(lambda net, x, y: net.run(x).sum(), torch.ones(1, 1), torch.ones(1, 1))
    assert net.flat.item() == pytest.approx(2.0 - 0.5 * (1 + 3 + 0.2), abs=1e-6)


def test_a_step_on_some_blocks_is_as_if_there_were_no_others() -> None:
    net, alone = tower(), tower()
    config = TrainConfig(momentum=0.9, weight_decay=0.1, clip=0.01)
    before = net.flat.clone()
    both = Sgd(net, config, lr=0.1, corrections=[push(1.0)])
    alone.train_only(["b4"])
    one = Sgd(alone, config, lr=0.1, corrections=[push(1.0, "b4")])
    for seed in range(3):
        both(cross_entropy, *batch(seed=seed), only=["b4"])
        one(cross_entropy, *batch(seed=seed))
        alone.flat[: alone.slices["b4"].start].copy_(before[: alone.slices["b4"].start])
    part = net.slices["b4"]
    assert torch.equal(net.flat[: part.start], before[: part.start])
    assert torch.allclose(net.flat[part], alone.flat[part], rtol=0, atol=1e-7)
    assert not torch.equal(net.flat[part], before[part])


def test_momentum_starts_from_zero_in_a_visit_and_takes_no_memory_of_its_own() -> None:
    net = weight(0.0)
    for _ in range(2):
        step = Sgd(net, TrainConfig(momentum=0.5), lr=0.5)
        for _ in range(2):
            step(lambda net, x, y: net.run(x).sum(), torch.ones(1, 1), torch.ones(1, 1))
    # Steps 1 and 1.5, twice.
    assert net.flat.item() == -2.5
    assert net.scratch("momentum").item() == 1.5


def test_gradients_of_two_half_batches_add_up_to_that_of_the_batch() -> None:
    config, (x, y) = TrainConfig(clip=0.5, weight_decay=0.1, momentum=0.5), batch(8)
    whole, halves = tower(), tower()
    at_once, apart = Sgd(whole, config, 0.1, [push(0.1)]), Sgd(halves, config, 0.1, [push(0.1)])
    for _ in range(3):
        at_once(cross_entropy, x, y)
        for part in (slice(4), slice(4, 8)):
            apart.backward(lambda net, x, y: cross_entropy(net, x, y) / 2, x[part], y[part])
        apart.apply()
    assert torch.allclose(whole.flat, halves.flat, rtol=0, atol=1e-6)
    assert (at_once.steps, apart.steps) == (3, 3)


def test_a_step_in_two_halves_is_the_step_to_the_bit() -> None:
    nets = tower(), tower()
    steps = [Sgd(net, TrainConfig(clip=0.5, momentum=0.5), 0.1) for net in nets]
    nets[1].grad.fill_(7.0)  # of an earlier visit
    for seed in range(3):
        steps[0](cross_entropy, *batch(8, seed), only=["b1", "b4"])
        steps[1].backward(cross_entropy, *batch(8, seed))
        steps[1].apply(only=["b1", "b4"])
    assert torch.equal(nets[0].flat, nets[1].flat)


def test_discarded_gradients_do_not_move() -> None:
    net = weight(2.0)
    step = Sgd(net, TrainConfig(weight_decay=0.1), lr=0.5)
    step.backward(lambda net, x, y: net.run(x).sum(), torch.ones(1, 1), torch.ones(1, 1))
    step.zero()
    step.apply()
    step.apply()  # nothing was added since
    assert net.flat.item() == pytest.approx(2.0 * 0.95**2)


def test_parts_are_clipped_to_one_joint_norm() -> None:
    first, second, third = torch.tensor([3.0]), torch.tensor([0.0, 4.0]), torch.tensor([12.0])
    clip([first, second, third], 6.5)  # of 13
    assert torch.cat([first, second, third]).tolist() == pytest.approx([1.5, 0.0, 2.0, 6.0], abs=1e-6)


# --- precision --------------------------------------------------------------------------------------------------------


def gradient_of(precision: Literal["fp32", "bf16"]) -> Tensor:
    """The gradient of the first step of a tower."""
    net = tower()
    Sgd(net, TrainConfig(precision=precision), lr=0.1)(cross_entropy, *batch(64))
    assert net.flat.dtype == torch.float32
    return net.grad.clone()


def test_bf16_rounds_what_the_blocks_compute_and_nothing_else() -> None:
    exact, rounded = gradient_of("fp32"), gradient_of("bf16")
    error = float(torch.linalg.vector_norm(rounded - exact) / torch.linalg.vector_norm(exact))
    # bfloat16 has 8 bits: one rounding is off by up to 2**-9, and a few of them add up.
    assert 2**-12 < error < 2**-5


def test_bf16_normalises_with_statistics_of_float32_and_its_smallest_steps_move_the_parameters() -> None:
    # Summed in bfloat16, 512 numbers near 100 would be a sixteenth of their mean off or more.
    torch.manual_seed(0)
    x = (100 + torch.randn(4, 2, 16, 16)).bfloat16()
    norm = nn.GroupNorm(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    assert norm.weight.dtype == torch.float32
    assert torch.allclose(y.float(), norm(x.float()), atol=0.02)
    net = weight(1.0)
    step = Sgd(net, TrainConfig(precision="bf16"), lr=2**-12)
    for _ in range(4):
        step(lambda net, x, y: net.run(x).sum(), torch.ones(1, 1), torch.ones(1, 1))
    assert net.flat.item() == 1 - 2**-10


def test_bf16_executes_the_same_passes_and_its_loss_is_float32() -> None:
    seen = []

    def watched(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        seen.extend([net.run(x, 0, 2).dtype, net.run(x).dtype])
        loss = cross_entropy(net, x, y)
        seen.append(loss.dtype)
        return loss

    net = tower()
    Sgd(net, TrainConfig(precision="bf16"), lr=0.1)(cross_entropy, *batch(8))
    assert net.executed.tolist() == [[8, 8, 8, 0]] + [[8, 8, 8, 8]] * 3
    Sgd(net, TrainConfig(precision="bf16"), lr=0.1)(watched, *batch())
    assert seen == [torch.bfloat16, torch.float32, torch.float32]
