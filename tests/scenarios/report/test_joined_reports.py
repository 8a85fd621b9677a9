"""Reports of any runs together: which folders they take, how runs are grouped, and the means they state."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.config.errors import ReportError, worded
from scenarios.report import html, result_tables
from scenarios.report.run_reader import differences, grouped, notices, open_runs
from scenarios.run import run_finder
from tests.ledgers import made_run

HEAD = 'method = "{method}"\nserver = "plain"\nseed = {seed}\n[data]\nname = "{data}"\nclients = 4\n'
ACCURACIES = {
    ("fedavg", 1): (0.3, 0.6),
    ("fedavg", 2): (0.4, 0.8),
    ("fedprox", 1): (0.5, 0.7),
    ("fedprox", 2): (0.5, 0.7),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each, some deeper than others, and a ledger that is no run."""
    folder = tmp_path_factory.mktemp("runs")
    for (method, seed), accuracies in ACCURACIES.items():
        scenario = HEAD.format(method=method, seed=seed, data="digits") + "[stop]\ntarget_accuracy = 0.8\n"
        place = folder / "sweep" if seed == 2 else folder
        made_run(place / f"{method}-{seed}", accuracies, scenario)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "ledger.sqlite").write_text("not a ledger")
    return folder


def test_a_folder_stands_for_all_runs_below_it_and_one_that_is_no_run_is_left_out(study: Path) -> None:
    found = run_finder.found([study])
    names = ["fedavg-1", "fedprox-1", "sweep/fedavg-2", "sweep/fedprox-2"]
    assert [str(folder.relative_to(study)) for folder in found.folders] == names
    reason = f"{study}/foreign is not a run folder: it has no scenario.toml, no environment.json"
    assert list(found.left_out) == [reason]


def test_a_run_that_is_named_twice_is_reported_once_and_a_damaged_one_that_is_named_is_refused(study: Path) -> None:
    twice = run_finder.found([study / "sweep", study / "sweep" / "fedavg-2"])
    assert [folder.name for folder in twice.folders] == ["fedavg-2", "fedprox-2"]
    with pytest.raises(ReportError, match=r"foreign is not a run folder: it has no scenario\.toml"):
        html.from_folders([study / "fedavg-1", study / "foreign"])


def test_a_path_that_is_empty_or_of_a_file_is_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["report", str(study), ""]) == 2
    assert main.run_command(["report", str(study / "foreign" / "ledger.sqlite")]) == 2
    empty, file = capsys.readouterr().err.splitlines()
    assert empty == "fedbr: report '': an argument is empty; name a folder, or . for the current one"
    assert file.endswith("ledger.sqlite is not a run folder: it is a file")


def test_a_comparison_that_has_not_ended_is_the_runs_that_it_has(study: Path, tmp_path: Path) -> None:
    begun = '{"study": "compare"}'  # as it stands until the first run has ended
    (tmp_path / "compare.json").write_text(begun)
    goes_on = f"the comparison {tmp_path} has not ended; the same one with --run-id {tmp_path.name} goes on with it"
    with pytest.raises(ReportError, match=f"^no run in it has committed a round: {re.escape(goes_on)}$"):
        run_finder.found([tmp_path])
    shutil.copytree(study / "fedavg-1", tmp_path / "fedavg")
    found = run_finder.found([tmp_path])
    assert (found.folders, found.comparison) == ([tmp_path / "fedavg"], None)
    assert list(map(worded, found.unfinished)) == [goes_on]


def test_runs_that_differ_in_their_seed_alone_are_one_group_with_the_interval_of_its_mean(study: Path) -> None:
    # Accuracies 0.6 and 0.8: mean 0.7, deviation 0.1414, half width 12.706 x 0.1414 / sqrt(2) = 1.2706.
    by_group = grouped(open_runs(run_finder.found([study]).folders))
    assert [(group.label, [run.scenario["seed"] for run in group.runs]) for group in by_group] == [
        ("fedavg", [1, 2]),
        ("fedprox", [1, 2]),
    ]
    table = result_tables.over_seeds(by_group, 0.8)
    cells = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.texts}
    assert cells["fedavg"]["accuracy, final"] == "70 (0 to 100) %"
    assert cells["fedavg"]["virtual time to 80 %"] == "1 of 2"
    assert cells["fedprox"]["accuracy, final"] == "70 ± 0 %"
    assert cells["fedprox"]["virtual time to 80 %"] == "not reached"
    assert (cells["fedprox"]["virtual time"], cells["fedprox"]["bytes"]) == ("20 ± 0 s", "2 ± 0 kB")


def test_one_page_holds_two_methods_with_two_seeds_each_and_tables_beside_it(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = html.from_folders([study], None, html.BESIDE, html.BESIDE)
    assert page == study / "runs.html"
    text = page.read_text()
    assert "<h1>4 runs: fedavg, fedprox</h1>" in text
    assert re.findall(r"</svg>(fed\w+)</th><td>2</td>", text) == ["fedavg", "fedprox"]
    assert all(f"{method}, seed {seed}" in text for method, seed in ACCURACIES)
    assert "<td>70\u00a0(0\u00a0to\u00a0100)\u00a0%</td>" in text
    assert "foreign is not a run folder" in text
    assert "warning: left out:" in capsys.readouterr().err
    assert len((study / "rounds.csv").read_text().splitlines()) == 1 + 8
    assert (study / "rounds.parquet").exists()


def test_a_page_says_where_data_and_targets_differ_and_which_runs_repeat_a_seed(study: Path, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", (0.1,), HEAD.format(method="fedavg", seed=1, data="mnist"))
    again = HEAD.format(method="fedavg", seed=1, data="digits") + "[stop]\ntarget_accuracy = 0.8\n"
    runs = [study / "fedavg-1", study / "sweep" / "fedavg-2", other, made_run(tmp_path / "again", (0.1,), again)]
    by_group = grouped(open_runs(runs))
    assert [group.label for group in by_group] == ["fedavg, data.name=digits", "fedavg, data.name=mnist"]
    assert notices(by_group) == [
        "Data sets differ: digits, mnist. Accuracies on different data are not comparable.",
        "Targets differ: 0.8, not set. Times and bytes to the target are read at the first run's.",
        "Runs that repeat a seed of their group are in no mean and no figure: again.",
    ]
    assert differences(by_group) == [
        ("data.name", ["digits", "mnist"]),
        ("stop.target_accuracy", ["0.8", "–"]),
    ]
