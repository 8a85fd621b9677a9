"""The tables of FedMLB: what is printed, what stands for it at each scale, and how honestly it is shown."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from scenarios.config.load import ScenarioError
from scenarios.experiment.grid import grid_of
from scenarios.papers import published, reproduce, tables

VALUES = {
    "1a": 64, "1b": 64, "2": 56, "3": 56, "4": 24, "5": 9, "6": 5, "7": 16, "8": 12, "9": 20,
    "10a": 64, "10b": 64, "11a": 64, "11b": 64,
}  # fmt: skip


def cells_of(table: str) -> dict[tuple[str, str, str], tables.CataloguedCell]:
    """(setting, row, column) -> cell of the list."""
    rows = tables.catalogue(f"fedmlb:{table}")
    return {(row["title"], row["row"], row["panel"].partition("@")[2]): row for row in rows}


def planned(table: str, scale: str, *words: str, seeds: int = 1) -> reproduce.Reproduction:
    return reproduce.plan(f"fedmlb:{table}", scale, grid_of(f"fedmlb:{table}", words), seeds)


# --- what is printed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", VALUES)
def test_every_printed_value_stands_in_exactly_one_cell(table: str) -> None:
    with (published.FILES / "fedmlb.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == table]
    printed = Counter(
        (f"{row['dataset']}, {row['setting']}", row["row"], row["metric"].partition("@")[2], row["value"],
         row["deviation"])
        for row in rows
    )  # fmt: skip
    shown: Counter[tuple[str, ...]] = Counter()
    for (setting, row, column), cell in cells_of(table).items():
        if cell["measure"] == "accuracy at rounds":
            value = f"{100 * (cell['published'] or 0.0):.2f}"
        else:
            value = f"{cell['published']:g}{'+' if cell['published_is_bound'] else ''}"
        deviation = cell["published_deviation"]
        shown[setting, row, column, value, "" if deviation is None else f"{100 * deviation:.2f}"] += 1

    assert len(rows) == VALUES[table]
    assert shown == printed
    assert len(tables.catalogue(f"fedmlb:{table}")) == VALUES[table]


# --- what stands for it -----------------------------------------------------------------------------------------------


def test_at_the_papers_scale_the_profile_is_the_papers() -> None:
    hundred, many = (part.loaded.scenario for part in planned("4", "paper", "row=FedAvg").run_set.runs)

    for scenario in (hundred, many):
        train = scenario.train
        assert (train.lr, train.lr_decay, train.weight_decay, train.momentum, train.clip) == (0.1, 0.998, 1e-3, 0, 10)
        assert (train.local_epochs, train.local_steps, scenario.rounds.max) == (5, None, 1000)
        assert (scenario.model.name, scenario.model.width, scenario.model.blocks) == ("resnet18", 64, "stages")
        assert (scenario.data.name, scenario.data.partition.kind, scenario.data.partition.alpha) == (
            "cifar100", "dirichlet", 0.3,
        )  # fmt: skip
        assert (scenario.eval.every, scenario.eval.subset) == (1, None)
    assert (hundred.data.clients, hundred.rounds.participants, hundred.train.batch) == (100, 5, 50)
    assert (many.data.clients, many.rounds.participants, many.train.batch) == (500, 10, 10)


def test_accuracies_are_read_at_half_and_at_all_of_the_rounds() -> None:
    made = planned("4", "tiny", "setting=cifar100-dir0.3-100")

    assert [made.selection.limit(panel) for panel in made.selection.panels] == [15, 30, 0.4, 0.7]
    assert {part.loaded.scenario.rounds.max for part in made.run_set.runs} == {30}
    assert [part.needs for part in made.run_set.runs] == [{"rounds": 30}] * len(made.run_set.runs)
    assert {part.loaded.scenario.model.width for part in made.run_set.runs} == {8}


def test_means_over_pathways_take_every_subset_once() -> None:
    made = planned("6", "paper", seeds=2)
    options = [part.loaded.scenario.method_options for part in made.run_set.runs if part.loaded.scenario.seed == 0]
    subsets = [tuple(option["pathways"]) for option in options]

    assert len(made.run_set.runs) == 2 * 31
    assert len(set(subsets)) == 31
    assert Counter(map(len, subsets)) == {1: 5, 2: 10, 3: 10, 4: 5, 5: 1}
    assert {option["norm"] for option in options} == {"all"}


# --- settings that are lost -------------------------------------------------------------------------------------------


def test_rows_whose_setting_is_lost_are_not_run_and_say_so() -> None:
    made = planned("5", "tiny")
    cells = made.result({"runs": []})["cells"]
    (table,) = tables.tables(made.selection, {"cells": cells})

    assert len(made.run_set.runs) == 5
    assert [cell["method"] for cell in cells] == ["fedmlb"] * 5 + [None] * 4
    assert [row[1:] for row in table.rows][5:] == [
        [value, "setting unknown"] for value in ("48.45", "46.78", "51.73", "52.65")
    ]
    with pytest.raises(ScenarioError, match=r"^command line: row: row 6: setting unknown: the table's marks are lost$"):
        planned("5", "tiny", "row=row 6")
