"""DAdaQuant's Table 2: what is printed, what follows from it, and what stands for it at each scale."""

from __future__ import annotations

import json
import math

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.experiment.grid import Grid
from scenarios.papers import dadaquant, published, reproduce, tables
from scenarios.papers.spec import SCALES
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

NAMES = {"dadaquant:2": "synthetic", "dadaquant:2-femnist": "femnist"}


def test_the_table_has_the_printed_values() -> None:
    shown = {}
    for name, setting in NAMES.items():
        for cell in tables.catalogue(name):
            shown[setting, cell["panel"].partition("@")[2], cell["row"]] = (
                cell["published"],
                cell["published_deviation"],
            )
    assert len(shown) == 2 * 4 * 9
    assert shown["synthetic", "highest", "Uncompressed"] == (0.783, 0.003)
    assert shown["synthetic", "highest", "DAdaQuant"] == (0.781, 0.004)  # printed as -0.2 ± 0.4
    # 610 weights of 4 bytes of 10 clients in 500 rounds.
    assert shown["synthetic", "uploaded(MB)", "Uncompressed"][0] == 610 * 4 * 10 * 500
    factors = [shown["synthetic", "factor", row][0] for row in dadaquant.FIGURES["dadaquant:2"].rows]
    assert factors == [None, 17, 4, 6.4, 14, 0.6, 48, 37, 26]
    assert shown["femnist", "factor", "DAdaQuant"] == (4772, None)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_scale_is_the_papers_protocol(name: str) -> None:
    found = dadaquant.FIGURES[name].settings[NAMES[name]]["paper"]
    scenario = load(found.scenario, parse_all(found.overrides)).scenario
    train, rounds = scenario.train, scenario.rounds
    assert (train.batch, train.local_epochs, train.partial_work, rounds.participants, rounds.max) == (
        *(10, 20, 0.9),
        *(10, 500),
    )
    assert (scenario.method, scenario.method_options, train.lr) == (
        "fedprox",
        {"mu": 1, "half": True},
        {"synthetic": 0.01, "femnist": 0.003}[NAMES[name]],
    )


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_with_a_method_is_a_scenario_that_loads(scale: str) -> None:
    runs = reproduce.plan("dadaquant:2", scale, Grid("dadaquant:2"), 2).run_set.runs
    assert len(runs) == 2 * 7
    chains = [[stage["kind"] for stage in run.loaded.scenario.codec.up] for run in runs[:7]]
    assert chains == [[], ["quantize", "elias"], ["quantize"], ["quantize", "zstd"], *3 * [["quantize", "elias"]]]
    assert {run.loaded.scenario.rounds.max for run in runs} == {dadaquant.ROUNDS[scale]}


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
