"""The documents say what is there: the tutorial runs, and the map of the code is whole."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from scenarios.config.plugin_keys import PLUGIN_KEYS

ROOT = Path(__file__).parent.parent
ROOMS = ("costmodel", "edge", "coordinator", "scenarios")


def test_the_tutorials_own_method_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for name, source in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(source)
    (command,) = re.findall(r"```sh\nPYTHONPATH=\. fedbr (.*)\n```", text)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "scenarios.cli.main", *shlex.split(command), "--workers", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "my_method:SPEC 2/2" in done.stderr


def test_own_models_data_and_partitions_run_as_described(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "own-data-and-models.md").read_text()
    sources = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert len(sources) == text.count("```python")
    for name, source in sources:
        (tmp_path / name).write_text(source)
    (command,) = re.findall(r"```sh\nPYTHONPATH=\. fedbr (.*)\n```", text)
    done = subprocess.run(
        [sys.executable, "-m", "scenarios.cli.main", *shlex.split(command), "--workers", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"] <= 4
    assert told["accuracy"] > 0.5, "one in four is chance"
    environment = json.loads((tmp_path / told["run_dir"] / "environment.json").read_text())
    # Client k gets 320 * (k + 1) ** 2 / 385 examples, of which a tenth is held out: client 9, 84 - 8.
    assert sum(environment["partition"]["histogram"][9]) == 76
    assert [(block["name"], block["params"]) for block in environment["blocks"]] == [
        ("inner+norm+act", 144), ("deep", 272), ("head", 68)
    ]  # fmt: skip


def test_the_plug_ins_that_are_shown_run_together_from_the_current_folder(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plug-ins.md").read_text()
    for name, source in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(source)
    run, check = re.findall(r"```sh\nfedbr (.*)\n```", text)

    def told(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scenarios.cli.main", *words, "--json"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    assert told(*shlex.split(check))["holds"]
    result = told(*shlex.split(run), "--workers", "1")
    # Half of the five participants of a round, rounded up, counts.
    assert (result["rounds"], result["visits"]["train"], result["visits"]["late"]) == (3, 9, 6)
    copies = (Path(tmp_path, result["run_dir"]) / "sources").iterdir()
    names = ["my_confidence", "my_metric", "my_policy", "my_schedule", "my_selection", "my_server"]
    assert sorted(path.stem for path in copies) == names


def test_every_plug_in_key_and_row_of_the_list_is_there() -> None:
    table = (ROOT / "docs" / "plug-ins.md").read_text().partition("For each of them")[0]
    keys = {key for key in PLUGIN_KEYS if f"`{key}`" in table}
    assert {"method", "server", "rounds.selection", "rounds.policy", "train.lr_schedule", "model.name"} <= keys
    for row, module in re.findall(r"`(\w+)` \(`([\w.]+)`\)", table):
        assert hasattr(import_module(module), row), row


def test_the_map_of_the_code_names_every_folder_and_files_that_are_there() -> None:
    described = (ROOT / "CONTRIBUTING.md").read_text().partition("## The map")[2].partition("## Checklists")[0]
    named = set(re.findall(r"^\| `([^`*]+)` \|", described, re.MULTILINE))
    folders = {f"{path.parent.relative_to(ROOT)}/" for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    assert folders - {f"{room}/" for room in ROOMS} == {name for name in named if name.endswith("/")}
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert len([name for name in named if name.endswith(".py")]) == 20
