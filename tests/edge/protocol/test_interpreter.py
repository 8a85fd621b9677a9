"""Processes of this product search the folders of the one that starts them, but only once they have started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge.protocol import interpreter

ROOT = Path(__file__).parents[3]
MINE = "import json, random, sys\nprint(json.dumps([random.__file__, sys.argv[1:], __name__, sys.path]))\n"


def test_a_folder_joins_after_the_start_and_behind_what_python_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, named = tmp_path / "users", tmp_path / "named"
    for folder in (users, named):
        folder.mkdir()
    for name in ("sitecustomize", "usercustomize", "random", "json", "runpy"):
        (users / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    (users / "later.pth").write_text(f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write('pth ')\n")
    (users / "mine.py").write_text(MINE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(named), "", ".", "below"]))
    path = [*sys.path, str(named), str(users)]
    environment = interpreter.variables(path)
    assert environment["PYTHONPATH"] == os.pathsep.join([str(ROOT), str(named)])
    ended = subprocess.run(
        interpreter.command("mine", "a", "b c"),
        cwd=users,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    place, words, name, searched = json.loads(ended.stdout)
    assert (Path(place).parent, words, name) == (Path(os.__file__).parent, ["a", "b c"], "__main__")
    assert searched[: len(path)] == [str(Path(entry).absolute()) for entry in path]
    assert not (tmp_path / "ran").exists()


def test_no_process_is_started_with_python_another_way() -> None:
    others = []
    for package in ("edge", "coordinator", "costmodel", "scenarios"):
        for file in (ROOT / package).rglob("*.py"):
            if re.search(r"""sys\.executable,\s*["']""", file.read_text()) and file.name != "interpreter.py":
                others.append(str(file.relative_to(ROOT)))
    assert others == []
