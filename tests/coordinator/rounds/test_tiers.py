"""Rounds with aggregators between clients and server: when they begin and end, what is sent, and what is resumed.

Clients are a clockwork: their visits take 4, 4, 8 and 16 s. Aggregator 0 has clients 0 and 2, aggregator 1 has 1 and 3.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.aggregation.server import ServerExtension
from coordinator.methods.registry import resolve
from coordinator.rounds.budget import PRICE, ROUNDS, SECONDS, WAN_BYTES, RunLimits
from coordinator.rounds.policy import RoundPolicy
from edge.protocol.messages import GLOBAL
from tests.coordinator.rounds.clockwork import FOUR
from tests.coordinator.rounds.tier_clockwork import CYCLE, DOWN_NBYTES, SMALL, TWO, UP_NBYTES, chain, ran, rounds
from tests.crossed import crossed, every
from tests.methods.cases import CASES, Case
from tests.toy import Run, broken_off, model_sha256, play, resumed, trained_models

# --- times ------------------------------------------------------------------------------------------------------------


def test_a_round_waits_for_the_slowest_aggregator_and_its_message(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=2)

    # Aggregator 0: 1 s down, 8 s for client 2, 2 s up: 11 s. Aggregator 1: 2 s, 16 s for client 3, 4 s: 22 s.
    assert rounds(run) == [(0, 22), (22, 44)]
    assert run.rows("SELECT client, start_s, up_end_s FROM visits WHERE round = 0 ORDER BY client") == [
        *((0, 1, 5), (1, 2, 6), (2, 1, 9), (3, 2, 18))
    ]
    sent = "SELECT aggregator, direction, start_s, end_s, nbytes FROM aggregators WHERE round = 0"
    assert run.rows(sent) == [
        *((0, "down", 0, 1, DOWN_NBYTES), (1, "down", 0, 2, DOWN_NBYTES)),
        *((0, "up", 9, 11, UP_NBYTES), (1, "up", 18, 22, UP_NBYTES)),
    ]
    assert run.stopped_by == ROUNDS


def test_aggregators_do_not_wait_for_each_other_between_two_meetings(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=4, schedule={"interval": 2})

    # Aggregator 0 is ready after 1, 9 and 17 s, and its model arrives after 19 s; aggregator 1: 2, 18, 34, 38 s.
    assert rounds(run) == [(0, 18), (9, 38), (38, 56), (47, 76)]
    assert run.rows("SELECT round, direction, aggregator FROM aggregators WHERE round < 2") == [
        *((0, "down", 0), (0, "down", 1), (1, "up", 0), (1, "up", 1))
    ]
    # The server's model is a new one, and evaluated, after each second round.
    assert run.rows("SELECT accuracy IS NULL FROM rounds") == [(1,), (0,), (1,), (0,)]


def test_some_aggregators_take_part_until_the_next_meeting(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=6, participants=2, schedule={"interval": 2, "participants": 1})

    found = run.rows("SELECT DISTINCT round, aggregator FROM aggregators WHERE direction = 'up' ORDER BY round")
    assert [round for round, _ in found] == [1, 3, 5]  # one each
    for round, aggregator in found:
        visited = run.rows(f"SELECT DISTINCT client % 2 FROM visits WHERE round IN ({round - 1}, {round})")
        assert visited == [(aggregator,)]


def test_each_aggregators_deadline_runs_from_its_own_beginning(tmp_path: Path) -> None:
    run = ran(tmp_path, rules=RoundPolicy("deadline", deadline=10.0))

    # Client 3 is late at its aggregator, whose round ends at 2 + 10 s; its message takes 4 s.
    assert rounds(run) == [(0, 16)]
    assert run.rows("SELECT client, kind, up_end_s FROM visits ORDER BY client") == [
        *((0, "train", 5), (1, "train", 6), (2, "train", 9), (3, "late", 12))
    ]


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_a_model_that_is_lost_on_its_way_does_not_count_and_delays_nobody(tmp_path: Path) -> None:
    run = ran(tmp_path, {"lost": {(0, 1): 0.0}})

    assert rounds(run) == [(0, 18)]  # until it has made its step, and not until its model would have come
    assert run.rows("SELECT aggregator, end_s FROM aggregators WHERE direction = 'up'") == [(0, 11), (1, None)]
    assert run.rows("SELECT DISTINCT kind FROM visits") == [("train",)]


@pytest.mark.parametrize(
    ("on_loss", "visited", "end"),
    [
        ("wait", {0: 1, 2: 1, 1: 30, 3: 30}, 50),  # until it is back: 30 + 16 + 4 s
        ("move", {0: 1, 1: 1, 2: 1, 3: 1}, 19),  # to aggregator 0: 1 + 16 + 2 s
        ("lost", {0: 1, 2: 1}, 11),
    ],
)
def test_clients_of_an_aggregator_that_is_away_wait_or_move_or_take_no_part(
    on_loss: str, visited: dict[int, float], end: float, tmp_path: Path
) -> None:
    run = ran(tmp_path, {"away": {1: (0.0, 30.0)}}, {**TWO, "on_loss": on_loss})

    assert dict(run.rows("SELECT client, start_s FROM visits")) == visited
    assert rounds(run) == [(0, end)]


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (RunLimits(wan_bytes=3 * CYCLE), WAN_BYTES),
        (RunLimits(price=3 * CYCLE * 2e-9), PRICE),  # 2 for a gigabyte
    ],
)
def test_budgets_of_messages_above_clients_are_never_exceeded(limits: RunLimits, rule: str, tmp_path: Path) -> None:
    run = ran(tmp_path, aggregators={**TWO, "price": 2.0}, rounds=9, limits=limits)

    assert (run.stopped_by, len(rounds(run))) == (rule, 3)
    ((nbytes, price),) = run.rows("SELECT SUM(nbytes), SUM(price) FROM aggregators")
    assert (nbytes, price) == (3 * CYCLE, pytest.approx(3 * CYCLE * 2e-9))


def test_the_budget_of_seconds_cuts_a_round_before_its_models_arrive(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=3, limits=RunLimits(virtual_seconds=30.0))

    assert (run.stopped_by, rounds(run)) == (SECONDS, [(0, 22), (22, 30)])
    assert run.rows("SELECT DISTINCT kind, MAX(up_end_s) FROM visits WHERE round = 1") == [("cut", 30)]


# --- models -----------------------------------------------------------------------------------------------------------


def has_tiers(case: Case) -> bool:
    method = resolve(case.name)
    servers = [correction.server for correction in method.corrections if correction.server]
    sees_all = any(server.carried is ServerExtension.carried for server in servers)
    return not sees_all and not any(part.refusals.tiers for part in method.parts) and method.objective.submodels is None


@pytest.mark.parametrize("case", every(6, filter(has_tiers, CASES)), ids=str)
def test_with_one_aggregator_a_method_has_its_models_to_the_bit(case: Case, tmp_path: Path) -> None:
    flat, one = (
        case.play_real(partial(play, tmp_path / name), aggregators={"count": count})
        for name, count in (("flat", 0), ("one", 1))
    )

    assert model_sha256(one.federation) == model_sha256(flat.federation)
    assert one.rows("SELECT client, loss FROM visits") == flat.rows("SELECT client, loss FROM visits")


def test_control_variates_are_charged_above_clients_in_both_directions(tmp_path: Path) -> None:
    plain, whole, lean = (
        play(tmp_path / name, method, **SMALL, aggregators={"count": 2}, **options)
        for name, method, options in (
            ("plain", "fedavg", {}),
            ("whole", "fedavg+scaffold", {}),
            ("lean", "fedavg+scaffold", {"lean": True}),
        )
    )

    sent = [dict(run.rows("SELECT DISTINCT direction, nbytes FROM aggregators")) for run in (plain, whole, lean)]
    ((down, up),), ((with_down, with_up),) = (
        run.rows("SELECT DISTINCT bytes_down, bytes_up FROM visits") for run in (plain, whole)
    )
    # The 414 numbers of the model once more, and what names them, as clients' messages have them.
    assert with_down - down == with_up - up == 4 * 414 + 271
    assert sent[1] == {"down": sent[0]["down"] + with_down - down, "up": sent[0]["up"] + with_up - up}
    assert sent[2] == sent[1]  # whatever clients send


@pytest.mark.parametrize("method", ["fedavg", "fedavg+scaffold"])
def test_aggregators_that_meet_in_every_round_have_fedavgs_model_but_for_rounding(method: str, tmp_path: Path) -> None:
    flat, two = (
        play(tmp_path / name, method, **SMALL, aggregators={"count": count})
        for name, count in (("flat", 0), ("two", 2))
    )

    for key, vector in trained_models(flat.federation)["global"].items():
        np.testing.assert_allclose(two.federation.server.models["global"][key].data, vector.data, atol=1e-5)
    apart = play(tmp_path / "apart", method, **SMALL, aggregators={"count": 2}, schedule={"interval": 4})
    assert np.abs(apart.model - flat.model).max() > 1e-4


EVALUATED = {"evaluation": {"aggregators": True}}


def accuracies(run: Run) -> dict[int, dict[tuple[int, str], float]]:
    """Round -> (aggregator, metric) -> value, of aggregators' own models."""
    found: dict[int, dict[tuple[int, str], float]] = {}
    query = "SELECT round, client, aggregator, metric, value FROM evaluations"
    for round, client, aggregator, metric, value in run.rows(query):
        assert client == GLOBAL
        found.setdefault(round, {})[aggregator, metric] = value
    return found


