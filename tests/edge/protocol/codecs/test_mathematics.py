"""What the papers prove of their codecs, and what error feedback makes of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.protocol.codecs.codec import Tensors
from edge.protocol.codecs.registry import for_feedback, make_codec, why_no_feedback
from edge.protocol.payload import Floats
from tests.edge.protocol.codecs.chains import CHAINS, COUNT, TENSORS, name, stream, vector


def round_trip(stages: list[dict[str, Any]], values: Floats, draw: int = 0) -> NDArray[np.float64]:
    codec, tensors = make_codec(stages), ((values.size,),)
    frame = codec.encode(values, tensors, stream(draw)).frame
    return codec.decode(frame.data, tensors, stream(draw)).astype(np.float64)


UNBIASED = [
    [{"kind": "quantize", "bits": 2}],
    [{"kind": "quantize", "bits": 4, "bucket": 16}],
    [{"kind": "quantize", "levels": 1, "norm": "l2", "bucket": 64}],
    [{"kind": "ternary", "clip": 0}],
    [{"kind": "randk", "ratio": 0.25}],
    [{"kind": "randk", "ratio": 0.5}, {"kind": "quantize", "bits": 3}],
]


@pytest.mark.parametrize("stages", UNBIASED, ids=name)
def test_the_mean_of_what_comes_back_is_what_was_sent(stages: list[dict[str, Any]]) -> None:
    draws, values = 500, np.random.default_rng(5).normal(size=40).astype(np.float32)
    assert make_codec(stages).is_unbiased
    back = np.stack([round_trip(stages, values, draw) for draw in range(draws)])
    error_of_mean = np.maximum(back.std(axis=0) / math.sqrt(draws), 1e-7)
    assert np.abs((back.mean(axis=0) - values) / error_of_mean).max() < 4.5


@pytest.mark.parametrize(("n", "s"), [(64, 1), (64, 8), (64, 32), (1000, 4)])
def test_qsgd_keeps_its_bounds_of_variance_and_of_non_zeros(n: int, s: int) -> None:
    # Alistarh et al., Lemma 3.1: E‖Q(v) - v‖² <= min(n/s², √n/s)·‖v‖² and E‖Q(v)‖₀ <= s(s + √n)
    stages = [{"kind": "quantize", "levels": s, "norm": "l2", "bucket": n}]
    values = np.random.default_rng(n + s).normal(size=n).astype(np.float32)
    back = np.stack([round_trip(stages, values, draw) for draw in range(200)])
    squares = float(np.square(values.astype(np.float64)).sum())
    variance = np.square(back - values).sum(axis=1).mean()
    fractions = np.modf(s * np.abs(values) / math.sqrt(squares))[0]
    assert variance == pytest.approx(squares / s**2 * (fractions * (1 - fractions)).sum(), rel=0.05)
    assert variance <= min(n / s**2, math.sqrt(n) / s) * squares
    assert np.count_nonzero(back, axis=1).mean() <= s * (s + math.sqrt(n))


def test_ternary_clips_at_its_deviations_and_keeps_the_mean_of_the_rest() -> None:
    # -1 and 1 in turns, and a 20 at the end of 100: mean 0.19, mean square 4.99, clipped at 2.5 deviations
    values = np.resize(np.array([-1, 1], np.float32), 100)
    values[-1] = 20
    back = np.stack([round_trip([{"kind": "ternary"}], values, draw) for draw in range(500)])
    norm = back.max()
    assert norm == pytest.approx(2.5 * math.sqrt(4.99 - 0.19**2))
    assert set(np.unique(back)) == {-norm, 0, norm}
    assert back[:, -1].min() == norm  # the clipped number is the norm
    assert back[:, :-1].mean(axis=0) == pytest.approx(values[:-1], abs=4.5 * math.sqrt(norm / 500))
    whole = round_trip([{"kind": "ternary", "clip": 0}], values)
    assert whole.max() == 20


def test_sign_has_the_error_of_its_formula() -> None:
    values = vector().astype(np.float64)
    back = round_trip([{"kind": "sign"}], vector())
    assert back == pytest.approx(np.abs(values).mean() * np.sign(values), rel=1e-6)
    expected = np.square(values).sum() - np.abs(values).sum() ** 2 / COUNT
    assert np.square(values - back).sum() == pytest.approx(expected, rel=1e-5)


def test_topk_leaves_the_least_error_and_randk_the_expected_one() -> None:
    values = vector().astype(np.float64)
    squares = np.sort(np.square(values))
    error = np.square(values - round_trip([{"kind": "topk", "ratio": 0.2}], vector())).sum()
    assert error == pytest.approx(squares[: COUNT - 21].sum())  # of 105 numbers, 21 travel
    back = np.stack([round_trip([{"kind": "randk", "ratio": 0.2}], vector(), draw) for draw in range(500)])
    assert np.square(values - back).sum(axis=1).mean() == pytest.approx((105 / 21 - 1) * squares.sum(), rel=0.1)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_gives_a_matrix_of_its_rank_back(rank: int) -> None:
    draw = np.random.default_rng(rank)
    matrix = draw.normal(size=(30, rank)) @ draw.normal(size=(rank, 24))
    tensors: Tensors = ((30, 4, 6), (5,))
    values = np.append(matrix.reshape(-1), [1, 2, 3, 4, 5]).astype(np.float32)
    codec = make_codec([{"kind": "powersgd", "rank": rank}])
    assert codec.nbytes(tensors) == 4 * (rank * (30 + 24) + 5)
    assert codec.kept(tensors) == rank * 24
    back = codec.decode(codec.encode(values, tensors, stream()).frame.data, tensors, stream())
    assert back == pytest.approx(values, abs=1e-5 * float(np.abs(values).max()))
    assert back[-5:].tolist() == [1, 2, 3, 4, 5]


def test_powersgd_that_begins_with_the_last_q_comes_to_the_best_matrix_of_its_rank() -> None:
    matrix = np.random.default_rng(3).normal(size=(20, 16)).astype(np.float32)
    singular = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    least = math.sqrt(np.square(singular[2:]).sum())
    codec, tensors, kept, errors = make_codec([{"kind": "powersgd"}]), ((20, 16),), None, []
    for use in range(60):
        encoded = codec.encode(matrix.reshape(-1), tensors, stream(use), kept)
        kept = encoded.kept
        back = codec.decode(encoded.frame.data, tensors, stream(use)).reshape(20, 16)
        errors.append(float(np.linalg.norm(matrix - back)))
    assert errors[0] > 1.02 * least
    assert errors[-1] == pytest.approx(least, rel=1e-3)
    assert all(after <= before * (1 + 1e-5) for before, after in pairwise(errors))


@pytest.mark.parametrize("stages", CHAINS, ids=name)
def test_error_feedback_telescopes(stages: list[dict[str, Any]]) -> None:
    # e_0 = 0, p_t = v_t + e_t, e_(t+1) = p_t - decoded_t: the decoded ones and the last e add up to all v_t
    codec = make_codec([stage | ({"unbiased": False} if stage["kind"] == "randk" else {}) for stage in stages])
    residual, kept = np.zeros(COUNT, np.float32), None
    sent, given = np.zeros(COUNT), np.zeros(COUNT)
    for use in range(20):
        values = vector(use) + residual
        encoded = codec.encode(values, TENSORS, stream(use), kept)
        back, kept = codec.decode(encoded.frame.data, TENSORS, stream(use)), encoded.kept
        residual = values - back
        given += vector(use)
        sent += back
    assert sent + residual == pytest.approx(given, abs=1e-5 * float(np.abs(given).max()))


REDUCTIONS: list[list[dict[str, Any]]] = [
    [],
    [{"kind": "topk", "ratio": 0.1}],
    [{"kind": "randk", "ratio": 0.1}],
    [{"kind": "randk", "ratio": 0.1, "unbiased": True}],
    [{"kind": "powersgd"}],
]
FORMATS: list[list[dict[str, Any]]] = [
    [],
    [{"kind": "fp16"}],
    [{"kind": "sign"}],
    [{"kind": "ternary"}],
    [{"kind": "quantize", "bits": 2}],
    [{"kind": "quantize", "bits": 4}],
    [{"kind": "quantize", "bits": 4, "norm": "l2"}],
    [{"kind": "quantize", "bits": 8, "norm": "l2"}],
]


def largest_residual(stages: list[dict[str, Any]]) -> float:
    """Of 60 updates that are fed back, in norms of one."""
    codec, tensors = make_codec(stages), ((40, 50),) * 2
    rng, residual, kept, largest = np.random.default_rng(2), np.zeros(4000, np.float32), None, 0.0
    for step in range(60):
        update = rng.normal(size=4000).astype(np.float32)
        sent = update + residual
        frame = codec.encode(sent, tensors, stream(step), kept)
        kept = frame.kept
        residual = sent - codec.decode(frame.frame.data, tensors, stream(step))
        largest = max(largest, float(np.linalg.norm(residual.astype(np.float64)) / np.linalg.norm(update)))
        if not largest < 1e6:
            break
    return largest


@pytest.mark.parametrize("number_format", FORMATS, ids=name)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=name)
def test_no_residual_grows_without_bound_where_errors_may_be_fed_back(
    reduction: list[dict[str, Any]], number_format: list[dict[str, Any]]
) -> None:
    stages = [*reduction, *number_format]
    if why_no_feedback(stages) is None:
        assert largest_residual(for_feedback(stages, feeds_back=True)) < 20


@pytest.mark.parametrize(
    "stages",
    [
        [{"kind": "randk", "ratio": 0.1, "unbiased": True}],
        [{"kind": "randk", "ratio": 0.1, "unbiased": True}, {"kind": "sign"}],
        [{"kind": "powersgd"}, {"kind": "sign"}],
        [{"kind": "quantize", "norm": "l2"}],
    ],
    ids=name,
)
def test_residuals_grow_where_errors_must_not_be_fed_back(stages: list[dict[str, Any]]) -> None:
    assert why_no_feedback(stages) is not None and not make_codec(stages).contracts
    assert largest_residual(stages) > 200
