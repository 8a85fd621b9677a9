"""Synthetic(1, 1): thirty clients, each with a linear model and features of its own; drawn here, not downloaded.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks
(FedProx), MLSys 2020, appendix C.1, https://arxiv.org/abs/1812.06127, after O. Shamir, N. Srebro, T. Zhang, ICML 2014.

Client k draws u_k ~ N(0, alpha), which is the mean of all numbers of its model W_k (60 x 10) and b_k (10), and
B_k ~ N(0, beta), which is the mean of v_k (60); both have standard deviation 1 about these means. Its examples are
x ~ N(v_k, diag(j^-1.2)), j = 1 .. 60, with the class argmax(x W_k + b_k). So alpha says how much the models differ
between clients, and beta how much the features do. One tenth of a client's examples, rounded up, are its test examples.

Its clients are as large as in the authors' published files, whose draws are not remade. Their sizes were drawn as
50 + lognormal(4, 2), and are given here by their test examples (`TEST_COUNTS`), which leave each within 5 examples of
its own. The largest has 5,953 training examples and the smallest 45, as in DAdaQuant (Hönig et al., ICML 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data.registry import DataSet, Decoded, Split

COMES_WITH = "FedBR Edge"
"""The package with the files of the set, so that no folder is searched."""
TEST_COUNTS = (
    *(8, 18, 9, 17, 16, 50, 14, 9, 6, 19, 17, 6, 9, 6, 7),
    *(662, 6, 13, 7, 12, 8, 5, 6, 44, 6, 14, 31, 45, 8, 6),
)
"""Test examples of each client: ``num_samples`` of ``data/synthetic_1_1/data/test/mytest.json`` in the authors'
repository, litian96/FedProx."""
LEAST = 50
"""Examples of the smallest client, training and test"""
ALPHA, BETA = 1.0, 1.0
SEED = 0
DECAY = -1.2
"""The exponent of a feature's variance by its place, 1, 2 .."""


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """This file, from which all examples follow; ``places`` are ignored."""
    return (Path(__file__),)


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, client by client."""
    (features,), classes = row.shape, row.classes
    # Its streams stay the same in every version of NumPy, and with them the hash of the set.
    rng = np.random.RandomState(SEED)
    deviation = np.sqrt(np.arange(1, features + 1) ** DECAY)
    means_of_models, means_of_features = (rng.normal(0, spread, len(TEST_COUNTS)) for spread in (ALPHA, BETA))
    drawn: dict[str, list[Split]] = {"train": [], "test": []}
    for client, tested in enumerate(TEST_COUNTS):
        count = max(LEAST, 10 * tested - 5)  # the middle of the sizes with so many test examples
        weights = rng.normal(means_of_models[client], 1, (features, classes))
        bias = rng.normal(means_of_models[client], 1, classes)
        centre = rng.normal(means_of_features[client], 1, features)
        x = centre + deviation * rng.normal(0, 1, (count, features))
        y = (x @ weights + bias).argmax(axis=1).astype(np.int64)
        ids = np.full(count, client)
        for name, part in (("train", slice(None, count - tested)), ("test", slice(count - tested, None))):
            drawn[name].append(Split(x[part].astype(np.float32), y[part], ids[part]))
    train, test = (
        Split(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("x", "y", "ids")))
        for parts in drawn.values()
    )
    return Decoded(train, test, "")