def test_own_models_of_aggregators_are_evaluated_on_the_test_set_between_two_meetings(tmp_path: Path) -> None:
    run = play(tmp_path, "fedavg", **{**SMALL, **EVALUATED, "rounds": 3}, aggregators=TWO, schedule={"interval": 2})

    found = accuracies(run)
    names = [(index, metric) for index in (0, 1) for metric in ("accuracy", "loss")]
    assert {round: [*values] for round, values in found.items()} == {0: names, 2: names}
    site = run.workers.site
    x, y = site.test_set.fetch(site.evaluated_indices)
    site.net.train_mode(False)
    for index in (0, 1):
        site.net.load(run.federation.server.models[f"aggregator {index}"])
        with torch.no_grad():
            right = float((site.net.run(x).argmax(1) == y).double().mean())
        assert found[2][index, "accuracy"] == pytest.approx(right)
    assert found[2][0, "loss"] != found[2][1, "loss"]
    # The round's own are the server's: in round 3 still those of the meeting.
    of_server = run.rows("SELECT accuracy, test_loss FROM rounds")
    assert of_server[2] == of_server[1] != of_server[0]


@pytest.mark.parametrize(
    ("how", "after"),
    crossed(
        (
            *({}, {"sum": "fixed_point"}, {"method": "fedbr"}, {"method": "pfedmb"}, {"method": "fedavg+scaffold"}),
            EVALUATED,
        ),
        (1, 2, 3),
    ),
)
def test_a_run_that_is_killed_between_two_meetings_goes_on_to_the_bit(
    how: dict[str, Any], after: int, tmp_path: Path
) -> None:
    how = {**SMALL, **how, "aggregators": {"count": 3, "above": {"count": 2}}, "schedule": {"interval": (2, 2)}}
    method = how.pop("method", "fedavg")
    whole = play(tmp_path / "whole", method, **how)

    broken_off(tmp_path / "killed", method, after, **how)
    assert chain(resumed(tmp_path / "killed", method, **how)) == chain(whole)


def test_replies_in_another_order_change_nothing(tmp_path: Path) -> None:
    how = {**SMALL, **EVALUATED, "aggregators": {"count": 2}, "schedule": {"interval": 2}}
    assert chain(play(tmp_path / "a", "fedavg", **how)) == chain(play(tmp_path / "b", "fedavg", shuffle=3, **how))


# --- late visits, and evaluations that are charged --------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"rules": RoundPolicy("deadline", deadline=5.0, on_late="complete")},
        {"evaluation": {"on": "clients", "charged": True}},
        {"codec": {"up": [{"kind": "quantize", "bits": 4}, {"kind": "elias"}]}, "schedule": {"interval": 2}},
    ],
    ids=["late visits", "charged evaluations", "entropy coder"],
)
def test_a_resumed_run_goes_on_with_what_was_under_way(how: dict[str, Any], tmp_path: Path) -> None:
    how = {"aggregators": {"count": 2}, "seconds": FOUR, **SMALL, **how}
    whole = play(tmp_path / "whole", **how)
    for after in (1, 2):
        broken_off(tmp_path / f"after {after}", "fedavg", after, **how)
        again = resumed(tmp_path / f"after {after}", "fedavg", **how)
        assert chain(again) == chain(whole)
