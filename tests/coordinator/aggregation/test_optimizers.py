"""Server optimisers: the next global model from the last one and the clients' mean, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from coordinator.aggregation.server import ServerStrategy
from coordinator.rounds.policy import RoundPolicy
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, BlockShape, Layout
from tests.toy import play, small_context, vector

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


def optimiser(name: str, **options: float) -> ServerOptimizer:
    row = SERVER_OPTIMIZERS[name]
    return row.make(row.options(**options))


def step(one: ServerOptimizer, current: list[float], mean: list[float]) -> list[float]:
    stepped = one.step("w", np.array(current, np.float32), np.array(mean, np.float32))
    assert stepped.dtype == np.float32
    return [float(number) for number in stepped]


# --- fedavgm ----------------------------------------------------------------------------------------------------------


def test_momentum_adds_to_each_change_a_share_of_the_steps_before() -> None:
    one, at = optimiser("fedavgm", momentum=0.5), [0.0]
    path = []
    for _ in range(4):
        at = step(one, at, [at[0] + 1])
        path.append(at[0])
    assert path == [1.0, 2.5, 4.25, 6.125]  # steps 1, 1.5, 1.75, 1.875


def test_without_momentum_the_mean_is_the_next_model_to_the_bit() -> None:
    # 1 + (1e-9 - 1) is 0 in float32.
    assert step(optimiser("fedavgm", momentum=0), [1.0], [1e-9]) == step(ServerOptimizer(), [1.0], [1e-9])
    assert step(optimiser("fedavgm", momentum=0, lr=0.5), [1.0], [3.0]) == [2.0]


# --- fedadam ----------------------------------------------------------------------------------------------------------


def test_adams_first_step_by_hand() -> None:
    # 0.01 · 0.1Δ / (√(0.99·10⁻⁶ + 0.01Δ²) + 0.001): near 0.01 for any |Δ| of 1 and more, and never above it.
    steps = step(optimiser("fedadam"), [0.0] * 5, [-1e4, -4.0, 1.0, 0.01, 0.0])
    assert steps == pytest.approx([-0.0099999, -0.0099750, 0.0099005, 0.0041482, 0.0], rel=1e-4)
    assert np.abs(steps).max() <= 0.01


def test_adam_remembers_both_moments() -> None:
    one = optimiser("fedadam", lr=1.0, beta1=0.5, beta2=0.5, tau=1.0)
    # m = 1.5, v = 0.5 · 1 + 0.5 · 9 = 5; then m = 0.75 + 0.5, v = 2.5 + 0.5.
    assert step(one, [0.0], [3.0]) == pytest.approx([1.5 / (5**0.5 + 1)])
    assert step(one, [0.0], [1.0]) == pytest.approx([1.25 / (3**0.5 + 1)])
    assert {name: float(array[0]) for name, array in one.state().items()} == {"m/w": 1.25, "v/w": 3.0}


# --- fedadagrad and fedyogi -------------------------------------------------------------------------------------------


def test_adagrads_second_moment_only_grows() -> None:
    one = optimiser("fedadagrad", lr=1.0, tau=1.0)
    # v = 1 + 9, then 10 + 4; m is the change alone.
    assert step(one, [0.0], [3.0]) == pytest.approx([3 / (10**0.5 + 1)])
    assert step(one, [0.0], [2.0]) == pytest.approx([2 / (14**0.5 + 1)])
    assert float(one.state()["v/w"][0]) == 14.0


def test_yogis_second_moment_grows_and_shrinks_by_a_share_of_the_square() -> None:
    one = optimiser("fedyogi", lr=1.0, beta1=0, beta2=0.5, tau=1.0)
    # v = 1 + 0.5 · 9 since 9 > 1; then 5.5 - 0.5 · 1 since 1 < 5.5, where Adam would have 3.
    assert step(one, [0.0], [3.0]) == pytest.approx([3 / (5.5**0.5 + 1)])
    assert step(one, [0.0], [1.0]) == pytest.approx([1 / (5**0.5 + 1)])
    assert float(one.state()["v/w"][0]) == 5.0


# --- in a server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_parameters_step_and_buffers_are_averaged(name: str) -> None:
    layout, rule = Layout((BlockShape("w", 1, 1),)), optimiser(name, lr=0.5)
    server = ServerStrategy(small_context(layout, Options(), [1, 3], optimiser=rule))
    for client, number in enumerate((4.0, 8.0)):
        server.accumulate(Update(client, 0, {}, {MODEL: {"w": vector(number), "w.buffers": vector(number)}}))
    server.step()
    assert server.model["w.buffers"].data.tolist() == [7.0]
    moved = {"fedavgm": 3.5, "fedadagrad": 0.5 * 7 / (7 + 0.001), "fedadam": 0.5 * 0.7 / (0.49**0.5 + 0.001)}
    moved |= {"fedyogi": moved["fedadam"]}
    assert server.model["w"].data.tolist() == pytest.approx([moved[name]], rel=1e-4)


@pytest.mark.parametrize("policy", ["fedasync", "fedbuff"])
def test_they_step_where_updates_come_one_by_one(policy: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"participants": 3, "rounds": 2, "train": BRIEF}

    def played(name: str, server: str, **options: float) -> Any:
        rules = RoundPolicy("fedasync") if policy == "fedasync" else RoundPolicy("fedbuff", buffer=2)
        return play(tmp_path / name, rules=rules, server=server, server_options=options, **how).model

    plain = played("plain", "plain")
    assert np.array_equal(played("still", "fedavgm", momentum=0), plain)
    others = [plain, played("momentum", "fedavgm"), played("yogi", "fedyogi")]
    assert len({model.tobytes() for model in others}) == 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {"lr": 1}),
        ("fedavgm", {"momentum": 1}),
        ("fedyogi", {"momentum": 0.4}),
        ("fedadagrad", {"beta2": 0.9}),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        optimiser(name, **options)
