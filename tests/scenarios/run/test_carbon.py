"""The CO2e of a run: its joules at a carbon intensity, on which nothing else of the run depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.amounts import CO2E
from edge.protocol.better import LOWER
from scenarios.config.overrides import parse_all
from scenarios.experiment import statistics
from scenarios.report import readings
from scenarios.report.result_tables import results
from scenarios.report.run_reader import RecordedRun
from scenarios.report.terminal import print_summary, run_rows
from scenarios.run.progress import ProgressPoint, Trail
from scenarios.run.run_folder import RunFolder
from scenarios.studies.decide import evidence
from scenarios.studies.replay import prepared, replay
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import summary_of_run

WORDS = ("rounds.max=2", "train.local_steps=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Mapping[str, dict[str, Any]]:
    """Run id -> summary of the same run without a carbon intensity, and in Germany in 2023."""
    out = tmp_path_factory.mktemp("carbon")
    return {
        "plain": summary_of_run(out, *WORDS, run_id="plain"),
        "germany": summary_of_run(out, *WORDS, "fleet.carbon={zone='DE',year=2023}", run_id="germany"),
    }


def folder(made: Mapping[str, dict[str, Any]], name: str) -> Path:
    return Path(made[name]["run_dir"])


def test_co2e_is_the_joules_of_the_run_at_the_intensity(made: Mapping[str, dict[str, Any]]) -> None:
    carbon = made["germany"]["carbon"]
    assert carbon["co2e_grams"] == pytest.approx(362.92 * made["germany"]["joules"] / 3.6e6)
    assert (carbon["joules"], carbon["grams_per_kwh"]) == (made["germany"]["joules"], 362.92)
    assert (carbon["zone"], carbon["year"]) == ("DE", 2023)
    assert carbon["source"].startswith("Ember")
    run = RunFolder(folder(made, "germany"))
    assert run.environment.carbon is not None
    assert run.environment.carbon.grams_per_kwh == 362.92
    first, last = (point.co2e_grams for point in run.trail)
    assert first is not None
    assert last is not None
    assert 0 < first < last == carbon["co2e_grams"]


def test_a_run_without_an_intensity_shows_and_computes_what_it_did(made: Mapping[str, dict[str, Any]]) -> None:
    assert made["plain"]["carbon"] is None
    assert [name for name, _ in run_rows([made["plain"]])].count("CO2e") == 0
    plain, germany = (RunFolder(folder(made, name)) for name in ("plain", "germany"))
    assert plain.environment.carbon is None
    assert "carbon" not in plain.environment.tables()
    assert [point.co2e_grams for point in plain.trail] == [None, None]
    assert "co2e_grams" not in statistics.over_seeds({0: plain.trail}, []).spent
    chains = [run.query("SELECT chain FROM rounds ORDER BY round") for run in (plain, germany)]
    assert [row["chain"] for row in chains[0]] == [row["chain"] for row in chains[1]]


def test_the_summary_says_what_co2e_is_made_of(
    made: Mapping[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(made["germany"], None)
    printed = " ".join(capsys.readouterr().out.split())
    assert " at 362.92 g/kWh, DE 2023" in printed
    assert "(Ember, Yearly Electricity Data 2026, via Our World in Data): life-cycle emissions" in printed
    assert "Left out: the server, aggregators, networks between them and the devices, cooling" in printed


def test_tables_have_it_where_a_run_has_it(made: Mapping[str, dict[str, Any]]) -> None:
    runs = [RecordedRun(folder(made, name)) for name in ("plain", "germany")]
    assert "co2e_grams" not in [column.key for column in results(runs[:1], None, {}, nominal=False).columns]
    table = results(runs, 0.01, {}, nominal=False)
    keys = [column.key for column in table.columns]
    place, until = keys.index("co2e_grams"), keys.index("co2e_grams_to_0.01")
    assert table.columns[place].over == "CO2e"
    assert [row[place] for row in table.rows] == [None, made["germany"]["carbon"]["co2e_grams"]]
    assert [row[until] for row in table.rows] == ["–", runs[1].trail[0].co2e_grams]
    assert readings.CO2E.better is LOWER


def test_over_seeds_it_is_an_amount_like_others() -> None:
    point = ProgressPoint(1, 2.0, 3, 0.0, 0.5, 0.5, 4.0, co2e_grams=6.0)
    trails = {0: Trail([point]), 1: Trail([replace(point, co2e_grams=8.0)])}
    found = statistics.over_seeds(trails, [0.4])
    assert found.spent[CO2E.key].values == [6.0, 8.0]
    assert found.to_target[0].spent[CO2E.key].mean == 7.0


def test_a_replay_counts_at_the_recorded_intensity_unless_another_is_named(
    made: Mapping[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, grams = folder(made, "germany"), made["germany"]["carbon"]["co2e_grams"]
    changed = replay(run, parse_all(["fleet.carbon={zone='FR',year=2023}"]))
    assert changed.co2e_grams == [grams, pytest.approx(grams * 53.26 / 362.92)]
    assert changed.joules[0] == changed.joules[1] == made["germany"]["joules"]
    own = replay(folder(made, "plain"), parse_all(["fleet.carbon.grams_per_kwh='0.381 kg/kWh'"]))
    assert own.co2e_grams == [None, pytest.approx(381.0 * own.joules[0] / 3.6e6)]
    assert replay(folder(made, "plain")).co2e_grams == [None, None]

    # A later table has another figure: the run and its replays keep the one that it began with.
    monkeypatch.setattr("scenarios.config.load.carbon.intensity", lambda config: None)
    assert replay(run).co2e_grams == [grams, pytest.approx(grams)]
    assert evidence.played(prepared(run))[-1].co2e_grams == pytest.approx(grams)
