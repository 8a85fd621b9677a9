"""What commands print and write, output by output, as it was when it was last looked at.

It takes four minutes of CPU time, so `make golden` asks for it. A change that is meant is taken over by ``make
golden-write``, and its difference is part of the commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge.runtime.numerics import lacking
from tests.scenarios.golden_commands import GOLDEN

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("FEDBR_GOLDEN" not in os.environ, reason="make golden compares the outputs of commands"),
    pytest.mark.skipif(bool(lacking()), reason=f"needs an x86-64 processor with AVX2 and FMA: {lacking()}"),
]
NAMES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of this tree."""
    folder = tmp_path_factory.mktemp("golden")
    command = [sys.executable, "-m", "tests.scenarios.golden_commands", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_same_outputs_are_written(now: Path) -> None:
    assert sorted(path.name for path in now.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_output_is_as_it_was(name: str, now: Path) -> None:
    assert (now / name).read_text(encoding="utf-8") == (GOLDEN / name).read_text(encoding="utf-8")
