"""Runs with differential privacy: one chain for any workers and after kills, empty cohorts, and budgets of epsilon."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.privacy.accounting import epsilon, fixed_cohort
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.run.run_folder import RunFolder
from tests.ledgers import chain
from tests.scenarios.runs import AMONG_UPDATES, killed_and_resumed, run_with

AMONG_SUMS = ("coordinator.rounds.pool_trainer:PoolTrainer.validate", "before", 8)
"""Some updates of the second round have been added up by workers."""

PRIVATE = ("method=fedavg", "privacy.unit=client", "privacy.clip=0.5", "train.local_steps=2", "rounds.max=4")


def epsilons(folder: str | Path) -> list[float]:
    return [row[0] for row in read(Path(folder) / "ledger.sqlite", "SELECT epsilon FROM rounds ORDER BY round")]


@pytest.mark.parametrize(
    "how",
    [
        ("aggregate.sum=fixed_point",),
        ("privacy.unit=example", "train.local_steps=3", "privacy.noise=2"),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                ("privacy.adaptive_clip=true", "privacy.noise=0.3", "rounds.participants=6"),
                ("method=fedavg+feddyn",),
                ("privacy.where=client", "codec.up.kind=quantize"),
                ("privacy.secagg=secagg+", "privacy.noise=0.5"),
                ("method=scaffold", "method_options.lean=true"),
                ("fleet.tiers.count=2", "server=fedadam"),
                ("privacy.where=client", "rounds.policy=fedbuff", "rounds.buffer=3"),
                ("privacy.weight_cap=100", "codec.up.kind=quantize"),
            )
        ),
    ],
    ids=str,
)
def test_a_private_run_has_one_chain_for_any_workers_and_after_a_kill(
    how: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    keys = {word.partition("=")[0] for word in how}
    words = (*(word for word in PRIVATE if word.partition("=")[0] not in keys), *how)
    one, four = (run_with(tmp_path, launcher, workers, *words) for workers in (1, 4))
    again = killed_and_resumed(tmp_path, launcher, AMONG_UPDATES, *words)
    assert chain(Path(one["run_dir"])) == chain(Path(four["run_dir"])) == chain(again)
    spent = epsilons(again)
    assert epsilons(one["run_dir"]) == spent and spent == sorted(spent) and 0 < spent[0] < spent[-1]


def test_the_round_that_would_exceed_the_budget_is_refused_and_the_summary_says_what_was_spent(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    words = ("privacy.noise=4", "privacy.delta=0.01", "rounds.participants=3", "budget.epsilon=2", "rounds.max=40")
    summary = run_with(tmp_path, launcher, 2, *PRIVATE[:-1], *words)
    # Three of ten clients, one of whom is replaced: noise of 4 clips for a sum that changes by two.
    by_hand = [epsilon(rounds * fixed_cohort(2.0, 0.3), 0.01) for rounds in range(1, 9)]
    rounds = sum(each <= 2 for each in by_hand)
    assert (summary["rounds"], summary["stopped_by"]) == (rounds, "epsilon") and 1 < rounds < 8
    assert epsilons(summary["run_dir"]) == by_hand[:rounds]
    assert summary["privacy"] == {
        "epsilon": by_hand[rounds - 1],
        "delta": 0.01,
        "guarantee": "of a client: neighbours have one client replaced; cohorts of 3 of 10 clients without "
        "replacement; delta = 0.01",
        "epsilon_of_clients": {},
    }
    assert [point.epsilon for point in RunFolder(Path(summary["run_dir"])).trail] == by_hand[:rounds]


def test_empty_cohorts_are_rounds_whose_step_is_noise(launcher: WorkerLauncher, tmp_path: Path) -> None:
    words = ("rounds.selection=poisson", "rounds.participants=1", "rounds.max=8", "privacy.clip=0.01")
    summary = run_with(tmp_path, launcher, 2, *PRIVATE[:2], "train.local_steps=1", *words)
    rows = read(
        Path(summary["run_dir"]) / "ledger.sqlite",
        "SELECT participants, end_s - start_s, model_sha256, epsilon FROM rounds ORDER BY round",
    )
    sizes = [row[0] for row in rows]
    assert len(rows) == 8 and 0 in sizes and max(sizes) > 1
    assert all(seconds == 0 for size, seconds, *_ in rows if size == 0)
    assert len({row[2] for row in rows}) == 8  # nobody sees from a model that nobody has taken part
    assert [row[3] for row in rows] == sorted({row[3] for row in rows})


SECURE = ("method=fedavg", "train.local_steps=2", "rounds.max=2", "rounds.participants=6")


@pytest.mark.parametrize(
    "how",
    [
        ("privacy.secagg=secagg+",),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                ("privacy.secagg=secagg",),
                ("privacy.secagg=lightsecagg", "fleet.crashes_per_hour=300"),
                ("privacy.secagg=secagg+", "fleet.tiers.count=2", "privacy.secagg_wire=flower"),
                ("method=fedbr", "privacy.secagg=secagg+"),
            )
        ),
    ],
    ids=str,
)
def test_secure_sums_are_one_chain_for_any_workers_and_after_a_kill(
    how: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    keys = {word.partition("=")[0] for word in how}
    words = (*(word for word in SECURE if word.partition("=")[0] not in keys), *how)
    one, four = (run_with(tmp_path, launcher, workers, *words) for workers in (1, 4))
    again = killed_and_resumed(tmp_path, launcher, AMONG_SUMS, *words)
    assert chain(Path(one["run_dir"])) == chain(Path(four["run_dir"])) == chain(again)
    assert one["visits"]["share"] + one["visits"].get("dropped", 0) >= 2 * 6


def test_local_epsilons_differ_by_how_often_clients_were_visited(launcher: WorkerLauncher, tmp_path: Path) -> None:
    summary = run_with(tmp_path, launcher, 2, *PRIVATE, "privacy.where=client", "rounds.participants=3")
    spent = summary["privacy"]
    of_clients = spent["epsilon_of_clients"]
    assert spent["epsilon"] == of_clients["highest"] > of_clients["median"] >= of_clients["lowest"]
    assert spent["guarantee"].startswith("of a client towards the server: neighbours differ in all data of one client")
