"""FedBR: who gets how many blocks when, what the bandit learns of it; and what must hold over whole rounds.

Replies of the first part are made by hand, of a model of four blocks of 1, 2, 3 and 4 numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.server import GLOBAL, Download, ServerContext, VisitFeedback
from coordinator.methods.fedbr import FedBRServer, label_deviation, possible_choices
from coordinator.methods.gmbs import ChoiceRow, Gmbs, normalise, reward
from edge.protocol import client_state
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.payload import MODEL, BlockShape, Layout, Payload, Vector, sha256
from tests.toy import Run, federation, play, state_file, store

LAYOUT = Layout(tuple(BlockShape(name, size) for size, name in enumerate(("a", "b", "c", "d"), start=1)))
HISTOGRAM = np.array([[8, 0], [4, 4], [0, 8]])


def model(value: float) -> Payload:
    return {MODEL: {key: Vector(np.full(size, value, dtype=np.float32)) for key, size in LAYOUT.sizes.items()}}


def server(asynchronous: bool = False, **options: Any) -> FedBRServer:
    setup = ServerContext(
        LAYOUT, model(0.0), FedBROptions(**options), "uniform", (), LAYOUT.keys(), 0, HISTOGRAM.sum(axis=1), HISTOGRAM
    )
    return FedBRServer(replace(setup, asynchronous=asynchronous))


def played(server: FedBRServer, round: int, clients: list[int], drop: float = 1.0, loss: float = 1.0) -> list[Any]:
    """One round of these clients, in which each took as many seconds as its number + 1; the ledger's rows."""
    dispatches = [server.download(client, round) for client in clients]
    server.started(round, dispatches)
    server.received(round, dispatches)
    outcomes = [
        VisitFeedback(
            d, Update(d.client, round, {"drop": drop, "loss": loss}, model(d.client)), d.client + 1, d.client + 1
        )
        for d in dispatches
    ]
    for outcome in outcomes:
        server.observe(outcome.reply, lambda: server.models)
        server.accumulate(outcome.reply)
    server.step()
    return server.feedback(round, outcomes)


def blocks_sent(server: FedBRServer, client: int, round: int) -> str:
    return "".join(server.download(client, round).payload[MODEL])


def rounds_with_everything(server: FedBRServer, rounds: int) -> list[int]:
    """Rounds in which client 0, who is there each time, gets all blocks."""
    full = []
    for round in range(rounds):
        if blocks_sent(server, 0, round) == "abcd":
            full.append(round)
        played(server, round, [0])
    return full


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({}, [0, 4, 8]),
        ({"period": 1}, [0, 2, 4, 6, 8]),
        # The equation's schedule counts the whole broadcast in the period.
        ({"schedule": "equation"}, [0, 3, 6]),
        ({"schedule": "equation", "period": 1}, list(range(9))),
        ({"period": 0}, list(range(9))),
        ({"period": 0, "schedule": "equation"}, list(range(9))),
    ],
)
def test_the_whole_model_goes_down_every_period_plus_one_rounds(options: dict[str, Any], rounds: list[int]) -> None:
    assert rounds_with_everything(server(alpha=2, **options), 9) == rounds


@pytest.mark.parametrize(("alpha", "blocks"), [(1, "d"), (2, "cd"), (3, "bcd")])
def test_a_partial_round_sends_the_last_alpha_blocks(alpha: int, blocks: str) -> None:
    fixed = server(alpha=alpha)
    played(fixed, 0, [0])
    assert blocks_sent(fixed, 0, 1) == blocks
    assert fixed.download(0, 1).choice == {"alpha": alpha, "full": 0}


def test_a_client_gets_everything_when_it_first_takes_part() -> None:
    fixed = server(alpha=1)
    played(fixed, 0, [0])
    assert blocks_sent(fixed, 1, 1) == "abcd"
    assert fixed.download(1, 1).choice == {"alpha": 1, "full": 1}
    played(fixed, 1, [1])
    assert blocks_sent(fixed, 1, 2) == "d"


