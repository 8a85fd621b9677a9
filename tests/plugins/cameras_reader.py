"""The reader of `tests.plugins.cameras`: a file of training examples per camera, and one of test examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data.registry import DataSet, Decoded, Split


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """Those of the first folder with any."""
    return next((found for place in places if (found := tuple(sorted(place.glob("*.npz"))))), ())


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Whatever there is: on a board its own camera alone, on the server test examples alone."""
    return Decoded(
        _split([file for file in files if file.stem != "test"]), _split([f for f in files if f.stem == "test"]), "npz"
    )


def _split(files: Sequence[Path]) -> Split:
    arrays = [np.load(file) for file in files]
    x = [np.zeros((0, 6), np.float32), *(each["x"] for each in arrays)]
    y = [np.zeros(0, np.int64), *(each["y"] for each in arrays)]
    ids = [
        np.full(len(each["y"]), int(file.stem.strip("camtes") or 0)) for each, file in zip(arrays, files, strict=True)
    ]
    return Split(np.concatenate(x), np.concatenate(y), np.concatenate([np.zeros(0, np.int64), *ids]))
