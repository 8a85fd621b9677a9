"""Tests leave no process behind, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SUITE = """
import subprocess, sys, time
from pathlib import Path

def test_waits_for_ever(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path("child").write_text(f"{child.pid}\\n")
    time.sleep(600)
"""


COMMAND = """
import os, sys, time
from tests.warm import _fork_and_wait

told, answers = os.pipe()
if os.fork() == 0:
    os.close(told)
    _fork_and_wait(os.dup(1), os.dup(2), answers)
    time.sleep(600)
os.close(answers)
os.write(1, os.read(told, 64))
sys.stdin.read()
"""


def test_a_forked_command_ends_with_the_process_that_waits_for_it() -> None:
    root = Path(__file__).parents[1]
    words = [sys.executable, "-c", COMMAND]
    with subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        command = psutil.Process(int(waiting.stdout.readline()))
        assert command.is_running()
        waiting.kill()
    command.wait(timeout=60)  # raises if it is still there


def test_what_killed_tests_have_started_is_killed_after_them(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    (tmp_path / "test_waiting.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    conftest = "from tests.remains import kill_at_the_end\n\ndef pytest_configure():\n    kill_at_the_end()\n"
    (tmp_path / "conftest.py").write_text(conftest)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    tests = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    child = tmp_path / "child"
    while not (child.exists() and child.read_text().endswith("\n")):
        assert tests.poll() is None
        time.sleep(0.05)
    process = psutil.Process(int(child.read_text()))
    assert process.is_running()
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    process.wait(timeout=120)  # raises if it is still there
