"""One seed, one result: the same model and the same chain for any number of workers, on real worker processes.

What else keeps the machine busy must not matter either, since workers then answer in another order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver
from scenarios.run.runner import run
from tests.ledgers import chain, virtual_rows
from tests.scenarios.runs import never


def finished(launcher: WorkerLauncher, out: Path, workers: int, *overrides: str) -> dict[str, Any]:
    loaded = load("digits", parse_all(["rounds.max=3", "train.local_epochs=1", *overrides]))
    return dict(run(loaded, Host(out, workers, "cpu"), launcher, never, stop_at_target=False))


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
        ("fedbuff", "fedbr"),
        *(
            pytest.param(policy, method, marks=pytest.mark.long)
            for policy, method in (("sync", "fedmlb+feddyn"), *product(list(POLICIES)[1:], ("fedbr", "fedavg")))
            if (policy, method) != ("fedbuff", "fedbr")
        ),
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


class Killer(RunObserver):
    """Kills a worker once a round is committed, while the next one is being trained."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self.killed = 0

    def on_event(self, event: HostEvent) -> None:
        if event.kind == "worker_started":
            self._pids.append(int(event.detail.removeprefix("pid ")))

    def on_round(self, progress: RoundFinished) -> bool:
        if not self.killed:
            os.kill(self._pids[0], signal.SIGKILL)
            self.killed += 1
        return False


CAMPUS = (
    *(
        "data.name=digits",
        "model.name=digits-cnn",
        "rounds.participants=10",
        "rounds.max=5",
        "stop.target_accuracy=1.0",
    ),
    *("fleet.gateways={}", "fleet.tiers.count=4", "tiers.interval=2", "eval.aggregators=true", *BRIEF[:2]),
)


@pytest.mark.parametrize(
    "how",
    [
        ("fleet.tiers.above.count=2",),
        *(
            pytest.param((each,), marks=pytest.mark.long)
            for each in ("method=fedavg+scaffold", "aggregate.sum=fixed_point")
        ),
    ],
    ids=str,
)
def test_a_campus_with_aggregators_has_one_chain_for_any_workers_one_of_which_is_killed(
    how: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    loaded, killer = load("campus", parse_all([*CAMPUS, *how])), Killer()
    folders = [
        Path(run(loaded, Host(tmp_path / str(n), n, "cpu", observers=observers), launcher, never, True)["run_dir"])
        for n, observers in ((1, ()), (4, ()), (2, (killer,)))
    ]
    assert killer.killed == 1
    assert chain(folders[0]) == chain(folders[1]) == chain(folders[2])
    tables = virtual_rows(folders[0])
    assert {row[1] for row in tables["aggregators"]} == ({0, 1} if "above" in how[0] else {0})
    assert len(tables["rounds"]) == 5
