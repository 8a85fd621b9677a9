"""The examples that a trainer has of each client; and trainers of ``fedbr stress``, which take no step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from edge.protocol.config import DataConfig, Job, PartitionConfig
from edge.protocol.messages import Train
from edge.protocol.payload import MODEL, Payload
from edge.training.answering import SHIFT, AnsweringTrainer
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.run.setup import RunInputs, Setup
from tests.toy import DIGITS_CNN, TRAIN
from tests.toy_cache import cache_folder


@pytest.fixture(scope="module")
def described() -> tuple[Setup, Payload]:
    """FedAvg on the digits, and its initial model."""
    inputs = RunInputs(load("digits", {"method": "fedavg"}))
    profile, initial = LocalTrainer(inputs.job).describe(True)
    return Setup(inputs, profile), initial


@pytest.fixture
def trainer(described: tuple[Setup, Payload]) -> AnsweringTrainer:
    return AnsweringTrainer(replace(described[0].job, is_untrained=True))


def test_a_visit_uploads_what_it_received_and_a_little_more(
    trainer: AnsweringTrainer, described: tuple[Setup, Payload]
) -> None:
    setup, initial = described
    visit = Train(13, 0, 0.1, {}, initial)
    first, other = (trainer.train(structs.replace(visit, client=client), None, None) for client in (13, 4))

    for key, vector in initial[MODEL].items():
        assert np.array_equal(first.payload[MODEL][key].data, vector.data + np.float32(SHIFT))
    assert other.payload is first.payload
    # Ten clients hold the data: the thirteenth has the examples of the third.
    for update, client in ((first, 3), (other, 4)):
        plan = setup.scenario.train.plan(int(setup.description.samples[client]))
        assert (update.numbers["samples"], update.numbers["steps"]) == (plan.samples, plan.steps)
        assert (update.numbers["flops"], update.numbers["loss"]) == (0, 0)
    assert (first.client, other.client) == (13, 4)


# --- examples that are held out ---------------------------------------------------------------------------------------


DATA = DataConfig("digits", clients=4, partition=PartitionConfig("iid"))


def trainer_of(data: DataConfig) -> LocalTrainer:
    objective = "edge.training.client_update:ClientUpdate"
    return LocalTrainer(Job("", 0, "cpu", cache_folder(), DIGITS_CNN, data, TRAIN, objective))


def test_held_out_examples_are_counted_apart_and_never_trained_on() -> None:
    # 1437 // 4 = 359 examples for each client; a quarter of them, rounded down, is 89.
    worker = trainer_of(replace(DATA, validation=0.25))
    profile, _ = worker.describe(data=True)
    assert profile.samples.tolist() == [270] * 4
    assert profile.validation_samples.tolist() == [89] * 4
    assert profile.histogram.sum(axis=1).tolist() == [270] * 4
    for trained, held in zip(worker.client_indices.train, worker.client_indices.validation, strict=True):
        assert np.intersect1d(trained, held).size == 0
    plain, _ = trainer_of(DATA).describe(data=True)
    assert plain.validation_samples.tolist() == [0] * 4
    assert plain.samples.tolist() == [359] * 4
