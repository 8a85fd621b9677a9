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

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.host import Host
from scenarios.runner import run
from tests.ledgers import virtual_rows


@pytest.fixture(scope="module")
def launcher() -> Iterator[WorkerLauncher]:
    with WorkerLauncher() as launcher:
        yield launcher


def finished(launcher: WorkerLauncher, out: Path, workers: int, *overrides: str) -> dict[str, Any]:
    loaded = load("digits", ["rounds.max=3", "train.local_epochs=1", *overrides])
    return run(loaded, Host(out, workers, "cpu"), launcher, lambda: False, stop_at_target=False)


def chain(summary: dict[str, Any]) -> list[str]:
    rows = read(Path(summary["run_dir"]) / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")
    return [row["chain"] for row in rows]


@pytest.mark.parametrize(
    "how",
    [
        ("method=fedavg",),
        ("method=fedprox",),
        ("method=fedmlb",),
        ("method=fedbr",),
        ("method=feddyn",),
        ("method=fedbr+scaffold", "server=fedadam"),
    ],
    ids=" ".join,
)
def test_the_number_of_workers_changes_nothing(launcher: WorkerLauncher, tmp_path: Path, how: tuple[str, ...]) -> None:
    runs = [finished(launcher, tmp_path / str(workers), workers, *how) for workers in (1, 2, 4)]

    assert len({run["model_sha256"] for run in runs}) == 1
    assert len({tuple(chain(run)) for run in runs}) == 1
    assert len(chain(runs[0])) == 3
    assert len({run["virtual_seconds"] for run in runs}) == 1


# --- every policy -----------------------------------------------------------------------------------------------------

POLICIES = {
    "over_select": ("rounds.participants=3", "rounds.over_select=2"),
    "deadline": ("rounds.participants=8", "rounds.deadline=0.35"),
    "fedbuff": ("rounds.participants=6", "rounds.buffer=4"),
    "fedasync": ("rounds.participants=5",),
}
"""Each leaves some visits in vain. Brief enough to be trained in a moment."""
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


@pytest.mark.parametrize("method", ["fedavg", "fedbr"])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_gives_the_same_rows_for_any_number_of_workers(
    launcher: WorkerLauncher, tmp_path: Path, policy: str, method: str
) -> None:
    how = (f"method={method}", f"rounds.policy={policy}", *POLICIES[policy], *BRIEF)
    runs = [finished(launcher, tmp_path / str(workers), workers, *how) for workers in (1, 2)]
    with busy_host():
        runs.append(finished(launcher, tmp_path / "busy", 4, *how))

    assert len({run["model_sha256"] for run in runs}) == 1
    assert chain(runs[0]) == chain(runs[1]) == chain(runs[2])
    first, second, third = (virtual_rows(Path(run["run_dir"])) for run in runs)
    assert first == second == third
    assert len(first["rounds"]) == 3
    assert len(first.get("choices", [])) == (0 if method == "fedavg" else len(trained(first)))
    assert len(first["visits"]) > len(trained(first)) > 6


def trained(rows: dict[str, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return [row for row in rows["visits"] if "train" in row]


def test_another_seed_changes_model_and_chain(launcher: WorkerLauncher, tmp_path: Path) -> None:
    first, second = (finished(launcher, tmp_path / str(seed), 2, f"seed={seed}") for seed in (0, 1))

    assert first["model_sha256"] != second["model_sha256"]
    assert chain(first)[0] != chain(second)[0]


def test_the_name_of_a_run_changes_no_byte(launcher: WorkerLauncher, tmp_path: Path) -> None:
    loaded = load("digits", ["rounds.max=1"])
    runs = [
        run(loaded, Host(tmp_path, 2, "cpu", run_id=name), launcher, lambda: False, stop_at_target=False)
        for name in ("a", "a-much-longer-name-for-the-same-run")
    ]

    assert runs[0]["bytes_down"] == runs[1]["bytes_down"]
    assert chain(runs[0]) == chain(runs[1])
