"""Files that a scenario names: searched from the current folder, beside the file that names them, and by content."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.config import fleet_files
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.config.tables import value_at
from scenarios.run.setup import RunInputs

LINK = 'fleet.bandwidth = { kind = "trace", file = "t.csv" }'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scenarios and a trace, which is not the current one."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    (place / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (place / "t.csv").write_text("seconds,bits_per_second\n0,5000000\n")
    (place / "parent.toml").write_text(f'extends = "digits"\n{LINK}\n')
    (place / "sub" / "child.toml").write_text('extends = "../parent.toml"\ntrain.lr = 0.2\n')
    sweep = ['scenario = "digits"', "[overrides]", LINK, "[grid]", 'fleet.availability.file = ["t.csv", "u.csv"]']
    decide = ["[decide]", 'candidates = [{ fleet.trace = "t.csv" }]']
    (place / "sweep.toml").write_text("\n".join([*sweep, *decide]))
    monkeypatch.chdir(elsewhere)
    return place


@pytest.mark.parametrize("name", ["parent.toml", "sub/child.toml"])
def test_a_name_is_searched_beside_the_file_that_has_it(name: str, place: Path) -> None:
    expected = str(place / "t.csv")
    assert load(str(place / name)).scenario.fleet.bandwidth.file == expected
    assert load({"extends": str(place / name)}).scenario.fleet.bandwidth.file == expected
    # The current folder comes first.
    Path("t.csv").write_text("seconds,bits_per_second\n0,1000000\n")
    assert load(str(place / name)).scenario.fleet.bandwidth.file == "t.csv"


def test_a_run_is_known_by_the_content_of_its_files_and_not_by_their_names(place: Path) -> None:
    (place / "copy.csv").write_bytes((place / "t.csv").read_bytes())
    (place / "other.csv").write_text("seconds,bits_per_second\n0,6000000\n")

    def named(file: str) -> Loaded:
        return load("digits", parse_all(["fleet.bandwidth.kind=trace", f"fleet.bandwidth.file={place / file}"]))

    first, copy, other = (RunInputs(named(name)).identity for name in ("t.csv", "sub/../copy.csv", "other.csv"))
    assert first == copy
    assert first != other


def test_names_in_a_runs_folder_hold_wherever_it_is_moved_with_what_lies_beside_it(place: Path) -> None:
    loaded = load(str(place / "parent.toml"))
    assert value_at(fleet_files.absolute(loaded.scenario), "fleet.bandwidth.file") == str(place / "t.csv")
    assert value_at(fleet_files.absolute(loaded.scenario, place), "fleet.bandwidth.file") == "../t.csv"
