"""The Hessian of a loss: its products, top eigenvalue, trace and diagonal where it is known by hand; H_N and H_D."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.client_update import Batch
from edge.training.hessian import HessianOfLoss, cross_entropy_hessian, estimate_trace, parameters_of
from edge.training.metrics.diagonals import compared, over_clients
from edge.training.metrics.hessian import LossHessian
from edge.training.metrics.hessian_options import HessianOptions, SurfaceOptions
from edge.training.metrics.loss_surface import LossSurface
from tests.toy import CPU, batch, tower


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


def test_the_trace_has_the_standard_error_of_its_probes() -> None:
    # Each probe says 6 or 2, so that with k sixes of 100 the variance is 16 k (100 - k) / (100 * 99).
    found = estimate_trace(quadratic([[2, 1], [1, 2]], 1, 1), rng(), probes=100, tolerance=None)
    sixes = round((found.trace - 2) * 25)
    assert (found.probes, 30 < sixes < 70) == (100, True)
    assert found.error == pytest.approx((16 * sixes * (100 - sixes) / 9900 / 100) ** 0.5)


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


def test_the_memory_format_changes_nothing_but_sums() -> None:
    def blocks() -> list[tuple[str, nn.Module]]:
        torch.manual_seed(3)
        return [("c", nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten())), ("f", nn.Linear(12, 3))]

    x, (_, y) = torch.randn(6, 2, 3, 3, generator=torch.Generator().manual_seed(0)), batch(6)
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net, images = BlockModel(blocks, CPU, memory_format), x.contiguous(memory_format=memory_format)
        metric = LossHessian(HessianOptions(diag="per_parameter", probes=2, iterations=2))
        before, values = net.flat.clone(), metric.measure_model(net, partial(once, images, y), rng())
        assert torch.equal(net.flat, before)
        assert not net.grad.any()
        found.append(([total for total, _ in values.values()], metric.vectors()["diagonal"].data))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)
    assert len(found[0][1]) == sum(each.numel() for each in parameters_of(net))


def test_eigenvectors_stand_at_right_angles_in_the_order_of_their_eigenvalues() -> None:
    net, (x, y) = tower((5, 3)), batch(12)
    hessian = cross_entropy_hessian(net, partial(once, x, y))
    (first, one), (second, other) = hessian.top_eigenvectors(rng(), 2, tolerance=1e-6)
    assert first == hessian.top_eigenvalue(rng(), tolerance=1e-6)
    assert first > second > 0
    for value, vector in ((first, one), (second, other)):
        for product, along in zip(hessian.product(vector), vector, strict=True):
            torch.testing.assert_close(product, value * along, atol=2e-3, rtol=0)
    flat = [torch.cat([each.reshape(-1) for each in vector]) for vector in (one, other)]
    np.testing.assert_allclose([[float(a @ b) for a in flat] for b in flat], [[1, 0], [0, 1]], atol=1e-5)


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


def no_batch() -> Iterator[Batch]:
    return iter(())


def test_without_examples_there_are_no_values() -> None:
    metric = LossHessian(HessianOptions())
    assert metric.measure_model(tower(), no_batch, rng()) == {}
    assert metric.vectors() == {}


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


def test_the_traces_of_tensors_are_compared_and_nothing_else() -> None:
    values = {0: {"trace": 7.0, "0": 3.0, "1": 4.0}, 4: {"trace": 10.0, "0": 0.0, "1": 10.0}, 5: {}}
    assert over_clients(values, HessianOptions(pairs="distinct"), {}) == {"H_N": 25.0, "H_D": pytest.approx(0.8)}
    assert over_clients({5: {}}, HessianOptions(), {}) == {}
    overflowed = values | {6: {"trace": 1.0, "0": 1.0}}  # its other part is not finite, and has no value
    assert over_clients(overflowed, HessianOptions(pairs="distinct"), {}) == {"H_N": 25.0, "H_D": pytest.approx(0.8)}


def test_with_the_diagonal_per_parameter_vectors_are_compared() -> None:
    options = HessianOptions(pairs="distinct", diag="per_parameter")
    vectors = {0: {"diagonal": np.array([3, 4], np.float32)}, 4: {"diagonal": np.array([0, 10], np.float32)}}
    expected = {"H_N": 25.0, "H_D": pytest.approx(0.8)}
    assert over_clients({0: {"0": 1.0}, 4: {"0": 1.0}}, options, vectors) == expected
    overflowed = vectors | {5: {"diagonal": np.array([np.nan, 1], np.float32)}}
    assert over_clients({}, options, overflowed) == expected