def test_a_client_that_was_away_too_long_gets_everything() -> None:
    patient, strict = server(alpha=1, period=99), server(alpha=1, period=99, stale_after=2)
    for one in (patient, strict):
        played(one, 0, [0])
    # Absent in rounds 1 and 2; then in 1, 2 and 3.
    assert blocks_sent(strict, 0, 3) == "d"
    assert blocks_sent(strict, 0, 4) == "abcd"
    assert blocks_sent(patient, 0, 50) == "d"


def test_random_alphas_are_spread_over_all_choices() -> None:
    drawn = server(alpha="random")
    alphas = [drawn.download(0, round).choice["alpha"] for round in range(3000)]
    counts = np.bincount(alphas, minlength=4)
    assert counts[0] == 0
    assert all(900 < count < 1100 for count in counts[1:])


def test_the_bandit_counts_every_visit_and_learns_from_it() -> None:
    gmbs = server(memory=1.0)
    for round in range(6):
        rows = played(gmbs, round, [0, 2], drop=0.5)
    assert gmbs.gmbs.n.sum(axis=1).tolist() == [6, 0, 6]
    # Labels (1, 0) against (1/2, 1/2): d = 1/2. Times 1 and 3 of at most 3, twice: exp(2/3) and exp(2).
    assert [row.reward for row in rows] == pytest.approx([0.25 / math.exp(2 / 3), 0.25 / math.exp(2)])
    for shares in ([row.compute_share for row in rows], [row.communication_share for row in rows]):
        assert shares == pytest.approx([1 / 3, 1])
    assert gmbs.gmbs.p[2, rows[1].alpha - 1] == rows[1].reward


def test_the_row_shows_the_value_that_won() -> None:
    gmbs = server(alpha=2, memory=1.0)
    played(gmbs, 0, [0])
    learned = gmbs.gmbs.p[0, 1]
    assert played(gmbs, 1, [0])[0].value == pytest.approx(learned + math.sqrt(math.log(2)) / 2)
    one_based = server(alpha=2, first_round=1)
    assert played(one_based, 0, [0])[0].value == pytest.approx(math.sqrt(math.log(2)))


def test_whole_rounds_may_take_all_pathways_or_give_no_feedback() -> None:
    everything = server(alpha=1, full_rounds="all")
    assert everything.download(0, 0).choice == {"alpha": 3, "full": 1}
    played(everything, 0, [0])
    assert everything.gmbs.n[0].tolist() == [0, 0, 1]
    assert everything.download(0, 1).choice == {"alpha": 1, "full": 0}
    silent = server(alpha=1, full_rounds="silent")
    played(silent, 0, [0])
    assert silent.gmbs.p[0].tolist() == [0, 0, 0]
    assert silent.gmbs.n[0].tolist() == [1, 0, 0]
    played(silent, 1, [0])
    assert silent.gmbs.p[0, 0] > 0


def test_every_alpha_is_possible_alone_and_with_everything() -> None:
    def choices(**options: Any) -> list[tuple[int, ...]]:
        return [tuple(choice.values()) for choice in possible_choices(4, 3, FedBROptions(**options))]

    assert choices() == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]
    assert choices(alpha=2) == [(2, 0), (2, 1)]
    assert choices(full_rounds="all") == [(1, 0), (2, 0), (3, 0), (3, 1)]


def test_the_drop_between_visits_is_0_at_the_first() -> None:
    visits = server(alpha=1, drop="visits")
    assert played(visits, 0, [0], loss=3.0)[0].loss_drop == 0.0
    assert played(visits, 3, [0], loss=2.5)[0].loss_drop == 0.5
    assert played(visits, 4, [0], loss=2.75)[0].loss_drop == -0.25


def test_deviations_of_labels_by_hand() -> None:
    # Clients (1, 0) and (1/4, 3/4); 4 and 8 examples: everyone's labels are (1/2, 1/2).
    histogram = np.array([[4, 0], [2, 6]])
    assert label_deviation(histogram, "total-variation") == pytest.approx([0.5, 0.25])
    assert label_deviation(histogram, "l2") == pytest.approx([math.sqrt(0.5), math.sqrt(0.125)])
    kl = [math.log(2), 0.25 * math.log(0.5) + 0.75 * math.log(1.5)]
    assert label_deviation(histogram, "kl") == pytest.approx(kl)
    assert label_deviation(histogram, "constant").tolist() == [1, 1]
    for kind in ("total-variation", "l2", "kl"):  # a client without examples deviates by nothing
        assert label_deviation(np.array([[4, 4], [0, 0]]), kind).tolist() == [0, 0]


