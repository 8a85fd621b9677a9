"""How much a visit trains, in which order, and what stays on the client's disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edge import state
from edge.batches import LocalBatches
from edge.config import Plan, TrainConfig
from edge.payload import sha256
from edge.site import Site
from tests.toy import federation, vector


@pytest.mark.parametrize(
    ("config", "samples", "plan"),
    [
        (TrainConfig(batch=10, local_epochs=2), 25, Plan(6, 50, 3)),
        (TrainConfig(batch=10, local_epochs=2, drop_last=True), 25, Plan(4, 40, 2)),
        (TrainConfig(batch=10, local_steps=4), 25, Plan(4, 35, 3)),  # 25, then 10 of the second epoch
        (TrainConfig(batch=10, local_steps=6), 25, Plan(6, 50, 3)),
        (TrainConfig(batch=10, local_steps=4, drop_last=True), 25, Plan(4, 40, 2)),
        (TrainConfig(batch=10, local_steps=2), 25, Plan(2, 20, 3)),
        (TrainConfig(batch=10, drop_last=True), 9, Plan(0, 0, 0)),
        (TrainConfig(batch=10), 0, Plan(0, 0, 0)),
    ],
)
def test_a_plan_by_hand(config: TrainConfig, samples: int, plan: Plan) -> None:
    assert config.plan(samples) == plan


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    run = federation(tmp_path_factory.mktemp("site"))
    run.ledger.close()
    return Site(run.job)


def drawn(site: Site, config: TrainConfig, key: tuple[int, int, int]) -> list[list[int]]:
    """The labels of each batch of a visit to the client of ``key``."""
    return [y.tolist() for _, y in LocalBatches(site.train_set, site.shares.train[key[2]], config, key)()]


def test_a_visit_draws_as_many_batches_as_planned(site: Site) -> None:
    held = len(site.shares.train[0])
    for config in (TrainConfig(batch=50, local_epochs=2), TrainConfig(batch=50, local_steps=9, drop_last=True)):
        batches, plan = drawn(site, config, (0, 0, 0)), config.plan(held)
        assert (len(batches), sum(map(len, batches))) == (plan.steps, plan.samples)


def test_an_epoch_holds_each_example_once_in_a_new_order(site: Site) -> None:
    held = len(site.shares.train[0])
    first, second = drawn(site, TrainConfig(batch=held, local_epochs=2), (0, 0, 0))
    assert sorted(first) == sorted(second) == sorted(site.data.train.y[site.shares.train[0]].tolist())
    assert first != second


def test_the_order_depends_on_seed_round_and_client_alone(site: Site) -> None:
    config = TrainConfig(batch=50)
    assert drawn(site, config, (0, 1, 2)) == drawn(site, config, (0, 1, 2))
    assert drawn(site, config, (0, 1, 2)) != drawn(site, config, (0, 2, 2))
    assert drawn(site, config, (0, 1, 2)) != drawn(site, config, (1, 1, 2))


def test_a_further_phase_has_an_order_of_its_own(site: Site) -> None:
    batches = LocalBatches(site.train_set, site.shares.train[0], TrainConfig(batch=50), (0, 0, 0))
    first, second = (torch.cat([y for _, y in batches()]) for _ in range(2))
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)


def test_what_a_client_keeps_comes_back_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kept = {
        "model": {"body": vector(*rng.standard_normal(5)), "body.buffers": vector(1.5)},
        "control": {"c": vector(-0.0, np.inf)},
    }
    path = tmp_path / "state" / "3-0.safetensors"
    state.write(str(path), kept)
    back = state.read(str(path))
    assert {slot: sorted(named) for slot, named in back.items()} == {
        "model": ["body", "body.buffers"],
        "control": ["c"],
    }
    ordered = {slot: {key: back[slot][key] for key in named} for slot, named in kept.items()}
    assert sha256(ordered) == sha256(kept)
    assert [p.name for p in path.parent.iterdir()] == ["3-0.safetensors"]


def test_a_client_that_has_kept_nothing_has_no_slots() -> None:
    assert state.read(None) == {}
