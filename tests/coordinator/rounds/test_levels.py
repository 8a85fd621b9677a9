"""Levels of quantized updates that change with the round and the client: what each visit is charged, and resumption."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.level_schedule import LevelSchedule, client_levels
from edge.protocol.config import LevelsConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import MODEL
from tests.ledgers import virtual_rows
from tests.toy import Run, broken_off, model_sha256, play, resumed

STAGES = ({"kind": "quantize", "levels": 8, "bucket": 1 << 20},)
BOTH = {"by_round": True, "by_client": True, "momentum": 0.0, "patience": 2}
HOW: dict[str, Any] = {
    "train": TrainConfig(lr=0.1, batch=32, local_steps=3),
    "partition": PartitionConfig("dirichlet-unbalanced", alpha=0.3),
    "clients": 6,
    "participants": 3,
    "rounds": 8,
}
FRAMES = "SELECT visit, SUM(nbytes) FROM transfers WHERE direction = 'up' AND slot = 'model' GROUP BY visit"


def start(folder: Path, levels: dict[str, Any], **how: Any) -> Run:
    return play(folder, codec={"up": STAGES, "levels": levels}, **{**HOW, **how})


@pytest.mark.parametrize("levels", [BOTH, {**BOTH, "by_client": False}, {**BOTH, "by_round": False}], ids=str)
def test_each_visit_is_charged_for_its_own_levels(levels: dict[str, Any], tmp_path: Path) -> None:
    run = start(tmp_path, levels)
    charged = run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM visits")
    assert charged == [(run.workers.bytes_down, run.workers.bytes_up)]
    # The schedule by hand, from the losses and the sizes of the clients alone; 2 s + 1 levels take so many bits.
    schedule, held = LevelSchedule(LevelsConfig(**levels), 8, 8), run.federation.description.samples
    rows = run.rows("SELECT round, client, loss FROM visits ORDER BY visit")
    expected: list[int] = []
    for round in range(8):
        losses = {client: loss for number, client, loss in rows if number == round}
        weights = {client: float(held[client]) for client in losses}
        expected += schedule.of_cohort(weights).values()
        schedule.learn(losses, weights)
    assert len(set(expected)) > 2 or not levels["by_client"]
    sizes = run.federation.up_shapes[MODEL].values()
    frames = [sum(4 + -(-size * (2 * s).bit_length() // 8) for size in sizes) for s in expected]
    assert [nbytes for _, nbytes in run.rows(FRAMES)] == frames


def test_entropy_coded_levels_are_charged_as_they_were_sent(tmp_path: Path) -> None:
    coded = {"up": (*STAGES, {"kind": "elias"}), "levels": BOTH}
    run, plain = play(tmp_path / "coded", codec=coded, **HOW), start(tmp_path / "plain", BOTH)
    assert run.rows("SELECT SUM(bytes_up) FROM visits") == [(run.workers.bytes_up,)]
    assert model_sha256(run.federation) == model_sha256(plain.federation)
    assert run.workers.bytes_up < plain.workers.bytes_up


def test_the_order_of_workers_and_their_sums_change_nothing(tmp_path: Path) -> None:
    one, three = (start(tmp_path / str(n), BOTH, sites=n, shuffle=n) for n in (1, 3))
    assert model_sha256(three.federation) == model_sha256(one.federation)
    summed = start(tmp_path / "summed", BOTH, sum="fixed_point", sites=3, shuffle=1, rounds=1)
    ordered = start(tmp_path / "ordered", BOTH, rounds=1)
    assert np.abs(summed.model - ordered.model).max() < 1e-6


def test_resumed_after_any_round_it_has_the_same_levels(tmp_path: Path) -> None:
    whole, folder = start(tmp_path / "whole", BOTH), tmp_path / "broken off"
    how = {**HOW, "codec": {"up": STAGES, "levels": BOTH}}
    for after in (1, 3, 6):
        broken_off(folder, "fedavg", after, **how, again=after > 1)
    again = resumed(folder, "fedavg", **how)
    assert np.array_equal(again.model, whole.model)
    assert virtual_rows(folder) == virtual_rows(tmp_path / "whole")


# --- the schedule alone -----------------------------------------------------------------------------------------------


def levels(losses: list[float], most: int = 8, by_round: bool = True, **options: Any) -> list[int]:
    """The level of each round, and of the one after the last, with a client that reports these losses."""
    schedule, found = LevelSchedule(LevelsConfig(by_round, **options), most, rounds=30), []
    for loss in losses:
        found.append(schedule.level)
        schedule.learn({0: loss}, {0: 1.0})
    return [*found, schedule.level]


def test_the_level_doubles_where_the_loss_has_not_fallen_and_stays_for_the_patience() -> None:
    # Without an average, and with three rounds' patience: the loss of rounds 1 to 3 falls; that of 2 to 4 does not.
    assert levels([5.0, 4.0, 3.0, 4.0, 4.0], momentum=0.0, patience=3) == [1, 1, 1, 1, 2, 2]
    # A loss that never falls: each level stays for three rounds, the largest to the end.
    assert levels([1.0] * 14, patience=3) == [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]
    assert levels([1.0] * 5, most=6, patience=1) == [1, 2, 4, 6, 6, 6]
    assert levels([1.0] * 3, least=4, patience=1) == [4, 8, 8, 8]
    assert levels([1.0] * 3, by_round=False, patience=1) == [8, 8, 8, 8]
    # A tenth of 30 rounds, by default.
    assert levels([1.0] * 4) == [1, 1, 1, 2, 2]


def test_a_clients_level_grows_with_the_power_two_thirds_of_its_weight() -> None:
    # w = 8, 1: a = 4 + 1, b = (64 + 1)/8²; √(a/b) = 2.219; levels 2.219 · 4 = 8.9 and 2.2.
    assert client_levels(8, {3: 8.0, 1: 1.0}) == {3: 9, 1: 2}
    assert client_levels(8, {3: 8 / 9, 1: 1 / 9}) == {3: 9, 1: 2}
    assert client_levels(8, {0: 2.0, 1: 2.0, 2: 2.0}) == {0: 8, 1: 8, 2: 8}
    assert client_levels(1, {0: 27.0, 1: 1.0}) == {0: 1, 1: 1}
    assert client_levels(4, {0: 0.0, 1: 1.0}) == {0: 1, 1: 4}
    assert client_levels(4, {0: 0.0}) == {0: 1}
    found = {
        by: LevelSchedule(LevelsConfig(*by, least=2), 8, 10).of_cohort({0: 8.0, 1: 1.0})
        for by in product((False, True), (False, True))
    }
    assert found == {
        (False, False): {0: 8, 1: 8},
        (False, True): {0: 9, 1: 2},
        (True, False): {0: 2, 1: 2},
        (True, True): {0: 2, 1: 1},
    }