def test_deviations_of_models_are_relative_to_the_participants_mean() -> None:
    # All 10 numbers of clients 0, 1, 2 moved by 0, 1 and 2 from the model that was sent.
    distances = server(alpha=1, deviation="model")
    distances.observe(Update(2, 0, {}, model(2.0)), lambda: {GLOBAL: model(0.0)[MODEL]})
    assert distances._moved.pop(2) == pytest.approx(2 * math.sqrt(10))
    assert [row.deviation for row in played(distances, 0, [0, 1, 2])] == pytest.approx([0, 1, 2])


def test_a_restored_server_goes_on_as_if_nothing_had_happened() -> None:
    first, second = server(alpha="gmbs", stale_after=1), server(alpha="gmbs", stale_after=1)
    for round in range(5):
        played(first, round, [0, round % 3] if round % 3 else [0])
    second.restore(first.models, {name: array.copy() for name, array in first.state().items()})
    for round in range(5, 9):
        ours, theirs = ([one.download(client, round) for client in range(3)] for one in (first, second))
        assert [dispatch.choice for dispatch in ours] == [dispatch.choice for dispatch in theirs]
        assert [sha256(dispatch.payload) for dispatch in ours] == [sha256(dispatch.payload) for dispatch in theirs]
        assert played(first, round, [0, 1, 2], drop=0.1) == played(second, round, [0, 1, 2], drop=0.1)


# --- visits that do not count, and visits without rounds --------------------------------------------------------------


def begun(server: FedBRServer, client: int, round: int) -> Download:
    """A visit that began."""
    dispatch = server.download(client, round)
    server.started(round, [dispatch])
    return dispatch


def ended(
    server: FedBRServer, dispatch: Download, round: int, compute: float = 1.0, link: float = 1.0, moved: float = 1.0
) -> ChoiceRow:
    """It counted, having taken so many seconds and moved every number by so much; what the ledger shows of it."""
    server.received(round, [dispatch])
    reply = Update(dispatch.client, round, {"drop": 1.0, "loss": 1.0}, model(moved))
    server.observe(reply, lambda: server.models)
    (row,) = server.feedback(round, [VisitFeedback(dispatch, reply, compute, link)])
    return row


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_visit_that_does_not_count_leaves_all_but_the_count_as_it_was(asynchronous: bool) -> None:
    one = server(asynchronous, alpha=2)
    ended(one, begun(one, 0, 0), 0)
    before = one.state()
    begun(one, 0, 1)
    after = one.state()
    changed = [name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)]
    assert changed == ["n"]
    assert (before["n"][0].tolist(), after["n"][0].tolist()) == ([0, 1, 0], [0, 2, 0])


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({"period": 3}, [0, 4, 8]),
        ({"period": 1}, [0, 2, 4, 6, 8]),
        ({"period": 0}, list(range(9))),
        ({"period": 3, "schedule": "equation"}, [0, 3, 6]),
    ],
)
def test_without_rounds_a_client_counts_its_own_visits_that_counted(options: dict[str, Any], whole: list[int]) -> None:
    one = server(True, alpha=2, **options)
    sent = []
    for visit in range(9):
        begun(one, 0, 7 * visit)  # lost
        dispatch = begun(one, 0, 7 * visit + 5)
        sent.append(dispatch.choice["full"])
        ended(one, dispatch, 7 * visit + 5)
    assert [visit for visit, full in enumerate(sent) if full] == whole
    assert one.download(1, 99).choice["full"] == 1  # it was never seen


def test_without_rounds_times_are_measured_by_the_longest_so_far() -> None:
    one = server(True, alpha=2, memory=1.0)
    shares = []
    for compute, link in ((4.0, 1.0), (2.0, 2.0), (8.0, 1.0), (4.0, 0.0)):
        row = ended(one, begun(one, 0, 0), 0, compute, link)
        shares.append((row.compute_share, row.communication_share))
    assert shares == [(1, 1), (0.5, 1), (1, 0.5), (0.5, 0)]
    # d = 1/2, the loss fell by 1.
    assert row.reward == pytest.approx(0.5 / math.exp(0.5), rel=1e-15)
    # Times of nothing are no share of anything, and a model that did not move deviates by nothing.
    one = server(True, alpha=2, deviation="model")
    row = ended(one, begun(one, 0, 0), 0, 0.0, 0.0, moved=0.0)
    assert (row.compute_share, row.communication_share, row.deviation) == (0, 0, 0)


