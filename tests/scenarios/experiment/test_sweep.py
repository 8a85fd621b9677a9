"""The grid of an experiment, and what a sweep plans of it: points, seeds, names of folders. Nothing is run."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.experiment.grid import Axis, Grid, Point, axis_of, cell_name, grid_of, over_methods, variant_name
from scenarios.experiment.sweep import Sweep, plan


def planned(*words: str, zipped: bool = False, **more: Any) -> Sweep:
    return plan(grid_of("digits", words, zipped), **more)


def names(of: Sweep) -> list[str]:
    return [run.name for run in of.run_set.runs]


def test_an_option_varies_for_the_methods_that_have_it_and_an_override_goes_to_them_alone() -> None:
    found = planned("method=fedavg,fedprox", "method_options.mu=0.1,1", seeds=1)
    assert names(found) == ["fedavg-seed0", "fedprox-mu-0.1-seed0", "fedprox-mu-1-seed0"]
    common = planned("method=fedavg,fedprox", "method_options.mu=0.5", seeds=1)
    assert common.run_set.runs[0].loaded.scenario.method_options == {}
    assert common.run_set.runs[1].loaded.scenario.method_options["mu"] == 0.5
    by_server = planned("method=fedavg", "server=plain,fedadam", "server_options.lr=0.01,0.1", seeds=1)
    assert names(by_server) == [
        "fedavg-server-plain-seed0",
        "fedavg-server-fedadam-lr-0.01-seed0",
        "fedavg-server-fedadam-lr-0.1-seed0",
    ]


def test_more_seeds_values_and_methods_plan_the_same_runs_in_the_same_folder() -> None:
    few = planned("method=fedavg", "train.lr=0.05,0.1", "rounds.max=2", seeds=2)
    many = planned("rounds.max=2", "method=fedbr,fedavg", "train.lr=0.2,0.10,0.05", seeds=3)
    assert many.run_set.run_id == few.run_set.run_id
    assert set(names(few)) < set(names(many))
    assert len(names(many)) == 2 * 3 * 3
    turned = planned("train.batch=8,16", "train.lr=0.05,0.1", seeds=1)
    straight = planned("train.lr=0.05,0.1", "train.batch=8,16", seeds=1)
    assert turned.run_set.run_id == straight.run_set.run_id
    assert set(names(turned)) == set(names(straight))
    again = {run.name: run.loaded.scenario for run in many.run_set.runs}
    assert all(again[run.name] == run.loaded.scenario for run in few.run_set.runs)


def test_other_overrides_and_other_keys_have_a_folder_of_their_own() -> None:
    ids = {
        planned("train.lr=0.05,0.1", "rounds.max=2", seeds=1).run_set.run_id,
        planned("train.lr=0.05,0.1", "rounds.max=3", seeds=1).run_set.run_id,
        planned("train.momentum=0.1,0.9", "rounds.max=2", seeds=1).run_set.run_id,
    }
    assert len(ids) == 3
    assert planned("method=fedavg,fedbr", seeds=1).run_set.run_id == "sweep"
    links = (planned(f"fleet.server.{way}=1 Mbit/s,2 Mbit/s", seeds=1).run_set.run_id or "" for way in ("up", "down"))
    assert [name.rpartition("-")[0] for name in links] == ["sweep-up", "sweep-down"]
    assert planned("train.lr=0.05,0.1", seeds=1, run_id="mine").run_set.run_id == "mine"


def test_the_spelling_of_an_override_does_not_matter_to_the_folder() -> None:
    def run_id(*words: str) -> str | None:
        return planned("method=fedavg,fedprox", *words, seeds=1).run_set.run_id

    assert len({run_id(f"fleet.server.up={value}") for value in ("20 Mbit/s", "20Mbit/s", "20000 kbit/s")}) == 1
    assert run_id("train.lr=1") == run_id("train.lr=1.0") != run_id("train.lr=1.5")
    assert run_id("rounds.max=2") == "sweep-9b35fe"


def test_seeds_count_up_from_the_scenarios_or_are_named() -> None:
    assert planned("method=fedavg,fedbr").seeds == (0, 1, 2)
    assert planned("method=fedavg,fedbr", seeds=2, first_seed=5).seeds == (5, 6)
    named = planned("method=fedavg", "seed=3,11")
    assert (named.seeds, names(named)) == ((3, 11), ["fedavg-seed3", "fedavg-seed11"])


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
