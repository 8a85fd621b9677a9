"""Updates that cannot be used: the run ends, goes on without them, or counts them as no change; the ledger says so."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.server import GLOBAL
from coordinator.aggregation.update_checks import Reach, UpdateChecks, no_op_update, sums_too_far, too_far
from coordinator.records.resume import resume_checkpoint
from coordinator.records.store import read
from coordinator.rounds.policy import POLICIES, PolicyName, RoundPolicy
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.task import PoolTask, Reply, ReplyHandler, Stopped
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Payload, Vector
from tests.crossed import every
from tests.toy import (
    Direct,
    Later,
    Run,
    build_now,
    direct,
    federation,
    set_workers,
    store,
    trainer,
    unsteady_world,
    vector,
)

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
HOW: dict[str, Any] = {"clients": 3, "rounds": 2, "train": BRIEF, "partition": PartitionConfig("iid")}
BAD = 1
"""The client whose updates are spoilt."""


def not_a_number(update: Update) -> Update:
    head = update.payload[MODEL]["head"].data.copy()
    head[3] = math.nan
    return structs.replace(update, payload={**update.payload, MODEL: {**update.payload[MODEL], "head": Vector(head)}})


def without_its_head(update: Update) -> Update:
    model = {key: vector for key, vector in update.payload[MODEL].items() if key != "head"}
    return structs.replace(update, payload={MODEL: model})


def far_away(update: Update) -> Update:
    model = {key: Vector(vector.data + np.float32(100)) for key, vector in update.payload[MODEL].items()}
    return structs.replace(update, payload={**update.payload, MODEL: model})


def of_nobody(update: Update) -> Update:
    """As when no worker could train it."""
    return Update(update.client, update.round, {}, {})


@dataclass
class Spoiling:
    """Workers of which one client's updates come back spoilt."""

    workers: Direct
    spoil: Callable[[Update], Update]
    seen: dict[int, Update] = field(default_factory=dict)
    """By client, before it is spoilt"""
    size = 1
    build = staticmethod(build_now)

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> Later:
        def hear(task: PoolTask, reply: Reply) -> None:
            if isinstance(reply, Update):
                self.seen[reply.client] = reply
                reply = self.spoil(reply) if reply.client == BAD else reply
            heard(task, reply)

        return self.workers.submit(tasks, hear)


def spoilt(
    folder: Path, spoil: Callable[[Update], Update], faults: UpdateChecks, method: str = "fedavg", **how: Any
) -> FederatedRun:
    run = federation(folder, method, checks=faults, **{**HOW, **how})
    set_workers(run, Spoiling(direct(run), spoil))
    return run


def spoiling(run: FederatedRun) -> Spoiling:
    workers = trainer(run).workers
    assert isinstance(workers, Spoiling)
    return workers


def ended(run: FederatedRun) -> Run:
    try:
        return Run(run, run_rounds(run))
    finally:
        store(run).ledger.close()


REJECT, ZERO = UpdateChecks("reject"), UpdateChecks("zero")


def of_size(number: float) -> Callable[[Update], Update]:
    def spoil(update: Update) -> Update:
        named = update.payload[MODEL]
        model = {key: Vector(np.full_like(vector.data, number)) for key, vector in named.items()}
        return structs.replace(update, payload={**update.payload, MODEL: model})

    return spoil


def reporting(loss: float) -> Callable[[Update], Update]:
    return lambda update: structs.replace(update, numbers={**update.numbers, "loss": loss})


@pytest.mark.parametrize("number", [1e10, 3.4e38])
@pytest.mark.parametrize("policy", ["sync", "fedbuff"])
def test_finite_poison_is_refused_before_it_is_in_any_model(number: float, policy: PolicyName, tmp_path: Path) -> None:
    """And nothing of it is committed, so that the run can be gone on with."""
    run = spoilt(tmp_path, of_size(number), UpdateChecks(), rules=RoundPolicy(policy, buffer=3))
    with pytest.raises(RunFailed, match=r"client 1, \w+ \d: changes the model by a norm of .*faults.max_growth = 1000"):
        ended(run)
    assert run.committed.rounds == 0


