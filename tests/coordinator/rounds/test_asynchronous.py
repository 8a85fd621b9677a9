"""Policies without a barrier: the order of arrivals, what a late update does to the model, and what clients keep.

Clients are the clockwork of `tests.toy`: visits of clients 0 to 3 take 4, 4, 8 and 16 s, and all four are always busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.server import Model, ServerExtension, State
from coordinator.methods.fedavg import SPEC as FEDAVG
from coordinator.methods.fedbr import SPEC as FEDBR
from coordinator.methods.registry import Method
from coordinator.methods.spec import CorrectionSpec, numbers_of_model
from coordinator.records.store import read
from coordinator.rounds.budget import BYTES, SECONDS, Cost, RunLimits
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_rounds
from edge.protocol import client_state
from edge.protocol.config import PartitionConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Floats, Payload, Vector
from edge.training import client_update
from edge.training.block_model import BlockModel
from tests.coordinator.rounds import clockwork
from tests.coordinator.rounds.clockwork import BRIEF, EVER, FOUR, IID, windows
from tests.toy import (
    Run,
    direct,
    federation,
    model_sha256,
    play,
    state_file,
    store,
)

ARRIVED = "FROM visits WHERE kind = 'train' ORDER BY up_end_s, client"

both = pytest.mark.parametrize("policy", ["fedasync", "fedbuff"])


def ran(folder: Path, rules: RoundPolicy, seconds: Sequence[tuple[float, float, float]] = FOUR, **how: Any) -> Run:
    return clockwork.ran(folder, rules, seconds, **{"rounds": 2, "weights": "uniform", **how})


def numbers(update: Update) -> NDArray[np.float64]:
    """What a client sent, in one vector."""
    return np.concatenate([vector.data for vector in update.payload[MODEL].values()]).astype(np.float64)


# --- the order of things ----------------------------------------------------------------------------------------------


def test_updates_arrive_in_the_order_of_virtual_time_and_then_of_clients(tmp_path: Path) -> None:
    run = ran(tmp_path, RoundPolicy("fedasync"))
    query = f"SELECT round, client, kind, start_s, up_end_s, staleness {ARRIVED}"
    # The model is at version 2 when client 0 comes back at 8 s; it left with version 1, and so on.
    assert run.rows(query) == [
        (0, 0, "train", 0, 4, 0),
        (0, 1, "train", 0, 4, 1),
        (0, 0, "train", 4, 8, 1),
        (0, 1, "train", 4, 8, 1),
        (1, 2, "train", 0, 8, 4),
        (1, 0, "train", 8, 12, 2),
        (1, 1, "train", 8, 12, 2),
        (1, 0, "train", 12, 16, 1),
    ]
    # A round is as many updates as there are visits under way.
    assert run.rows("SELECT round, start_s, end_s, participants, critical FROM rounds") == [
        (0, 0, 8, 4, 1),
        (1, 8, 16, 4, 0),
    ]
    # What was under way when the last round ended was in vain, though client 3 had just sent the last of it.
    cut = run.rows("SELECT client, start_s, up_end_s, flops > 0 FROM visits WHERE kind = 'cut' ORDER BY client")
    assert cut == [(1, 12, 16, 1), (2, 8, 16, 1), (3, 0, 16, 1)]
    assert run.rows("SELECT wasted_s, busy_s FROM rounds") == [(0, 16), (28, 28 + 20)]


def test_a_buffer_makes_rounds_of_its_own_length(tmp_path: Path) -> None:
    run = ran(tmp_path, RoundPolicy("fedbuff", buffer=3), rounds=3)
    # Client 0 is in the first round twice. Before the first step nothing is stale.
    assert run.rows(f"SELECT round, client, start_s, up_end_s, staleness {ARRIVED}") == [
        (0, 0, 0, 4, 0),
        (0, 1, 0, 4, 0),
        (0, 0, 4, 8, 0),
        (1, 1, 4, 8, 1),
        (1, 2, 0, 8, 1),
        (1, 0, 8, 12, 0),
        (2, 1, 8, 12, 1),  # it began before the second step, at 8 s as well
        (2, 0, 12, 16, 0),
        (2, 1, 12, 16, 0),
    ]
    assert run.rows("SELECT start_s, end_s, participants FROM rounds") == [(0, 8, 3), (8, 12, 3), (12, 16, 3)]


# --- clients that are away --------------------------------------------------------------------------------------------


def test_a_client_that_comes_back_sooner_is_not_kept_waiting_for_another(tmp_path: Path) -> None:
    # Client 0 is away until 64 s. Client 1 is lost at 2 s and there again from 8 s on.
    behaviour = windows([(64, 1e6)], [(0, 2), (8, 1e6)])
    run = ran(tmp_path, RoundPolicy("fedasync"), FOUR[:2], behaviour=behaviour, rounds=1)
    assert run.rows("SELECT client, kind, start_s, up_end_s FROM visits") == [
        (1, "lost", 0, 2),
        (1, "train", 8, 12),
        (1, "train", 12, 16),
    ]


@both
def test_where_nobody_is_there_the_run_waits_for_the_first_and_may_end_meanwhile(
    policy: PolicyName, tmp_path: Path
) -> None:
    behaviour = windows([(64, 1e6)], [(128, 1e6)])
    rules, limits = RoundPolicy(policy, buffer=2), RunLimits(virtual_seconds=32.0)
    run = ran(tmp_path / "waits", rules, FOUR[:2], behaviour=behaviour, rounds=1)
    assert run.rows("SELECT client, start_s FROM visits WHERE kind = 'train'") == [(0, 64), (0, 68)]
    run = ran(tmp_path / "ends", rules, FOUR[:2], behaviour=behaviour, rounds=9, limits=limits)
    assert (run.stopped_by, run.federation.clock.now, run.rows("SELECT * FROM visits")) == (SECONDS, 32, [])


# --- fedasync ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "values"),
    [
        (RoundPolicy(staleness="constant"), [1, 1, 1, 1]),
        (RoundPolicy(staleness="polynomial", staleness_power=0.5), [1, 2**-0.5, 0.5, 0.25]),
        (RoundPolicy(staleness="polynomial", staleness_power=1.0), [1, 0.5, 0.25, 0.0625]),
        (RoundPolicy(staleness="hinge", staleness_power=10.0, staleness_from=4), [1, 1, 1, 1 / 111]),
        (RoundPolicy(staleness="hinge", staleness_power=0.5, staleness_from=1), [1, 1, 0.5, 0.125]),
    ],
)
def test_how_an_update_counts_that_is_0_1_3_and_15_steps_old(rules: RoundPolicy, values: list[float]) -> None:
    assert [rules.discount(staleness) for staleness in (0, 1, 3, 15)] == pytest.approx(values, rel=1e-15)


@pytest.mark.parametrize("staleness", ["constant", "polynomial", "hinge"])
def test_each_update_is_mixed_into_the_model_the_less_the_older_it_is(staleness: Any, tmp_path: Path) -> None:
    rules = RoundPolicy("fedasync", mixing=0.5, staleness=staleness, staleness_from=1)
    run = ran(tmp_path, rules)
    model: NDArray[np.float64] = run.start.astype(np.float64)
    for visit, age in run.rows(f"SELECT visit, staleness {ARRIVED}"):
        share = {"constant": 0.5, "polynomial": 0.5 / (age + 1) ** 0.5, "hinge": 0.5 / (0.5 * max(age - 1, 0) + 1)}
        model = (1 - share[staleness]) * model + share[staleness] * numbers(run.workers.replies[visit])
    assert np.allclose(run.model, model, rtol=0, atol=1e-6)
    assert np.abs(run.model - run.start).max() > 5e-3


def test_alone_and_mixed_in_whole_it_is_fedavg_and_the_optimiser_acts_on_the_mixed_model(tmp_path: Path) -> None:
    one: dict[str, Any] = {"seconds": FOUR[:1], "rounds": 3}
    run = ran(tmp_path / "run", RoundPolicy("fedasync", mixing=1.0), **one)
    assert np.allclose(run.model, ran(tmp_path / "sync", RoundPolicy(), **one).model, rtol=0, atol=1e-6)
    half = ran(tmp_path / "half", RoundPolicy("fedasync", mixing=0.8, staleness="constant"), rounds=1, optimiser=Half())
    whole = ran(tmp_path / "whole", RoundPolicy("fedasync", mixing=0.4, staleness="constant"), rounds=1)
    assert np.allclose(half.model, whole.model, rtol=0, atol=1e-6)


class Half(ServerOptimizer):
    """θ ← (θ + mean) / 2, but not for buffers."""

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        return np.float32(0.5) * (current + mean)


# --- fedbuff ----------------------------------------------------------------------------------------------------------


def buffered(run: Run, rules: RoundPolicy, weights: Sequence[float] | None = None) -> NDArray[np.float64]:
    """The last model, from what clients sent: versions are models, and a visit began with that of its version."""
    versions: list[NDArray[np.float64]] = [run.start.astype(np.float64)]
    query = "SELECT visit, client, staleness FROM visits WHERE kind = 'train' AND round = {}"
    for (number,) in run.rows("SELECT round FROM rounds WHERE participants > 0"):
        step, whole = np.zeros_like(versions[0]), 0.0
        for visit, client, age in run.rows(query.format(number)):
            weight = 1.0 if weights is None else weights[client]
            change = numbers(run.workers.replies[visit]) - versions[number - age]
            step, whole = step + weight * rules.discount(age) * change, whole + weight
        versions.append(versions[-1] + rules.server_lr * step / whole)
    return versions[-1]


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_step_is_the_mean_of_the_changes_in_the_buffer_each_by_its_age(server_lr: float, tmp_path: Path) -> None:
    rules = RoundPolicy("fedbuff", buffer=3, server_lr=server_lr)
    run = ran(tmp_path, rules, rounds=3)
    assert np.allclose(run.model, buffered(run, rules), rtol=0, atol=2e-6)
    assert np.abs(run.model - run.start).max() > 5e-3


def test_changes_weigh_what_their_clients_hold_where_the_method_weighs(tmp_path: Path) -> None:
    rules = RoundPolicy("fedbuff", buffer=3)
    uneven = PartitionConfig("dirichlet-unbalanced", alpha=0.5)
    run = ran(tmp_path, rules, rounds=2, weights="size", partition=uneven)
    held = [float(samples) for samples in run.federation.description.samples]
    assert max(held) > 1.1 * min(held)
    assert np.allclose(run.model, buffered(run, rules, held), rtol=0, atol=2e-6)


END_OF_BUFFER = "SELECT end_s, participants, wasted_bytes, accuracy IS NULL, cut_by FROM rounds"


def test_a_buffer_that_is_not_full_at_the_end_makes_no_step_and_its_updates_are_wasted(tmp_path: Path) -> None:
    rules = RoundPolicy("fedbuff", buffer=3)
    run = ran(tmp_path, rules, rounds=99, limits=RunLimits(virtual_seconds=10.0))
    assert run.stopped_by == SECONDS
    # Three by 8 s, two more at 8 s, and the next would come at 12 s.
    (whole, cut) = run.rows(END_OF_BUFFER)
    assert (whole, cut[:2], cut[3:]) == ((8, 3, 0, 0, ""), (10, 0), (1, ""))
    discarded = "SELECT client, kind, loss, nominal_bytes, down_payload, up_payload FROM visits WHERE round = 1"
    assert run.rows(f"{discarded} AND up_end_s = 8 ORDER BY client") == [
        (1, "cut", None, 0, "", ""), (2, "cut", None, 0, "", "")
    ]  # fmt: skip
    one = ran(tmp_path / "one", rules, rounds=1)
    assert np.array_equal(run.model, one.model)


@pytest.mark.parametrize(("least", "is_made"), [(2 / 3, True), (0.7, False)])
def test_a_part_of_the_buffer_makes_a_last_step_if_the_scenario_says_so_and_is_marked(
    least: float, is_made: bool, tmp_path: Path
) -> None:
    rules = RoundPolicy("fedbuff", buffer=3, min_fraction=least)
    run = ran(tmp_path, rules, rounds=99, limits=RunLimits(virtual_seconds=10.0))
    cut = run.rows(END_OF_BUFFER)[1]
    assert (cut[1], cut[3], cut[4]) == ((2, 0, SECONDS) if is_made else (0, 1, ""))
    if is_made:
        assert np.allclose(run.model, buffered(run, rules), rtol=0, atol=2e-6)


# --- budgets ----------------------------------------------------------------------------------------------------------


@both
def test_a_visit_is_paid_for_when_it_begins(policy: PolicyName, tmp_path: Path) -> None:
    visit = 5344 + 5398
    rules = RoundPolicy(policy, buffer=4, min_fraction=0.25)
    run = ran(tmp_path, rules, rounds=99, limits=RunLimits(bytes=int(5.5 * visit)))
    assert run.stopped_by == BYTES
    # Client 0 begins for the second time at 4 s; client 1, who comes back then, too, no more.
    ended = run.rows("SELECT client, kind, up_end_s FROM visits ORDER BY up_end_s, client")
    assert ended == [(0, "train", 4), (1, "train", 4), (0, "train", 8), (2, "train", 8), (3, "train", 16)]
    # All that was reserved has been settled.
    budget = run.federation.budget
    assert budget.spent.bytes == 5 * visit
    assert budget.reserve([Cost(visit // 2)]) == ([True], None)


@both
def test_what_is_cut_is_settled_with_what_it_spent(policy: PolicyName, tmp_path: Path) -> None:
    run = ran(tmp_path, RoundPolicy(policy, buffer=2), rounds=99, limits=RunLimits(virtual_seconds=6.0, joules=1e6))
    (spent,) = run.rows("SELECT SUM(joules) FROM visits")[0]
    # 0 and 1: 18 and 22 J, then 2 s more each: 2 + 8 J. 2: 4 + 16 + 8 J. 3: 8 + 16 J.
    assert spent == 18 + 22 + 10 + 10 + 28 + 24
    assert run.federation.budget.spent.joules == spent
    assert run.federation.budget.reserve([Cost(joules=1e6 - spent)]) == ([True], None)


# --- what clients keep, and corrections -------------------------------------------------------------------------------


class Tally(client_update.GradientCorrection):
    """Keeps how often its client was visited, and sends 1 each time; the server's count comes down."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: client_update.VisitContext) -> None:
        self.visits = float(state["tally"]["visits"].data[0]) if "tally" in state else 0.0
        self.heard = float(down["tally"]["all"].data[0])

    def end(self, net: BlockModel, visit: client_update.VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        one, own = (Vector(np.array([n], np.float32)) for n in (1.0, self.visits + 1))
        heard = Vector(np.array([self.heard], np.float32))
        return {"tally": {"one": one, "own": own, "heard": heard}}, {"tally": {"visits": own}}, {}


class TallyPart(ServerExtension):
    """Counts the replies that were used."""

    used = folded = 0.0

    def down(self, client: int) -> Payload:
        return {"tally": {"all": Vector(np.array([self.used], np.float32))}}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return {"tally": {"one": 1, "own": 1, "heard": 1}}

    def accumulate(self, reply: Update) -> None:
        self.folded += float(reply.payload["tally"]["one"].data[0])

    def step(self, before: Model, after: Model) -> Model:
        self.used = self.folded
        return after

    def state(self) -> State:
        return {"used": np.array(self.used)}


TALLY = CorrectionSpec("tally", "tally", "a test", Options, "", f"{__name__}:Tally", TallyPart, numbers_of_model)


@both
@pytest.mark.parametrize("objective", [FEDAVG, FEDBR], ids=lambda row: row.name)
def test_the_next_visit_of_a_client_sees_what_its_last_one_kept(
    policy: PolicyName, objective: Any, tmp_path: Path
) -> None:
    # Client 1 is lost in the middle of a visit; what it kept before stands.
    behaviour = windows([EVER], [(0, 6), (7, 1e6)], [EVER], [EVER])
    method = Method("tallied", objective, (TALLY,))
    run = ran(tmp_path, RoundPolicy(policy, buffer=3), method=method, rounds=4, behaviour=behaviour)
    assert run.rows("SELECT client, up_end_s FROM visits WHERE kind = 'lost'") == [(1, 6)]
    trained = run.rows("SELECT visit, client, staleness FROM visits WHERE kind = 'train' ORDER BY up_end_s, client")
    seen = dict.fromkeys(range(4), 0)
    for visit, client, _ in trained:
        seen[client] += 1
        assert float(run.workers.replies[visit].payload["tally"]["own"].data[0]) == seen[client]
    assert max(seen.values()) > 2
    for client, visits in seen.items():
        if visits:
            assert float(client_state.read(state_file(run.federation, client))["tally"]["visits"].data[0]) == visits
    assert float(run.federation.server.state()["part0/used"]) == len(trained)


# --- FedBR ------------------------------------------------------------------------------------------------------------


@both
def test_each_client_counts_its_own_visits_to_the_next_whole_model(policy: PolicyName, tmp_path: Path) -> None:
    rules = RoundPolicy(policy, buffer=4)
    run = ran(tmp_path, rules, FOUR[:2], method="fedbr", alpha=1, period=2, rounds=5)
    for client in (0, 1):
        chosen = run.rows(f"SELECT full FROM choices WHERE client = {client}")
        assert len(chosen) >= 4
        assert [full for (full,) in chosen] == [int(visit % 3 == 0) for visit in range(len(chosen))]


@both
def test_training_that_goes_wrong_ends_the_run_only_where_it_is_used(policy: PolicyName, tmp_path: Path) -> None:
    # All five are trained together at 4 s. Client 3 is lost at 9 s, and 4 is still under way when the run ends.
    behaviour = windows([EVER], [EVER], [EVER], [(0, 9)], [EVER])
    five = [*FOUR, FOUR[3]]
    how: dict[str, Any] = {"train": BRIEF, "partition": IID, "seconds": five, "behaviour": behaviour, "clients": 5}
    for spoilt in ((3, 4), (2,)):
        limits = RunLimits(virtual_seconds=10.0)
        rules = RoundPolicy(policy, buffer=2, min_fraction=0.0)
        run = federation(tmp_path / str(spoilt), rules=rules, limits=limits, rounds=99, **how)

        def spoil(update: Update, clients: tuple[int, ...] = spoilt) -> Update:
            nan = structs.replace(update, numbers={**update.numbers, "loss": math.nan})
            return nan if update.client in clients else update

        direct(run).change = spoil
        try:
            if spoilt == (3, 4):
                assert run_rounds(run) == SECONDS
                in_vain = "SELECT client FROM visits WHERE kind != 'train' AND start_s = 0 ORDER BY client"
                assert [row["client"] for row in read(store(run).folder / "ledger.sqlite", in_vain)] == [3, 4]
            else:
                with pytest.raises(RunFailed, match=r"client 2, visit \d: loss = nan \(training diverged\?\)"):
                    run_rounds(run)
        finally:
            store(run).ledger.close()


@both
def test_a_run_in_which_every_visit_is_lost_ends_with_its_rounds(policy: PolicyName, tmp_path: Path) -> None:
    rules = RoundPolicy(policy=policy, buffer=2)
    how: dict[str, Any] = {"crashes_per_hour": 3.6e12}
    run = play(tmp_path, rounds=3, participants=2, rules=rules, fleet=how, seconds=FOUR)
    assert (run.stopped_by, run.federation.rounds, run.workers.trained) == ("rounds", 3, [])
    # A round is given up when as many visits were lost as ten rounds need; two are under way at the end.
    lost = run.rows("SELECT round, COUNT(*) FROM visits WHERE kind = 'lost' GROUP BY round")
    assert lost == [(0, 20), (1, 20), (2, 20)]
    assert run.rows("SELECT participants, model_sha256 FROM rounds") == [(0, model_sha256(run.federation))] * 3
