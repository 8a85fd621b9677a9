"""The CPU time of training steps on this host, and a device fitted to it: ``python -m edge.profile.calibrate
[--quick]``.

Prints one JSON object. Each shipped model takes the steps of a visit (a batch gathered and augmented, forward,
backward, SGD) on random images, on one thread. Only CPU time is read, never wall-clock time, so other processes make
the calibration longer and hardly change its figures. No file is written, and no data set is opened.

A throughput belongs to a model at its own width. One for a whole family would be too coarse: on one core, the small
nets reach 0.3 (cnn) and 0.6 (digits-cnn) of resnet18's. Another width is measured only to show the error of the fit.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edge.data.augment import profile_for
from edge.data.registry import DATASETS, DataSet, Split
from edge.models.registry import MODELS, ModelRow
from edge.protocol.config import CPU, ModelConfig, TrainConfig
from edge.protocol.rng import keyed_generator
from edge.training.batches import Loader, LocalBatches
from edge.training.block_model import Block, BlockModel, build
from edge.training.client_update import ClientUpdate
from edge.training.describe import flops_per_example, seeded
from edge.training.sgd import Sgd
from edge.training.trainer import MEMORY_FORMATS

BATCHES = (8, 16, 32)
NARROW = 16
"""Second width at which a model is measured, or the next smaller one that it can have; these steps are not fitted."""
EXAMPLES = 4 * max(BATCHES)
WARM_UP_STEPS = 3
STEPS = range(5, 301)
"""Steps measured of one kind: more if they are short (`ENOUGH_SECONDS`)."""
FEW_STEPS = range(5, 6)
ENOUGH_SECONDS = 0.5
ALIKE = 1e-12
"""Fraction of the squared inverse times below which overhead and work cannot be separated."""


@dataclass(frozen=True)
class Measurement:
    """Steps of one model at one batch size."""

    model: str
    width: int | None
    own_width: bool
    """Whether it is the model's own width, or the model has none."""
    family: str
    batch: int
    flops: float
    """FLOPs of one step, as a visit counts them; 1 MAC = 2 FLOPs."""
    seconds: float
    """CPU time of one step: the median of several."""


@dataclass(frozen=True)
class Fit:
    """seconds = step_seconds + flops / flops_per_second[model]."""

    step_seconds: float
    flops_per_second: dict[str, float]
    """By family, then by model."""

    def seconds(self, measured: Measurement) -> float:
        """Seconds of a measured step by this fit."""
        return self.step_seconds + measured.flops / self.flops_per_second[measured.model]


def fit(measurements: Sequence[Measurement]) -> Fit:
    """The throughput of each model and one overhead per step, with the least sum of squared relative errors.

    The overhead lies between 0 and the shortest step. It is 0 if it cannot be separated from the work, because no model
    was measured at two numbers of FLOPs. A family's throughput, for models that were not measured, is the geometric
    mean of its models', so that twice too fast weighs as much as twice too slow. Fitted to all steps together, it would
    be near the fastest model's, since times far too short are smaller relative errors than times far too long.

    ValueError without measurements, or if the steps of a model are no longer than the overhead.
    """
    if not measurements:
        raise ValueError("there is nothing to fit: no step was measured")
    seconds = np.array([measured.seconds for measured in measurements])
    # Divided by its measured seconds, a step reads 1 = overhead * inverse + cost * work, with cost = 1 / throughput.
    inverse = 1 / seconds
    work = np.array([measured.flops for measured in measurements]) * inverse
    names = np.array([measured.model for measured in measurements])
    models = {name: names == name for name in dict.fromkeys(names.tolist())}
    overhead = _overhead(inverse, work, list(models.values()))
    costs = {name: _factor(work[chosen], 1 - overhead * inverse[chosen]) for name, chosen in models.items()}
    for name, cost in costs.items():
        if cost <= 0:
            raise ValueError(f"the steps of model {name!r} take no longer than the overhead of any step")
    throughputs = {name: 1 / cost for name, cost in costs.items()}
    return Fit(overhead, _family_means(measurements, throughputs) | throughputs)


def _family_means(measurements: Sequence[Measurement], throughputs: Mapping[str, float]) -> dict[str, float]:
    """The geometric mean of the throughputs of each family's models, FLOP/s."""
    family_of = {measured.model: measured.family for measured in measurements}
    assert not family_of.keys() & set(family_of.values()), "a model named as a family would take its place"
    logs: dict[str, list[float]] = {}
    for model, family in family_of.items():
        logs.setdefault(family, []).append(math.log(throughputs[model]))
    return {family: math.exp(math.fsum(values) / len(values)) for family, values in logs.items()}


