"""scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels, 0..16, that need no download.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (test part).
1,437 examples train and 360 test, stratified by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data import scikit_learn
from edge.data.registry import DataError, DataSet, Decoded

COMES_WITH = scikit_learn.COMES_WITH
"""The package with the files of the set, so that no folder is searched."""
TEST_COUNT = 360


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The file inside scikit-learn, found without importing it; ``places`` are ignored."""
    return scikit_learn.package_file("digits.csv.gz")


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, examples in the order of the file; DataError if scikit-learn cannot read it."""
    from sklearn.datasets import load_digits

    try:
        digits = load_digits()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{files[0]}: scikit-learn cannot read its digits: {error}") from error
    x = digits.images.astype(np.uint8)[:, np.newaxis]  # (examples, 1, 8, 8)
    return scikit_learn.stratified(x, digits.target.astype(np.int64), TEST_COUNT)
