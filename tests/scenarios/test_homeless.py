"""A user whom the system does not know, without a home folder: commands say what to set, or do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

STRANGER = 54321
PROGRAM = f"""
import json, os, sys, tempfile
# whoever is no longer root may not read the code
from scenarios.api import listing
from scenarios.cli import main, remote
from scenarios.report import terminal
from scenarios.studies.forecast import check
from scenarios.studies import doctor
endings = []
for words, environment in json.loads(sys.argv[1]):  # a process for each, which is forked: the imports take seconds
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            os.setgroups([])
            os.setuid({STRANGER})
            sys.exit(main.run_command(words))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        errors.seek(0)
        endings.append([code, output.read(), errors.read()])
print(json.dumps(endings))
"""
NO_HOME = "fedbr: there is no home folder for the cache: set HOME or XDG_CACHE_HOME\n"
Ending = tuple[int, str, str]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user whom the system does not know")


def as_stranger(*commands: tuple[str, dict[str, str]]) -> list[Ending]:
    """(exit code, stdout, stderr) of each command line, with these variables alone."""
    asked = json.dumps([(words.split(), environment) for words, environment in commands])
    ended = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=True, env={})
    return [(code, output, errors) for code, output, errors in json.loads(ended.stdout)]


def test_commands_that_need_the_cache_say_what_to_set_and_others_work() -> None:
    *without, listed = as_stranger(
        *((words, {}) for words in ("check", "check digits", "list datasets", "check --calibrate", "list devices"))
    )
    assert without == [(2, "", NO_HOME)] * 4
    assert (listed[0], listed[2]) == (0, "")
    assert "raspberry-pi-4" in listed[1]
