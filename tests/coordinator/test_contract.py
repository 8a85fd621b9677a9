"""What every method must keep to, whatever it does: one table of settings, one set of tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.federation import Progress, RunFailed, file_sha256
from coordinator.methods import CORRECTIONS, OBJECTIVES, resolve
from coordinator.rounds import synchronous
from coordinator.tasks import Heard, Order, PoolTask, Workers
from edge import messages
from edge.config import PartitionConfig, TrainConfig
from edge.payload import Vector
from tests.toy import Run, federation, play

IID = PartitionConfig("iid")
BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3, momentum=0.5, weight_decay=1e-3, clip=1.0)
THOROUGH = TrainConfig(lr=0.1, batch=16, local_epochs=2, momentum=0.5, clip=10.0)


@dataclass(frozen=True)
class Case:
    """One method, as it is neutral and as it is used."""

    name: str
    neutral: dict[str, Any] = field(default_factory=dict)
    """Options that make it FedAvg."""
    real: dict[str, Any] = field(default_factory=dict)
    weights: str = "size"
    """How the FedAvg that it equals weighs replies."""


NO_TERMS = {"lambda1": 0, "lambda2": 0}
CASES = [
    Case("fedavg"),
    Case("fedprox", {"mu": 0}, {"mu": 0.1}),
    Case("fedmlb", NO_TERMS),
    Case("fedbr", {**NO_TERMS, "period": 0}, weights="uniform"),
    Case("fedavg-kd", {"weight": 0}),
    Case("fedavg-fitnet", {"weight": 0}),
    Case("fedntd", {"ce_weight": 1, "weight": 0}),
    Case("fedgkd", {"weight": 0}),
    # All make as many steps here, which is what makes it neutral.
    Case("fednova", {}, {"effective_steps": "steps"}),
    Case("fednova+fedprox", {"mu": 0}, {"mu": 0.1}),
    Case("fedmlb+fedprox", {**NO_TERMS, "mu": 0}, {"mu": 0.01}),
    Case("fedavg-kd+fedprox", {"weight": 0, "mu": 0}, {"mu": 0.01}),
    Case("fedbr+fedprox", {**NO_TERMS, "period": 0, "mu": 0}, {"mu": 0.01}, weights="uniform"),
]
each_method = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_but_fedavg = pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)

Played = Callable[..., Run]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """`play`, but each setting once for all tests here."""
    runs: dict[str, Run] = {}

    def run(method: str, **how: Any) -> Run:
        key = repr((method, sorted(how.items())))
        if key not in runs:
            runs[key] = play(tmp_path_factory.mktemp("run"), method, **how)
        return runs[key]

    return run


def test_every_method_is_in_the_table() -> None:
    assert {part for case in CASES for part in case.name.split("+")} == {*OBJECTIVES, *CORRECTIONS}


@each_but_fedavg
def test_its_neutral_setting_is_fedavg_to_the_bit(case: Case, once: Played) -> None:
    fedavg = once("fedavg", train=BRIEF, weights=case.weights)
    assert np.array_equal(once(case.name, train=BRIEF, **case.neutral).model, fedavg.model)


@each_but_fedavg
def test_a_real_setting_is_not(case: Case, once: Played) -> None:
    fedavg = once("fedavg", train=BRIEF, weights=case.weights)
    assert np.abs(once(case.name, train=BRIEF, **case.real).model - fedavg.model).max() > 1e-5


@each_method
def test_it_learns_to_read_digits(case: Case, once: Played) -> None:
    run = once(case.name, train=THOROUGH, partition=IID, clients=3, rounds=7, **case.real)
    assert max(accuracy for (accuracy,) in run.rows("SELECT accuracy FROM rounds")) >= 0.9


@each_method
def test_what_travels_is_what_is_charged(case: Case, once: Played) -> None:
    run = once(case.name, train=BRIEF, **case.real)
    sent = [(run.workers.bytes_down, run.workers.bytes_up)]
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM rounds") == sent
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM visits") == sent
    by_direction = "SELECT SUM(nbytes) FROM transfers WHERE direction = "
    assert [run.rows(by_direction + "'down'")[0] + run.rows(by_direction + "'up'")[0]] == sent
    committed = run.federation.committed
    assert (committed.bytes_down, committed.bytes_up) == sent[0]


@each_method
def test_a_client_that_is_absent_keeps_what_it_had(case: Case, tmp_path: Path) -> None:
    files: list[dict[int, tuple[str, str]]] = []

    def look(progress: Progress) -> None:
        names = federated.states.items()
        files.append({client: (name, file_sha256(tmp_path / "state" / name)) for client, name in names})

    federated = federation(
        tmp_path, case.name, participants=2, rounds=4, train=BRIEF, partition=IID, on_round=look, **case.real
    )
    run = Run(federated, synchronous(federated))
    federated.ledger.close()
    took_part = run.rows("SELECT round, client FROM visits")
    for round in range(1, 4):
        for client, kept in files[round - 1].items():
            assert (files[round][client] == kept) == ((round, client) not in took_part)
    keeps = "fedbr" in case.name
    assert sorted(files[-1]) == (sorted({client for _, client in took_part}) if keeps else [])
    # What the last checkpoint needs is there, and what the one before it needs.
    needed = {name for after in files[-2:] for name, _ in after.values()}
    assert {path.name for path in (tmp_path / "state").glob("*")} == needed


@each_method
def test_replies_in_any_order_give_the_same_model_and_the_same_chain(case: Case, once: Played) -> None:
    ordered = once(case.name, train=BRIEF, **case.real)
    for shuffle in (1, 2):
        shuffled = once(case.name, train=BRIEF, shuffle=shuffle, **case.real)
        assert shuffled.workers.trained != ordered.workers.trained
        assert shuffled.federation.model_sha256() == ordered.federation.model_sha256()
        assert shuffled.federation.ledger.chain == ordered.federation.ledger.chain


@each_method
def test_another_seed_gives_another_model(case: Case, once: Played) -> None:
    ordered, other = once(case.name, train=BRIEF, **case.real), once(case.name, train=BRIEF, seed=1, **case.real)
    assert ordered.federation.model_sha256() != other.federation.model_sha256()


# --- what a reply must be ---------------------------------------------------------------------------------------------


class Spoilt:
    """Workers whose replies are changed on the way."""

    def __init__(self, workers: Workers, change: Callable[[messages.Update], messages.Update]) -> None:
        self.workers, self.change = workers, change

    size = 1

    def submit(self, tasks: Sequence[PoolTask], heard: Heard) -> Order:
        def spoil(task: Any, reply: Any) -> None:
            heard(task, self.change(reply) if isinstance(reply, messages.Update) else reply)

        return self.workers.submit(tasks, spoil)


def refused(folder: Path, change: Callable[[messages.Update], messages.Update]) -> str:
    run = federation(folder, train=BRIEF)
    run.workers = Spoilt(run.workers, change)
    try:
        with pytest.raises(RunFailed) as failure:
            synchronous(run)
    finally:
        run.ledger.close()
    return str(failure.value)


def test_a_reply_that_is_not_finite_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def diverge(reply: messages.Update) -> messages.Update:
        head = reply.payload["model"]["head"].data.copy()
        head[3] = np.nan
        return with_vector(reply, "head", head)

    assert "client 0, round 0: model/head is not finite (training diverged?)" in refused(tmp_path, diverge)


def test_a_reply_of_another_shape_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def cut(reply: messages.Update) -> messages.Update:
        return with_vector(reply, "head", reply.payload["model"]["head"].data[:-1])

    assert "client 0, round 0: shapes" in refused(tmp_path, cut)


def test_a_method_whose_row_foresees_other_flops_is_found_out(tmp_path: Path) -> None:
    def overcharge(reply: messages.Update) -> messages.Update:
        return messages.Update(reply.client, reply.round, {**reply.numbers, "flops": 1.0}, reply.payload)

    assert "executed 1 FLOPs, but the row of fedavg foresees" in refused(tmp_path, overcharge)


def with_vector(reply: messages.Update, key: str, numbers: Any) -> messages.Update:
    model = {**reply.payload["model"], key: Vector(numbers)}
    return messages.Update(reply.client, reply.round, reply.numbers, {"model": model})


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_join_an_objective_with_corrections() -> None:
    assert resolve("fedprox").objective.name == "fedavg"
    joined = resolve("fedbr + fedprox")
    assert (joined.objective.name, [one.name for one in joined.corrections]) == ("fedbr", ["fedprox"])
    options = joined.options.model_validate({"mu": 0.5, "alpha": 2})
    assert joined.share(options, joined.corrections[0]) == {"mu": 0.5, "half": True}
    assert joined.share(options, joined.objective)["alpha"] == 2


def test_a_method_has_one_name_however_it_is_spelled() -> None:
    spelled = ("fedavg", "fedavg + fedprox", "fedprox+fedbr", "coordinator.methods.fedmlb:ROW+fedprox")
    assert [resolve(name).name for name in spelled] == ["fedavg", "fedprox", "fedbr+fedprox", "fedmlb+fedprox"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavgg", "no method 'fedavgg'; did you mean fedavg"),
        ("fedmlb+fedbr", "joins two objectives, fedmlb and fedbr"),
        ("fedprox+fedprox", "names a correction twice"),
        ("nowhere.at_all:ROW", "cannot be loaded"),
        ("coordinator.cohort:draw", "is not a method row"),
    ],
)
def test_names_that_make_no_method_say_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        resolve(name)


def test_pathways_must_be_in_the_model() -> None:
    method = resolve("fedmlb+fedprox")
    with pytest.raises(ValueError, match=r"method_options\.pathways: 4 is not in 1\.\.3"):
        method.check(method.options.model_validate({"pathways": [4]}), 4)
    with pytest.raises(ValueError, match="names a pathway twice"):
        method.check(method.options.model_validate({"pathways": [1, 1]}), 4)