def test_the_bound_follows_from_the_models_own_norm_and_the_steps(tmp_path: Path) -> None:
    run = federation(tmp_path, **HOW)
    reach = trainer(run).reach(run.prepare(1, 0))
    start = np.concatenate([vector.data for vector in run.server.model.values()]).astype(np.float64)
    assert reach.initial_norm == pytest.approx(np.linalg.norm(start))
    assert reach.parameters == start.size
    assert reach.moved == pytest.approx(0.1 * 2)  # two steps of 0.1
    assert reach.scale == pytest.approx(np.linalg.norm(start) + 0.2 * math.sqrt(start.size))
    store(run).ledger.close()


def test_numbers_that_no_training_reports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"client 1, round 1: loss = .* is more than any training reports"):
        ended(spoilt(tmp_path, reporting(-1e300), UpdateChecks()))


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ({"tail": 3}, "model/tail of 3 numbers is no vector of the model"),
        ({"head": 2}, "model/head of 2 numbers is no vector of the model"),
        ({"head": None}, "changes the model by a norm of"),
    ],
)
def test_what_a_remote_worker_says_that_a_client_keeps_is_looked_at_before_it_is_stored(
    kept: dict[str, int | None], why: str, tmp_path: Path
) -> None:
    """Of what SCAFFOLD's clients keep no row says the shapes: anything may come in the slot of the model, too."""
    run = federation(tmp_path, "scaffold", **HOW)
    heard: list[Update] = []
    tasks: list[PoolTask] = []
    workers = trainer(run).workers

    class Noting:
        size = 1
        build = staticmethod(build_now)

        def submit(self, submitted: Sequence[PoolTask], on_reply: ReplyHandler) -> Any:
            tasks.extend(submitted)
            return workers.submit(submitted, on_reply)

    set_workers(run, Noting())
    run.trainer.submit([run.prepare(1, 0)], heard.append).wait()
    store(run).ledger.close()
    (task,) = tasks
    base = run.server.model["head"].data
    far = np.where(base < 0, 3.4e38, -3.4e38).astype(np.float32)
    vectors = {key: Vector(far if size is None else np.zeros(size, np.float32)) for key, size in kept.items()}
    assert task.validator.examine(task, heard[0], {}) == (structs.replace(heard[0], problem=""), None)
    _, problem = task.validator.examine(task, heard[0], {MODEL: vectors})
    assert problem is not None
    assert problem.startswith("client 1, round 1: client state: ")
    assert why in problem


def test_sums_of_workers_are_bounded_as_updates_are(tmp_path: Path) -> None:
    run = federation(tmp_path, **HOW, sum="fixed_point")
    visits = [run.prepare(client, 0) for client in range(3)]
    sizes = {key: vector.data.size for key, vector in run.server.model.items()}
    honest = {key: np.rint(vector.data.astype(np.float64) * 2.0**46).astype(np.int64)
              for key, vector in run.server.model.items()}  # fmt: skip
    assert (
        sums_too_far(trainer(run).checks, {MODEL: honest}, 1.0, run.server.models, trainer(run).reach(visits[0]))
        is None
    )
    poison = {key: np.full(size, 1 << 60, np.int64) for key, size in sizes.items()}  # 16384 each
    with pytest.raises(RunFailed, match=r"updates rejected: round 1: sums of clients with 1 of the mean: changes"):
        run.trainer.accept_partial({MODEL: poison}, visits)
    store(run).ledger.close()


def test_a_model_that_is_not_finite_after_a_step_is_never_committed(tmp_path: Path) -> None:
    class Overflowing(ServerOptimizer):
        def step(self, key: str, before: Any, average: Any) -> Any:
            return np.full_like(before, np.inf)

    run = federation(tmp_path, **HOW, optimiser=Overflowing())
    with pytest.raises(RunFailed, match=r"round 1: after the server's step, model/\S+ is not finite"):
        ended(run)
    assert read(tmp_path / "ledger.sqlite", "SELECT COUNT(*) FROM rounds")[0][0] == 0
    assert list((tmp_path / "checkpoints").iterdir()) == []


