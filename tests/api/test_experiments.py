"""Opening, reporting and drawing several runs. Runs are folders made by hand; no report is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import fedbr
from scenarios.report import html
from scenarios.run.run_finder import found
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import run

Written = tuple[list[Path], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which one has a round, beside one that has committed nothing."""
    folder = tmp_path_factory.mktemp("swept")
    run(folder, "rounds.max=1", "train.local_steps=1").rename(folder / "cell1")
    (folder / "digits").rmdir()
    (folder / "cell2").mkdir()
    (folder / "cell2" / "scenario.toml").write_text("method = 'fedavg'")
    (folder / "cell3").mkdir()
    (folder / "cell3" / "ledger.sqlite").write_text("")
    (folder / "study.json").write_text('{"failed": {"cell3": "no room"}}')
    return folder


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """(folders, path) of each report that would have been written."""
    written: list[Written] = []

    def from_folders(folders: Sequence[Path], output: Path | None = None) -> Path:
        place = output or html._place(folders, found(folders))
        written.append((list(folders), place))
        return place

    monkeypatch.setattr(html, "from_folders", from_folders)
    return written


def test_runs_that_have_not_committed_anything_are_left_out_of_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = fedbr.open(folder)
    assert isinstance(opened, fedbr.RunCollection)
    assert ([run.folder for run in opened], opened.failed) == ([folder / "cell1"], {"cell3": "no room"})
    assert capsys.readouterr().err.splitlines() == [
        f"fedbr: note: left out: {folder / 'cell3'} is not a run folder: it has no scenario.toml, no environment.json",
        f"fedbr: note: left out: {folder / 'cell2'} has not committed anything",
    ]
    assert isinstance(fedbr.open(folder / "cell1"), fedbr.Run)


def test_the_report_of_a_collection_leaves_that_of_its_study(folder: Path, reported: list[Written]) -> None:
    opened = fedbr.open(folder)
    assert isinstance(opened, fedbr.RunCollection)
    assert opened.report() == folder / "runs.html"
    assert opened.report("mine.html") == Path("mine.html")
    assert [folders for folders, _ in reported] == [[folder / "cell1"]] * 2


def test_a_report_takes_runs_folders_and_collections_together(folder: Path, reported: list[Written]) -> None:
    opened, one = fedbr.open(folder), fedbr.Run(folder / "cell1")
    assert fedbr.report([one, folder]) == folder / "runs.html"
    assert fedbr.report([one, opened]) == folder / "runs.html"
    assert fedbr.report(one) == folder / "cell1" / "report.html"
    assert fedbr.report(str(folder)) == folder / "runs.html"
    cell = folder / "cell1"
    assert [folders for folders, _ in reported] == [[cell, folder], [cell, cell], [cell], [folder]]
    with pytest.raises(fedbr.ReportError, match="there is no run to report"):
        fedbr.report([])
