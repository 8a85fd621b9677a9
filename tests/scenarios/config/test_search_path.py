"""Where a user's modules are found: beside the scenario and in the current folder, and never instead of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.config.load import ScenarioError, load
from scenarios.run.plugin_sources import SourceFile, roots

ROOT = Path(__file__).parents[3]
METHOD = """
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.base import Options

SPEC = ObjectiveSpec("mine", "plain", "a test", Options, "always", client="my_side:Mine")
"""
SIDE = "from edge.training.client_update import ClientUpdate\n\n\nclass Mine(ClientUpdate):\n    pass\n"


def test_a_folder_with_modules_of_our_names_breaks_neither_the_command_nor_its_workers(tmp_path: Path) -> None:
    for name in ("edge.py", "scenarios.py", "coordinator.py", "costmodel.py"):
        (tmp_path / name).write_text("raise RuntimeError('the module of a user')\n")
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "my_side.py").write_text(SIDE)
    run = ("run", "digits", "method=my_method:SPEC", "rounds.max=1", "train.local_steps=1", "--workers", "1", "--json")
    ended = subprocess.run(
        [sys.executable, "-c", "import fedbr; fedbr.main()", *run],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["method"] == "my_method:SPEC"


@pytest.mark.parametrize(
    ("module", "script", "last"),
    [
        ("edge.py", "import edge, fedbr", "ImportError: fedbr has a package 'edge', and this process has imported {}"),
        (
            "edge.py",
            "import fedbr, edge\nassert edge.MINE\nfedbr.run",
            "ImportError: fedbr has a package 'edge', and {}",
        ),
        (
            "scenarios/__init__.py",
            "import scenarios, fedbr",
            "ImportError: fedbr has a package 'scenarios', and this {}",
        ),
        ("edge.py", "import fedbr\nfedbr.run\nimport edge\nedge.MINE", "AttributeError: module 'edge' has no att{}"),
    ],
)
def test_a_module_of_ones_own_with_a_name_of_ours_is_named_in_one_sentence(
    module: str, script: str, last: str, tmp_path: Path
) -> None:
    file = tmp_path / module
    file.parent.mkdir(exist_ok=True)
    file.write_text("MINE = True\n")
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1].startswith(last.removesuffix("{}"))
    way_out = "rename it, or use fedbr in a process of its own, such as the command fedbr"
    (sentence,) = [line for line in lines if line.endswith(way_out)]
    assert str(tmp_path / module.partition("/")[0]) in sentence


def test_modules_beside_a_scenario_are_found_but_not_those_in_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_a_scenario.py").write_text(METHOD)
    copy, file = tmp_path / "scenario.toml", tmp_path / "mine.toml"
    for path in (copy, file):
        path.write_text('extends = "digits"\nmethod = "beside_a_scenario:SPEC"\n')
    with pytest.raises(ScenarioError, match=r"No module named 'beside_a_scenario'; searched /"):
        load(str(copy))
    assert load(str(file)).method.objective.title == "plain"
    assert sys.path[-1] == str(tmp_path)


def test_a_run_goes_on_with_modules_from_where_they_were_but_never_from_within_its_folder(tmp_path: Path) -> None:
    def source(file: str) -> SourceFile:
        return SourceFile(file, "")

    recorded = {
        "mine": source("/home/me/mine.py"),
        "pkg": source("/home/me/lib/pkg/__init__.py"),
        "pkg.inner": source("/home/me/lib/pkg/inner.py"),
        "installed": source("/usr/lib/site-packages/installed.py"),
        "copied": source(str(tmp_path / "sources" / "copied.py")),
        "relative": source("relative.py"),
        "too.deep": source("/deep.py"),
    }
    assert roots(recorded, tmp_path) == [Path("/home/me"), Path("/home/me/lib"), Path("/home/me/lib")]
