"""Late visits that go on beside later ones: by hand, and that a cut into rounds changes no end and no cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.links import Links
from costmodel.visits.accounting import COSTS
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.timeline import solve_beside
from costmodel.visits.work import Work, Works
from tests.costmodel.worlds import INF, UP_RATE, VISIT, connected, ends, random_world
from tests.crossed import every

# An upload of 4344 bytes takes 6 s at 6056 bit/s, and 0.1 s to arrive. It is cut at 0 s, after 2 s, and goes on beside
# a visit that uploads for 1 s from 4.3 s on.
UPLOAD = Work(0, 4344, 0.0)


def _cut(who: Conditions, work: Work = UPLOAD, links: Links | None = None, **how: Any) -> Leftovers:
    """A visit that began 2 s before 0 s."""
    state = solve_beside(None, [-2.0], Works.of([work]), who, links or Links(), until=0.0, goes_on=True, **how).state
    assert state is not None
    return state


def _beside(
    links: Links | None = None,
    until: float = INF,
    behaviour: ClientDynamics | None = None,
    **columns: Any,
) -> Solution:
    who = connected(1, **({"last_down": -2.1, "last_up": -2.1} | columns))
    visits = [0.0], Works.of([VISIT]), connected(), links or Links(), behaviour, until, True
    return solve_beside(_cut(who, links=links, behaviour=behaviour), *visits)


def _outcome(solution: Solution) -> Any:
    """(when the late visit ended, when it was lost, its bytes, its joules) from 0 s on."""
    timeline = solution.leftovers
    assert timeline is not None
    columns = (timeline.up_end, timeline.lost, timeline.bytes_up, timeline.joules_spent)
    end, lost, nbytes, joules = (column[0].item() for column in columns)
    return end, lost, nbytes, joules


def test_it_shares_the_links_on_its_way_with_messages_of_its_direction() -> None:
    links = Links(up=0.75 * UP_RATE)
    solution = _beside(links)
    # 1.5 of 6 s' worth is sent by 0 s, 3.225 more by 4.3 s; the 1.275 that are left, and the visit's 1, at 0.375 each.
    assert ends(solution.timeline) == pytest.approx((1.1, 4.3, 4.3 + 1 / 0.375 + 0.1))
    end, lost, nbytes, joules = _outcome(solution)
    assert (end, lost, nbytes) == (pytest.approx(4.3 + 1 / 0.375 + 0.275 / 0.75 + 0.1), INF, 4344 - 1086)
    assert joules == pytest.approx(3 * end)


def test_what_is_sent_by_the_end_of_a_round_is_charged_and_the_rest_goes_on() -> None:
    solution = _beside(until=2.0)
    assert _outcome(solution) == (INF, INF, 1448, pytest.approx(6.0))
    assert solution.state is not None
    # Both are client 0: the visit of the batch first, then the late one.
    rest = solve_beside(
        solution.state.only(np.array([1])), [], Works.of([]), connected(1).only(np.zeros(1, bool)), Links()
    )
    assert _outcome(rest) == (pytest.approx(4.1), INF, 1448, pytest.approx(6.3))


@pytest.mark.parametrize(
    ("how", "lost", "joules"),
    [
        ({"charge": 12.0}, 2.0, 6.0),
        ({"behaviour": ClientDynamics(RecordedIntervals([[(-9.0, 1.5)]], None))}, 1.5, 4.5),
        ({"crash_after": 3.0}, 1.0, 3.0),
    ],
)
def test_it_stops_when_its_client_leaves_crashes_or_has_no_power(how: Any, lost: float, joules: float) -> None:
    found = _outcome(_beside(**how))
    assert found == (INF, pytest.approx(lost), math.floor(4344 * (2 + lost) / 6) - 1448, pytest.approx(joules))


def test_a_visit_of_a_message_alone_ends_with_it() -> None:
    # Cut at 0.5 s of its download, which then ends as ever: 1.1 s. The client neither computes nor decodes nor sends.
    who = connected(1, last_down=-2.1, last_up=-2.1)
    coded = Works.of([dataclasses.replace(VISIT, codec_seconds=0.25)])
    state = solve_beside(None, [0.0], coded, who, Links(), until=0.5, goes_on=True).state
    assert state is not None
    alone = solve_beside(state.messages_alone(), [], Works.of([]), who.only(np.zeros(1, bool)), Links())
    assert alone.leftovers is not None
    assert ends(alone.leftovers) == pytest.approx((1.1, 1.1, 1.1))
    costs = [float(getattr(alone.leftovers, name)[0]) for name in ("bytes_down", "bytes_up", "flops", "joules_spent")]
    assert costs == pytest.approx([724, 0, 0, 1.2])
    # While it computes it has no message.
    state = solve_beside(None, [0.0], Works.of([VISIT]), who, Links(), until=2.0, goes_on=True).state
    assert state is not None
    assert len(state.messages_alone()) == 0


def _in_rounds(clock: Clock, works: Sequence[Work], who: Conditions, rounds: Sequence[float]) -> dict[str, Any]:
    """Columns of `Timeline` of visits that begin at 0 s and go on from round to round; each round is resumed."""
    none = who.only(np.zeros(len(who), bool))
    empty = clock.solve_beside(None, [], [], none).state
    assert empty is not None
    solution = clock.solve_beside(None, np.zeros(len(works)), works, who, rounds[0], goes_on=True)
    timeline, clients = solution.timeline, np.arange(len(works))
    columns = {name: np.array(column) for name, column in timeline.columns.items()}
    for until in rounds[1:]:
        assert solution.state is not None
        left = solution.state.only(~np.isfinite(timeline.end))
        if not len(left):
            break
        packed = left.packed()
        again = Leftovers.unpacked(packed, empty)
        assert again.packed().tobytes() == packed.tobytes()
        solution = clock.solve_beside(again, [], [], none, until, goes_on=True)
        assert solution.leftovers is not None
        timeline, clients = solution.leftovers, np.array(again.clients)
        for name, column in timeline.columns.items():
            if name in COSTS:
                columns[name][clients] += column
            elif name in ("up_end", "lost", "threshold_down", "threshold_up"):
                columns[name][clients] = column
    return columns


ROUNDS = ([2.0, 4.0, 9.0, 30.0, 60.0], [0.5 * i for i in range(1, 20)] + [60.0])


@pytest.mark.parametrize("rounds", every(2, ROUNDS), ids=("some", "many"))
@pytest.mark.parametrize("first", range(8))
def test_a_cut_into_rounds_changes_neither_ends_nor_costs(first: int, rounds: list[float]) -> None:
    for seed in range(first, 512, 136):  # clients that leave, links that vary or break, segments that are lost
        world = random_world(seed)
        clock = Clock(world.fleet)
        who = clock.conditions(range(len(world.fleet)), 0)
        whole = clock.solve(np.zeros(len(who)), world.works, who, 60.0)
        found = _in_rounds(clock, world.works, who, rounds)
        for name in (*COSTS, "up_end", "lost", "threshold_up", "threshold_down"):
            assert found[name] == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-6), (seed, name)


@pytest.mark.parametrize("first", range(8))
def test_late_visits_and_those_of_the_next_round_delay_each_other_as_in_one_batch(first: int) -> None:
    for seed in range(first, 512, 136):
        world = random_world(seed)
        clock, size = Clock(world.fleet), len(world.fleet)
        who, is_late = clock.conditions(range(size), 0), np.arange(size) % 2 == 0
        whole = clock.solve(np.where(is_late, 0.0, 3.0), world.works, who, 60.0)
        late, new = (
            [work for work, is_one in zip(world.works, mask, strict=True) if is_one] for mask in (is_late, ~is_late)
        )
        before = clock.solve_beside(None, np.zeros(len(late)), late, who.only(is_late), 3.0, goes_on=True)
        assert before.state is not None
        goes_on = ~np.isfinite(before.timeline.end)
        after = clock.solve_beside(
            before.state.only(goes_on), np.full(len(new), 3.0), new, who.only(~is_late), 60.0, goes_on=True
        )
        assert after.leftovers is not None
        for name in (*COSTS, "up_end", "lost"):
            column = np.array(getattr(before.timeline, name))
            added = column[goes_on] if name in COSTS else 0
            column[goes_on] = added + getattr(after.leftovers, name)
            assert column == pytest.approx(getattr(whole, name)[is_late], rel=1e-9, abs=1e-6), (seed, name)
            found = getattr(after.timeline, name)
            assert found == pytest.approx(getattr(whole, name)[~is_late], rel=1e-9, abs=1e-6), (seed, name)
