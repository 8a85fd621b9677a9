"""``fedbr replay --measure``: the models of a checkpoint, and the local models of the visits that follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import ScenarioError
from scenarios.config.overrides import parse_all
from scenarios.run.host import Host
from scenarios.studies import measure
from tests.scenarios.in_this_process import pool_in_this_process, run
from tests.scenarios.runs import opened

__all__ = ["pool_in_this_process"]
OPTIONS = "eval.metric_options."
BRIEF = [f"{OPTIONS}hessian.{key}" for key in ("examples=20", "batch=20", "iterations=2", "probes=2")]
SMALL = ("model.width=4", "rounds.max=2", "checkpoints.keep=every:1")
ALONE = (*SMALL, "data.clients=1", "rounds.participants=1")


def measured(
    folder: Path, metrics: str = "accuracy", *overrides: str, round: int | None = None, clients: str | None = None
) -> measure.MeasuredModels:
    loaded, device = opened(folder)
    asked = measure.plan(loaded, folder, metrics, parse_all(overrides), round, clients)
    told: list[tuple[int, int]] = []
    found = measure.measure(
        asked, folder, Host(Path(), 1, device), WorkerLauncher(), lambda: False, lambda *done: told.append(done)
    )
    assert told[-1][0] == told[-1][1] == len(told)
    return found


@pytest.mark.parametrize("how", [("method=fedavg",), ("method=fedprox+scaffold",), ("rounds.policy=fedasync",)])
def test_the_local_model_of_a_lone_client_is_the_next_global_model(tmp_path: Path, how: tuple[str, ...]) -> None:
    mixing = ("rounds.mixing=1",) if "fedasync" in how[0] else ()
    folder = run(tmp_path, *ALONE, *how, *mixing)
    ledger = (folder / "ledger.sqlite").read_bytes()
    first, last = measured(folder, round=1), measured(folder, clients="none")
    assert (first.round, first.clients, last.round, last.by_client) == (1, "local", 2, {})
    # The server of fedasync adds the difference of both models.
    assert first.by_client["0"] == pytest.approx(last.models["global"], rel=1e-8 if mixing else 0, abs=0)
    assert first.models["global"] != last.models["global"]
    losses = [row["test_loss"] for row in read(folder / "ledger.sqlite", "SELECT test_loss FROM rounds ORDER BY round")]
    assert [found.models["global"]["loss"] for found in (first, last)] == losses[:2]
    assert (folder / "ledger.sqlite").read_bytes() == ledger


def test_hessians_of_a_checkpoint_are_those_of_the_runs_evaluation(tmp_path: Path) -> None:
    wanted = ('eval.metrics=["hessian"]', *BRIEF, "data.clients=2", "rounds.participants=2")
    folder = run(tmp_path, *SMALL, *wanted)
    meta = read(folder / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")[0]["value"]
    values = json.loads(meta)["evaluation"]["values"]
    found = measured(folder, "hessian", "eval.metric_options.hessian.pairs=distinct")
    assert {name: found.models["global"][name] for name in values} == values
    assert (found.over_clients["hessian/H_N"] or 0) > 0
    assert -1 <= (found.over_clients["hessian/H_D"] or 0) < 1, "local models differ"
    again = measured(folder, "hessian", "eval.metric_options.hessian.diag=per_parameter", clients="evaluated")
    assert again.over_clients == {"hessian/H_N": 0.0, "hessian/H_D": pytest.approx(1)}, "the global model's"


def test_personalised_models_are_measured_with_their_states(tmp_path: Path) -> None:
    folder = run(tmp_path, *SMALL, "method=fedper", "data.clients=3", "rounds.participants=3")
    found = measured(folder, round=1)
    rows = read(folder / "ledger.sqlite", "SELECT accuracy FROM rounds ORDER BY round")
    assert (found.clients, found.models) == ("evaluated", {})
    mean = sum(values["accuracy"] or 0 for values in found.by_client.values()) / 3
    assert mean == pytest.approx(rows[0]["accuracy"])


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds with the checkpoint of the first, and the two that every run keeps."""
    settings = ("model.width=4", "rounds.max=4", "checkpoints.keep=[1]", "data.clients=2", "rounds.participants=1")
    return run(tmp_path_factory.mktemp("sparse"), *settings)


@pytest.mark.parametrize(
    ("metrics", "override", "words", "message"),
    [
        ("hessian", "", {"round": 2}, "--round 2: checkpoints are kept of the rounds 1, 3, 4; "),
        ("hesian", "", {}, "--measure: no metric 'hesian'; did you mean 'hessian'?"),
        ("hessian", "", {"clients": "all"}, "--clients all: must be local, evaluated or none"),
        ("hessian", "train.lr=1", {}, "train.lr: only options of metrics can be set"),
        ("hessian", f"{OPTIONS}loss.a=1", {}, f"{OPTIONS}loss.a: no metric of --measure hessian has options of that"),
        ("hessian", f"{OPTIONS}hessian.probes=0", {}, f"{OPTIONS}hessian.probes = 0: "),
    ],
)
def test_what_cannot_be_measured_is_refused(
    sparse: Path, metrics: str, override: str, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        measured(sparse, metrics, *filter(None, [override]), **words)
    assert str(caught.value).startswith(message)
