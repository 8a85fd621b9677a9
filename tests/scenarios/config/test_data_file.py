"""``data.file``: which data set a scenario then has, whose clients, and which of its layers decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.config.tables import TomlValue
from scenarios.run.setup import RunInputs

ROWS = [f"{name},{place % 2},{place}" for name in ("ann", "bo", "cy") for place in range(10)]

MODEL: dict[str, TomlValue] = {"model": {"name": "mlp"}, "rounds": {"participants": 2}}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["client,label,x", *ROWS]) + "\n")
    return file


def loaded(*words: str, scenario: str = "digits") -> Loaded:
    return load(scenario, parse_all(["model.name=mlp", "rounds.participants=2", *words]))


def of_data(found: Loaded) -> tuple[str, str, int]:
    data = found.scenario.data
    return found.dataset.name, data.partition.kind, data.clients


def test_its_clients_are_those_of_the_run_unless_the_same_place_says_otherwise(table: Path) -> None:
    assert of_data(load("digits")) == ("digits", "dirichlet", 10)
    assert of_data(loaded(f"data.file={table}")) == ("t", "natural", 3)
    assert of_data(loaded(f"data.file={table}", "data.clients=2")) == ("t", "natural", 2)
    iid = loaded(f"data.file={table}", "data.partition.kind=iid", "data.clients=5")
    assert of_data(iid) == ("t", "iid", 5)
    assert iid.dataset.classes == 2
    assert iid.scenario.data.file == str(table)


def test_without_clients_the_scenario_keeps_its_own(table: Path) -> None:
    table.write_text("\n".join(["label,x", *(row.partition(",")[2] for row in ROWS)]))
    assert of_data(loaded(f"data.file={table}")) == ("t", "dirichlet", 10)


def test_a_scenario_names_a_file_beside_it_and_a_call_may_read_it_in_another_way(table: Path) -> None:
    scenario = table.parent / "mine.toml"
    scenario.write_text(
        'extends = "digits"\n[data]\nfile = "t.csv"\n[model]\nname = "mlp"\n[rounds]\nparticipants = 2\n'
    )
    whole = load(str(scenario))
    assert of_data(whole) == ("t", "natural", 3)
    halved = load(str(scenario), {"data.reading.test": 0.5})
    assert of_data(halved) == ("t", "natural", 3)
    assert halved.scenario.data.name != whole.scenario.data.name
    above = table.parent / "above.toml"
    above.write_text('extends = "mine.toml"\n[data]\nclients = 2\n')
    assert of_data(load(str(above))) == ("t", "natural", 2)
    assert of_data(load({"extends": "digits", "data": {"file": str(table)}, **MODEL}))[2] == 3


def test_what_is_refused_names_the_key_and_the_place(table: Path) -> None:
    for words, why in (
        ((f"data.file={table}x",), f"command line: data.file: {table}x: no such file or folder"),
        ((f"data.file={table}", "data.reading.label=lable"), "command line: data.file: .*has no column 'lable'"),
        (
            (f"data.file={table}", "data.reading.labels=x"),
            "command line: unknown key data.reading.labels, did you mean",
        ),
        (
            (f"data.file={table}", "data.name=mnist"),
            "command line: data.name = 'mnist': data.file = '.*t.csv' is the data set; leave one out",
        ),
        (("data.file=",), "command line: data.file = '': names no file"),
        (("data.reading.label=x",), "command line: data.reading: says how data.file is read, and there is none"),
        (
            (f"data.file={table}", "data.reading.test=2"),
            "command line: data.reading.test = 2: input should be less than 1",
        ),
    ):
        with pytest.raises(ScenarioError, match=why):
            loaded(*words)


def test_a_set_by_name_is_refused_where_the_scenario_has_a_file(table: Path) -> None:
    scenario = table.parent / "mine.toml"
    scenario.write_text('extends = "digits"\n[data]\nfile = "t.csv"\n[model]\nname = "mlp"\n')
    with pytest.raises(ScenarioError, match=r"data.name = 'digits': data.file = '.*t.csv' is the data set"):
        load(str(scenario), {"data.name": "digits"})
    above = table.parent / "above.toml"
    above.write_text('extends = "mine.toml"\n[data]\nname = "digits"\n')
    with pytest.raises(ScenarioError, match=r"above.toml: data.name = 'digits'"):
        load(str(above))


def test_a_run_is_known_by_what_its_file_held_and_not_by_its_path(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(table.parent)

    def genesis(*words: str) -> str:
        return RunInputs(loaded(*words)).genesis("")

    first = genesis("data.file=t.csv")
    assert genesis(f"data.file={table}") == first
    assert genesis("data.file=t.csv", "data.reading.test=0.5") != first
    table.write_text(table.read_text().replace("bo,", "bob,"))
    assert genesis("data.file=t.csv") != first
