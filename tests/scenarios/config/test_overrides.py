"""KEY=VALUE words and lists as values, and values as words again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.config.overrides import parsed, words


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("train.lr=0.05", 0.05),
        ("train.lr = 5e-2", 0.05),
        ("seed=3", 3),
        ("fleet.server.down=inf", math.inf),
        ("train.nesterov=true", True),
        ("method=fedmlb+fedprox", "fedmlb+fedprox"),
        ("fleet.server.down=20 Mbit/s", "20 Mbit/s"),
        ('method="0.05"', "0.05"),
        ('eval.metrics=["accuracy","hessian"]', ["accuracy", "hessian"]),
        ("fleet.devices={a = 0.4, b = 0.6}", {"a": 0.4, "b": 0.6}),
        ("data.partition.file=a=b.json", "a=b.json"),
        ("method=1\nseed = 3", "1\nseed = 3"),  # one value and a further key as TOML
    ],
)
def test_a_word_is_a_value_which_is_written_as_a_word_again(word: str, value: Any) -> None:
    overrides = parsed([word])
    assert list(overrides.values()) == [value]
    assert parsed(words(overrides)) == overrides


@pytest.mark.parametrize(
    ("given", "message", "key"),
    [
        (["train.lr"], "'train.lr': an override reads KEY=VALUE, for example train.lr=0.05; values of a list", None),
        (["=3"], "'=3': an override reads KEY=VALUE", None),
        (["seed=1", "seed=2"], "command line: seed: is given twice; a key has one value", "seed"),
        (["rounds={max=1}", "rounds.max=2"], "command line: rounds.max: is given twice", "rounds.max"),
        (["seed=" + "9" * 5000], "command line: seed: Exceeds the limit (4300 digits) for integer string", "seed"),
    ],
)
def test_a_word_that_is_no_override_and_a_repeated_key_are_refused(
    given: list[str], message: str, key: str | None
) -> None:
    with pytest.raises(ScenarioError) as refused:
        parsed(given)
    assert str(refused.value).startswith(message)
    assert (refused.value.key, refused.value.source) == (key, COMMAND_LINE if key else None)
