"""What every method must keep to, whatever it does: one table of settings, one set of tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, resolve
from coordinator.methods.spec import Refusals
from coordinator.records.checkpoints import file_sha256
from coordinator.records.resume import resume_checkpoint
from coordinator.rounds.budget import RunLimits
from coordinator.rounds.policy import POLICIES, PolicyName, RoundPolicy
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.rounds.synchronous import run_synchronous
from edge.protocol import client_state, messages
from edge.protocol.config import TrainConfig
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import Vector, vectors
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.methods.cases import (
    BRIEF,
    CASES,
    IID,
    KEEPING,
    PLAIN_MESSAGES,
    SENT,
    THOROUGH,
    Case,
    Played,
)
from tests.toy import (
    Run,
    broken_off,
    committed_states,
    direct,
    federation,
    model_sha256,
    play,
    resumed,
    state_file,
    store,
    unsteady_world,
)

each_method = pytest.mark.parametrize("case", CASES, ids=str)
each_alone = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if "+" in case.name else []) for case in CASES], ids=str
)
each_but_fedavg = pytest.mark.parametrize("case", CASES[1:], ids=str)


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
    assert {case.server for case in CASES} == set(SERVER_OPTIMIZERS)


@each_but_fedavg
def test_it_is_fedavg_where_it_says_so(case: Case, once: Played) -> None:
    case.is_fedavg(case, once)


@each_but_fedavg
def test_a_real_setting_is_not(case: Case, once: Played) -> None:
    real, fedavg = case.play_real(once).model, case.play_fedavg(once).model
    assert len(real) % len(fedavg) > 0 or np.abs(real[: len(fedavg)] - fedavg).max() > 1e-5


@pytest.mark.parametrize("case", every(16, [case for case in CASES if "+" not in case.name], first=3), ids=str)
def test_it_learns_to_read_digits(case: Case, once: Played) -> None:
    """Within ten rounds: last bits, which differ between processors, move the round. It ends with the one that has."""
    run = case.play_real(once, train=THOROUGH, partition=IID, clients=3, rounds=10, target=0.9)
    assert max(accuracy for (accuracy,) in run.rows("SELECT accuracy FROM rounds")) >= 0.9


@each_method
def test_what_travels_is_what_is_charged(case: Case, once: Played) -> None:
    run = case.play_real(once)
    contacts_server = run.federation.method.objective.traffic.contacts_server
    down = run.workers.bytes_down
    if run.federation.method.charges_otherwise:  # of what clients make of what they have; tests of the method say it
        ((down,),) = run.rows("SELECT SUM(bytes_down) FROM visits")
        assert 0 < down < run.workers.bytes_down
    sent = [(down, run.workers.bytes_up) if contacts_server else (0, 0)]
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM rounds") == sent
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM visits") == sent
    by_direction = "SELECT COALESCE(SUM(nbytes), 0) FROM transfers WHERE direction = "
    assert [run.rows(by_direction + "'down'")[0] + run.rows(by_direction + "'up'")[0]] == sent
    committed = run.federation.committed
    assert (committed.bytes_down, committed.bytes_up) == sent[0]


@each_alone
def test_a_client_that_is_absent_keeps_what_it_had(case: Case, tmp_path: Path) -> None:
    files: list[dict[int, tuple[str, str]]] = []

    def look(progress: RoundFinished) -> None:
        names = committed_states(federated).items()
        files.append({client: (name, file_sha256(tmp_path / "state" / name)) for client, name in names})

    federated = federation(
        tmp_path, case.name, participants=2, rounds=4, train=BRIEF, partition=IID, on_round=look, **case.used
    )
    run = Run(federated, run_synchronous(federated))
    store(federated).ledger.close()
    took_part = run.rows("SELECT round, client FROM visits")
    for round in range(1, 4):
        for client, kept in files[round - 1].items():
            assert (files[round][client] == kept) == ((round, client) not in took_part)
    keeps = any(part in KEEPING for part in case.name.split("+"))
    assert sorted(files[-1]) == (sorted({client for _, client in took_part}) if keeps else [])
    # What the last checkpoint needs is there, and what the one before it needs.
    needed = {name for after in files[-2:] for name, _ in after.values()}
    assert {path.name for path in (tmp_path / "state").glob("*")} == needed


@pytest.mark.parametrize("case", [case for case in CASES if resolve(case.name).keeps_slots], ids=str)
def test_a_client_keeps_as_many_numbers_as_its_spec_says(case: Case, once: Played) -> None:
    run = case.play_real(once).federation
    foreseen = run.method.state_numbers(run.options, run.description.layout)
    foreseen += sum(run.description.layout.shapes(run.job.kept_blocks).values())
    state = client_state.read(state_file(run, 0))
    assert sum(vector.data.size for _, _, vector in vectors(state)) == foreseen


@each_alone
def test_replies_of_any_workers_in_any_order_give_the_same_model_and_the_same_chain(case: Case, once: Played) -> None:
    ordered, shuffled = case.play_real(once), case.play_real(once, shuffle=2, sites=3)
    assert shuffled.workers.trained != ordered.workers.trained
    assert model_sha256(shuffled.federation) == model_sha256(ordered.federation)
    assert store(shuffled.federation).ledger.chain == store(ordered.federation).ledger.chain


@pytest.mark.parametrize("case", [case for case in CASES if case.name in PLAIN_MESSAGES], ids=str)
def test_what_is_taught_by_the_received_model_alone_sends_what_fedavg_sends(case: Case, once: Played) -> None:
    assert case.play_real(once).rows(SENT) == case.play_fedavg(once).rows(SENT)


# --- a run that is broken off and taken up again ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        pytest.param(case, policy, marks=[pytest.mark.long] if "+" in case.name else [])
        for case in CASES
        for policy in POLICIES
        if policy == "sync" or str(case) == "fedbr"
    ],
    ids=str,
)
def test_resumed_after_any_round_it_ends_as_if_it_had_not_stopped(
    case: Case, policy: PolicyName, tmp_path: Path
) -> None:
    train = TrainConfig(lr=0.1, lr_decay=0.5, batch=32, local_steps=2, momentum=0.5)
    how = unsteady_world(policy) | {"rounds": 4, "eval_every": 2, "train": train, **case.used}
    whole, folder = play(tmp_path / "whole", case.name, **how), tmp_path / "broken off"
    for after in (1, 2):
        broken_off(folder, case.name, after, **how, again=after > 1)
    again = resumed(folder, case.name, **how)
    assert again.stopped_by == whole.stopped_by == "rounds"
    assert np.array_equal(again.model, whole.model)
    assert virtual_rows(folder) == virtual_rows(tmp_path / "whole")
    assert again.federation.budget.spent == whole.federation.budget.spent
    assert again.federation.committed == whole.federation.committed


def test_a_run_that_a_budget_has_ended_stays_ended(tmp_path: Path) -> None:
    how: dict[str, Any] = {"participants": 3, "train": BRIEF, "period": 2}
    ((spent,),) = play(tmp_path / "whole", "fedbr", **how, rounds=1).rows(
        "SELECT SUM(bytes_down + bytes_up) FROM visits"
    )
    how |= {"rounds": 9, "limits": RunLimits(bytes=int(2.4 * spent)), "rules": RoundPolicy(min_fraction=0.0)}
    assert play(tmp_path / "ended", "fedbr", **how).stopped_by == "bytes"
    # Killed after the last commit, before it was summed up: smaller visits might fit in what is left.
    again = federation(tmp_path / "ended", "fedbr", **how, again=True)
    assert resume_checkpoint(again, store(again)) == "bytes"
    store(again).ledger.close()


# --- what a reply must be ---------------------------------------------------------------------------------------------


def refused(folder: Path, change: Callable[[messages.Update], messages.Update]) -> str:
    run = federation(folder, train=BRIEF)
    direct(run).change = change
    try:
        with pytest.raises(RunFailed) as failure:
            run_synchronous(run)
    finally:
        store(run).ledger.close()
    return str(failure.value)


def test_a_reply_that_cannot_be_used_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def diverge(reply: messages.Update) -> messages.Update:
        head = reply.payload["model"]["head"].data.copy()
        head[3] = np.nan
        return with_vector(reply, "head", head)

    def cut(reply: messages.Update) -> messages.Update:
        return with_vector(reply, "head", reply.payload["model"]["head"].data[:-1])

    def overcharge(reply: messages.Update) -> messages.Update:
        return messages.Update(reply.client, reply.round, {**reply.numbers, "flops": 1.0}, reply.payload)

    for change, problem in (
        (diverge, "client 0, round 1: model/head is not finite (training diverged?)"),
        (cut, "client 0, round 1: shapes"),
        (overcharge, "executed 1 FLOPs, but the spec of fedavg predicts"),
    ):
        assert problem in refused(tmp_path / change.__name__, change)


def with_vector(reply: messages.Update, key: str, numbers: Any) -> messages.Update:
    model = {**reply.payload["model"], key: Vector(numbers)}
    return messages.Update(reply.client, reply.round, reply.numbers, {"model": model})


# --- names ------------------------------------------------------------------------------------------------------------


STEPPING = replace(OBJECTIVES["fedavg"], name="stepping", refusals=Refusals(server_optimizers=("plain",)))
ALSO_MU = replace(OBJECTIVES["fedavg"], name="also-mu", options=CORRECTIONS["fedprox"].options)


def test_names_join_an_objective_with_corrections() -> None:
    assert resolve("fedprox").objective.name == "fedavg"
    joined = resolve("fedbr + fedprox")
    assert (joined.objective.name, [one.name for one in joined.corrections]) == ("fedbr", ["fedprox"])
    options = joined.options.model_validate({"mu": 0.5, "alpha": 2})
    assert isinstance(options, FedBROptions)
    assert isinstance(options, FedProxOptions)
    assert (options.alpha, options.mu, options.half) == (2, 0.5, True)


def test_a_method_has_one_name_however_it_is_spelled() -> None:
    spelled = ("fedavg", "fedavg + fedprox", "fedprox+fedbr", "coordinator.methods.fedmlb:SPEC+fedprox")
    assert [resolve(name).name for name in spelled] == ["fedavg", "fedprox", "fedbr+fedprox", "fedmlb+fedprox"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavgg", "no method 'fedavgg'; did you mean 'fedavg'"),
        ("fedmlb+fedbr", "joins two objectives, fedmlb and fedbr"),
        ("fedprox+fedprox", "names a correction twice"),
        ("scaffold+feddyn", "scaffold and feddyn both correct the same client drift"),
        (f"feddyn+{__name__}:STEPPING", "feddyn and stepping each make a server step of their own; only one can"),
        (f"fedprox+{__name__}:ALSO_MU", "fedprox and also-mu both have an option 'half'"),
        ("coordinator.rounds.selection:sample_cohort", "is not a method"),
    ],
)
def test_names_that_make_no_method_say_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        resolve(name)
