"""scikit-learn's breast tumours: 569 examples of 30 measured features, malignant (0) or benign (1); no download.

W. H. Wolberg, O. L. Mangasarian, W. N. Street: Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository,
1995. 455 examples train and 114 test, stratified by class. 63 % are benign.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data import scikit_learn
from edge.data.registry import DataError, DataSet, Decoded

COMES_WITH = scikit_learn.COMES_WITH
"""The package with the files of the set, so that no folder is searched."""
TEST_COUNT = 114


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The file inside scikit-learn, found without importing it; ``places`` are ignored."""
    return scikit_learn.package_file("breast_cancer.csv")


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, examples in the order of the file; DataError if scikit-learn cannot read it."""
    from sklearn.datasets import load_breast_cancer

    try:
        tumours = load_breast_cancer()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{files[0]}: scikit-learn cannot read its breast cancer set: {error}") from error
    x = tumours.data.astype(np.float32)  # (examples, 30)
    return scikit_learn.stratified(x, tumours.target.astype(np.int64), TEST_COUNT)
