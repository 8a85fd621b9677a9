"""Links get better and worse by themselves, with the spread and the memory that were asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.network.bandwidth import DOWN, UP, Constant, OrnsteinUhlenbeck, Samples, Variation, sigma_of_cv
from costmodel.step_series import StepSeries

INF = math.inf
RECORDED = np.array([0.0, 2.0, 5.0])


def streams(purpose: str, index: int, client: int) -> np.random.Generator:
    assert purpose == "bandwidth"
    return np.random.default_rng([23, index, client])


def process(tau: float = 30.0, step: float = 10.0, sigma: float = 0.36) -> OrnsteinUhlenbeck:
    return OrnsteinUhlenbeck(sigma, tau, step, streams)


def samples() -> Samples:
    factors = (np.array([1.0, 0.5, 2.0]), np.array([0.1, 0.2, 0.3]))
    return Samples([StepSeries.of(RECORDED, factors[0]), StepSeries.of(RECORDED * 7.0, factors[1])], streams)


each_model = pytest.mark.parametrize("model", [Constant, process, samples])


def path(model: Variation, client: int, direction: int, steps: int, step: float) -> NDArray[np.float64]:
    return np.array([model.factor(client, direction, sample * step)[0] for sample in range(steps)])


@each_model
def test_the_order_of_questions_never_changes_an_answer(model: Callable[[], Variation]) -> None:
    rng = np.random.default_rng(2)
    questions = [
        (int(client), int(direction), float(t))
        for client, direction, t in zip(
            rng.integers(0, 20, 300), rng.integers(0, 2, 300), rng.uniform(0, 50_000, 300), strict=True
        )
    ]
    one, other = model(), model()
    in_order = {question: one.factor(*question) for question in sorted(questions, key=lambda q: q[2])}
    assert {question: other.factor(*question) for question in questions} == in_order
    assert {q: model().factor(*q) for q in questions[:15]} == {q: in_order[q] for q in questions[:15]}


@each_model
def test_a_factor_holds_until_the_change_it_names(model: Callable[[], Variation]) -> None:
    asked, t = model(), 0.0
    for _ in range(2000):
        factor, until = asked.factor(3, UP, t)
        assert factor > 0.0
        assert until > t
        if until == INF:
            break
        assert asked.factor(3, UP, t + 0.9 * (until - t)) == (factor, until)
        t = until


# Ornstein-Uhlenbeck


def test_factors_have_mean_1_and_the_cv_that_was_asked_for() -> None:
    """400 clients x 20 times, each 8 tau apart: 16,000 independent factors, so the mean is 1 within 4 * 0.003."""
    model = process(sigma=sigma_of_cv(0.37))
    drawn = np.array(
        [model.factor(client, way, 240.0 * k)[0] for client in range(400) for way in (DOWN, UP) for k in range(20)]
    )
    assert drawn.mean() == pytest.approx(1.0, abs=0.012)
    assert drawn.std() / drawn.mean() == pytest.approx(0.37, abs=0.015)
    # The logarithm is normal: its quantiles are those of the law, each within 4 standard errors.
    x = (np.log(drawn) + sigma_of_cv(0.37) ** 2 / 2) / sigma_of_cv(0.37)
    expected = [-1.645, -0.674, 0.0, 0.674, 1.645]
    assert np.quantile(x, [0.05, 0.25, 0.5, 0.75, 0.95]) == pytest.approx(expected, abs=0.07)


def test_chunks_join_to_the_one_process_that_their_noise_makes() -> None:
    """The oracle takes the exact step sample by sample through all chunks, from nothing at the very beginning."""
    model, tau, step, sigma = process(), 30.0, 10.0, 0.36
    chunk_samples = 120  # 40 tau / step
    noise = np.hstack([streams("bandwidth", chunk, 7).standard_normal((2, chunk_samples)) for chunk in range(5)])
    a = math.exp(-step / tau)
    x, expected = np.zeros(2), []
    for sample in range(noise.shape[1]):
        expected.append(np.exp(sigma * x - sigma**2 / 2))
        x = a * x + math.sqrt(1 - a * a) * noise[:, sample]
    for way in (DOWN, UP):
        got = path(model, 7, way, 4 * chunk_samples, step)
        assert got == pytest.approx(np.array(expected)[chunk_samples:, way], rel=1e-13)


# Recorded series


def test_a_recorded_series_comes_again_and_again_from_a_random_place() -> None:
    """1.0 for 2 s, 0.5 for 3 s, 2.0 for as long again: a period of 8 s."""
    model = Samples([StepSeries.of(RECORDED, np.array([1.0, 0.5, 2.0]))], streams)
    for client in range(20):
        rng = streams("bandwidth", 0, client)
        rng.integers(1)
        offset = float(rng.random()) * 8.0
        for t in np.arange(0.05, 30.0, 0.5).tolist():
            place = (t + offset) % 8.0
            factor, left = (1.0, 2.0) if place < 2.0 else (0.5, 5.0) if place < 5.0 else (2.0, 8.0)
            got, until = model.factor(client, UP, t)
            assert got == factor
            assert until == pytest.approx(t + left - place, abs=1e-9)
