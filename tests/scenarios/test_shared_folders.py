"""A study's folder that is shared does not name its user, who can still resume, verify and report its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli import main

pytestmark = pytest.mark.usefixtures("warm_workers")
SELECTOR = """
from coordinator.rounds.selection import ClientSelector
from coordinator.rounds.selectors.registry import SelectionRow
from edge.protocol.plugins import PluginOptions


class First(ClientSelector):
    def select(self, context):
        return list(context.candidates)[: context.count]


ROW = SelectionRow("first", "clients with the lowest numbers", "a test", PluginOptions, lambda options: First())
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of ada, who has a selector and a recorded link of her own there."""
    home = tmp_path / "ada"
    (home / "own").mkdir(parents=True)
    (home / "own" / "adas_selector.py").write_text(SELECTOR)
    (home / "own" / "link.csv").write_text("seconds,factor\n0,1\n5,0.5\n")
    for name, value in {"HOME": str(home), "LOGNAME": "ada", "USER": "ada", "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(home / "own")
    return home


@pytest.mark.long
def test_no_file_of_a_study_has_its_users_home_or_name_and_all_commands_find_what_they_need(home: Path) -> None:
    link = home / "own" / "link.csv"
    words = ["rounds.max=1", "rounds.selection=adas_selector:ROW", "fleet.bandwidth.kind=trace"]
    command = ["compare", "digits", "method=fedavg", *words, f"fleet.bandwidth.file={link}"]
    assert main.run_command([*command, "--out", str(home / "runs"), "--run-id", "a", "--workers", "1"]) == 0
    study = home / "runs" / "digits" / "a"
    run = study / "fedavg"
    assert json.loads((study / "compare.json").read_text())["runs"][0]["run_dir"] == "~/runs/digits/a/fedavg"
    assert 'file = "~/own/link.csv"' in (run / "scenario.toml").read_text()
    sources = json.loads((run / "environment.json").read_text())["sources"]
    assert sources["adas_selector"]["file"] == "~/own/adas_selector.py"
    assert main.run_command(["report", str(study)]) == 0
    assert main.run_command(["replay", str(run), "fleet.server.up=5 Mbit/s"]) == 0
    assert main.run_command(["resume", str(run), "rounds.max=2", "--workers", "1"]) == 0
    assert main.run_command(["diff", "--again", str(run), "--workers", "1"]) == 0
    written = [file for file in study.rglob("*") if file.is_file()]
    assert len(written) > 8
    named = [file.name for file in written if any(text in file.read_bytes() for text in (b"/ada/", bytes(home)))]
    assert named == []
