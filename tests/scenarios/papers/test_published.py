"""Tables of papers: printed values, the papers' protocols at their own scale, what is counted, and what is lost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.experiment.grid import Grid
from scenarios.papers import dadaquant, depthfl, heterofl, published, reproduce, tables
from scenarios.papers.spec import SCALES
from scenarios.run.run_folder import resolved_keys
from tests.ledgers import made_run
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

COUNTED = heterofl.FIGURES["heterofl:2"]


@pytest.mark.parametrize(
    ("name", "count", "values"),
    [
        (
            "dadaquant:2",
            18,
            {
                ("synthetic@highest", "Uncompressed"): 0.783,
                ("synthetic@highest", "DAdaQuant"): 0.781,  # printed as -0.2 ± 0.4
                ("synthetic@uploaded(MB)", "Uncompressed"): 610 * 4 * 10 * 500,  # 4 bytes, 10 clients, 500 rounds
                ("synthetic@factor", "DAdaQuant"): 48,
            },
        ),
        ("depthfl:2", 3, {("cifar100-iid@1000R", "HeteroFL"): 0.5761, ("cifar100-iid@1000R", "DepthFL"): 0.7606}),
        (
            "heterofl:2",
            5 * 12,
            {
                ("mnist-iid@200R", "a-b-c-d-e"): 0.9923,
                ("mnist-non-iid@400R", "e"): 0.965,
                ("mnist-iid@weights(K)", "c-d-e"): 43596.5,
            },
        ),
        ("pfedmb:II", 54, {("cifar10-2-classes-15@500R", "pFedMB"): 0.9069}),
    ],
)
def test_tables_hold_the_printed_values(name: str, count: int, values: dict[tuple[str, str], float]) -> None:
    cells = {(cell["panel"], cell["row"]): cell["published"] for cell in tables.catalogue(name)}
    assert sum(value is not None for value in cells.values()) == count
    assert {place: cells[place] for place in values} == values


@pytest.mark.parametrize(
    ("name", "setting", "method", "protocol"),
    [
        (
            *("dadaquant:2-femnist", "femnist", None),
            {
                "method": "fedprox",
                "method_options.mu": 1,
                "method_options.half": True,
                "train.batch": 10,
                "train.local_epochs": 20,
                "train.partial_work": 0.9,
                "train.lr": 0.003,
                "rounds.participants": 10,
                "rounds.max": 500,
            },
        ),
        (
            *("depthfl:2", "cifar100-iid", "heterofl"),
            {
                "data.name": "cifar100",
                "data.clients": 100,
                "data.partition.kind": "iid",
                "model.name": "resnet18",
                "model.width": 64,
                "model.norm": "batch",
                "train.lr": 0.1,
                "train.lr_decay": 0.998,
                "train.weight_decay": 1e-3,
                "train.momentum": 0,
                "train.batch": 50,
                "train.local_epochs": 5,
                "rounds.participants": 10,
                "rounds.max": 1000,
            },
        ),
        (
            *("heterofl:2-cifar10", "cifar10-non-iid", None),
            {
                "data.clients": 100,
                "data.partition.kind": "classes",
                "data.partition.classes_per_client": 2,
                "train.batch": 10,
                "train.local_epochs": 5,
                "train.momentum": 0.9,
                "train.weight_decay": 5e-4,
                "train.clip": 1,
                "train.lr": 0.1,
                "rounds.participants": 10,
                "rounds.max": 800,
            },
        ),
        (
            *("pfedmb:II", "cifar10-2-classes-50", "pfedmb"),
            {
                "data.partition.kind": "classes",
                "data.clients": 50,
                "rounds.participants": 10,
                "data.validation": 0.2,
                "eval.on": "clients",
                "eval.select": "validation",
                "eval.adapt.epochs": 5,
                "train.batch": 64,
                "train.local_epochs": 5,
                "stop.patience": 50,
                "rounds.max": 500,
            },
        ),
    ],
)
def test_the_papers_scale_is_the_papers_protocol(
    name: str, setting: str, method: str | None, protocol: dict[str, Any]
) -> None:
    own = tables.FIGURES[name].settings[setting]["paper"]
    keys = resolved_keys(load(own.scenario, own.overrides, method).scenario)
    assert {key: keys[key] for key in protocol} == protocol


def test_the_error_of_an_autoencoder_is_that_of_its_last_hundred_rounds_without_the_border(tmp_path: Path) -> None:
    made_run(tmp_path / "run", [0.9, *[None] * 98, 0.4, 0.2], 'method = "fedavg"\n[train]\nloss = "reconstruction"\n')
    # 101 rounds: those of rounds 100 and 101 count, and of 1024 pixels 784 have an error.
    error = published.squared_error(tmp_path / "run")
    assert error == pytest.approx((0.4**2 + 0.2**2) / 2 * 1024 / 784)
    figure = tables.FIGURES["adaptive:emnist-ae"]
    assert {row: value for panel in figure.panels for row, value in panel.published.items()} == {
        "FedAvg": 6.47e-3, "FedAdagrad": 4.2e-3, "FedAdam": 1.01e-3, "FedYogi": 0.98e-3
    }  # fmt: skip
    paper = figure.settings["emnist-ae"]["paper"]
    scenario = load(paper.scenario, paper.overrides).scenario
    assert (scenario.model.name, scenario.model.width, scenario.data.clients) == ("emnist-autoencoder", 1000, 3400)
    assert (scenario.rounds.participants, scenario.rounds.max, scenario.train.batch) == (10, 3000, 20)
    assert figure.rows["FedYogi"].overrides["server_options.lr"] == 0.0316


@pytest.mark.parametrize("scale", SCALES)
def test_rows_have_their_codecs_widths_and_options_at_every_scale(scale: str) -> None:
    runs = reproduce.plan("dadaquant:2", scale, Grid("dadaquant:2"), 1).run_set.runs
    chains = [[stage["kind"] for stage in run.loaded.scenario.codec.up] for run in runs]
    assert chains == [[], ["quantize", "elias"], ["quantize"], ["quantize", "zstd"], *3 * [["quantize", "elias"]]]
    assert {run.loaded.scenario.rounds.max for run in runs} == {dadaquant.ROUNDS[scale]}
    # A row of HeteroFL is as wide as its largest part.
    runs = reproduce.plan("heterofl:2", scale, Grid("heterofl:2"), 1).run_set.runs
    for run, mix in zip(runs, 2 * heterofl.MIXES, strict=True):
        widths = [(run.loaded.scenario.model.width or 0) * rate for rate in run.loaded.scenario.submodel.levels]
        widest = heterofl.WIDTHS[heterofl.MNIST][scale]
        assert widths == [widest * heterofl.LEVELS[level] for level in mix.split("-")]
    # A fourth of DepthFL's clients each has a fourth more.
    wide, fedavg, whole = (run.loaded for run in reproduce.plan("depthfl:2", scale, Grid("depthfl:2"), 1).run_set.runs)
    assert {each.scenario.submodel.levels for each in (wide, fedavg, whole)} == {(1.0, 0.75, 0.5, 0.25)}
    assert [each.options.model_dump()["distil"] for each in (fedavg, whole)] == [False, True]
    assert whole.options.model_dump()["ramp"] / depthfl.ROUNDS[scale] == pytest.approx(300 / 1000)


def counts(measure: str) -> dict[str, float]:
    (panel,) = (panel for panel in COUNTED.panels if panel.measure == measure)
    assert panel.counts is not None
    return {name: panel.counts(row) for name, row in COUNTED.rows.items()}


def test_flops_are_the_printed_ones_but_for_a_row_that_is_of_other_models() -> None:
    products, flops = counts(published.HELD_PRODUCTS), counts(published.HELD_FLOPS)
    places = [28**2, 14**2, 7**2, 3**2]
    macs = [784 * 9 * 1 * 64, 196 * 9 * 64 * 128, 49 * 9 * 128 * 256, 9 * 9 * 256 * 512, 512 * 10]
    assert products["a"] == 2 * sum(macs)
    assert flops["a"] == 2 * sum(macs) + 6 * sum(64 * 2**layer * place for layer, place in enumerate(places))
    for measure, nearest in ((published.HELD_FLOPS, 1e3), (published.HELD_WEIGHTS, 1.0), (published.HELD_NBYTES, 600)):
        (panel,) = (panel for panel in COUNTED.panels if panel.measure == measure)
        ours = counts(measure)
        for mix, value in panel.published.items():
            if mix != "c-e":
                assert ours[mix] == pytest.approx(value, abs=nearest), (measure, mix)
        assert panel.published["c-e"] == pytest.approx((ours["c"] + ours["d"]) / 2, abs=nearest)
        assert ours["c-e"] == (ours["c"] + ours["e"]) / 2


@pytest.mark.usefixtures("pool_in_this_process")
def test_uploads_are_counted_without_and_with_headers(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["train.local_epochs=1", "rounds.max=2", "data.clients=4", "rounds.participants=2", "eval.every=1"]
    words = ["reproduce", "dadaquant:2", "row=Uncompressed,FedPAQ (FxPQ)", *short, "--no-report", "--json"]
    assert main.run_command(words) == 0
    cells = {(cell["row"], cell["measure"]): cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    ours = {place: cell["ours"]["mean"] for place, cell in cells.items()}
    plain, fixed = 610 * 4 * 2 * 2, (4 + math.ceil(610 * 5 / 8)) * 2 * 2
    assert ours["Uncompressed", published.UPLOADED] == plain
    assert ours["Uncompressed", published.FACTOR] == 1
    assert ours["FedPAQ (FxPQ)", published.UPLOADED] == fixed
    assert ours["FedPAQ (FxPQ)", published.FACTOR] == plain / fixed
    for row, vectors in (("Uncompressed", plain), ("FedPAQ (FxPQ)", fixed)):
        assert vectors < ours[row, published.UPLOADED_MESSAGES] < vectors + 300 * 2 * 2
        assert cells[row, published.HIGHEST]["ours"]["mean"] > 0.1


def test_values_that_the_text_lost_are_not_called_unprinted(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("I", "fig3"):
        assert main.run_command(["reproduce", f"pfedmb:{name}", "--list"]) == 0
        text = capsys.readouterr().out
        shown[name] = ("value lost" in text, "not printed" in text.partition("\ntiny")[0])
    assert shown == {"I": (True, False), "fig3": (False, True)}


@pytest.mark.long
@pytest.mark.usefixtures("pool_in_this_process")
def test_a_cell_is_the_test_accuracy_in_the_best_validation_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = ["rounds.max=2", "train.local_steps=1", "eval.adapt.epochs=1", "rounds.participants=2"]
    words = ["pfedmb:fig3", "--scale", "tiny", "row=pFedMB", *short, "--out", str(tmp_path)]
    assert main.run_command(["reproduce", *words, "--run-id", "r", "--json", "--report"]) == 0
    result = json.loads(capsys.readouterr().out)
    (cell,), (run,) = result["cells"], result["runs"]
    best = run["best_round"]
    assert best["selected_by"] == "validation"
    assert (cell["ours"]["mean"], cell["rounds"]) == (best["accuracy"], best["round"] + 1)
    assert set(cell["marks"]) == {"scaled", "asked", "inferred"}
    assert "rate 0.3 in place of 0.05" in cell["changed"]
    page = (tmp_path / "pfedmb-fig3-tiny" / "r" / "report.html").read_text()
    assert "pFedMB: " in page  # the caption of its map of branch weights
