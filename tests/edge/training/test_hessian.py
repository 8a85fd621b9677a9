"""The Hessian of a loss: its products, top eigenvalue, trace and diagonal where it is known by hand; H_N and H_D."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.training.client_update import Batch
from edge.training.hessian import HessianOfLoss, cross_entropy_hessian, estimate_trace
from edge.training.metrics.diagonals import compared
from edge.training.metrics.hessian_options import SurfaceOptions
from edge.training.metrics.loss_surface import LossSurface
from tests.toy import batch, tower


def quadratic(matrix: list[list[float]], *splits: int) -> HessianOfLoss:
    """Of w'Aw / 2 over tensors of these sizes, in batches of 1 and 3 examples with the same loss."""
    a, w = torch.tensor(matrix, dtype=torch.float32), [torch.ones(size, requires_grad=True) for size in splits]

    def losses() -> Iterator[tuple[Tensor, int]]:
        for examples in (1, 3):
            whole = torch.cat(w)
            yield examples * (whole @ a @ whole) / 2, examples

    return HessianOfLoss(w, losses)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_diagonal_hessian_has_its_trace_and_diagonal_after_one_probe() -> None:
    hessian = quadratic([[5, 0, 0], [0, 2, 0], [0, 0, 1]], 2, 1)
    found = estimate_trace(hessian, rng())
    assert (found.trace, found.tensors) == (8.0, (7.0, 1.0))
    assert (found.error, found.probes) == (0.0, 2)  # the second says the same, which ends it
    assert estimate_trace(hessian, rng(), probes=1).error is None
    assert [each.tolist() for each in found.diagonal] == [[5.0, 2.0], [1.0]]
    assert hessian.top_eigenvalue(rng()) == pytest.approx(5, rel=2e-3)


def test_products_eigenvalue_and_trace_of_a_full_hessian() -> None:
    hessian = quadratic([[2, 1], [1, 2]], 1, 1)  # eigenvalues 1 and 3; each probe says 4 + 2 or 4 - 2
    assert torch.cat(hessian.product([torch.tensor([1.0]), torch.tensor([-2.0])])).tolist() == [0.0, -3.0]
    assert hessian.top_eigenvalue(rng()) == pytest.approx(3, rel=1e-3)
    assert estimate_trace(hessian, rng(), probes=100, tolerance=None).trace == pytest.approx(4, abs=0.5)
    assert quadratic([[-3, 0], [0, 1]], 2).top_eigenvalue(rng()) == pytest.approx(-3, rel=1e-3)
    assert quadratic([[0]], 1).top_eigenvalue(rng()) == 0.0


def test_softmax_regression_has_the_hessian_of_the_textbook() -> None:
    net, (x, y) = tower((5, 3)), batch(12)
    hessian = cross_entropy_hessian(net, lambda: iter([(x[:7], y[:7]), (x[7:], y[7:])]))
    with torch.no_grad():
        p = net.run(x).softmax(1).double().numpy()
    inputs = np.concatenate([x.double().numpy(), np.ones((12, 1))], axis=1)  # the last is the bias's
    by_example = [np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row)) for q, row in zip(p, inputs, strict=True)]
    exact = np.mean(by_example, axis=0)  # entries are (class, input) pairs
    direction = rng().standard_normal((3, 6))
    weight, bias = torch.from_numpy(direction[:, :5]).float(), torch.from_numpy(direction[:, 5]).float()
    product = hessian.product([weight, bias])
    expected = (exact @ direction.reshape(-1)).reshape(3, 6)
    np.testing.assert_allclose(product[0].numpy(), expected[:, :5], atol=1e-5)
    np.testing.assert_allclose(product[1].numpy(), expected[:, 5], atol=1e-5)

    top = hessian.top_eigenvalue(rng(), tolerance=1e-4)
    assert top == pytest.approx(np.linalg.eigvalsh(exact)[-1], rel=1e-2)
    assert top <= np.trace(exact), "a convex loss has no negative eigenvalue"
    found, draws, products = estimate_trace(hessian, rng(), 3, None), rng(), []
    for _ in range(3):
        probe = [2.0 * draws.integers(0, 2, count).reshape(3, -1) - 1 for count in (15, 3)]
        v = np.concatenate(probe, axis=1)
        products.append(v.reshape(-1) * (exact @ v.reshape(-1)))
    diagonal = np.mean(products, axis=0).reshape(3, 6)
    np.testing.assert_allclose(found.diagonal[0].numpy(), diagonal[:, :5], atol=1e-5)
    np.testing.assert_allclose(found.tensors, [diagonal[:, :5].sum(), diagonal[:, 5].sum()], atol=1e-5)
    assert found.trace == pytest.approx(diagonal.sum(), rel=1e-5)


def test_a_surface_bends_by_the_eigenvalues_around_the_model() -> None:
    net, (x, y) = tower((5, 3)), batch(12)
    before = net.flat.clone()
    sums = LossSurface(SurfaceOptions(points=3, span=0.1, tolerance=1e-6)).measure_model(
        net, partial(once, x, y), rng()
    )
    values = {name: total / count for name, (total, count) in sums.items()}
    surface = np.array([values[str(number)] for number in range(9)]).reshape(3, 3)
    assert surface[1, 1] == pytest.approx(float(F.cross_entropy(net.run(x), y).detach()))
    assert (surface[1, 0] + surface[1, 2] - 2 * surface[1, 1]) / 0.1**2 == pytest.approx(values["first"], rel=0.02)
    assert (surface[0, 1] + surface[2, 1] - 2 * surface[1, 1]) / 0.1**2 == pytest.approx(values["second"], rel=0.02)
    assert torch.equal(net.flat, before)
    with pytest.raises(ValueError, match="must be odd; choose 5"):
        SurfaceOptions(points=4)


def once(x: Tensor, y: Tensor) -> Iterator[Batch]:
    return iter([(x, y)])


def test_differences_over_clients_by_hand() -> None:
    one, other = [3.0, 4.0], [0.0, 10.0]  # norms 5 and 10, cosine 4/5
    pair = np.array([one, other])
    assert compared(pair, "distinct") == {"H_N": 25.0, "H_D": pytest.approx(0.8)}
    assert compared(pair, "all") == {"H_N": 12.5, "H_D": pytest.approx(0.9)}
    same = compared(np.array([one, one, one]), "all")
    assert same == {"H_N": 0.0, "H_D": pytest.approx(1, abs=1e-15)}
    assert compared(np.array([one, [-3.0, -4.0]]), "distinct")["H_D"] == pytest.approx(-1)
    assert compared(np.array([one]), "distinct") == {}
    assert compared(np.array([one]), "all") == {"H_N": 0.0, "H_D": pytest.approx(1)}