kinds = "SELECT round, client, kind FROM visits ORDER BY visit"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (not_a_number, r"client 1, round 1: model/head is not finite \(training diverged\?\)"),
        (without_its_head, "client 1, round 1: shapes .* instead of"),
        (of_nobody, "client 1, round 1: it reports no numbers"),
    ],
)
def test_by_default_a_bad_update_ends_the_run(spoil: Callable[[Update], Update], why: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=why):
        ended(spoilt(tmp_path, spoil, UpdateChecks()))


@pytest.mark.parametrize("spoil", [not_a_number, without_its_head])
def test_rejected_its_visit_is_paid_for_but_does_not_count(spoil: Callable[[Update], Update], tmp_path: Path) -> None:
    run = ended(spoilt(tmp_path / "bad", spoil, REJECT, rounds=1))
    good = ended(federation(tmp_path / "good", **{**HOW, "rounds": 1}))
    assert run.rows(kinds) == [(0, 0, "train"), (0, 1, "refused"), (0, 2, "train")]
    # The time, the bytes and the energy are those of three visits.
    amounts = "SELECT bytes_down, bytes_up, end_s, joules FROM rounds"
    assert run.rows(amounts) == good.rows(amounts)
    spent = good.rows("SELECT bytes_down + bytes_up FROM visits WHERE client = 1")[0][0]
    assert run.rows("SELECT participants, wasted_bytes FROM rounds") == [(2, spent)]


def test_rejected_the_model_is_the_mean_of_the_others_and_zeroed_of_these_and_the_model_that_was_sent(
    tmp_path: Path,
) -> None:
    runs = [spoilt(tmp_path / faults.on_bad_update, not_a_number, faults, rounds=1) for faults in (REJECT, ZERO)]
    rejected, zeroed = map(ended, runs)
    assert zeroed.rows(kinds) == [(0, 0, "train"), (0, 1, "zeroed"), (0, 2, "train")]
    assert zeroed.rows("SELECT participants, wasted_bytes FROM rounds") == [(3, 0)]
    workers, samples = spoiling(runs[0]), runs[0].description.samples
    vectors = {k: np.concatenate([v.data for v in workers.seen[k].payload[MODEL].values()]) for k in (0, 2)}
    total = vectors[0].astype(np.float64) * samples[0] + vectors[2].astype(np.float64) * samples[2]
    assert np.array_equal(rejected.model, (total / (samples[0] + samples[2])).astype(np.float32))
    share = samples[BAD] / samples.sum()
    expected = share * zeroed.start + (1 - share) * rejected.model.astype(np.float64)
    assert np.allclose(zeroed.model, expected, rtol=0, atol=1e-6)


def test_an_update_that_leads_too_far_is_refused_and_whom_no_worker_can_train_is_skipped(tmp_path: Path) -> None:
    run = ended(spoilt(tmp_path / "far", far_away, UpdateChecks("reject", max_norm=50.0)))
    assert [kind for _, _, kind in run.rows(kinds)] == ["train", "refused", "train"] * 2
    assert np.isfinite(run.model).all()
    run = ended(spoilt(tmp_path / "untrained", of_nobody, UpdateChecks(on_bad_client="skip")))
    assert [kind for _, _, kind in run.rows(kinds)] == ["train", "failed", "train"] * 2
    with pytest.raises(RunFailed, match=r"changes the model by a norm of .*, more than faults.max_norm = 50"):
        ended(spoilt(tmp_path / "stop", far_away, UpdateChecks(max_norm=50.0)))


