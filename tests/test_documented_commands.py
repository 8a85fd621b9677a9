"""The commands of README and docs: all are parsed and their scenarios resolved, and those of README run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.experiment.grid import grid_of, over_methods
from scenarios.experiment.sweep import plan
from scenarios.experiment.sweep_file import requested
from scenarios.papers import reproduce
from tests import documented
from tests.documented import ROOT, Documented
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

SHORT = ("rounds.max=1", "train.local_steps=1", "data.clients=6")
TRAINING = ("run", "compare")
SLOW = ("sweep", "decide")
"""Commands that start processes of their own; their tests are elsewhere."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with the files that the pages show; Python imports from it."""
    folder = tmp_path_factory.mktemp("reader")
    documented.write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        patch.setattr(sys, "dont_write_bytecode", True)
        yield folder


def resolve(command: Documented) -> None:
    """Parse a command and load its scenario for each of its methods; an error says what is wrong."""
    values = documented.parsed(command.words)
    if command.words[0] in ("sweep", "decide"):
        asked = requested(values["scenario"], values["words"] or [], values.get("zipped", False))
        at = values.get("at") or asked.at
        plan(asked.grid, at=at, judge=values.get("judge") or asked.judge or "test")
        return
    if command.words[0] == "compare":
        for point in (grid := over_methods(grid_of(values["scenario"], values["words"] or []), ["fedavg"])).points:
            grid.load(point)
    elif command.words[0] == "reproduce" and values["name"] and not values["listed"]:
        reproduce.plan(values["name"], values["scale"], grid_of(values["name"], values["words"] or []), 1)
    elif "scenario" in values:
        load(values["scenario"], parse_all(values["overrides"] or []))


EVIDENCE = sorted((ROOT / "docs" / "evidence").glob("*.md"))


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in [*documented.pages(), *EVIDENCE]])
def test_every_command_is_parsed_and_its_scenario_resolved(page: Path, folder: Path) -> None:
    for command in documented.commands(page):
        try:
            resolve(command)
        except Exception as error:
            pytest.fail(f"{command}: {type(error).__name__}: {error}")


def test_the_scenarios_that_are_shown_resolve(folder: Path) -> None:
    question = load("question.toml").scenario
    assert (question.fleet.networks, question.budget.bytes) == ({"lte": 1.0}, 50_000_000)
    assert (question.data.clients, question.stop.target_accuracy) == (12, 0.9)
    mine = load("mine.toml").scenario
    assert (mine.rounds.policy, mine.budget.bytes) == ("over_select", 10_000_000)


def test_the_first_steps_run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {}
    for command in documented.commands(ROOT / "README.md"):
        if command.words[0] in SLOW:
            continue
        monkeypatch.setenv("FEDBR_REPORT", str(int("plain" in command.words)))  # of one run, and of the command for it
        words = [*command.words, *(SHORT if command.words[0] in TRAINING else ())]
        ended[" ".join(command.words[:2])] = main.run_command(words)
    assert set(ended.values()) == {0}, ended
    assert {"run digits", "compare digits", "check stragglers", "replay runs/digits/plain", "new method"} <= set(ended)
    assert (folder / "mine_client.py").is_file()
    assert (folder / "runs" / "digits" / "plain" / "report.html").is_file()
    assert capsys.readouterr().err.count("Traceback") == 0


def test_runs_that_are_there_are_read_as_described(folder: Path) -> None:
    """After the first steps: the commands of the list that take a run of FedAvg."""
    assert (folder / "runs" / "digits" / "plain").is_dir()
    of_runs = [
        command.words
        for command in documented.commands(ROOT / "docs" / "commands.md")
        if command.words[0] in ("resume", "verify", "replay") and "--draws" not in command.words
    ]
    assert [words[0] for words in of_runs] == ["resume", "replay", "verify"]
    assert [main.run_command(list(words)) for words in of_runs] == [0, 0, 0]


def test_the_numbers_of_methods_and_of_lines_are_those_that_readme_says() -> None:
    from coordinator.methods.registry import CORRECTIONS, OBJECTIVES

    text = (ROOT / "README.md").read_text()
    assert f"{len(OBJECTIVES) + len(CORRECTIONS)} methods" in text
    assert len(text.splitlines()) <= 120
