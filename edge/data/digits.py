"""scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels, 0..16, that need no download.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (test part).
1,437 examples train and 360 test, stratified by class.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data.registry import DataError, DataSet, Decoded, Split

COMES_WITH = "scikit-learn"
"""The package with the files of the set, so that no folder is searched."""
TEST_COUNT = 360
SPLIT_SEED = 0


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The file inside scikit-learn, found without importing it; ``places`` are ignored."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return ()
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return (file,) if file.is_file() else ()


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, examples in the order of the file; DataError if scikit-learn cannot read it."""
    # The import takes a second, which a process with a filled cache does not need.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    try:
        digits = load_digits()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{files[0]}: scikit-learn cannot read its digits: {error}") from error
    x = digits.images.astype(np.uint8)[:, np.newaxis]  # (examples, 1, 8, 8)
    y = digits.target.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=TEST_COUNT, stratify=y, random_state=SPLIT_SEED)
    train.sort()
    test.sort()
    return Decoded(Split(x[train], y[train]), Split(x[test], y[test]), "")
