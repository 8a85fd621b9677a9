"""One seed, one result: the same model and the same chain for any number of workers, on real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger import read
from coordinator.nursery import Nursery
from scenarios.host import Host
from scenarios.load import load
from scenarios.runner import run


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def finished(nursery: Nursery, out: Path, workers: int, *overrides: str) -> dict[str, Any]:
    loaded = load("digits", ["rounds.max=3", "train.local_epochs=1", *overrides])
    return run(loaded, Host(out, workers, "cpu"), nursery, lambda: False, stop_at_target=False)


def chain(summary: dict[str, Any]) -> list[str]:
    rows = read(Path(summary["run_dir"]) / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")
    return [row["chain"] for row in rows]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedmlb", "fedbr"])
def test_the_number_of_workers_changes_nothing(nursery: Nursery, tmp_path: Path, method: str) -> None:
    runs = [finished(nursery, tmp_path / str(workers), workers, f"method={method}") for workers in (1, 2, 4)]

    assert len({run["model_sha256"] for run in runs}) == 1
    assert len({tuple(chain(run)) for run in runs}) == 1
    assert len(chain(runs[0])) == 3
    assert len({run["virtual_seconds"] for run in runs}) == 1


def test_another_seed_changes_model_and_chain(nursery: Nursery, tmp_path: Path) -> None:
    first, second = (finished(nursery, tmp_path / str(seed), 2, f"seed={seed}") for seed in (0, 1))

    assert first["model_sha256"] != second["model_sha256"]
    assert chain(first)[0] != chain(second)[0]


def test_the_name_of_a_run_changes_no_byte(nursery: Nursery, tmp_path: Path) -> None:
    loaded = load("digits", ["rounds.max=1"])
    runs = [
        run(loaded, Host(tmp_path, 2, "cpu", run_id=name), nursery, lambda: False, stop_at_target=False)
        for name in ("a", "a-much-longer-name-for-the-same-run")
    ]

    assert runs[0]["bytes_down"] == runs[1]["bytes_down"]
    assert chain(runs[0]) == chain(runs[1])
