"""The sets that come with scikit-learn, which need no download; their files are found without importing it.

``digits``: 1,797 grey images of 8x8 pixels, 0..16; 1,437 train and 360 test. E. Alpaydin, C. Kaynak: Optical
Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (test part).

``breast-cancer``: 569 examples of 30 measured features, malignant (0) or benign (1, 63 %); 455 train and 114 test.
W. H. Wolberg, O. L. Mangasarian, W. N. Street: Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository,
1995.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.registry import DataError, DataSet, Decoded, Split

COMES_WITH = "scikit-learn"
"""The package with the files of the sets, so that no folder is searched."""
FILES = {"digits": "digits.csv.gz", "breast-cancer": "breast_cancer.csv"}
TEST_COUNTS = {"digits": 360, "breast-cancer": 114}
SPLIT_SEED = 0


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The files of both sets in ``sklearn/datasets/data``; empty if one is missing. ``places`` are ignored."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return ()
    paths = tuple(Path(spec.origin).parent / "datasets" / "data" / name for name in FILES.values())
    return paths if all(file.is_file() for file in paths) else ()


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, stratified by class, examples in the order of the file; DataError if scikit-learn cannot read it."""
    from sklearn.datasets import load_breast_cancer, load_digits

    try:
        examples = load_digits() if row.name == "digits" else load_breast_cancer()
    except (OSError, ValueError, EOFError) as error:
        file = next(file for file in files if file.name == FILES[row.name])
        raise DataError(f"{file}: scikit-learn cannot read its set {row.name}: {error}") from error
    if row.name == "digits":
        x: NDArray[Any] = examples.images.astype(np.uint8)[:, np.newaxis]  # (examples, 1, 8, 8)
    else:
        x = examples.data.astype(np.float32)  # (examples, 30)
    return stratified(x, examples.target.astype(np.int64), TEST_COUNTS[row.name])


def stratified(x: NDArray[Any], y: NDArray[np.int64], test_count: int) -> Decoded:
    """A split by class into training and test examples, both in the order of ``x``."""
    # The import takes a second, which a process with a filled cache does not need.
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(y)), test_size=test_count, stratify=y, random_state=SPLIT_SEED)
    train.sort()
    test.sort()
    return Decoded(Split(x[train], y[train]), Split(x[test], y[test]), "")