def _overhead(inverse: NDArray[np.float64], work: NDArray[np.float64], models: list[NDArray[np.bool_]]) -> float:
    """Seconds of overhead: least squares over one equation per step, with each model's work projected out."""
    left, right = np.ones_like(inverse), inverse.copy()
    for chosen in models:
        for side in (left, right):
            side[chosen] -= _factor(work[chosen], side[chosen]) * work[chosen]
    if right @ right <= ALIKE * (inverse @ inverse):
        return 0.0
    return float(np.clip(_factor(right, left), 0.0, 1 / inverse.max()))


def _factor(direction: NDArray[np.float64], vector: NDArray[np.float64]) -> float:
    """The factor that brings ``direction`` nearest to ``vector``."""
    return float(direction @ vector / (direction @ direction))


def measure(row: ModelRow, width: int | None, batches: Sequence[int], steps: range = STEPS) -> Iterator[Measurement]:
    """The steps of one model at each batch size, on random images of a data set's shape.

    At least ``steps.start`` and fewer than ``steps.stop`` steps of each kind are measured.
    """
    images = fitting(row)

    def make() -> list[Block]:
        return build(ModelConfig(row.name, width), images.classes, images.inputs)

    memory_format = row.on(CPU, width).memory_format
    net = BlockModel(seeded(0, make), torch.device(CPU), MEMORY_FORMATS[memory_format])
    net.train_mode(True)
    loader = random_images(images, memory_format)
    per_example = flops_per_example(make, images.shape)
    for batch in batches:
        train = TrainConfig(batch=batch, local_steps=WARM_UP_STEPS + steps.stop - 1)
        net.executed[:] = 0
        taken = step_seconds(net, loader, train, steps.start)
        flops = float((net.executed * per_example).sum()) / len(taken)
        seconds = float(np.median(taken[WARM_UP_STEPS:]))
        yield Measurement(row.name, width, width == row.width, row.family, batch, flops, seconds)


def step_seconds(net: BlockModel, loader: Loader, train: TrainConfig, fewest: int) -> list[float]:
    """CPU seconds of each step of a visit, warm-up included, until there are `ENOUGH_SECONDS`."""
    objective, step, taken = ClientUpdate({}), Sgd(net, train, train.lr), list[float]()
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
    """The first data set with images of a model's size."""
    return next(images for images in DATASETS.values() if images.shape[1:] == row.shape)


def random_images(images: DataSet, memory_format: str) -> Loader:
    """Random examples of a data set's shape, with its augmentation."""
    rng = keyed_generator(0, "calibrate")
    pixels = rng.integers(0, images.pixel_max + 1, (EXAMPLES, *images.stored), dtype=np.uint8)
    split = Split(pixels, rng.integers(0, images.classes, EXAMPLES))
    return Loader(split, profile_for(images, "default"), torch.device(CPU), MEMORY_FORMATS[memory_format])


def image_models() -> list[ModelRow]:
    """The shipped models that are measured."""
    return [row for row in MODELS.values() if row.kind == "image"]


def measure_all() -> Iterator[Measurement]:
    """Every shipped model of images at its widths and all batch sizes."""
    for row in image_models():
        narrow = NARROW // row.width_multiple * row.width_multiple
        widths = [None] if row.width is None else list(dict.fromkeys([narrow, row.width]))
        for width in widths:
            yield from measure(row, width, BATCHES)


def measure_little() -> Iterator[Measurement]:
    """The model for the smallest images, at two batch sizes and few steps, for a quick trial."""
    row = min(image_models(), key=lambda row: row.shape)
    return measure(row, row.width, (BATCHES[0], BATCHES[-1]), FEW_STEPS)


def result(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The printed object: the fit of the models' own widths, and each measurement with its predicted seconds."""
    fitted = fit([measured for measured in measurements if measured.own_width])
    rows = []
    for measured in measurements:
        predicted = fitted.seconds(measured)
        rows.append(
            asdict(measured) | {"predicted_seconds": predicted, "relative_error": predicted / measured.seconds - 1}
        )
    return {**asdict(fitted), "torch": torch.__version__, "measurements": rows}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(prog="edge.profile.calibrate")
    parser.add_argument("--quick", action="store_true", help="one model, few steps")
    quick = parser.parse_args(argv).quick
    torch.set_num_threads(1)
    print(json.dumps(result(list(measure_little() if quick else measure_all()))))


if __name__ == "__main__":
    main()
