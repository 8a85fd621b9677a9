"""The grid of a sweep: how its words are read, and which cells they span."""

from __future__ import annotations

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.config.toml_writer import toml_value
from scenarios.experiment.grid import SweepCell, axis, points, read_words, show


def refusal(*words: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read_words(words)
    return str(caught.value)


def test_a_word_with_several_values_is_an_axis_and_one_with_a_single_value_an_override() -> None:
    axes, overrides = read_words(["method=fedavg,fedbr", "rounds.max=2", 'eval.metrics=["accuracy","loss"]'])
    assert axes == [axis("method", ["fedavg", "fedbr"])]
    assert overrides == ["rounds.max=2", 'eval.metrics=["accuracy","loss"]']


def test_lists_that_cannot_be_meant_are_refused_by_key() -> None:
    assert refusal("train.lr=0.1,,0.2") == (
        "command line: train.lr: write values separated by commas, for example train.lr=0.05,0.1"
    )
    assert refusal("train.lr=0.1,0.10") == "command line: train.lr = 0.1: is named twice; name each value once"
    assert refusal("train.lr=0.1,1", "train.lr=2") == (
        "command line: train.lr: is named twice; write all its values as one list, train.lr=0.05,0.1"
    )
    assert refusal("train.lr") == (
        "'train.lr': an override reads KEY=VALUE, for example train.lr=0.05; values of a list are separated by commas "
        "without spaces"
    )


def test_a_value_is_shown_in_one_way_however_it_is_written() -> None:
    assert [show(text) for text in ("0.10", "1e-1", "16", "16.0", '"sync"', "sync", "true", "{a=1}")] == [
        "0.1",
        "0.1",
        "16",
        "16",
        "sync",
        "sync",
        "true",
        "{a = 1}",
    ]
    assert toml_value({"a": [1, True], "b c": "x"}) == '{a = [1, true], "b c" = "x"}'


def test_every_combination_is_a_point_or_lists_run_side_by_side() -> None:
    axes = [axis("a", [1, 2]), axis("b", ["x", "y"])]
    assert points(axes) == [{"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": "2", "b": "x"}, {"a": "2", "b": "y"}]
    assert points(axes, zipped=True) == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    assert points([]) == [{}]
    with pytest.raises(ScenarioError) as caught:
        points([*axes, axis("c", [1, 2, 3])], zipped=True)
    assert str(caught.value) == "--zip: lists side by side must be equally long: a has 2, b has 2, c has 3"


def test_names_of_folders_follow_from_method_and_settings_and_differ_where_they_do() -> None:
    def name(**settings: str) -> str:
        return SweepCell("fedbr", {key.replace("_", "."): value for key, value in settings.items()}, ()).name

    assert name(method="fedbr") == "fedbr"
    assert name(method="fedbr", train_lr="0.05") == "fedbr-lr-0.05"
    assert name(train_lr="-1") != name(train_lr="1")
    assert name(up="20 Mbit/s").startswith("fedbr-up-20-mbit-s-")
    assert name(up="20 Mbit/s") != name(up="20-mbit-s")
    assert len(name(**{f"k{number}": "x" * 30 for number in range(12)})) < 200
