"""Options of a method: one object for both sides, which a worker rebuilds from the job, and what both foresee."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig, from_json, to_json
from edge.protocol.options.base import Options, joined
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.options.gradaug import channels


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


# --- sub-networks, which both sides of a method foresee ---------------------------------------------------------------


def test_channels_are_the_nearest_multiple_that_loses_at_most_a_tenth() -> None:
    used = {factor: [channels(count, factor) for count in (16, 32, 64, 128, 256)] for factor in (0.25, 0.8, 0.9, 1)}
    assert used == {
        0.25: [8, 8, 16, 32, 64],  # 4 is as near to 8 as to 0
        0.8: [16, 24, 48, 104, 208],
        0.9: [16, 32, 56, 112, 232],
        1: [16, 32, 64, 128, 256],
    }
    assert channels(20, 0.55) == 16  # 11 would lose 27 % of itself at 8
    assert [channels(6, factor) for factor in (0.1, 0.5, 0.8)] == [1, 3 + 3, 6]  # never none, never more than there are
    assert [channels(10, 0.55, multiple) for multiple in (1, 2, 4)] == [6, 6, 8]
