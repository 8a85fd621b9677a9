"""Evaluation of the global model, of each client's, and of both: which examples, which values, and no virtual cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, resolve
from coordinator.records.schema import EvaluationRow
from coordinator.records.store import evaluations
from coordinator.rounds.evaluation import NO_ROUND, EvaluationScope, result
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import CORRECT, CROSS_ENTROPY, GLOBAL, EvaluatedQuantity, Score
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.toy import Run, play, state_file

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
OWN = "tests.plugins.gradient_norm:GRADIENT_NORM"
Key = tuple[int, int, str]


def played(folder: Path, method: str = "fedavg", rounds: int = 2, /, **evaluation: Any) -> Run:
    partition, held_out = PartitionConfig("dirichlet", alpha=0.3), evaluation.pop("held_out", 0.0)
    return play(
        folder, method, rounds=rounds, train=BRIEF, partition=partition, validation=held_out, evaluation=evaluation
    )


def values(folder: Path) -> dict[Key, float]:
    """(round, client, name of the quantity) -> value."""
    rows = map(EvaluationRow._make, evaluations(folder / "ledger.sqlite"))
    return {(row.round, row.client, row.quantity.name): row.value for row in rows if row.value is not None}


def of(metric: str, found: Mapping[Key, float], round: int) -> list[float]:
    return [found[key] for key in found if (key[0], key[2]) == (round, metric) and key[1] != GLOBAL]


def score(client: int, start: int, correct: int, count: int, loss: float, **more: tuple[float, int]) -> Score:
    further = {EvaluatedQuantity(name): sums for name, sums in more.items()}
    return Score(start, client, {CORRECT: (correct, count), CROSS_ENTROPY: (loss, count), **further})


row = partial(EvaluationRow, NO_ROUND)
SCORES = (
    *(score(GLOBAL, 0, 3, 4, 1.0, odd=(5.0, 2)), score(GLOBAL, 4, 1, 4, 3.0)),
    *(score(0, 0, 1, 2, 1.0), score(2, 0, 4, 4, float("inf"), odd=(0.0, 0))),
)


def test_values_of_global_and_clients_by_hand() -> None:
    found = result(SCORES, EvaluationScope("both", "global", keeps_values=True))
    assert (found.accuracy, found.loss) == (4 / 8, 4.0 / 8)
    assert found.values == (
        row(GLOBAL, "odd", 2.5, 2),
        *(row(0, "accuracy", 0.5, 2), row(0, "loss", 0.5, 2)),
        *(row(2, "accuracy", 1.0, 4), row(2, "loss", None, 4)),
    )
    by_clients = result(SCORES, EvaluationScope("both", "clients", keeps_values=True))
    assert (by_clients.accuracy, by_clients.loss) == (0.75, float("inf"))
    assert by_clients.values[:3] == (
        *(row(GLOBAL, "accuracy", 0.5, 8), row(GLOBAL, "loss", 0.5, 8), row(GLOBAL, "odd", 2.5, 2)),
    )
    assert result(SCORES, EvaluationScope("both", "clients")).values == ()


def test_no_virtual_fact_depends_on_what_is_evaluated(tmp_path: Path) -> None:
    plain, all_of_it = (
        virtual_rows(folder)
        for folder, evaluation in (
            (tmp_path / "plain", {}),
            (tmp_path / "all", {"on": "both", "metrics": ("class-accuracy", OWN), "adapt": {"epochs": 1}}),
        )
        if played(folder, "fedmlb+scaffold", **evaluation)
    )
    assert "evaluations" not in plain
    rows = all_of_it.pop("evaluations")
    assert {row[1] for row in rows} == {-1, 0, 1, 2, 3}
    chains = [[row[-2] for row in tables["rounds"]] for tables in (plain, all_of_it)]
    assert chains[0] != chains[1]  # the table is in the chain
    for tables in (plain, all_of_it):
        tables["rounds"] = [(*row[:-2], row[-1]) for row in tables["rounds"]]
    assert plain == all_of_it


@pytest.mark.parametrize("method", every(8, (*OBJECTIVES, *(f"fedavg+{name}" for name in CORRECTIONS))))
def test_every_method_can_be_evaluated_on_clients_after_an_adaptation(tmp_path: Path, method: str) -> None:
    is_global = resolve(method).objective.evaluation.on == "global"
    run = played(tmp_path, method, on="both" if is_global else "clients", adapt={"epochs": 1, "lr": 0.05})
    found = values(tmp_path)
    assert [key[:2] for key in found if key[2] == "loss"] == [(n, client) for n in (0, 1) for client in range(4)]
    plain = played(tmp_path / "plain", method)
    of_global = "accuracy, test_loss, " if is_global else ""  # those of adapted clients differ
    rounds = f"SELECT {of_global}bytes_down, bytes_up, flops, end_s, model_sha256 FROM rounds"
    assert run.rows(rounds) == plain.rows(rounds)


# --- adaptation -------------------------------------------------------------------------------------------------------


def test_one_evaluation_has_the_values_of_three_that_measure_them_one_by_one(tmp_path: Path) -> None:
    how: dict[str, Any] = {"on": "both", "held_out": 0.2}
    once = {"epochs": 1}
    every = played(tmp_path / "all", "fedbr", 1, **how, select="validation", adapt={**once, "before": True})
    found = {key: value for key, value in values(tmp_path / "all").items() if key[1] != GLOBAL}
    for name, prefix, alone in (
        ("after", "", {"adapt": once}),
        ("before", "before/", {}),
        ("validation", "validation/", {"adapt": once, "split": "validation"}),
    ):
        played(tmp_path / name, "fedbr", 1, **how, **alone)
        for metric in ("accuracy", "loss"):
            expected = of(metric, values(tmp_path / name), 0)
            assert of(f"{prefix}{metric}", found, 0) == expected, name
            assert len(expected) == 4
    assert [key[2] for key in found if key[:2] == (0, 3)] == [
        *("accuracy", "loss", "before/accuracy", "before/loss", "validation/accuracy", "validation/loss")
    ]
    site = every.workers.site
    rows = map(EvaluationRow._make, evaluations(tmp_path / "all" / "ledger.sqlite"))
    counts = {row.quantity.name: row.count for row in rows if row[:2] == (0, 3)}
    tested, held = len(site.client_indices.test[3]), len(site.client_indices.validation[3])
    assert [counts[f"{group}accuracy"] for group in ("", "before/", "validation/")] == [tested, tested, held]


def test_adapting_a_copy_changes_neither_server_nor_client_state(tmp_path: Path) -> None:
    plain, adapted = (
        played(tmp_path / str(epochs), "scaffold", on="clients", adapt={"epochs": epochs}).federation
        for epochs in (0, 3)
    )
    states = [[Path(str(state_file(run, client))).read_bytes() for client in range(4)] for run in (plain, adapted)]
    assert states[0] == states[1]
    for key, vector in plain.server.model.items():
        assert vector.data.tobytes() == adapted.server.model[key].data.tobytes()
    assert plain.server.state().keys() == adapted.server.state().keys()
    assert all(np.array_equal(array, adapted.server.state()[name]) for name, array in plain.server.state().items())
