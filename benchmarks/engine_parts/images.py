"""Random images, as many as are asked for, as a data set: ``benchmarks.engine_parts.images:images_2000``. Never torch.

Nothing can be learned from them, and nothing need be: a benchmark times the work, which does not depend on pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.data.registry import DataSet, Decoded, Split

CLASSES = 10
SHAPE = (3, 32, 32)
TEST_EXAMPLES = 2000
PREFIX = "images_"
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Of profile ``fedmlb-cifar``; pixels are 0..255."""


def data_name(examples: int) -> str:
    """The value of ``data.name`` for so many training examples."""
    return f"{__name__}:{PREFIX}{examples}"


def __getattr__(attribute: str) -> DataSet:
    """The row of any number of training examples: its name says how many."""
    if not attribute.startswith(PREFIX) or not attribute.removeprefix(PREFIX).isdecimal():
        raise AttributeError(attribute)
    looks: dict[str, Any] = {"shape": SHAPE, "stored": SHAPE, "profile": "fedmlb-cifar", "reader": __name__}
    return DataSet(attribute, "random images", CLASSES, source="numpy's generator of seed 0", **looks)


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """This file: what the images follow from."""
    return (Path(__file__),)


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, drawn anew; the same for every process that asks."""
    rng, splits = np.random.default_rng(0), []
    for count in (int(row.name.removeprefix(PREFIX)), TEST_EXAMPLES):
        pixels = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
        splits.append(Split(pixels, rng.integers(0, CLASSES, count)))
    return Decoded(splits[0], splits[1], "")
