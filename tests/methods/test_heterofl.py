"""HeteroFL and FedRolex: what clients of different rates send, hold and change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.rounds.policy import PolicyName, RoundPolicy
from edge.protocol.config import ModelConfig, ModelProfile, PartitionConfig, TrainConfig
from edge.protocol.submodels import SliceMap
from edge.protocol.variant import Variant
from edge.training.trainer import LocalTrainer
from scenarios.config.load import Loaded, ScenarioError
from scenarios.run.setup import RunInputs, Setup
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.toy import (
    broken_off,
    federation,
    loaded,
    model_sha256,
    play,
    resumed,
    unsteady_world,
)

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
BY_CLIENT = {"rate": "client", "rates": (1.0, 0.5), "shares": (1, 3)}
DIGITS_NUMBERS = {"conv1": 40, "conv2": 296, "conv3": 584, "head": 330}
"""Of digits-cnn of width 4: 4, 8 and 8 filters of 3x3, and 10 classes of 32 inputs, with biases"""
HALF = {"conv1": 20, "conv2": 76, "conv3": 148, "head": 170}
"""Of 2, 4 and 4 filters, and 16 inputs"""


def described(known: Loaded) -> ModelProfile:
    return LocalTrainer(RunInputs(known).job).describe(True)[0]


def rates(**how: Any) -> list[float]:
    """Of four clients."""
    known = loaded("heterofl", **how)
    own = Setup.of(known, described(known)).rates.of_client
    return [own(client) for client in range(4)]


# --- what travels -----------------------------------------------------------------------------------------------------


def test_a_client_of_half_the_channels_sends_and_gets_its_own_numbers(tmp_path: Path) -> None:
    run = play(tmp_path, "heterofl", rounds=1, train=BRIEF, submodel=BY_CLIENT)
    sizes: dict[tuple[int, str], dict[str, int]] = {}
    for client, direction, key, nbytes in run.rows(
        "SELECT client, direction, key, nbytes FROM transfers WHERE slot = 'model'"
    ):
        sizes.setdefault((client, direction), {})[key] = nbytes // 4
    parts = [sizes[client, "down"] for client in range(4)]
    assert parts.count(DIGITS_NUMBERS) == 1 and parts.count(HALF) == 3
    assert [sizes[client, "up"] for client in range(4)] == parts
    flops = dict(run.rows("SELECT client, flops FROM visits"))
    whole = parts.index(DIGITS_NUMBERS)
    # 32 examples, two steps; MACs: 8x8 places of 4 filters of 9 inputs, 8x8 of 8 of 36, 4x4 of 8 of 72, and 320
    layers = np.array([8 * 8 * 4 * 9, 8 * 8 * 8 * 36, 4 * 4 * 8 * 72, 320])
    assert flops[whole] == 64 * 2 * (3 * layers.sum() - layers[0])
    halves = np.array([8 * 8 * 2 * 9, 8 * 8 * 4 * 18, 4 * 4 * 4 * 36, 160])
    other = parts.index(HALF)
    assert flops[other] == 64 * 2 * (3 * halves.sum() - halves[0])


def test_the_window_of_fedrolex_moves_by_a_channel_each_round(tmp_path: Path) -> None:
    quarter = {"rate": 0.25}
    first = play(tmp_path / "one", "fedrolex", rounds=1, train=BRIEF, submodel=quarter)
    second = play(tmp_path / "two", "fedrolex", rounds=2, train=BRIEF, submodel=quarter)
    start, one, two = (
        run["conv1"].data[:36].reshape(4, 9)
        for run in (
            first.federation.server.setup.initial_models[0],
            first.federation.server.model,
            second.federation.server.model,
        )
    )
    assert (start != one).any(1).tolist() == [True, False, False, False]
    assert (one != two).any(1).tolist() == [False, True, False, False]


def test_masked_classes_stay_where_no_client_has_them(tmp_path: Path) -> None:
    """Two clients of two classes each: rows of other classes neither move nor count."""
    how = {"clients": 2, "partition": PartitionConfig("classes", classes_per_client=2), "rounds": 1, "train": BRIEF}
    masked = play(tmp_path / "masked", "heterofl", **how, submodel={"rate": 1.0}, mask=True).federation
    plain = play(tmp_path / "plain", "heterofl", **how, submodel={"rate": 1.0}).federation
    present = masked.description.histogram > 0
    start = masked.server.setup.initial_models[0]["head"].data[:320].reshape(10, 32)
    moved = (masked.server.model["head"].data[:320].reshape(10, 32) != start).any(1)
    assert present.any(0).sum() < 10 and moved.tolist() == present.any(0).tolist()
    assert (plain.server.model["head"].data[:320].reshape(10, 32) != start).any(1).all()


# --- which rates ------------------------------------------------------------------------------------------------------


def test_rates_are_fixed_by_device_drawn_by_shares_or_one_for_all() -> None:
    assert rates(submodel={"rate": 0.5}) == [0.5] * 4
    assert sorted(rates(submodel=BY_CLIENT)) == [0.5, 0.5, 0.5, 1.0]
    assert rates(submodel=BY_CLIENT) == rates(submodel=BY_CLIENT) != rates(submodel=BY_CLIENT, seed=3)
    by_device = {"rate": {"raspberry-pi-5": 1.0, "raspberry-pi-4": 0.25}}
    assert sorted(rates(submodel=by_device)) == [0.25, 0.25, 1.0, 1.0]
    known = loaded("heterofl", submodel={"rate": {"raspberry-pi-5": 1.0}})
    with pytest.raises(ScenarioError, match=r"submodel\.rate: no rate for the device 'raspberry-pi-4' of the fleet"):
        _ = Setup.of(known, described(known)).rates


def test_memory_chooses_the_largest_part_that_fits() -> None:
    known = loaded("heterofl", model=ModelConfig("digits-cnn", width=64), train=TrainConfig(batch=32))
    profile = described(loaded("heterofl", model=ModelConfig("digits-cnn", width=64), submodel={"rate": "memory"}))
    fits = Setup.of(
        loaded("heterofl", model=ModelConfig("digits-cnn", width=64), submodel={"rate": "memory"}), profile
    ).fitting_rates
    assert known.scenario.submodel.levels == (1.0,)
    assert fits(1e12) == (1.0, 0.5, 0.25, 0.125, 0.0625)
    needed = Setup.of(known, profile).training_nbytes() / 0.7
    assert fits(needed) == (1.0, 0.5, 0.25, 0.125, 0.0625)
    assert fits(0.9 * needed) == (0.5, 0.25, 0.125, 0.0625)
    assert fits(1000) == ()


def test_a_deadline_chooses_the_largest_part_whose_visit_ends_in_time(tmp_path: Path) -> None:
    far, soon, never = (
        rates(submodel={"rate": "deadline", "deadline": limit}, network="lte") for limit in (1e6, 0.5, 1e-6)
    )
    assert far == [1.0] * 4 and never == [0.0625] * 4
    assert all(0.0625 <= rate <= 1.0 for rate in soon)
    run = federation(tmp_path, "heterofl", submodel={"rate": "deadline", "deadline": 0.5})
    for client, rate in enumerate(soon):
        visit = run.prepare(client, 0)
        conditions = run.clock.fleet.of_parts(run.clock.conditions([client], 0), [visit.price.rates])
        assert visit.price.rates == {rate: 1.0}
        assert run.clock.solve([0.0], [visit.work], conditions).up_end[0] <= 0.5 or rate == 0.0625


# --- beside all else --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", every(2, ["over_select", "deadline", "fedasync", "fedbuff"]))
def test_it_joins_every_policy_and_resumes_in_each(policy: PolicyName, tmp_path: Path) -> None:
    parts = {"rate": "round", "rates": (1.0, 0.5, 0.25)}
    how = unsteady_world(policy) | {"rounds": 4, "submodel": parts, "mask": True}
    whole = play(tmp_path / "whole", "heterofl", **how)
    broken_off(tmp_path / "broken off", "heterofl", 2, **how)
    again = resumed(tmp_path / "broken off", "heterofl", **how)
    assert np.array_equal(again.model, whole.model)
    assert virtual_rows(tmp_path / "broken off") == virtual_rows(tmp_path / "whole")


def test_it_joins_codecs_of_which_each_part_has_its_own_lengths(tmp_path: Path) -> None:
    """With residuals, and in both directions."""
    codec = {"up": [{"kind": "topk", "ratio": 0.1}, {"kind": "zstd"}], "down": {"kind": "fp16"}}
    how = {"rounds": 3, "train": BRIEF, "submodel": BY_CLIENT, "codec": codec}
    one, three = (
        play(tmp_path / "one", "heterofl", **how),
        play(tmp_path / "three", "heterofl", sites=3, shuffle=1, **how),
    )
    assert model_sha256(one.federation) == model_sha256(three.federation)
    sent = one.rows("SELECT client, SUM(nbytes) FROM transfers WHERE direction = 'up' AND round = 2 GROUP BY client")
    assert len({nbytes for _, nbytes in sent}) >= 2
    broken_off(tmp_path / "broken off", "heterofl", 1, **how)
    assert np.array_equal(resumed(tmp_path / "broken off", "heterofl", **how).model, one.model)


@pytest.mark.parametrize(("policy", "rounds"), [("sync", 2), ("fedbuff", 5)])
def test_parts_of_fedrolex_are_evaluated_at_the_windows_that_were_trained_last(
    policy: PolicyName, rounds: int, tmp_path: Path
) -> None:
    """Six clients, of which two take part at a time, so that some have older windows, and some have none."""
    rules = RoundPolicy(policy, buffer=1)
    how = {"clients": 6, "participants": 2, "rounds": rounds, "train": BRIEF, "rules": rules}
    how |= {"submodel": {"rate": 0.25}, "evaluation": {"on": "both"}}
    whole = play(tmp_path / "whole", "fedrolex", **how)
    scores = f"SELECT client, metric, rate, value FROM evaluations WHERE round = {rounds - 1}"
    found = {tuple(of): value for *of, value in whole.rows(scores)}
    visits = whole.rows("SELECT client, round, staleness FROM visits WHERE kind = 'train' ORDER BY up_end_s")
    # Each update is a step of fedbuff here, and the window counts the steps before a visit began.
    windows = {
        client: round if policy == "sync" else step - staleness
        for step, (client, round, staleness) in enumerate(visits)
    }
    assert len(windows) < 6 and len({*windows.values()}) > 1
    site, axes = whole.workers.site, whole.federation.description.axes
    net = site.part(Variant(0.25)).net
    net.train_mode(False)

    def loss(client: int, window: int) -> float:
        net.load(SliceMap(axes, 0.25, window).taken(whole.federation.server.model))
        data, indices = site._evaluated(client, "test")
        x, y = data.fetch(indices)
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(net.run(x), y))

    newest = max(windows.values())
    assert found[-1, "loss", 0.25] == pytest.approx(loss(-1, newest), rel=1e-5)
    for client in range(6):
        assert found[client, "loss", None] == pytest.approx(loss(client, windows.get(client, newest)), rel=1e-5)
        assert found[client, "loss", None] != pytest.approx(loss(client, newest + 1), rel=1e-5)


def test_static_statistics_do_not_travel_and_make_the_model_good_for_evaluation(tmp_path: Path) -> None:
    batch = {
        "model": ModelConfig("digits-cnn", width=4, norm="batch"),
        "rounds": 3,
        "train": TrainConfig(lr=0.1, batch=16),
    }
    static = play(tmp_path / "static", "heterofl", submodel=BY_CLIENT, **batch)
    running = play(tmp_path / "running", "heterofl", submodel=BY_CLIENT, statistics="running", **batch)
    keys = "SELECT DISTINCT key FROM transfers WHERE key LIKE '%.buffers'"
    assert static.rows(keys) == [] and len(running.rows(keys)) == 3
    accuracy = "SELECT accuracy FROM rounds ORDER BY round DESC LIMIT 1"
    assert static.rows(accuracy)[0][0] > 0.3
    charged = {"evaluation": {"on": "both", "charged": True}}
    visits = play(tmp_path / "charged", "heterofl", submodel=BY_CLIENT, **charged, **batch).rows(
        "SELECT MIN(bytes_up), MAX(bytes_up), MIN(flops) FROM visits WHERE kind = 'evaluate'"
    )
    ((least, most, flops),) = visits
    assert most - least == 4 * 2 * (20 - 10)  # means and variances of 4 + 8 + 8 channels, or of half of them
    assert flops > 0


def test_narrow_layers_take_longer_per_flop_where_the_device_is_calibrated() -> None:
    known = loaded("heterofl", submodel=BY_CLIENT, fleet={"devices": {"raspberry-pi-4": 1.0}})
    fleet = Setup.of(known, described(known)).fleet
    conditions = fleet.conditions([0, 1], 0)
    parts = fleet.of_parts(conditions, [{1.0: 1.0}, {0.5: 1.0}])
    slower = conditions.flops_per_second / parts.flops_per_second
    assert slower[0] == 1 and slower[1] == pytest.approx(
        1.95, abs=0.01
    )  # 2 and 4 filters fill 16 places, as 4 and 8 do
    phones = loaded("heterofl", submodel=BY_CLIENT, fleet={"devices": {"phone-mid": 1.0}})
    same = Setup.of(phones, described(phones)).fleet
    assert np.array_equal(
        same.of_parts(conditions, [{1.0: 1.0}, {0.5: 1.0}]).flops_per_second, conditions.flops_per_second
    )
