"""Numbers that a method logs on both sides: in the ledger, in reports, and without an effect on any result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import logged, read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder
from tests.crossed import every
from tests.observers import Listener
from tests.scenarios.runs import QUICK, never

TALKING = "method=tests.plugins.talking:SPEC+tests.plugins.talking:CORRECTION"
SHAPE = ("data.clients=4", "rounds.participants=3", "rounds.max=4", "stop.target_accuracy=1.0", "train.local_steps=2")


def made(out: Path, launcher: WorkerLauncher, name: str, *overrides: str, workers: int = 1, rounds: int = 4) -> Path:
    """A run, stopped after so many rounds and then resumed if there are more."""
    loaded, done = load("digits", parse_all([*QUICK, TALKING, *SHAPE, *overrides])), 0

    def count(_: Any) -> None:
        nonlocal done
        done += 1

    host = Host(out, workers, "cpu", name, [Listener(on_round=count)])
    folder = Path(runner.run(loaded, host, launcher, lambda: done >= rounds < 4, True)["run_dir"])
    if rounds < 4:
        with RunFolder(folder).open_scenario("auto", allow_code=True) as (stored, device):
            runner.resume(stored, Host(out, workers, device), folder, launcher, never)
    return folder


Once = Callable[..., Path]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, launcher: WorkerLauncher) -> Once:
    """`made` with these overrides on one worker, for tests that only read it."""
    return functools.cache(lambda *overrides: made(tmp_path_factory.mktemp("once"), launcher, "aa", *overrides))


def rows(run: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in logged(run / "ledger.sqlite")]


def column(run: Path, query: str) -> list[Any]:
    return [row[0] for row in read(run / "ledger.sqlite", query)]


@pytest.mark.parametrize("policy", every(2, ["sync", "fedbuff"]))
def test_the_same_numbers_are_logged_by_any_workers_and_after_a_stop(
    policy: str, tmp_path: Path, launcher: WorkerLauncher, once: Once
) -> None:
    first = once() if policy == "sync" else made(tmp_path, launcher, "one", f"rounds.policy={policy}")
    found = rows(first)
    assert found == rows(made(tmp_path, launcher, "three", f"rounds.policy={policy}", workers=3))
    assert found == rows(made(tmp_path, launcher, "cut", f"rounds.policy={policy}", workers=2, rounds=2))
    assert {round for round, *_ in found} == {0, 1, 2, 3}


def test_each_visit_and_each_step_log_what_they_say(once: Once) -> None:
    run = once()
    found = rows(run)
    clients = column(run, "SELECT client FROM visits WHERE round = 1 ORDER BY visit")
    of_round = [row[1:] for row in found if row[0] == 1]
    # the floats that the server chose came down as they were: 0.1 / (1 + client + round)
    assert [(client, value) for client, name, value in of_round if name == "mu"] == [
        (client, 0.1 / (2 + client)) for client in clients
    ]
    assert [value for _, name, value in of_round if name == "client-number"] == clients
    assert [(client, value) for client, name, value in of_round if name in ("unknown", "first")] == [
        *((0, None) for client in clients if client == 0),
        (None, None),
    ]
    assert (None, "extension.blocks", 4.0) in of_round
