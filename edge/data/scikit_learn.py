"""The sets that come with scikit-learn: their files, found without importing it, and their split into two parts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.registry import Decoded, Split

COMES_WITH = "scikit-learn"
SPLIT_SEED = 0


def package_file(name: str) -> tuple[Path, ...]:
    """A file of ``sklearn/datasets/data``; empty if there is none."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return ()
    file = Path(spec.origin).parent / "datasets" / "data" / name
    return (file,) if file.is_file() else ()


def stratified(x: NDArray[Any], y: NDArray[np.int64], test_count: int) -> Decoded:
    """A split by class into training and test examples, both in the order of ``x``."""
    # The import takes a second, which a process with a filled cache does not need.
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(y)), test_size=test_count, stratify=y, random_state=SPLIT_SEED)
    train.sort()
    test.sort()
    return Decoded(Split(x[train], y[train]), Split(x[test], y[test]), "")