def test_without_rounds_models_are_measured_by_the_mean_of_all_visits_so_far() -> None:
    one = server(True, alpha=2, deviation="model", memory=1.0)
    # Moved by 1, 3 and 2: the mean is 1, then 2, then 2. Client 1's visit has come to nothing.
    begun(one, 1, 0)
    rows = [ended(one, begun(one, client, 0), 0, moved=moved) for client, moved in ((0, 1.0), (2, 3.0), (1, 2.0))]
    assert [row.deviation for row in rows] == pytest.approx([1, 1.5, 1])
    again = server(True, alpha=2, deviation="model")
    again.restore(one.models, one.state())
    for each in (one, again):
        assert ended(each, begun(each, 0, 0), 0, moved=6.0).deviation == pytest.approx(2)


# --- whole rounds -----------------------------------------------------------------------------------------------------


CLIPPED = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3)
# digits-cnn of width 4: 1 -> 4 -> 8 -> 8 channels of 3x3, then 32 -> 10; 4 bytes a number.
BLOCK_NBYTES = {"conv1": 4 * 40, "conv2": 4 * 296, "conv3": 4 * 584, "head": 4 * 330}
LAST_NBYTES = {1: 1320, 2: 3656, 3: 4840}
WHOLE_NBYTES = 5000


