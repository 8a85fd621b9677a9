"""Each model on a GPU: a step as on a CPU but for rounding, the same to the bit twice and from a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.data.augment import PROFILES, Profile, prepare
from edge.models.registry import MODELS, ModelRow
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.payload import Floats
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.cuda_graphs import CapturedStep, GraphBackend, GraphStep, cuda_graphs
from edge.training.sgd import Sgd
from tests.cuda.conftest import Called

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
"""Of pooling, whose windows do not overlap here; workers log it."""
CLASSES, EXAMPLES = 10, 8
INPUTS = {"image": 3, "features": 20, "series": 6, "tokens": 50}
WIDTHS = {"squeezenet": 12, "char-lstm": 16, "char-transformer": 16, "resnet18": 16, "resnet18-imagenet": 16}
"""Narrower than by default, for the CPU's sake"""


@pytest.fixture(autouse=True)
def deterministic() -> None:
    """As trainers set it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def net(row: ModelRow, device: str, memory_format: torch.memory_format = torch.contiguous_format) -> BlockModel:
    def blocks() -> list[Block]:
        torch.manual_seed(0)
        return build(ModelConfig(row.name, width=WIDTHS.get(row.name)), CLASSES, INPUTS[row.kind])

    return BlockModel(blocks, torch.device(device), memory_format)


def batches(row: ModelRow, device: str, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random ones, the same on each device."""
    rng = torch.Generator().manual_seed(1)
    for _ in range(count):
        if row.kind == "tokens":
            x = torch.randint(1, INPUTS["tokens"], (EXAMPLES, 12), generator=rng)
        else:
            side = min(64, *row.shape) if row.kind == "image" else 0
            shape = {"image": (3, side, side), "features": (20,), "series": (6, 128)}[row.kind]
            x = torch.randn(EXAMPLES, *shape, generator=rng)
        yield x.to(device), torch.randint(CLASSES, (EXAMPLES,), generator=rng).to(device)


def entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def trained(net: BlockModel, row: ModelRow, count: int = 1, graphs: Callable[[], GraphBackend] | None = None) -> Floats:
    """All numbers of the model after so many steps: plain ones, or replayed ones with graphs."""
    config, lr = TrainConfig(lr=0.05, batch=EXAMPLES, momentum=0.5), torch.full((), 0.05, device=net.device)
    step = Sgd(net, config, lr)
    steps: dict[object, CapturedStep] = {}
    each = step if graphs is None else GraphStep(step, [], (), steps, graphs)
    for x, y in batches(row, str(net.device), count):
        each(entropy, x.contiguous(memory_format=net.memory_format) if x.dim() == 4 else x, y)
    assert all(step.graph is not None for step in steps.values())
    return np.concatenate([vector.data for vector in net.dump(net.layout.keys()).values()])


def far(model: Floats, other: Floats, start: Floats) -> float:
    return float(np.linalg.norm(model - other) / np.linalg.norm(other - start))


@pytest.mark.parametrize("row", MODELS.values(), ids=lambda row: row.name)
def test_a_step_on_a_gpu_is_that_on_a_cpu_but_for_rounding(gpu: str, row: ModelRow) -> None:
    fresh = net(row, "cpu")
    start = np.concatenate([vector.data for vector in fresh.dump(fresh.layout.keys()).values()])
    expected, found = trained(fresh, row), trained(net(row, gpu), row)
    assert far(found, expected, start) < 1e-2
    assert trained(net(row, gpu), row, 3).tobytes() == trained(net(row, gpu), row, 3).tobytes()
    if row.kind == "image":
        assert far(trained(net(row, gpu, torch.channels_last), row), expected, start) < 1e-2


@pytest.mark.parametrize("row", MODELS.values(), ids=lambda row: row.name)
def test_replayed_steps_of_a_model_are_the_captured_work_to_the_bit(gpu: str, row: ModelRow) -> None:
    with torch.cuda.stream(torch.cuda.Stream(gpu)):  # type: ignore[no-untyped-call]
        replayed, called = (trained(net(row, gpu), row, 6, each) for each in (cuda_graphs(), Called))
        assert replayed.tobytes() == called.tobytes()


@pytest.mark.parametrize("profile", [p for p in PROFILES.values() if p.varies], ids=lambda profile: profile.name)
def test_images_are_changed_on_a_gpu_as_on_a_cpu(gpu: str, profile: Profile) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (16, 3, 32, 32), dtype=np.uint8))
    ours, theirs = (prepare(images.to(each), profile, np.random.default_rng(1)).cpu() for each in (gpu, "cpu"))
    assert ours.shape == theirs.shape
    assert torch.isclose(ours, theirs, atol=1e-4).float().mean() > 0.999  # a pixel may be on the border of two
