"""Clipped changes and noise on their sum: by hand, on a model of three numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.server import GLOBAL, ServerContext, ServerStrategy
from coordinator.privacy.central_noise import CentralNoise
from edge.protocol.config import PrivacyConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, BlockShape, Layout, Payload, Vector, initial_slot
from edge.protocol.privacy import clipped, gaussian, norm_of, with_noise
from edge.protocol.rng import keyed_generator

START = {"a": Vector(np.array([1.0, 2.0], np.float32)), "b": Vector(np.array([3.0], np.float32))}


def update(client: int, a: tuple[float, float], b: float) -> Update:
    """The update of a client that has changed the model by so much."""
    change = {"a": np.array(a, np.float32), "b": np.array([b], np.float32)}
    payload: Payload = {MODEL: {key: Vector(START[key].data + change[key]) for key in START}}
    return Update(client, 0, {"loss": 0.0}, payload)


def server(cohort: float = 4.0, weight: float | None = None, cap: int | None = None, **config: Any) -> ServerStrategy:
    privacy = PrivacyConfig(**{"unit": "client", "noise": 0.0, "clip": 5.0, **config})
    samples = np.array([10, 20, 30, 40])
    context = ServerContext(
        layout=Layout((BlockShape("a", 2), BlockShape("b", 1))),
        initial={initial_slot(0): dict(START)},
        options=Options(),
        weights="uniform",
        down=("a", "b"),
        up=("a", "b"),
        seed=7,
        samples=samples,
        histogram=samples[:, None],
        privacy=CentralNoise(privacy, 7, cohort, cohort if weight is None else weight),
        weight_cap=cap,
    )
    return ServerStrategy(context)


def stepped(server: ServerStrategy, *updates: Update) -> list[float]:
    """The change of the model by a step with these updates."""
    before = {key: vector.data.copy() for key, vector in server.model.items()}
    for each in updates:
        server.accumulate(server.clipped(each, server.start_model(each.client)))
    server.step()
    return [float(n) for key in before for n in server.model[key].data - before[key]]


def test_a_change_longer_than_the_clip_is_scaled_down_to_it_and_others_are_left() -> None:
    long, short = update(0, (6.0, 0.0), 8.0), update(1, (3.0, 0.0), -4.0)
    model, norm = clipped(long.payload[MODEL], START, 5.0)
    assert norm == 10.0
    assert model["a"].data.tolist() == [4.0, 2.0] and model["b"].data.tolist() == [7.0]
    model, norm = clipped(short.payload[MODEL], START, 5.0)
    assert norm == 5.0 and model == short.payload[MODEL]


def test_the_sum_is_divided_by_the_expected_cohort_whoever_has_answered() -> None:
    # (6, 0, 8) is clipped to (3, 0, 4); with (3, 0, -4) the sum is (6, 0, 0), of four who were expected.
    assert stepped(server(), update(0, (6.0, 0.0), 8.0), update(1, (3.0, 0.0), -4.0)) == [1.5, 0.0, 0.0]
    assert stepped(server(cohort=1.0), update(1, (3.0, 0.0), -4.0)) == [3.0, 0.0, -4.0]
    assert stepped(server()) == [0.0, 0.0, 0.0]


def test_capped_weights_are_examples_over_the_cap_at_most_one() -> None:
    # 10 / 20 and 1, of an expected weight of 3.5.
    changed = stepped(server(weight=3.5, cap=20), update(0, (2.0, 0.0), 0.0), update(3, (0.0, 3.0), 0.0))
    assert changed == pytest.approx([1.0 / 3.5, 3.0 / 3.5, 0.0], abs=1e-6)


def test_an_empty_cohort_makes_a_step_of_noise_alone_and_no_two_steps_have_the_same() -> None:
    noisy = server(noise=2.0)
    first, second = stepped(noisy), stepped(noisy)
    # z S / C = 2 x 5 / 4 on each weight, drawn for each block and step.
    drawn = [
        2.5 * number
        for key, size in (("a", 2), ("b", 1))
        for number in gaussian(size, keyed_generator(7, f"privacy noise {key}", 0, 0)).tolist()
    ]
    assert first == pytest.approx(drawn, abs=1e-6)
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_resumed_server_side_draws_the_noise_that_it_would_have_drawn() -> None:
    whole, cut = server(noise=0.3, adaptive_clip=True, clip=0.1), server(noise=0.3, adaptive_clip=True, clip=0.1)
    for each in (whole, cut):
        stepped(each, update(0, (1.0, 0.0), 0.0))
    again = server(noise=0.3, adaptive_clip=True, clip=0.1)
    again.restore(cut.models, cut.state())
    assert stepped(whole, update(1, (0.0, 2.0), 0.0)) == stepped(again, update(1, (0.0, 2.0), 0.0))


def test_the_clip_moves_by_the_share_of_updates_below_it() -> None:
    moving = server(adaptive_clip=True)
    privacy = moving.setup.privacy
    assert privacy is not None
    stepped(moving, update(0, (6.0, 0.0), 8.0), update(1, (3.0, 0.0), 0.0))
    # One of four who were expected is below 5, a quarter less than a half.
    assert privacy.clip == pytest.approx(5.0 * math.exp(-0.2 * (0.25 - 0.5)))
    # z_delta of z = 1 and sigma_b = 40/20: (1 - 1/16)^-1/2.
    assert CentralNoise(PrivacyConfig("client", adaptive_clip=True), 7, 40.0, 40.0).multiplier == pytest.approx(
        (15 / 16) ** -0.5
    )


def test_aggregators_have_noise_of_their_own_for_their_share_of_the_cohort() -> None:
    whole = CentralNoise(PrivacyConfig("client"), 7, 10.0, 10.0)
    parts = [whole.at_station(number, 0.5) for number in (1, 2)]
    assert [part.deviation for part in parts] == [0.2, 0.2]
    drawn = [part.mean("a", np.zeros(3, np.float32), None).tolist() for part in parts]
    assert drawn[0] != drawn[1]


def test_noise_has_the_deviation_that_is_asked_for() -> None:
    zeros = {"a": Vector(np.zeros(100_000, np.float32))}
    found = with_noise(zeros, 0.5, np.random.default_rng(0))["a"].data
    assert float(found.std()) == pytest.approx(0.5, rel=0.01) and abs(float(found.mean())) < 0.01
    assert norm_of({"a": np.full(100_000, 2.0, np.float32), "b": np.zeros(0, np.float32)}) == math.sqrt(400_000)


def test_the_model_of_a_server_side_without_noise_or_long_changes_is_the_mean() -> None:
    plain = server(cohort=2.0)
    assert stepped(plain, update(0, (1.0, 2.0), 0.5), update(1, (3.0, 0.0), 0.0)) == [2.0, 1.0, 0.25]
    assert plain.models[GLOBAL]["a"].data.tolist() == [3.0, 3.0]