def downloads(run: Run) -> dict[tuple[int, int], dict[str, int]]:
    """(round, client) -> block -> bytes sent down, headers apart."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    query = "SELECT round, client, key, nbytes FROM transfers WHERE direction = 'down' AND slot = 'model'"
    for round, client, key, nbytes in run.rows(query):
        found.setdefault((round, client), {})[key] = nbytes
    return found


def test_over_a_period_a_client_gets_one_model_and_the_blocks_chosen_for_it(tmp_path: Path) -> None:
    run = play(tmp_path, "fedbr", clients=2, rounds=8, train=TrainConfig(lr=0.1, batch=64, local_steps=2), period=3)
    sent = downloads(run)
    chosen = {(r, c): (alpha, full) for r, c, alpha, full in run.rows("SELECT round, client, alpha, full FROM choices")}
    assert [chosen[round, 0][1] for round in range(8)] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert len({alpha for alpha, _ in chosen.values()}) > 1
    for client in (0, 1):
        for first in (0, 4):
            period = range(first, first + 4)
            total = sum(nbytes for round in period for nbytes in sent[round, client].values())
            assert total == WHOLE_NBYTES + sum(LAST_NBYTES[chosen[round, client][0]] for round in period[1:])
    assert sent[0, 0] == BLOCK_NBYTES
    uploads = run.rows("SELECT SUM(nbytes) FROM transfers WHERE direction = 'up' AND slot = 'model'")
    assert uploads == [(16 * WHOLE_NBYTES,)]


def test_a_partial_round_starts_from_the_clients_own_first_blocks(tmp_path: Path) -> None:
    run = play(tmp_path, "fedbr", clients=2, rounds=1, alpha=1, train=CLIPPED).federation
    kept = {client: client_state.read(state_file(run, client))[MODEL] for client in (0, 1)}
    # Without a step size, what a client uploads is what it started from.
    run.job = replace(run.job, train=replace(CLIPPED, lr=0.0))
    replies: list[Update] = []
    run.trainer.submit([run.prepare(client, 1) for client in (0, 1)], replies.append).wait()
    for reply in replies:
        client, up = reply.client, reply.payload[MODEL]
        assert [up[key].version for key in ("conv1", "conv2", "conv3")] == [
            kept[client][key].version for key in ("conv1", "conv2", "conv3")
        ]
        assert up["head"].version == run.server.model["head"].version


def test_with_broadcast_to_everyone_listeners_keep_the_model_that_was_sent(tmp_path: Path) -> None:
    brief = TrainConfig(lr=0.1, batch=64, local_steps=1)
    iid = PartitionConfig("iid")
    how: dict[str, Any] = {"clients": 4, "participants": 2, "train": brief, "partition": iid}
    start = federation(tmp_path / "start", "fedbr", **how)
    store(start).ledger.close()
    run = play(tmp_path / "run", "fedbr", rounds=1, broadcast="everyone", **how)
    kinds = dict(run.rows("SELECT client, kind FROM visits"))
    listeners = [client for client, kind in kinds.items() if kind == "listen"]
    assert sorted(kinds) == [0, 1, 2, 3]
    assert len(listeners) == 2
    for client in listeners:
        kept = client_state.read(state_file(run.federation, client))[MODEL]
        assert [kept[k].version for k in kept] == [start.server.model[k].version for k in ("conv1", "conv2", "conv3")]
        assert run.rows(f"SELECT bytes_up, flops, samples FROM visits WHERE client = {client}") == [(0, 0.0, 0)]
        assert downloads(run)[0, client] == BLOCK_NBYTES
    # A listener has been seen: it gets no whole model when it first takes part, and the bandit has not chosen for it.
    assert {run.federation.server.download(client, 1).choice["full"] for client in listeners} == {0}
    assert run.federation.server.state()["n"][listeners].sum() == 0


# --- the bandit, Eq. 5 to 7 -------------------------------------------------------------------------------------------


def test_eq_5_rewards_a_falling_loss_and_short_times() -> None:
    assert reward(0.5, 0.8, 0.0, 0.0) == 0.4
    assert reward(0.5, 0.8, 1.0, 0.5) == pytest.approx(0.4 / math.exp(1.5))
    # The loss rose: the sign stays. Data like everyone's: nothing to gain.
    assert reward(0.5, -0.8, 0.0, 0.0) == -0.4
    assert reward(0.0, 0.8, 1.0, 1.0) == 0.0


def test_eq_6_remembers_a_share_of_what_was() -> None:
    bandit = Gmbs(2, 3, memory=0.25)
    bandit.learn(1, 2, 8.0)
    assert bandit.p.tolist() == [[0, 0, 0], [0, 2, 0]]
    bandit.learn(1, 2, 4.0)
    assert bandit.p.tolist() == [[0, 0, 0], [0, 2.5, 0]]  # 0.25 x 4 + 0.75 x 2


def test_eq_7_adds_a_bonus_that_shrinks_with_use() -> None:
    bandit = Gmbs(1, 3, memory=1.0)
    bandit.learn(0, 1, 0.5)
    for m in (1, 1, 1, 2):
        bandit.started(0, m)
    heat = math.sqrt(math.log(5))
    assert bandit.values(0, 4) == pytest.approx([0.5 + heat / 4, heat / 2, heat])


def test_the_other_form_of_the_bonus_takes_the_count_under_the_root() -> None:
    bandit = Gmbs(1, 2, memory=1.0, bonus="root")
    for _ in range(3):
        bandit.started(0, 1)
    assert bandit.values(0, 4) == pytest.approx([math.sqrt(math.log(5) / 4), math.sqrt(math.log(5))])


def test_the_best_value_wins_and_ties_are_drawn() -> None:
    bandit, rng = Gmbs(2, 3, memory=1.0), np.random.default_rng(0)
    bandit.learn(0, 2, 9.0)
    assert {bandit.choose(0, 1, rng) for _ in range(50)} == {2}
    assert {bandit.choose(1, 1, rng) for _ in range(50)} == {1, 2, 3}


def test_times_are_made_comparable_within_a_round() -> None:
    seconds = np.array([1.0, 2.0, 6.0])
    assert normalise(seconds, "max") == pytest.approx([1 / 6, 1 / 3, 1])
    assert normalise(seconds, "min-max") == pytest.approx([0, 0.2, 1])
    assert normalise(seconds, "mean") == pytest.approx([1 / 3, 2 / 3, 2])
    deviation = math.sqrt((4 + 1 + 9) / 3)
    assert normalise(seconds, "z-score") == pytest.approx([-2 / deviation, -1 / deviation, 3 / deviation])
