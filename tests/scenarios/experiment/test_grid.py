"""The grid of an experiment: how its words are read, which points they span, and what is refused."""

from __future__ import annotations

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.experiment.grid import Axis, Grid, Point, axis_of, cell_name, grid_of, over_methods, variant_name


def test_a_word_with_several_values_is_an_axis_and_one_with_a_single_value_an_override() -> None:
    assert grid_of("digits", ["method=fedavg,fedbr", "rounds.max=2", 'eval.metrics=["accuracy","loss"]']) == Grid(
        "digits", (Axis("method", ("fedavg", "fedbr")),), {"rounds.max": 2, "eval.metrics": ["accuracy", "loss"]}
    )


def test_methods_are_those_of_the_words_or_else_the_default_ones() -> None:
    default = over_methods(grid_of("digits", ["rounds.max=2"]), ["fedavg", "fedbr"])
    assert default == Grid("digits", (Axis("method", ("fedavg", "fedbr")),), {"rounds.max": 2})
    one = over_methods(grid_of("digits", ["train.lr=0.1,1", "method=moon"]), ["fedavg"])
    assert one == Grid("digits", (Axis("method", ("moon",)), Axis("train.lr", (0.1, 1))), {})


def test_every_combination_is_a_point_or_lists_run_side_by_side() -> None:
    axes = (axis_of("a", [1, 2]), axis_of("b", ["x", "y"]))
    assert Grid("digits", axes).points == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert Grid("digits", axes, zipped=True).points == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert Grid("digits").points == [{}]


def test_options_of_stages_go_to_the_kinds_that_have_them() -> None:
    grid = grid_of("digits", ["method=fedavg", "codec.up.kind=quantize,sign", "codec.up.bits=4,8"])
    assert [{key: value for key, value in point.items() if key != "method"} for point in grid.points] == [
        {"codec.up.kind": "quantize", "codec.up.bits": 4},
        {"codec.up.kind": "quantize", "codec.up.bits": 8},
        {"codec.up.kind": "sign"},
    ]
    whole = grid_of("digits", ['codec.up={kind="quantize",bits=4},[{kind="topk"},{kind="zstd"}]'])
    _, loaded = whole.rows(0, lambda method, point: str(point), lambda method, point: str(point))
    assert [stage["kind"] for each in loaded for stage in each.scenario.codec.up] == ["quantize", "topk", "zstd"]
    with pytest.raises(ScenarioError, match=r"codec.up.kind: no codec 'quantise'; did you mean 'quantize'\?"):
        grid_of("digits", ["codec.up.kind=quantise,sign"]).check_options()


def test_names_of_folders_follow_from_method_and_settings_and_differ_where_they_do() -> None:
    assert cell_name("fedbr", {"method": "fedbr"}) == "fedbr"
    assert cell_name("fedbr", {"method": "fedbr", "train.lr": 0.05}) == "fedbr-lr-0.05"
    assert cell_name("fedbr", {"train.lr": -1}) != cell_name("fedbr", {"train.lr": 1})
    assert cell_name("fedbr", {"up": "20 Mbit/s"}).startswith("fedbr-up-20-mbit-s-")
    assert cell_name("fedbr", {"up": "20 Mbit/s"}) != cell_name("fedbr", {"up": "20-mbit-s"})
    assert len(cell_name("fedbr", {f"k{number}": "x" * 30 for number in range(12)})) < 200
    settings: Point = {"server": "fedadam", "server_options.lr": 0.01, "method_options.hybrid_ce": False}
    assert variant_name("fedavg", settings) == "fedavg-server-fedadam-lr-0.01-hybrid-ce-false"
