"""Products of adapters: their mean, cut by singular values, and how far a product of means is from it, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coordinator.aggregation.adapters import Products, StepProducts


def product(a: np.ndarray, b: np.ndarray) -> list[list[float]]:
    found: list[list[float]] = np.round(b @ a, 9).tolist()
    return found


def of(*clients: tuple[list[list[float]], list[list[float]], float]) -> Products:
    """(A, B, weight) of each client."""
    products = Products()
    for a, b, weight in clients:
        products.add(np.array(a), np.array(b), weight)
    return products


FIRST = [[1.0, 0.0]], [[3.0], [0.0]]
SECOND = [[0.0, 1.0]], [[0.0], [1.0]]


def test_the_mean_is_of_products_by_weight() -> None:
    assert product(*of((*FIRST, 1.0), (*SECOND, 3.0)).mean()) == [[0.75, 0], [0, 0.75]]


def test_the_cut_has_the_largest_singular_values_and_no_row_of_zeros() -> None:
    products = of((*FIRST, 1.0), (*SECOND, 1.0))  # mean: diag(1.5, 0.5)
    assert product(*products.cut(1)) == [[1.5, 0], [0, 0]]
    a, b = products.cut(2)
    assert product(a, b) == [[1.5, 0], [0, 0.5]]
    assert product(a[:1], b[:, :1]) == [[1.5, 0], [0, 0]], "a lower rank has the first rows and columns"
    np.testing.assert_allclose(a @ a.T, np.eye(2), atol=1e-12)
    # Of one client of rank 1, the second row of A has no value, but a direction in which B may learn.
    a, b = of((*FIRST, 1.0)).cut(2)
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1)
    assert product(a, b) == [[3.0, 0], [0, 0]] and not b[:, 1].any()


def test_clients_may_have_different_ranks_and_a_layer_may_have_less_than_the_rank() -> None:
    both = [[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]]
    a, b = of((*both, 1.0), (*SECOND, 1.0)).cut(4)
    assert a.shape == (4, 2) and b.shape == (2, 4)
    assert product(a, b) == [[1.0, 0], [0, 1.5]]


def test_the_gap_is_the_distance_of_the_product_of_means_as_a_share() -> None:
    # Means (1/2, 1/2) of both: a product of 1/4 everywhere, where the mean of products is diag(1/2, 1/2).
    apart, whole = of(([[1.0, 0.0]], [[1.0], [0.0]], 2.0), (*SECOND, 2.0)).gap()
    assert (apart, whole) == pytest.approx((0.25, 0.5))
    assert of((*FIRST, 5.0)).gap()[0] == pytest.approx(0.0, abs=1e-12), "one client's mean is its product"


def test_a_step_reads_vectors_of_several_adapters_and_writes_such() -> None:
    step, shapes = StepProducts(), ((1, 2), (2, 1), (1, 1), (1, 1))
    step.add("block", np.array([1, 0, 1, 0, 2, 3], np.float32), shapes, 1.0)
    step.add("block", np.array([0, 1, 0, 1, 4, 5], np.float32), shapes, 1.0)
    step.add("block", np.array([9, 9, 9, 9, 9, 9], np.float32), shapes, 0.0)
    # First adapter as above; of the second (6 + 20) / 2 = 13 beside 3 x 4 = 12.
    assert step.gap() == pytest.approx(math.sqrt((0.25 + 1) / (0.5 + 169)))
    vector = step.cut("block", ((2, 2), (2, 2), (1, 1), (1, 1)))
    assert vector.dtype == np.float32 and vector.shape == (10,)
    np.testing.assert_allclose(vector[4:8].reshape(2, 2) @ vector[:4].reshape(2, 2), np.eye(2) / 2, atol=1e-6)
    assert vector[8] * vector[9] == pytest.approx(13)
    assert StepProducts().gap() is None
