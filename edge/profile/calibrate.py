"""The CPU time of training steps on this host, and a device fitted to it: ``python -m edge.profile.calibrate
[--quick] [--passes N] [--codec-sizes BYTES ..]``.

Prints one JSON object. Networks take the steps of a visit (a batch gathered and augmented, forward, backward, SGD) on
random examples, on one thread. Only CPU time is read, never wall-clock time. Other processes still lengthen it through
the caches and memory that they share, so all networks are measured in several passes, one after another, and the least
time counts. No file is written, and no data set is opened.

The device is fitted to reference networks alone (`edge.profile.references`). Shipped models are measured in the same
passes, to compare their times with those that the device predicts for them. Stages of codecs are measured after them
(`edge.profile.codecs`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from edge.data.augment import profile_for
from edge.data.registry import DATASETS, DataSet, Split
from edge.models.registry import MODELS, ModelRow
from edge.profile.codecs import CALLS, codec_rates
from edge.profile.fit import Measurement, fit
from edge.profile.memory import FEW_WEIGHTS, WEIGHTS, memory_rate
from edge.profile.references import REFERENCES, Reference
from edge.protocol.config import CPU, ModelConfig, TrainConfig
from edge.protocol.losses import NEXT_TOKEN
from edge.protocol.operations import KINDS
from edge.protocol.options.base import Options
from edge.protocol.payload import step_flops
from edge.protocol.rng import keyed_generator
from edge.training.batches import Loader, LocalBatches
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.client_update import ClientUpdate
from edge.training.counts import count_blocks
from edge.training.criterion import criterion
from edge.training.job_model import MEMORY_FORMATS, model_outputs, seeded
from edge.training.sgd import Sgd

BATCHES = (16, 32)
"""Below 16 images, torch takes other kernels for 1x1 convolutions."""
CHECKED: tuple[tuple[str, int | None], ...] = (
    ("cnn", None),
    ("digits-cnn", 16),
    ("digits-cnn", 64),
    ("resnet18", 8),
    ("resnet18", 16),
    ("vgg9", 16),
    ("mobilenetv2", 16),
    ("shufflenet", 12),
    ("squeezenet", 48),
    ("char-transformer", 128),
    ("llama", 64),
)
"""Shipped models and widths to which nothing is fitted."""
EXAMPLES = 4 * max(BATCHES)
WARM_UP_STEPS = 2
STEPS = range(3, 301)
"""Steps measured of one kind in one pass: more if they are short (`ENOUGH_SECONDS`)."""
FEW_STEPS, FEW_CALLS = range(3, 4), range(1, 2)
ENOUGH_SECONDS = 0.1
PASSES = 3


class TimedNetwork:
    """A network that is trained on random examples to time its steps."""

    def __init__(
        self, make: Callable[[], list[Block]], examples: DataSet, memory_format: str, about: dict[str, Any]
    ) -> None:
        """``about``: the fields of its `Measurement` that are known beforehand."""
        self.net = BlockModel(seeded(0, make), torch.device(CPU), MEMORY_FORMATS[memory_format])
        self.net.train_mode(True)
        self.net.criterion = criterion(_training(examples))
        self.loader = random_examples(examples, memory_format)
        counts = count_blocks(make, examples.shape, examples.kind)
        flops = step_flops(counts.flops)
        self._measurement = partial(Measurement, **about, flops=flops, operations=counts.operations)
        self._quartiles: list[float] = []

    def measure(self, batch: int, steps: range) -> None:
        """One pass: at least ``steps.start`` and fewer than ``steps.stop`` steps."""
        train = TrainConfig(batch=batch, local_steps=WARM_UP_STEPS + steps.stop - 1)
        taken = step_seconds(self.net, self.loader, train, steps.start)
        self._quartiles.append(float(np.quantile(taken[WARM_UP_STEPS:], 0.25)))

    def measurement(self, batch: int) -> Measurement:
        """Of all passes so far."""
        least, most = min(self._quartiles), max(self._quartiles)
        return self._measurement(batch=batch, seconds=least, spread=most / least - 1)


def reference(one: Reference) -> TimedNetwork:
    """A reference network, which is fitted."""
    images = fitting(MODELS["resnet18"])
    about = {"model": one.name, "width": one.width, "fitted": True, "family": one.family}
    return TimedNetwork(one.make, images, "channels_last", about)


def shipped(row: ModelRow, width: int | None) -> TimedNetwork:
    """A model that ships, which is not fitted."""
    examples = fitting(row)
    outputs = model_outputs(_training(examples), examples)

    def make() -> list[Block]:
        return build(ModelConfig(row.name, width), outputs, examples.inputs, row.continues)

    about = {"model": row.name, "width": width, "fitted": False, "family": row.family}
    return TimedNetwork(make, examples, row.on(CPU, width).memory_format, about)


def measure(row: ModelRow, width: int | None, batches: Sequence[int], steps: range = STEPS) -> Iterator[Measurement]:
    """The steps of one shipped model at each batch size, in one pass, on random images of a data set's shape."""
    for batch in batches:
        timed = shipped(row, width)
        timed.measure(batch, steps)
        yield timed.measurement(batch)


