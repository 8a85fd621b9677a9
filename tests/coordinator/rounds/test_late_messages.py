"""What is left of a late visit when its round closes: whom it slows down, when it stops, and who pays for it.

Clients are those of `tests.toy.clockwork`: 2 W while they receive, 8 W while they train, 4 W while they send.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.resume import resume_checkpoint
from coordinator.rounds.budget import BYTES_UP, ROUNDS, RunLimits
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.synchronous import run_synchronous
from costmodel.clock import LEFTOVERS
from costmodel.network.links import Links
from costmodel.network.tcp import wire_bits
from tests.coordinator.rounds import clockwork
from tests.coordinator.rounds.clockwork import DOWN_NBYTES, UP_NBYTES
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.toy import Run, federation, play, store, unsteady_world

# The first of two counts. Client 1 ends after 5 s; by then client 2 has sent a quarter of its update, for 1 s.
FIRST = RoundPolicy("over_select", over_select=2.0)
THREE = [(1.0, 1.0, 1.0), (1.0, 2.0, 2.0), (2.0, 2.0, 4.0)]


def ran(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cohorts: Sequence[Sequence[int]],
    seconds: Sequence[tuple[float, float, float]] = THREE,
    on_late: Any = "finish",
    **how: Any,
) -> Run:
    """A run with these cohorts, round by round."""
    monkeypatch.setattr(FederatedRun, "select", lambda run, eligible, is_there: list(cohorts[run.rounds]))
    rules = replace(FIRST, on_late=on_late)
    return clockwork.ran(folder, rules, seconds, rounds=len(cohorts), **{"participants": 1, **how})


LATE = "SELECT round, kind, start_s, up_end_s, bytes_down, bytes_up, joules FROM visits WHERE client = 2"


def test_what_is_left_shares_the_link_of_the_next_round_and_is_charged_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Client 2 sends a quarter of an update a second, the server's link takes three. Client 0 sends from 7 s on: two
    # quarters beside the leftover until 8 s, then the others in 2/3 s.
    links = Links(up=0.75 * float(wire_bits(float(UP_NBYTES))))
    run = ran(tmp_path / "finish", monkeypatch, [[1, 2], [0]], links=links)
    assert run.rows("SELECT end_s FROM rounds") == [(5,), (pytest.approx(8 + 2 / 3),)]
    assert run.rows(LATE) == [
        (0, "late", 0, 5, DOWN_NBYTES, 1349, 4 + 16 + 4),
        (1, "leftover", 5, 8, 0, UP_NBYTES - 1349, 12),
    ]
    assert run.rows("SELECT kind, rate FROM visits WHERE client = 2") == [("late", 1), ("leftover", None)]
    query = "SELECT participants, busy_s, wasted_s, wasted_bytes, wasted_joules FROM rounds WHERE round = 1"
    assert run.rows(query) == [(1, pytest.approx(3 + 3 + 2 / 3), 3, UP_NBYTES - 1349, 12)]
    clock = run.federation.clock
    assert (clock.state()["last_up"][2], clock.state()["spent_joules"][2], clock.leftovers) == (8, 36, {})
    # Told at once, client 2 leaves the link to client 0: 4/3 s.
    run = ran(tmp_path / "stop", monkeypatch, [[1, 2], [0]], on_late="stop", links=links)
    assert run.rows("SELECT end_s FROM rounds") == [(5,), (pytest.approx(7 + 4 / 3),)]
    assert run.rows(LATE) == [(0, "late", 0, 5, DOWN_NBYTES, 1349, 24)]


def test_its_bytes_stay_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 1.25 updates have been sent. The leftover needs 0.75 and client 0 a whole one: 3, or 2.25 if client 2 is told.
    limits = RunLimits(bytes_up=5 * UP_NBYTES // 2)
    stops = {
        on_late: ran(tmp_path / on_late, monkeypatch, [[1, 2], [0]], on_late=on_late, limits=limits)
        for on_late in ("stop", "finish")
    }
    assert {on_late: run.stopped_by for on_late, run in stops.items()} == {"stop": ROUNDS, "finish": BYTES_UP}
    assert stops["finish"].rows("SELECT SUM(bytes_up) FROM visits") == [(UP_NBYTES + 1349,)]


def test_a_late_visit_that_is_completed_computes_and_sends_beside_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At 5 s client 2 has computed for 1 of 2 s. It sends a quarter of an update a second from 6 s on, client 0 a whole
    # one from 7 s on: the server's link takes one, so that client 0 has 3/4 of it for 4/3 s.
    seconds = [*THREE[:2], (4.0, 2.0, 4.0)]
    links = Links(up=float(wire_bits(float(UP_NBYTES))))
    run = ran(tmp_path, monkeypatch, [[1, 2], [0], [1]], seconds, "complete", links=links)
    assert run.rows("SELECT end_s FROM rounds") == [(5,), (pytest.approx(8 + 1 / 3),), (pytest.approx(13 + 1 / 3),)]
    sent = math.floor(UP_NBYTES * (7 / 3) / 4)
    assert run.rows(LATE) == [
        (0, "late", 0, 5, DOWN_NBYTES, 0, 8 + 8),
        (1, "leftover", 5, pytest.approx(8 + 1 / 3), 0, sent, pytest.approx(8 + 4 * 7 / 3)),
        (2, "leftover", pytest.approx(8 + 1 / 3), 10, 0, UP_NBYTES - sent, pytest.approx(4 * 5 / 3)),
    ]
    ends = "SELECT down_end_s, compute_end_s FROM visits WHERE client = 2 ORDER BY visit"
    assert run.rows(ends) == [(4, 5), (5, 6), (pytest.approx(8 + 1 / 3), pytest.approx(8 + 1 / 3))]
    # Half of its work was done by 5 s. All of it is waste.
    whole = run.rows("SELECT flops FROM visits WHERE client = 1")[0][0]
    flops = run.rows("SELECT flops FROM visits WHERE client = 2 ORDER BY visit")
    assert flops == [(pytest.approx(whole / 2),), (pytest.approx(whole / 2),), (0,)]
    wasted = "SELECT wasted_s, wasted_bytes, wasted_joules FROM rounds"
    assert np.sum(run.rows(wasted), axis=0) == pytest.approx([10, DOWN_NBYTES + UP_NBYTES, 8 + 16 + 16])
    clock = run.federation.clock
    state = clock.state()
    assert (state["last_down"][2], state["last_up"][2], state["spent_joules"][2], clock.leftovers) == (4, 10, 40, {})


def test_its_client_may_be_selected_again_when_it_has_ended_and_a_round_without_others_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eligible: list[list[int]] = []

    def everyone(run: FederatedRun, clients: Sequence[int], is_there: object) -> list[int]:
        eligible.append(list(clients))
        return list(clients)

    monkeypatch.setattr(FederatedRun, "select", everyone)
    # Visits end after 8, 4 and 20 s.
    seconds = [(2.0, 2.0, 4.0), (1.0, 2.0, 1.0), (8.0, 4.0, 8.0)]
    rules = RoundPolicy("deadline", deadline=5.0, on_late="complete")
    run = clockwork.ran(tmp_path / "deadline", rules, seconds, rounds=4, participants=3)
    assert eligible == [[0, 1, 2], [1], [0, 1], [1]]
    assert run.rows("SELECT end_s, participants FROM rounds") == [(5, 1), (9, 1), (14, 1), (18, 1)]
    eligible.clear()
    # Nobody is in time; client 1 is back at 4 s, and alone in its rounds.
    rules = RoundPolicy("deadline", deadline=3.0, on_late="complete")
    run = clockwork.ran(tmp_path / "waits", rules, seconds, rounds=3, participants=3)
    assert eligible == [[0, 1, 2], [1], [0, 1]]
    assert run.rows("SELECT start_s, end_s FROM rounds") == [(0, 3), (3, 7), (7, 11)]
    visits = "SELECT client, round, kind, start_s, up_end_s FROM visits WHERE client < 2 ORDER BY visit"
    assert run.rows(visits)[:8] == [
        (0, 0, "late", 0, 3),
        (1, 0, "late", 0, 3),
        (0, 1, "leftover", 3, 4),
        (1, 1, "leftover", 3, 4),
        (0, 1, "leftover", 4, 7),
        (1, 1, "late", 4, 7),
        (0, 2, "leftover", 7, 8),
        (1, 2, "leftover", 7, 8),
    ]


LATE_WAYS = [("deadline", "finish"), ("over_select", "finish"), ("deadline", "complete"), ("over_select", "complete")]


@pytest.mark.parametrize(("policy", "on_late"), every(2, LATE_WAYS))
def test_a_run_that_is_resumed_while_visits_go_on_is_the_same(policy: Any, on_late: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = unsteady_world(policy)
    leaving = {"kind": "renewal", "on": 3.0, "off": 0.3, "on_loss": "pause"}
    how["fleet"] = how["fleet"] | {"crashes_per_hour": 600, "server": {"up": 1e5}, "availability": leaving}
    how["rules"] = replace(how["rules"], on_late=on_late, over_select=2.0, deadline=0.7)
    how |= {"participants": 2, "rounds": 8}
    straight = play(tmp_path / "straight", "fedavg", **how)
    # What was sent of each message, in the round of its visit and in later ones: some went on to the end.
    sent: dict[int, list[int]] = {}
    for client, kind, nbytes in straight.rows("SELECT client, kind, bytes_up FROM visits ORDER BY round, visit"):
        before = sent.setdefault(client, [0])
        if kind == "leftover":
            before[-1] += nbytes
        else:
            before.append(nbytes)
    whole = [total for totals in sent.values() for total in totals]
    assert max(whole) == UP_NBYTES
    trained = straight.rows("SELECT COUNT(*) FROM visits WHERE bytes_up = (SELECT MAX(bytes_up) FROM visits)")[0][0]
    assert whole.count(UP_NBYTES) >= trained + 2
    first = play(tmp_path / "first", "fedavg", **(how | {"rounds": 4})).federation
    assert LEFTOVERS in first.clock.state()
    shutil.copytree(store(first).folder, tmp_path / "second")
    second = federation(tmp_path / "second", "fedavg", again=True, **how)
    assert resume_checkpoint(second, store(second)) is None
    states = (run.clock.state()[LEFTOVERS] for run in (first, second))
    assert len({state.tobytes() for state in states}) == 1  # it has NaNs
    run_synchronous(second)
    store(second).ledger.close()
    assert virtual_rows(tmp_path / "second") == virtual_rows(tmp_path / "straight")
