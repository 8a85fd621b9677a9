"""FedAlign's tables: the printed values, what is counted without a run, and what is read in run folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.methods.registry import resolve
from edge.data.registry import dataset
from edge.protocol.config import ModelConfig
from edge.training.counts import count_model
from scenarios.config.load import load
from scenarios.experiment.grid import grid_of
from scenarios.papers import figures, published, reproduce, tables
from scenarios.papers.accounting import MethodAccount, account, of_row
from scenarios.papers.fedalign import TEN
from scenarios.papers.reproduce import is_measured
from scenarios.run.folder_files import MEASURED
from scenarios.studies.measure import MeasurePlan

USUAL = "cifar100-dir0.5-c=16-e=20"


def printed(name: str) -> dict[tuple[str, str], float | None]:
    return {(row["panel"], row["row"]): row["published"] for row in tables.catalogue(name)}


# --- what was published -----------------------------------------------------------------------------------------------


def test_the_tables_hold_every_printed_value() -> None:
    count = {
        number: sum(value is not None for value in printed(f"fedalign:{number}").values()) for number in range(1, 8)
    }
    assert count == {1: 30, 2: 24, 3: 18, 4: 30, 5: 40, 6: 9, 7: 64}
    hessians = printed("fedalign:1")
    assert [hessians[f"{USUAL}@{name}", "FedAvg"] for name in ("25R", "lambda_max", "H_T", "H_N", "H_D")] == [
        0.529, 297, 6240, 11360, 0.98,
    ]  # fmt: skip
    costs = printed("fedalign:5")
    assert [costs[f"{USUAL}@{name}", "MOON"] for name in ("25R", "MFLOPs", "params(M)", "seconds")] == [
        0.55, 262.2e6, 2.21e6, 414.2,
    ]  # fmt: skip
    assert printed("fedalign:7")["imagenet200-dir0.5-c=16-e=20@GFLOPs", "MOON"] == 54.4e9
    clients = printed("fedalign:4")
    sampled = "cifar100-dir0.5-c=64x0.25-e=20"
    assert [clients[f"{sampled}@{rounds}R", "GradAug"] for rounds in (25, 100)] == [0.381, 0.533]


def test_the_papers_scale_changes_nothing() -> None:
    for name in ("2", "3", "4", "6"):
        assert {setting["paper"].changed for setting in tables.FIGURES[f"fedalign:{name}"].settings.values()} == {""}


# --- Table 5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "models", "forwards"), [("fedavg", 1, 1), ("fedprox", 2, 1), ("fedavg-kd", 2, 2)])
def test_the_papers_count_is_of_forward_passes_and_of_weights(method: str, models: int, forwards: int) -> None:
    # The model for digits: three convolutions on 8x8 and 4x4 pixels, and a classifier on 128 features.
    forward = 64 * 9 * 16 + 64 * 9 * 16 * 32 + 16 * 9 * 32 * 32 + 128 * 10
    # The images' gradient, as large as the first convolution's forward pass, is never computed.
    trained = 3 * forward - 64 * 9 * 16 + (forwards - 1) * forward
    digits = count_model(ModelConfig("digits-cnn"), dataset("digits"))
    found = account(resolve(method), resolve(method).options(), digits, models)
    assert found == MethodAccount(forwards * forward, trained, models * 15_338, models * 15_338)


@pytest.mark.long  # counts ResNet-56 for seconds
@pytest.mark.parametrize(
    ("row", "millions", "weights"),
    [("MOON", 3 * 87.385088, 3 * (605_460 + 131_584)), ("FedAlign", 87.254016 + 1.867776, 605_460)],
)
def test_the_papers_costs_of_resnet_56(row: str, millions: float, weights: int) -> None:
    found = of_row(TEN[row].method, TEN[row].overrides, "resnet56", "cifar100", weights // 605_460)
    assert found.forward_macs / 1e6 == pytest.approx(millions, abs=1e-6)
    assert found.stored_weights == weights


# --- cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_counts_are_not_scaled_and_need_no_run() -> None:
    made = reproduce.plan(
        "fedalign:5", "tiny", grid_of("fedalign:5", ["row=FedAvg", f"panel={USUAL}@MFLOPs,{USUAL}@params(M)"]), 1
    )
    assert [run.needs for run in made.run_set.runs] == [{"rounds": 1.0}]
    assert [cell["ours"]["mean"] for cell in made.result({"runs": []})["cells"]] == [None, None]  # stopped
    flops, weights = made.result({"runs": [], "failed": {made.run_set.runs[0].name: "no room"}})["cells"]
    assert [(cell["ours"]["mean"], cell["marks"]) for cell in (flops, weights)] == [(87_254_016, []), (605_460, [])]
    (table,) = tables.tables(made.selection, {"cells": [flops, weights]})
    assert table.rows == [["FedAvg", "87.3", "87.25", "0.61", "0.6055"]]


def folder_with(path: Path, measured: dict[str, Any]) -> Path:
    (path / MEASURED).write_text(json.dumps(measured))
    return path


def test_hessians_are_read_where_measure_left_them(tmp_path: Path) -> None:
    read = [published.TABLE_AMOUNTS[measure].read for measure in published.HESSIANS]
    assert [each and each(tmp_path) for each in read] == [None] * 4
    found = {
        "models": {"global": {"hessian/eigenvalue": 3.0, "hessian/trace": 7.5}},
        "over_clients": {"hessian/H_N": 2.0},
    }
    assert [each and each(folder_with(tmp_path, found)) for each in read] == [3.0, 7.5, 2.0, None]


def test_a_measurement_of_other_models_is_made_again(tmp_path: Path) -> None:
    loaded = load("digits")
    asked = MeasurePlan(loaded, replace(loaded.scenario.eval, metric_options={"hessian": {}}), 4, "local")
    found = {"round": 5, "metric_options": {"hessian": {}}, "clients": "local"}
    for changes, same in (({}, True), ({"clients": "none"}, False), ({"round": 4}, False)):
        assert is_measured(asked, folder_with(tmp_path, found | changes) / MEASURED) == same


@pytest.mark.usefixtures("drawn_figures")
def test_a_surface_is_drawn_of_the_runs_that_have_one(tmp_path: Path) -> None:
    points = {f"loss-surface/{number}": 1.0 + number for number in range(9)}
    found = {
        "models": {"global": {"loss-surface/first": 2.0, **points}},
        "metric_options": {"loss-surface": {"span": 0.5}},
    }
    with_one, without = tmp_path / "one", tmp_path / "none"
    with_one.mkdir()
    surface = figures.read_surface(folder_with(with_one, found))
    assert surface is not None
    assert (surface.losses.tolist(), surface.span) == ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 0.5)
    drawn = figures.draw_surfaces({"FedAvg": with_one, "MOON": without}, "around")
    assert drawn is not None and ">FedAvg<" in drawn and ">MOON<" not in drawn
    assert figures.draw_surfaces({"MOON": without}, "around") is None