@pytest.mark.parametrize("policy", every(2, POLICIES))
def test_in_every_policy_such_a_run_can_be_resumed(policy: PolicyName, tmp_path: Path) -> None:
    method, faults = ("fedprox", ZERO) if policy == "deadline" else ("fedbr", REJECT)
    how = unsteady_world(policy)
    straight = ended(spoilt(tmp_path / "straight", not_a_number, faults, method, **how))
    found = {kind for _, client, kind in straight.rows(kinds) if client == BAD}
    assert found & {"refused", "zeroed"}
    assert "train" not in found
    first = spoilt(tmp_path / "cut", not_a_number, faults, method, **how)
    first.is_stopped = lambda: first.committed.rounds >= 2
    with pytest.raises(Stopped):
        ended(first)
    shutil.copytree(tmp_path / "cut", tmp_path / "again")
    again = spoilt(tmp_path / "again", not_a_number, faults, method, **how, again=True)
    resume_checkpoint(again, store(again))
    assert np.array_equal(ended(again).model, straight.model)
    assert store(again).ledger.chain == store(straight.federation).ledger.chain


# --- bounds, by hand --------------------------------------------------------------------------------------------------

BASE = {"a": vector(3.0, 4.0)}
REACH = Reach(initial_norm=2.0, parameters=4, moved=0.5)  # its scale is 2 + 0.5 * sqrt(4) = 3
TWICE = UpdateChecks(max_growth=2.0)
DIVERGED = "(faults.max_growth = 2 times {}; training diverged?)"


def judged(payload: Payload, checks: UpdateChecks = TWICE, reach: Reach = REACH) -> str | None:
    return too_far(checks, "it", payload, {MODEL: BASE}, reach)


def test_an_update_may_be_as_far_from_the_model_as_the_bound_and_no_further() -> None:
    assert judged({MODEL: {"a": vector(9.0, 4.0)}}) is None
    beyond = "it: changes the model by a norm of 6.001, more than 6 " + DIVERGED.format(3)
    assert judged({MODEL: {"a": vector(9.001, 4.0)}}) == beyond
    close = UpdateChecks(max_growth=2.0, max_norm=1.0)
    assert judged({MODEL: {"a": vector(3.0, 5.0)}}, close) is None
    beyond = "it: changes the model by a norm of 1.001, more than faults.max_norm = 1"
    assert judged({MODEL: {"a": vector(3.0, 5.001)}}, close) == beyond


@pytest.mark.parametrize(("moved", "scale", "bound"), [(0.5, 3, 12), (2.0, 6, 12), (0.0, 2, 4)])
def test_other_slots_are_changes_divided_by_the_steps_of_the_visit(moved: float, scale: int, bound: int) -> None:
    reach = replace(REACH, moved=moved)
    assert judged({"control": {"a": vector(float(bound))}}, reach=reach) is None
    beyond = f"it: the norm of control is {bound}.001, more than {bound} " + DIVERGED.format(scale)
    assert judged({"control": {"a": vector(bound + 0.001)}}, reach=reach) == beyond


def test_a_partial_sum_is_measured_by_the_weight_of_its_clients() -> None:
    def problem(first: float) -> str | None:
        total = np.array([first * 2.0**46, 1.0 * 2.0**46]).astype(np.int64)
        return sums_too_far(TWICE, {MODEL: {"a": total}}, 0.25, {GLOBAL: BASE}, REACH)

    assert problem(0.75 + 1.5) is None  # a quarter of the model, and of the bound
    assert problem(0.75 - 1.5) is None
    beyond = "sums of clients with 0.25 of the mean: changes the model by a norm of 1.5625, more than 1.5 "
    assert problem(0.75 + 1.5625) == beyond + DIVERGED.format(0.75)


def test_an_update_that_counts_as_no_change_keeps_the_numbers_that_are_finite() -> None:
    shapes = {MODEL: {"a": 2}, "control": {"a": 2}}
    server: Any = SimpleNamespace(part_up_shapes=lambda choice: shapes, targets=lambda update: {MODEL: GLOBAL})
    reply = Update(1, 5, {"loss": float("nan"), "samples": 32.0, "flops": float("inf")}, {})
    unchanged = no_op_update(server, reply, {GLOBAL: BASE})
    assert unchanged is not None
    assert unchanged.numbers == {"loss": 0.0, "samples": 32.0, "flops": 0.0}
    assert unchanged.payload[MODEL] == BASE
    assert unchanged.payload["control"]["a"].data.tolist() == [0.0, 0.0]
