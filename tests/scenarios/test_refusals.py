"""What is refused, in the table `refusals.toml`: values of a scenario, and command lines, each with its message."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from edge.runtime.keys import make
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from tests.ledgers import made_run
from tests.scenarios.runs import check_message, refused

TABLE = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[2]


def rows(kind: str) -> list[object]:
    return [
        pytest.param(words, message, id=f"{group}: {words}"[:150])
        for group, rows in TABLE[kind].items()
        for words, message in rows.items()
    ]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize(("words", "message"), rows("scenario"))
def test_values_of_a_scenario_are_refused_with_one_message(words: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load("digits", parse_all(re.split(r"\s+(?=[\w.]+=)", words)))
    check_message(str(caught.value), f"command line: {message}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: ``fedavg``, ``fedbr`` on other data, ``later`` of another seed, and ``begun``, which has not ended."""
    folder = tmp_path_factory.mktemp("runs")
    made_run(folder / "fedavg", (0.5, 0.75), 'method = "fedavg"\nseed = 0\n')
    made_run(folder / "fedbr", (0.5,), 'method = "fedbr"\nseed = 0\n[data]\nclients = 20\n')
    made_run(folder / "later", (0.5,), 'method = "fedmlb"\nseed = 1\n')
    made_run(folder / "begun", (0.5,), 'method = "fedavg"\nseed = 0\n', is_ended=False)
    return folder


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("words", "message"), rows("command"))
def test_a_command_line_is_refused_before_anything_is_begun(
    words: str, message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "alice"):
        make(name, tmp_path)
    for file in ("file", "study.json"):
        (tmp_path / file).touch()
    (tmp_path / "digits" / "a").mkdir(parents=True)
    before = files(tmp_path)
    texts = {"{tmp}": str(tmp_path), "{runs}": str(runs), "{root}": str(ROOT)}
    for name, text in (texts | {"{long}": "x" * 242, "{wide}": "ü" * 121}).items():
        words, message = words.replace(name, text), message.replace(name, text)
    check_message(refused(capsys, *shlex.split(words)), message)
    assert files(tmp_path) == before
