"""A tape repeats what it recorded to the bit, and leaves alone what it cannot repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.training.block_model import BlockModel
from edge.training.blocks import build
from edge.training.client_update import ClientUpdate
from edge.training.cuda_graphs import StepFactory
from edge.training.job_model import MEMORY_FORMATS, seeded
from edge.training.kernel_tape import KernelTape
from tests.crossed import every
from tests.toy import CPU, visit, whole

IMAGE, TOKENS = (3, 32, 32), 12


@pytest.mark.parametrize(
    ("name", "width", "inputs", "shape", "norm", "images", "precision"),
    every(
        2,
        [
            ("mlp", 8, 30, (30,), None, "contiguous", "fp32"),
            ("digits-cnn", 4, 1, (1, 8, 8), "none", "contiguous", "bf16"),
            ("cnn", None, 3, IMAGE, "batch", "channels_last", "fp32"),
            ("resnet18", 4, 3, IMAGE, "group", "contiguous", "fp32"),
            ("mobilenetv2", 8, 3, IMAGE, "group", "channels_last", "fp32"),
            ("shufflenet", 24, 3, IMAGE, "batch", "channels_last", "fp32"),
            ("har-cnn", 4, 6, (6, 64), None, "contiguous", "fp32"),
            ("text-cnn", 4, TOKENS, (20,), None, "contiguous", "fp32"),
            ("char-lstm", 8, TOKENS, (20,), None, "contiguous", "fp32"),
            ("char-transformer", 8, TOKENS, (20,), None, "contiguous", "fp32"),
        ],
    ),
)
def test_shipped_models_learn_the_same_bits_with_tapes(
    name: str,
    width: int | None,
    inputs: int,
    shape: tuple[int, ...],
    norm: Literal["batch", "group", "none"] | None,
    images: str,
    precision: Literal["fp32", "bf16"],
) -> None:
    layout = MEMORY_FORMATS[images]
    config = ModelConfig(name, width=width, norm=norm)
    made: list[KernelTape] = []

    def tape() -> KernelTape:
        made.append(KernelTape(1 << 30))
        return made[-1]

    nets = []
    for tapes in (None, tape):
        net = BlockModel(seeded(0, lambda: build(config, 10, inputs)), CPU, layout)
        client_side, generator = ClientUpdate(Options()), torch.Generator().manual_seed(0)
        client_side.begin(net, whole(net), {}, visit(net))
        torch.manual_seed(0)  # dropout
        train = TrainConfig(batch=4, precision=precision, momentum=0.9, clip=1.0)
        step = StepFactory(net, train, tapes=tapes).begin(visit(net), client_side, [])
        for _ in range(6):
            x = torch.randn((4, *shape), generator=generator)
            if len(shape) == 1 and inputs == TOKENS:
                x = torch.randint(inputs, (4, *shape), generator=generator)
            elif len(shape) == 3:
                x = x.contiguous(memory_format=layout)
            step(client_side.loss, x, torch.randint(10, (4,), generator=generator))
        nets.append(net)
    assert [tape.nbytes is None for tape in made] == [False]
    assert torch.equal(nets[0].flat, nets[1].flat)
    assert torch.equal(nets[0].buffers, nets[1].buffers)
    assert nets[0].executed.tolist() == nets[1].executed.tolist()


def on_tape(work: Callable[[], object], most_nbytes: int = 1000, replays: int = 3) -> KernelTape:
    tape = KernelTape(most_nbytes)
    tape.capture(work)
    for _ in range(replays):
        tape.replay()
    return tape


def test_a_tape_calls_kernels_and_not_the_work() -> None:
    calls, x, total = [0], torch.tensor([1.0, 2.0]), torch.zeros(2)

    def work() -> None:
        calls[0] += 1
        total.add_(x.exp().log() * 2)

    assert on_tape(work).nbytes == 3 * 8
    assert calls == [1]
    assert torch.equal(total, 3 * 2 * x.exp().log())


def test_random_kernels_draw_on() -> None:
    x, y, drawn = torch.ones(50), torch.zeros(50), list[Tensor]()
    torch.manual_seed(1)
    tape = on_tape(lambda: y.copy_(F.dropout(x, 0.5)), replays=0)
    for _ in range(4):
        tape.replay()
        drawn.append(y.clone())
    torch.manual_seed(1)
    assert all(torch.equal(F.dropout(x, 0.5), each) for each in drawn)


@pytest.mark.parametrize("nbytes", [1000, 8])
def test_work_that_reads_a_result_or_is_large_is_not_recorded(nbytes: int) -> None:
    x, y, calls = torch.tensor([1.0, -1.0]), torch.zeros(2), [0]

    def work() -> None:
        calls[0] += 1
        if nbytes == 8 or (x.sum() * 2).item() > -1.0:
            y.copy_(x * 2 + 1)

    tape = on_tape(work, nbytes)
    assert (tape.nbytes, calls) == (None, [3])
    assert y.tolist() == [3.0, -1.0]
