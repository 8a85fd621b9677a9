"""A user whom the system does not know, without a home folder: commands say what to set, or do without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STRANGER = 54321
PROGRAM = f"""
import os, sys
# whoever is no longer root may not read the code
from scenarios.cli import listing, main, remote
from scenarios.report import terminal
from scenarios.studies.forecast import check
from scenarios.studies import doctor
os.setgroups([])
os.setuid({STRANGER})
sys.exit(main.run_command(sys.argv[1:]))
"""
NO_HOME = "fedbr: there is no home folder for the cache: set HOME or XDG_CACHE_HOME\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user whom the system does not know")


def as_stranger(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("words", [["doctor"], ["check", "digits"], ["list", "datasets"], ["doctor", "--calibrate"]])
def test_a_command_that_needs_the_cache_says_what_to_set(words: list[str]) -> None:
    ended = as_stranger(*words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", NO_HOME)


def test_a_command_that_needs_no_cache_works() -> None:
    ended = as_stranger("list", "devices")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "raspberry-pi-4" in ended.stdout


@pytest.mark.parametrize(
    ("name", "cache"), [("HOME", "/no/such/.cache/fedbr-edge"), ("XDG_CACHE_HOME", "/no/such/fedbr-edge")]
)
def test_either_variable_is_enough(name: str, cache: str) -> None:
    ended = as_stranger("doctor", **{name: "/no/such"})
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("cache "))
    assert line.split(maxsplit=1)[1].rstrip() == f"{cache}, 0 B"
