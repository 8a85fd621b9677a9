"""How much a visit trains, in which order, and what stays on the client's disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from edge.protocol.config import ModelConfig, TrainConfig, TrainingPlan
from edge.protocol.messages import GLOBAL, Evaluate, Train
from edge.protocol.payload import MODEL, Vector
from edge.training.batches import LocalBatches
from edge.training.trainer import LocalTrainer
from tests.toy import federation, store


@pytest.mark.parametrize(
    ("config", "samples", "plan"),
    [
        (TrainConfig(batch=10, local_epochs=2), 25, TrainingPlan(6, 50, 3)),
        (TrainConfig(batch=10, local_epochs=2, drop_last=True), 25, TrainingPlan(4, 40, 2)),
        (TrainConfig(batch=10, local_steps=4), 25, TrainingPlan(4, 35, 3)),  # 25, then 10 of the second epoch
        (TrainConfig(batch=10, local_steps=4, drop_last=True), 25, TrainingPlan(4, 40, 2)),
        (TrainConfig(batch=10, drop_last=True), 9, TrainingPlan(0, 0, 0)),
        (TrainConfig(batch=10), 0, TrainingPlan(0, 0, 0)),
    ],
)
def test_a_plan_by_hand(config: TrainConfig, samples: int, plan: TrainingPlan) -> None:
    assert config.plan(samples) == plan


def test_visits_with_partial_work_draw_their_epochs_and_the_others_do_all() -> None:
    train = TrainConfig(local_epochs=5, partial_work=0.5)
    visits = [train.of_visit(0, round, client) for round in range(200) for client in range(10)]
    # One half does 5, the other half 1 .. 5 alike: 200 each of 1 to 4, and 1,200 of 5.
    counts = np.bincount([visit.local_epochs for visit in visits])
    assert counts[1:] == pytest.approx([200, 200, 200, 200, 1_200], abs=4 * np.sqrt(200))
    # Of seed, round and client alone; a forecast takes the mean, (5 + 3) / 2.
    assert [train.of_visit(0, 7, client) for client in range(10)] == visits[70:80]
    assert visits[:10] != [train.of_visit(1, 0, client) for client in range(10)]
    assert train.of_typical_visit() == TrainConfig(local_epochs=4)
    for same in (TrainConfig(local_epochs=5), replace(train, local_epochs=1), replace(train, local_steps=3)):
        assert all(same.of_visit(0, 0, client) is same for client in range(10))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> LocalTrainer:
    run = federation(tmp_path_factory.mktemp("site"))
    store(run).ledger.close()
    # In channels_last, what goes up is turned into torch's order, and is no view.
    return LocalTrainer(replace(run.job, train=replace(run.job.train, memory_format="contiguous")))


def drawn(site: LocalTrainer, config: TrainConfig, key: tuple[int, int, int]) -> list[list[int]]:
    """The labels of each batch of a visit to the client of ``key``."""
    return [y.tolist() for _, y in LocalBatches(site.train_set, site.client_indices.train[key[2]], config, key)()]


def test_each_epoch_and_phase_holds_each_example_once_in_an_order_of_seed_round_and_client(site: LocalTrainer) -> None:
    indices, config = site.client_indices.train[0], TrainConfig(batch=50)
    first, second = drawn(site, TrainConfig(batch=len(indices), local_epochs=2), (0, 0, 0))
    assert sorted(first) == sorted(second) == sorted(site.data.train.y[indices].tolist())
    assert first != second
    batches = LocalBatches(site.train_set, indices, config, (0, 0, 0))
    phases = [torch.cat([y for _, y in batches()]).tolist() for _ in range(2)]
    assert sorted(phases[0]) == sorted(phases[1])
    assert phases[0] != phases[1]
    assert drawn(site, config, (0, 1, 2)) == drawn(site, config, (0, 1, 2))
    assert drawn(site, config, (0, 1, 2)) != drawn(site, config, (0, 2, 2))
    assert drawn(site, config, (0, 1, 2)) != drawn(site, config, (1, 1, 2))


# --- nothing is allocated per client ----------------------------------------------------------------------------------


def asked(site: LocalTrainer, client: int, start: Vector) -> Train:
    """A visit of round 0 that begins with all parameters as ``start`` says, cut into blocks."""
    cuts = np.cumsum(list(site.net.layout.sizes.values()))[:-1]
    pieces = zip(site.net.layout.sizes, np.split(start.data, cuts), strict=True)
    return Train(client, 0, 0.1, {}, {MODEL: {key: Vector(piece) for key, piece in pieces}})


def start_of(site: LocalTrainer) -> Vector:
    """Where the net of a site stands."""
    return Vector(site.net.flat.numpy().copy())


def test_an_update_is_a_view_of_the_model_that_the_next_visit_overwrites(site: LocalTrainer) -> None:
    start, flat = start_of(site), site.net.flat.numpy()
    first = site.train(asked(site, 0, start), None, None).payload[MODEL]
    assert all(np.shares_memory(vector.data, flat) for vector in first.values())
    sent = np.concatenate([vector.data for vector in first.values()])
    second = site.train(asked(site, 1, start), None, None).payload[MODEL]
    assert not np.array_equal(sent, flat)
    assert all(np.array_equal(first[key].data, second[key].data) for key in first)
    again = site.train(asked(site, 0, start), None, None).payload[MODEL]
    assert np.array_equal(np.concatenate([vector.data for vector in again.values()]), sent)


# --- precision --------------------------------------------------------------------------------------------------------


def test_training_in_bf16_is_scored_in_fp32(site: LocalTrainer) -> None:
    start = start_of(site)
    half = LocalTrainer(replace(site.job, train=replace(site.job.train, precision="bf16")))
    exact, rounded = (
        np.concatenate([v.data for v in one.train(asked(one, 0, start), None, None).payload[MODEL].values()])
        for one in (site, half)
    )
    moved = np.linalg.norm(exact - start.data)
    assert 0 < np.linalg.norm(rounded - exact) < 0.1 * moved
    scores = [one.evaluate(Evaluate(0, 100, GLOBAL, asked(one, 0, start).payload), None) for one in (site, half)]
    assert scores[0] == scores[1]


# --- examples that are used again -------------------------------------------------------------------------------------


def test_a_model_that_is_too_large_is_refused_before_it_takes_any_memory(site: LocalTrainer) -> None:
    wide = LocalTrainer(replace(site.job, model=ModelConfig("digits-cnn", width=4096)))
    with pytest.raises(ValueError, match=r"^model\.name = 'digits-cnn': of width 4096 it has 906,354,698 parameters"):
        wide.describe(data=False)