def in_passes(makers: Sequence[Callable[[], TimedNetwork]], passes: int, steps: range) -> list[Measurement]:
    """Each network at each batch size, once in each pass, so that a busy time of the host does not hit one alone."""
    timed = [(batch, make()) for make in makers for batch in BATCHES]
    for _ in range(passes):
        for batch, network in timed:
            network.measure(batch, steps)
    return [network.measurement(batch) for batch, network in timed]


def step_seconds(net: BlockModel, loader: Loader, train: TrainConfig, fewest: int) -> list[float]:
    """CPU seconds of each step of a visit, warm-up included, until there are `ENOUGH_SECONDS`."""
    objective, step, taken = ClientUpdate(Options()), Sgd(net, train, train.lr), list[float]()
    start = time.process_time()
    for x, y in LocalBatches(loader, np.arange(EXAMPLES), train, (0, 0, 0))():
        step(objective.loss, x, y)
        now = time.process_time()
        taken.append(now - start)
        if len(taken) >= WARM_UP_STEPS + fewest and sum(taken[WARM_UP_STEPS:]) >= ENOUGH_SECONDS:
            break
        start = now
    return taken


def fitting(row: ModelRow) -> DataSet:
    """The first data set with images of a model's size, or with tokens that it foresees."""
    if row.kind == "tokens":
        return next(each for each in DATASETS.values() if each.targets.continues)
    return next(images for images in DATASETS.values() if images.shape[1:] == row.shape)


def _training(examples: DataSet) -> TrainConfig:
    return TrainConfig(loss=NEXT_TOKEN) if examples.targets.continues else TrainConfig()


def random_examples(examples: DataSet, memory_format: str) -> Loader:
    """Random examples of a data set's shape, with its augmentation."""
    rng = keyed_generator(0, "calibrate")
    if examples.vocabulary is not None:
        split = Split(
            rng.integers(1, examples.vocabulary, (EXAMPLES, *examples.stored)), np.ones((EXAMPLES, 1), np.float32)
        )
        return Loader(split, profile_for(examples, "default"), torch.device(CPU), target="tokens")
    images = examples
    pixels = rng.integers(0, images.pixel_max + 1, (EXAMPLES, *images.stored), dtype=np.uint8)
    split = Split(pixels, rng.integers(0, images.classes, EXAMPLES))
    return Loader(split, profile_for(images, "default"), torch.device(CPU), MEMORY_FORMATS[memory_format])


def result(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The printed object: the fit of the reference networks, and each measurement."""
    fitted = fit([measured for measured in measurements if measured.fitted])
    rows = []
    for measured in measurements:
        counts = zip(KINDS, measured.operations.tolist(), strict=True)
        rows.append(asdict(measured) | {"operations": {kind: pair for kind, pair in counts if any(pair)}})
    return {**asdict(fitted), "torch": torch.__version__, "measurements": rows}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(prog="edge.profile.calibrate")
    parser.add_argument("--quick", action="store_true", help="two networks, few steps")
    parser.add_argument("--passes", type=int, default=PASSES, help="repetitions, of which the least time counts")
    parser.add_argument("--codec-sizes", nargs="*", type=float, default=[], help="bytes on which codecs are measured")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    makers: list[Callable[[], TimedNetwork]]
    if options.quick:
        small = next(one for one in REFERENCES if one.sides == (8, 4))
        makers = [partial(reference, small), partial(shipped, MODELS["digits-cnn"], 16)]
        measurements = in_passes(makers, 1, FEW_STEPS)
    else:
        makers = [partial(reference, one) for one in REFERENCES]
        makers += [partial(shipped, MODELS[name], width) for name, width in CHECKED]
        measurements = in_passes(makers, options.passes, STEPS)
    codecs = codec_rates(options.codec_sizes, FEW_CALLS if options.quick else CALLS)
    rate = memory_rate(FEW_WEIGHTS if options.quick else WEIGHTS)
    print(json.dumps({**result(measurements), "codecs": codecs, "memory_bytes_per_second": rate}))


if __name__ == "__main__":
    main()
