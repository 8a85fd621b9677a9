"""One seed, one result: the same model and the same chain for any number of workers, on real worker processes.

What else keeps the machine busy must not matter either, since workers then answer in another order.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run.host import Host
from scenarios.run.runner import run
from tests.ledgers import chain, virtual_rows
from tests.scenarios.runs import never


def finished(launcher: WorkerLauncher, out: Path, workers: int, *overrides: str) -> dict[str, Any]:
    loaded = load("digits", parse_all(["rounds.max=3", "train.local_epochs=1", *overrides]))
    return run(loaded, Host(out, workers, "cpu"), launcher, never, stop_at_target=False)


POLICIES = {
    "sync": ("rounds.participants=6",),
    "over_select": ("rounds.participants=3", "rounds.over_select=2"),
    "deadline": ("rounds.participants=8", "rounds.deadline=350 ms"),
    "fedbuff": ("rounds.participants=6", "rounds.buffer=4"),
    "fedasync": ("rounds.participants=5",),
}
"""All but sync leave some visits in vain."""
BRIEF = ("train.local_steps=2", "fleet.jitter=0.3", "eval.every=2")


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """Other processes take all cores, on and off."""
    spin = "import time\nwhile True:\n    t = time.perf_counter() + 0.02\n    while time.perf_counter() < t: pass\n"
    codes = [f"{spin}    time.sleep({pause})" for pause in (0.0, 0.005, 0.02)]
    others = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        ("sync", "fedbr+scaffold"),
        ("sync", "fedmlb+feddyn"),
        *((policy, "fedbr") for policy in list(POLICIES)[1:]),
        *(pytest.param(policy, "fedavg", marks=pytest.mark.long) for policy in list(POLICIES)[1:]),
    ],
)
def test_the_number_of_workers_and_a_busy_host_change_no_row(
    launcher: WorkerLauncher, tmp_path: Path, policy: str, method: str
) -> None:
    how = (f"method={method}", f"rounds.policy={policy}", *POLICIES[policy], *BRIEF)
    runs = [finished(launcher, tmp_path / str(workers), workers, *how) for workers in (1, 2)]
    with busy_host():
        runs.append(finished(launcher, tmp_path / "busy", 4, *how))
    assert len({run["model_sha256"] for run in runs}) == 1
    folders = [Path(run["run_dir"]) for run in runs]
    assert chain(folders[0]) == chain(folders[1]) == chain(folders[2])
    first, second, third = map(virtual_rows, folders)
    assert first == second == third
    trained = sum("train" in row for row in first["visits"])
    assert len(first["rounds"]) == 3
    assert len(first.get("choices", [])) == (trained if "fedbr" in method else 0)
    assert trained > 6
    assert (len(first["visits"]) > trained) == (policy != "sync")


def test_the_name_of_a_run_changes_no_byte(launcher: WorkerLauncher, tmp_path: Path) -> None:
    loaded = load("digits", parsed(["rounds.max=1"]))
    runs = [
        run(loaded, Host(tmp_path, 2, "cpu", run_id=name), launcher, never, stop_at_target=False)
        for name in ("a", "a-much-longer-name-for-the-same-run")
    ]
    assert runs[0]["bytes_down"] == runs[1]["bytes_down"]
    assert chain(Path(runs[0]["run_dir"])) == chain(Path(runs[1]["run_dir"]))
