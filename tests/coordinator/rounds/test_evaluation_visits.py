"""Evaluations that are charged: what a visit costs, who is visited, where the budgets end, and who is evaluated.

Clients are a clockwork, as in the tests of policies: download, computing and upload of a training visit take literal
seconds, and a client draws 2 W while it receives, 8 W while it computes, 4 W while it sends and 1 W while it waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.store import evaluations
from coordinator.rounds.budget import BYTES, ROUNDS, SECONDS, Limits, RunLimits
from tests.coordinator.rounds import clockwork
from tests.coordinator.rounds.clockwork import (
    DOWN_NBYTES,
    EVALUATED,
    EVER,
    FORWARD,
    TRAINED,
    UP_NBYTES,
    VALUES_NBYTES,
    evaluation_ends,
    windows,
)
from tests.toy import Run, store


def ran(folder: Path, rounds: int = 1, **how: Any) -> Run:
    evaluation = {"on": "clients", "charged": True, **how.pop("evaluation", {})}
    return clockwork.ran(folder, rounds=rounds, evaluation=evaluation, **how)


def visited(run: Run, round: int = 0) -> str:
    rows = run.rows(
        f"SELECT client, kind FROM visits WHERE round = {round} AND kind IN ('evaluate', 'unscored') ORDER BY visit"
    )
    return ", ".join(f"{client} {kind}" for client, kind in rows)


def accuracies(run: Run, round: int = 0) -> dict[int, float]:
    rows = evaluations(store(run.federation).folder / "ledger.sqlite")
    return {row[1]: row[3] for row in rows if (row[0], row[2]) == (round, "accuracy")}


def test_an_evaluation_visit_by_hand(tmp_path: Path) -> None:
    run = ran(tmp_path)
    columns = "bytes_down, bytes_up, flops, nominal_bytes, nominal_flops, samples, steps, loss, start_s"
    rows = run.rows(f"SELECT {columns} FROM visits WHERE kind = 'evaluate' ORDER BY client")
    # The model goes down as for training; 90 examples run forward.
    assert rows == [(DOWN_NBYTES, VALUES_NBYTES, EVALUATED, 0, 0, 0, 0, None, 16)] * 4
    assert (FORWARD, TRAINED, EVALUATED) == (4608 + 36864 + 18432 + 640, 64 * (3 * FORWARD - 4608), 5_448_960)
    times = run.rows("SELECT down_end_s, compute_end_s, up_end_s FROM visits WHERE kind = 'evaluate' ORDER BY client")
    assert [list(row) for row in times] == [pytest.approx(evaluation_ends(client), rel=1e-12) for client in range(4)]

    end = evaluation_ends(3)[2]
    columns = "start_s, end_s, participants, critical, bytes_down, bytes_up, flops, wasted_bytes"
    (found,) = run.rows(f"SELECT {columns} FROM rounds")
    up = 4 * (UP_NBYTES + VALUES_NBYTES)
    assert found == (0, pytest.approx(end), 4, 3, 8 * DOWN_NBYTES, up, 4 * (TRAINED + EVALUATED), 0)
    received, computed, sent = evaluation_ends(0)
    parts = [end - sent, 8 * (computed - received), 2 * 1, 4 * (sent - computed)]
    query = "SELECT idle_joules, compute_joules, receive_joules, send_joules, joules FROM visits WHERE visit = 4"
    assert [list(row) for row in run.rows(query)] == [pytest.approx([*parts, sum(parts)])]
    spent = run.federation.budget.spent
    assert (spent.bytes, spent.flops) == (8 * DOWN_NBYTES + up, 4 * (TRAINED + EVALUATED))
    transfers = "SELECT SUM(nbytes) FROM transfers WHERE visit = 4 GROUP BY direction ORDER BY direction"
    assert run.rows(transfers) == [(DOWN_NBYTES,), (VALUES_NBYTES,)]
    assert run.rows("SELECT slot, key FROM transfers WHERE visit = 4 AND direction = 'up'") == [("", "header")]


def test_the_next_round_begins_when_the_evaluation_ends_and_only_those_due_are_charged(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=3, eval_every=2)
    assert [visited(run, round) for round in range(3)] == ["", *["0 evaluate, 1 evaluate, 2 evaluate, 3 evaluate"] * 2]
    rounds = run.rows("SELECT start_s, end_s, accuracy IS NULL FROM rounds")
    assert rounds == [(0, 16, 1), (16, rounds[2][0], 0), (rounds[2][0], rounds[2][1], 0)]
    assert rounds[1][1] == pytest.approx(evaluation_ends(3, 32.0)[2])
    # Numbers of visits go on: four a round, and four for each evaluation.
    assert run.rows("SELECT COUNT(*), MAX(visit) FROM visits") == [(20, 19)]


def test_models_and_values_are_those_of_an_evaluation_that_costs_nothing(tmp_path: Path) -> None:
    charged, free = ran(tmp_path / "a", rounds=2), ran(tmp_path / "b", rounds=2, evaluation={"charged": False})
    query = "SELECT accuracy, test_loss, train_loss, model_sha256 FROM rounds"
    assert charged.rows(query) == free.rows(query)
    assert free.rows("SELECT end_s, bytes_down FROM rounds") == [(16, 4 * DOWN_NBYTES), (32, 4 * DOWN_NBYTES)]
    assert accuracies(charged, 1) == accuracies(free, 1)
    history = [run.federation.selection.history for run in (charged, free)]
    assert history[0].visits.tolist() == history[1].visits.tolist() == [2, 2, 2, 2]


def test_clients_that_are_away_are_not_visited_and_those_that_leave_not_evaluated(tmp_path: Path) -> None:
    # At 16 s client 2 has left; client 1 leaves while half of the model is there.
    run = ran(tmp_path, behaviour=windows([EVER], [(0, 16.5)], [(0, 10)], [EVER]))
    assert visited(run) == "0 evaluate, 1 unscored, 3 evaluate"
    found = accuracies(run)
    assert list(found) == [0, 3]
    assert run.rows("SELECT accuracy, participants FROM rounds") == [(np.mean(list(found.values())), 4)]
    query = (
        "SELECT bytes_down, bytes_up, flops, joules, receive_joules, up_end_s, down_payload FROM visits "
        "WHERE kind = 'unscored'"
    )
    assert run.rows(query) == [(DOWN_NBYTES // 2, 0, 0, 1, 1, 16.5, "")]
    assert run.rows("SELECT wasted_bytes, wasted_s, wasted_joules FROM rounds") == [(DOWN_NBYTES // 2, 0.5, 1)]


def test_virtual_seconds_cut_an_evaluation(tmp_path: Path) -> None:
    # Clients 0 and 1 have answered after 17.53 and 17.99 s.
    run = ran(tmp_path / "within", rounds=9, limits=RunLimits(virtual_seconds=18.0))
    assert (run.stopped_by, visited(run)) == (SECONDS, "0 evaluate, 1 evaluate, 2 unscored, 3 unscored")
    assert run.rows("SELECT end_s, participants FROM rounds") == [(18, 4)]
    assert list(accuracies(run)) == [0, 1]
    # No second is left for an evaluation, neither after a round nor after one that is cut.
    over = ran(tmp_path / "over", rounds=9, limits=RunLimits(virtual_seconds=16.0))
    assert (over.stopped_by, over.rows("SELECT end_s, accuracy FROM rounds")) == (SECONDS, [(16, None)])
    cut = ran(tmp_path / "cut", rounds=9, limits=RunLimits(virtual_seconds=20.0), eval_every=5)
    assert cut.rows("SELECT end_s, participants, accuracy FROM rounds") == [(16, 4, None), (20, 0, None)]


def test_a_visit_that_the_budgets_cannot_pay_for_is_not_made(tmp_path: Path) -> None:
    training, evaluation = 4 * (DOWN_NBYTES + UP_NBYTES), DOWN_NBYTES + VALUES_NBYTES
    run = ran(tmp_path / "bytes", rounds=2, limits=RunLimits(bytes=training + 3 * evaluation - 1))
    assert (run.stopped_by, visited(run)) == (BYTES, "0 evaluate, 1 evaluate")
    assert run.federation.budget.spent.bytes == training + 2 * evaluation
    # Each client's own budget: 30, 34, 44 and 72 J for training, and at least 10.6 J for an evaluation.
    run = ran(tmp_path / "client", limits=RunLimits(client=Limits(joules=73.0)))
    assert (run.stopped_by, visited(run)) == (ROUNDS, "0 evaluate, 1 evaluate, 2 evaluate")
