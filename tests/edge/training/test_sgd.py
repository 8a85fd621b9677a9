"""One local step: clip, then weight decay, then momentum; the same numbers as torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product

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


def test_parts_are_clipped_to_one_joint_norm() -> None:
    first, second, third = torch.tensor([3.0]), torch.tensor([0.0, 4.0]), torch.tensor([12.0])
    clip([first, second, third], 6.5)  # of 13
    assert torch.cat([first, second, third]).tolist() == pytest.approx([1.5, 0.0, 2.0, 6.0], abs=1e-6)


# --- precision --------------------------------------------------------------------------------------------------------


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
