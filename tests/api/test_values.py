"""Values from Python are those that a TOML file would have: text stays text, tables merge, nothing is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scenarios.api.values import named, overrides
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load


@pytest.mark.parametrize(
    "value",
    [
        *("0.05", "true", "inf", "5 Mbit/s", "", 'a "quoted" = \\ name', "two\nlines", "αβ", "[1]"),
        *(0, -3, 0.05, 1e-12, 1e22, float("inf"), True, False),
        *([], [1, 2], ["1", "b"], [[0.5], ["x"]], [{"a": 1}], {"pi 4": 0.4, "x": {"y": "1"}}, {}),
    ],
)
def test_a_value_arrives_as_it_is(value: Any) -> None:
    (override,) = overrides({"method_options": {"value": value}}).items()
    assert override == ("method_options", {"value": value})
    assert type(override[1]["value"]) is type(value)


def test_nested_mappings_change_only_the_keys_that_they_name() -> None:
    assert overrides({"train": {"lr": 0.1, "batch": 8}}) == {"train.lr": 0.1, "train.batch": 8}
    devices = {"raspberry-pi-4": 1.0}  # keys are names here, so that a table is replaced as one
    assert overrides({"fleet": {"devices": devices}}) == {"fleet.devices": devices}


def test_the_stages_of_a_codec_replace_those_of_the_scenario_as_a_whole() -> None:
    stage = {"kind": "sign"}
    assert overrides({"codec": {"up": stage, "up_slots": {"control": [stage]}, "of": "weights"}}) == {
        "codec.up": stage,
        "codec.up_slots": {"control": [stage]},
        "codec.of": "weights",
    }
    base = {"extends": "digits", "codec": {"up": {"kind": "quantize", "bits": 4}}}
    assert load(named(base), overrides({"codec": {"up": stage}})).scenario.codec.up == ({"kind": "sign"},)
    (resolved,) = load(named(base), overrides({"codec.up.bits": 8})).scenario.codec.up
    assert (resolved["kind"], resolved["bits"]) == ("quantize", 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train.lr": None}, "train.lr = None: has no such value; leave the key out for its default"),
        ({"method": None}, "method = None: has no such value; leave the key out for its default"),
        ({"train": {"lr": 1j}}, "train.lr = 1j: a complex is no value of a scenario"),
        ({"train.lr=1": 2}, "'train.lr=1': a key is text such as train.lr"),
        ({"train": {3: 2}}, "train.3: a key is text such as train.lr"),
        ({"callbacks": [print]}, "callbacks = <built-in function print>: callbacks are the argument on_round of"),
        ({"train": {"lr": 1}, "train.lr": 2}, "command line: train.lr: is given twice; a key has one value"),
        ({"data": np.zeros((2, 3))}, "data = ndarray of shape (2, 3): a scenario holds no data; a data set of your "),
        ({"data": (np.zeros((2, 3)), [1, 2])}, "data = (ndarray of shape (2, 3), [1, 2]): a scenario holds no data"),
        ({"data": [[0] * 784] * 2000}, "data = [[0, 0, 0, 0, 0, 0, ...], [0, 0, 0, 0, 0, 0, ...], "),
    ],
)
def test_what_no_scenario_has_is_refused_by_its_key(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        overrides(given)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 400


def test_a_mapping_is_a_scenario_with_nested_and_dotted_keys() -> None:
    tables = {"extends": "digits", "train.lr": 0.02, "train": {"batch": 7}, "method": "fedprox"}
    loaded = load(named(tables), {"seed": 5})
    scenario = loaded.scenario
    assert (loaded.name, scenario.method, scenario.seed) == ("digits", "fedprox", 5)
    assert (scenario.train.lr, scenario.train.batch, scenario.data.name) == (0.02, 7, "digits")
    assert load(named({"method": "fedprox"})).name == "scenario"
