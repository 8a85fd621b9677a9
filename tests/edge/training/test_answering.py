"""Workers of ``fedbr stress`` answer visits without a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from edge.protocol.messages import GLOBAL, Evaluate, Train
from edge.protocol.payload import MODEL, Payload, Vector
from edge.training.answering import MOST_ANSWERS, SHIFT, AnsweringTrainer
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.run.setup import RunInputs, Setup


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


def test_few_answers_are_kept(trainer: AnsweringTrainer, described: tuple[Setup, Payload]) -> None:
    for number in range(2 * MOST_ANSWERS):
        model = {key: Vector(vector.data + np.float32(number)) for key, vector in described[1][MODEL].items()}
        trainer.train(Train(0, number, 0.1, {}, {MODEL: model}), None, None)

    assert len(trainer._answers) == MOST_ANSWERS


def test_an_evaluation_is_computed_once_and_has_the_examples_of_its_task(
    trainer: AnsweringTrainer, described: tuple[Setup, Payload]
) -> None:
    first, later = (trainer.evaluate(Evaluate(start, start + 100, GLOBAL, described[1]), None) for start in (100, 200))

    assert (first.start, later.start, first.examples, later.examples) == (100, 200, 100, 100)
    assert later.values is first.values
