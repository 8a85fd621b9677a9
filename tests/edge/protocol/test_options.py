"""Options of a method: one object for both sides, which a worker rebuilds from the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig, from_json, to_json
from edge.protocol.options.base import Options, joined
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.options.fedmlb import FedMLBOptions
from edge.protocol.options.fedprox import FedProxOptions


def received(values: dict[str, Any], *types: type[Options]) -> Job:
    """A job with these options, as a worker has it."""
    job = Job("run", 0, "cpu", "", ModelConfig("mlp"), DataConfig(), TrainConfig(), "nowhere:Nothing")
    names = [f"{kind.__module__}:{kind.__qualname__}" for kind in types]
    return from_json(Job, to_json(replace(job, options_types=tuple(names), options_values=values)))


def test_a_worker_has_the_options_of_all_parts_in_one_object() -> None:
    ours = joined([FedBROptions, FedProxOptions]).model_validate({"alpha": 2, "mu": 0.5})
    theirs = received(ours.model_dump(), FedBROptions, FedProxOptions).options
    assert theirs == ours
    assert isinstance(theirs, FedBROptions)
    assert isinstance(theirs, FedProxOptions)
    assert (theirs.alpha, theirs.mu, theirs.half) == (2, 0.5, True)
    assert not isinstance(received({}, FedBROptions).options, FedProxOptions)


def test_lists_of_a_message_are_the_tuples_that_they_were() -> None:
    theirs = received({"pathways": [1, 3]}, FedMLBOptions).options
    assert theirs == FedMLBOptions(pathways=(1, 3))


def test_a_part_without_options_of_its_own_adds_none() -> None:
    assert joined([Options, FedProxOptions]) is FedProxOptions
    assert received({}, Options).options == Options()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mu": -1}, "greater than or equal to 0"),
        ({"nu": 1}, "Extra inputs are not permitted"),
    ],
)
def test_options_that_no_scenario_may_have_are_refused_by_a_worker(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _ = received(values, FedProxOptions).options
