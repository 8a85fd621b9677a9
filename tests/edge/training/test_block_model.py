"""A net is flat vectors: what is loaded, trained and sent are the same numbers, block by block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edge.protocol.payload import Vector
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from tests.toy import CPU, batch, tower, vector


def normalised() -> BlockModel:
    """A net with batch statistics in its first block."""

    def make() -> list[Block]:
        torch.manual_seed(0)
        return [("body", nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh())), ("head", nn.Linear(4, 3))]

    return BlockModel(make, CPU)


def test_a_layout_names_parameters_and_buffers_apart() -> None:
    # Linear 5x4 + 4, scale and shift of 4 features; running mean and variance of 4. Counters do not travel.
    assert normalised().layout.sizes == {"body": 32, "body.buffers": 8, "head": 15}


def test_what_is_loaded_is_what_the_modules_compute_with_even_from_memory_that_cannot_be_written() -> None:
    net = tower((2, 1, 1))
    net.load({"b1": vector(3.0, 4.0, 0.5)})
    linear = net.modules[0].get_parameter("0.weight")
    assert linear.tolist() == [[3.0, 4.0]]
    net.flat.mul_(2.0)
    assert linear.tolist() == [[6.0, 8.0]]
    assert net.dump(["b1"])["b1"].data.tolist() == [6.0, 8.0, 1.0]
    net = tower((1, 1, 1))
    net.load({"b2": Vector(np.frombuffer(np.array([7.0, 8.0], dtype=np.float32).tobytes(), dtype=np.float32))})
    assert net.dump(["b2"])["b2"].data.tolist() == [7.0, 8.0]


def test_what_goes_up_is_a_view_of_the_model_but_what_was_dumped_does_not_change() -> None:
    net = normalised()
    up, before = net.views(["head", "body.buffers"]), net.dump(net.layout.names)
    kept = {key: vector.data.copy() for key, vector in before.items()}
    net.flat.add_(1.0)
    net.flat[net.slices["head"]].fill_(2.0)
    net.buffers.fill_(3.0)
    assert up["head"].data.tolist() == [2.0] * 15
    assert up["body.buffers"].data.tolist() == [3.0] * 8
    assert all(np.array_equal(before[key].data, kept[key]) for key in kept)


def test_batch_statistics_lie_in_one_flat_vector_and_travel_under_a_key_of_their_own() -> None:
    net = normalised()
    twin = net.frozen_copy()
    fresh = [0, 0, 0, 0, 1, 1, 1, 1]
    assert net.dump(["body.buffers"])["body.buffers"].data.tolist() == fresh
    for one in (net, twin):
        one.run(batch()[0])
    norm = net.modules[0].get_submodule("1")
    mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    assert torch.equal(net.buffers, torch.cat([mean, variance]))
    assert torch.count_nonzero(mean) == 4
    learned = net.dump(["body.buffers"])
    assert not np.array_equal(learned["body.buffers"].data, fresh)
    assert twin.dump(["body.buffers"])["body.buffers"].data.tolist() == fresh  # a frozen twin uses what it was given
    other = normalised()
    other.load(learned)
    statistics = torch.cat([b for b in other.modules[0].buffers() if b.is_floating_point()])
    assert np.array_equal(statistics, learned["body.buffers"].data)


def convolutions(memory_format: torch.memory_format) -> BlockModel:
    """A net of two convolutions and a linear layer."""

    def make() -> list[Block]:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Conv2d(4, 2, 2), nn.Flatten())
        return [("body", body), ("head", nn.Linear(8, 3))]

    return BlockModel(make, CPU, memory_format)


def test_vectors_travel_in_torchs_order_and_gradients_lie_as_the_weights_do() -> None:
    plain, turned = convolutions(torch.contiguous_format), convolutions(torch.channels_last)
    assert not torch.equal(plain.flat, turned.flat)
    for net in (turned, turned.frozen_copy()):
        assert net.modules[0].get_parameter("0.weight").is_contiguous(memory_format=torch.channels_last)
        for take in (net.views, net.dump):
            sent = take(["body", "head"])
            assert np.array_equal(sent["body"].data, plain.flat[plain.slices["body"]])
            assert np.array_equal(sent["head"].data, plain.flat[plain.slices["head"]])
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    y = x.contiguous(memory_format=torch.channels_last)
    for net, images in ((plain, x), (turned, y)):
        torch.autograd.backward(net.run(images).square().sum())
        net.flat.add_(net.grad, alpha=-0.1)
    stepped, expected = turned.dump(["body", "head"]), plain.dump(["body", "head"])
    for key in ("body", "head"):
        assert np.allclose(stepped[key].data, expected[key].data, rtol=0, atol=1e-6)
    plain.flat.mul_(2.0)
    turned.load(plain.views(["body", "head"]))
    assert torch.allclose(turned.run(y), plain.run(x), atol=1e-6)


def test_the_frozen_twin_is_another_model_that_never_learns() -> None:
    net = tower()
    twin = net.frozen_copy()
    assert net.frozen_copy() is twin
    twin.load(net.dump(net.layout.names))
    x, y = batch()
    torch.autograd.backward(F.cross_entropy(twin.run(net.run(x, 0, 2), 2), y))
    assert torch.count_nonzero(twin.grad) == 0
    # Gradients flow through it: the local prefix learns, the local suffix was not used.
    assert torch.count_nonzero(net.grad[net.slices["b1"]]) > 0
    assert torch.count_nonzero(net.grad[net.slices["b3"]]) == 0
    net.flat.add_(1.0)
    assert not torch.equal(net.flat, twin.flat)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_model_is_frozen_where_it_stands(memory_format: torch.memory_format) -> None:
    def make() -> list[Block]:
        body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        return [("body", body), ("head", nn.Linear(16, 2))]

    net = BlockModel(make, CPU, memory_format)
    net.flat.uniform_(-1, 1)
    net.run(torch.randn(8, 3, 4, 4).contiguous(memory_format=memory_format))
    then = net.dump(net.layout.sizes)
    twin = net.freeze()
    net.flat.zero_()
    net.buffers.zero_()
    now = twin.dump(net.layout.sizes)
    assert [vector.version for vector in now.values()] == [vector.version for vector in then.values()]


def test_only_batch_statistics_that_are_in_the_making_mix_examples() -> None:
    net = normalised()
    assert [net.uses_batch_stats(0), net.uses_batch_stats(1)] == [True, False]
    assert not net.frozen_copy().uses_batch_stats(0)
    net.train_mode(False)
    assert not net.uses_batch_stats(0)

    def by_groups() -> list[Block]:
        return [("body", nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4))), ("head", nn.Linear(4, 3))]

    assert not BlockModel(by_groups, CPU).uses_batch_stats(0)


def test_what_is_executed_is_counted_per_block_and_pass() -> None:
    net = tower((5, 7, 6, 3))
    x, _ = batch(8)
    net.run(x)
    assert net.executed.tolist() == [[8, 8, 8, 0], [8, 8, 8, 8], [8, 8, 8, 8]]
    net.executed[:] = 0
    with torch.no_grad():
        net.run(x)
    assert net.executed.tolist() == [[8, 0, 0, 0]] * 3
    net.executed[:] = 0
    net.train_only(["b3"])
    net.run(x)
    assert net.executed.tolist() == [[8, 0, 0, 0], [8, 0, 0, 0], [8, 8, 8, 0]]
