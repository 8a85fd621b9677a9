"""The documents say what is there: what they show runs, their links lead somewhere, the map of the code is whole."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient

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


def fedbr(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A command of a document, run in the folder as by the installed command."""
    done = warm.run([*shlex.split(command), *more], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done


def test_own_models_data_and_partitions_run_as_described(tmp_path: Path) -> None:
    text = extracted("own-data-and-models.md", tmp_path)
    (command,) = re.findall(r"```sh\nfedbr (.*)\n```", text)
    told = json.loads(fedbr(command, tmp_path, "--workers", "1").stdout)
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
    smallest, run, check = re.findall(r"```sh\nfedbr (.*)\n```", text)
    assert "my_method:SPEC 2/2" in fedbr(smallest, tmp_path, "--workers", "1").stderr
    assert json.loads(fedbr(check, tmp_path, "--json").stdout)["holds"]
    result = json.loads(fedbr(run, tmp_path, "--json", "--workers", "1").stdout)
    # Half of the five participants of a round, rounded up, counts.
    assert (result["rounds"], result["visits"]["train"], result["visits"]["late"]) == (3, 9, 6)
    copies = (Path(tmp_path, result["run_dir"]) / "sources").iterdir()
    names = ["my_codec", "my_confidence", "my_metric", "my_policy", "my_schedule", "my_selection", "my_server"]
    assert sorted(path.stem for path in copies) == names


@pytest.mark.long
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


def test_glossary_and_terms_of_the_code_explain_each_word_once() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text().partition("## Terms of the code")[2].partition("\n## ")[0]
    entries = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text() + contributing, re.MULTILINE)
    words = [word.lower() for entry in entries for word in re.split("[,;] ", entry)]
    assert len(words) > 80
    assert {word for word in words if words.count(word) > 1} == set()


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(named) == sorted([*pages, "contributing.md", "index.md", "keys.md"])


def test_what_the_site_is_made_with_is_there() -> None:
    """Its own library is no part of the tests' environment."""
    made_with = ast.walk(ast.parse((ROOT / "docs" / "pages.py").read_text()))
    imports = [node for node in made_with if isinstance(node, ast.ImportFrom) and node.module is not None]
    ours = [node for node in imports if str(node.module).partition(".")[0] in ROOMS]
    for node in ours:
        assert [name.name for name in node.names if not hasattr(import_module(str(node.module)), name.name)] == []
    assert ours


PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PROSE])
def test_every_link_to_a_file_or_heading_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEDBR_REPORT", "0")
    nbformat: Any = import_module("nbformat")  # untyped
    notebook = nbformat.read(ROOT / "examples" / "own_method.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert re.findall(r"^round (\d)", printed, re.MULTILINE) == ["1", "2", "3"]
    assert "stopped by rounds\n" in printed
    recorded, replayed = map(float, re.findall(r"([\d.]+) s ", printed))
    assert recorded < replayed
    assert outputs[-1]["data"]["image/svg+xml"].startswith("<svg")
