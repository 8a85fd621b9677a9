"""The documents say what is there: the tutorial runs, and the map of the code is whole."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

from coordinator.records.store import read
from scenarios.config.plugin_points import BY_KEY
from tests import warm

ROOT = Path(__file__).parent.parent
ROOMS = ("costmodel", "edge", "coordinator", "scenarios")


def extracted(name: str, folder: Path) -> str:
    """The text of a document; its Python files, whose first line names them, are written to the folder."""
    text = (ROOT / "docs" / name).read_text()
    sources = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert len(sources) == text.count("```python")
    for file, source in sources:
        (folder / file).write_text(source)
    return text


def fedbr(command: str, folder: Path, *more: str, own_path: bool = False) -> subprocess.CompletedProcess[str]:
    """A command of a document, run in the folder, as by the installed command or with the folder on PYTHONPATH."""
    path = os.pathsep.join([str(folder), str(ROOT)] if own_path else [str(ROOT)])
    done = warm.run([*shlex.split(command), *more], cwd=folder, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done


def test_the_tutorials_own_method_runs(tmp_path: Path) -> None:
    text = extracted("tutorial.md", tmp_path)
    (command,) = re.findall(r"```sh\nPYTHONPATH=\. fedbr (.*)\n```", text)
    assert "my_method:SPEC 2/2" in fedbr(command, tmp_path, "--workers", "1", own_path=True).stderr


def test_own_models_data_and_partitions_run_as_described(tmp_path: Path) -> None:
    text = extracted("own-data-and-models.md", tmp_path)
    (command,) = re.findall(r"```sh\nPYTHONPATH=\. fedbr (.*)\n```", text)
    told = json.loads(fedbr(command, tmp_path, "--workers", "1", own_path=True).stdout)
    assert told["rounds"] <= 4
    assert told["accuracy"] > 0.5, "one in four is chance"
    environment = json.loads((tmp_path / told["run_dir"] / "environment.json").read_text())
    # Client k gets 320 * (k + 1) ** 2 / 385 examples, of which a tenth is held out: client 9, 84 - 8.
    assert sum(environment["partition"]["histogram"][9]) == 76
    assert [(block["name"], block["params"]) for block in environment["blocks"]] == [
        ("inner+norm+act", 144), ("deep", 272), ("head", 68)
    ]  # fmt: skip


def test_the_plug_ins_that_are_shown_run_together_from_the_current_folder(tmp_path: Path) -> None:
    text = extracted("plug-ins.md", tmp_path)
    run, check = re.findall(r"```sh\nfedbr (.*)\n```", text)
    assert json.loads(fedbr(check, tmp_path, "--json").stdout)["holds"]
    result = json.loads(fedbr(run, tmp_path, "--json", "--workers", "1").stdout)
    # Half of the five participants of a round, rounded up, counts.
    assert (result["rounds"], result["visits"]["train"], result["visits"]["late"]) == (3, 9, 6)
    copies = (Path(tmp_path, result["run_dir"]) / "sources").iterdir()
    names = ["my_confidence", "my_metric", "my_policy", "my_schedule", "my_selection", "my_server"]
    assert sorted(path.stem for path in copies) == names


def test_the_methods_that_are_shown_run_in_one_comparison(tmp_path: Path) -> None:
    text = extracted("own-methods.md", tmp_path)
    compare, check = re.findall(r"```sh\nfedbr (.*)\n```", text)
    assert text.partition(check)[2].startswith("\n```\n\n```text\nclusters:SPEC as method\n")
    result = json.loads(fedbr(compare, tmp_path, "--json", "--workers", "1").stdout)
    folders = {run["method"].removesuffix(":SPEC"): tmp_path / run["run_dir"] for run in result["runs"]}
    assert {run["rounds"] for run in result["runs"]} == {2}
    assert list(folders) == ["anchor", "clusters", "peers", "own_head", "contrast", "watched"]

    def rows(method: str, query: str) -> list[Any]:
        return [row[0] for row in read(folders[method] / "ledger.sqlite", query)]

    assert rows("watched", "SELECT DISTINCT name FROM logged ORDER BY name") == ["last-client", "moved", "mu"]
    assert rows("watched", "SELECT DISTINCT value FROM logged WHERE name = 'mu'") == [0.1, 0.05]
    slots = "SELECT DISTINCT slot FROM transfers WHERE slot != '' ORDER BY slot"
    assert rows("clusters", slots) == ["cluster0", "cluster1", "model"]
    # Two rounds of five visits; the files of a client's earlier update are kept as long as a checkpoint needs them.
    assert len(list((folders["peers"] / "vectors").iterdir())) == 10
    keys = "SELECT DISTINCT key FROM transfers WHERE slot != '' ORDER BY key"
    assert rows("own_head", keys) == ["conv1", "conv2", "conv3"]
    assert rows("contrast", keys) == ["conv1", "conv2", "conv3", "head", "projection"]
    blocks = json.loads((folders["contrast"] / "environment.json").read_text())["blocks"]
    # 128 inputs and 16 outputs, with biases; then 16 and 10.
    assert [block["params"] for block in blocks[-2:]] == [2064, 170]


def test_every_plug_in_key_and_row_of_the_list_is_there() -> None:
    table = (ROOT / "docs" / "plug-ins.md").read_text().partition("For each of them")[0]
    keys = {key for key in BY_KEY if f"`{key}`" in table}
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


def test_the_glossary_explains_each_word_once() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [word.lower() for entry in entries for word in entry.split(", ")]
    assert {word for word in words if words.count(word) > 1} == set()


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(named) == sorted([*pages, "contributing.md", "index.md", "keys.md"])
