"""What an editor or type checker of a user's project finds: types of calls and results, and the keys of scenarios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from scenarios.api.keys import Keys
from scenarios.config.schema import Scenario

ROOT = Path(__file__).parents[2]


def test_the_keys_of_calls_are_those_of_scenarios() -> None:
    assert sorted(get_type_hints(Keys)) == sorted(Scenario.model_fields)


@pytest.mark.parametrize("package", ["coordinator", "costmodel", "edge", "fedbr", "scenarios"])
def test_every_package_says_that_it_has_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.long  # mypy reads the whole product
def test_a_wrong_key_is_an_error_of_types_and_a_run_has_its_own(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import fedbr\n"
        'run = fedbr.run("digits", method="fedavg", train={"lr": 0.05})\n'
        "reveal_type(run)\n"
        'fedbr.run("digits", methd="fedavg")\n'
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    ended = subprocess.run(
        [*command, "--config-file=", str(script)],
        cwd=tmp_path,
        env={"PATH": "", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert 'mine.py:3: note: Revealed type is "scenarios.api.run.Run"' in lines, ended.stdout
    assert any(line.startswith('mine.py:4: error: Unexpected keyword argument "methd"') for line in lines), ended.stdout
    assert not any("mine.py:2:" in line for line in lines), ended.stdout
