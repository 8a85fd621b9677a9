"""What is left of late visits' messages beside a batch of visits, by hand: shared links, ends, and costs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.dynamics import PAUSE, ClientDynamics
from costmodel.network.bandwidth import UP
from costmodel.network.links import Links
from costmodel.visits.leftovers import Leftover, Leftovers, Solution, packed, unpacked
from costmodel.visits.timeline import solve_beside
from costmodel.visits.work import Works
from tests.costmodel.worlds import INF, LATER_ENDS, UP_RATE, VISIT, connected, ends

# The upload of 4344 bytes takes 6 s at 6056 bit/s, beside a visit that uploads for 1 s from 4.3 s on.
WHOLE = Leftover(UP, 6 * UP_RATE, 6 * UP_RATE, 4344, 0, UP_RATE)


def _solved(
    links: Links | None = None,
    until: float = INF,
    told: float = INF,
    behaviour: ClientDynamics | None = None,
    **columns: Any,
) -> Solution:
    theirs = connected(1, **({"up": 1.0} | columns))  # its rate is that of the late visit
    leftovers = Leftovers.of([WHOLE], theirs, 0.0, [told])
    return solve_beside(leftovers, [0.0], Works.of([VISIT]), connected(), links or Links(), behaviour, until)


def _outcome(solution: Solution) -> Any:
    """(when the leftover ended, when it was lost, its bytes, its joules)."""
    timeline = solution.leftovers
    assert timeline is not None
    columns = (timeline.up_end, timeline.lost, timeline.bytes_up, timeline.joules_spent)
    end, lost, nbytes, joules = (column[0].item() for column in columns)
    return end, lost, nbytes, joules


def test_on_wide_links_it_takes_its_own_time_and_delays_nobody() -> None:
    solution = _solved()
    assert _outcome(solution) == (6.0, INF, 4344, 18.0)
    assert ends(solution.timeline) == pytest.approx(LATER_ENDS)


def test_it_shares_the_links_on_its_way_with_messages_of_its_direction() -> None:
    # 1.5 times its rate for both: from 4.3 s on 0.75 each, until the visit has sent all 4/3 s later.
    solution = _solved(Links(up=1.5 * UP_RATE))
    assert ends(solution.timeline) == pytest.approx((1.1, 4.3, 4.3 + 4 / 3 + 0.1))
    end, lost, nbytes, joules = _outcome(solution)
    assert (end, lost, nbytes, joules) == (pytest.approx(6 + 1 / 3), INF, 4344, pytest.approx(19))
    # Behind an access link of its own it is not in the way.
    sites = (1.5 * UP_RATE, 1e9)
    assert _outcome(_solved(Links(1e9, 1e9, sites, sites), access_link=1)) == (6.0, INF, 4344, 18.0)
    assert _outcome(_solved(Links(1e9, 1e9, sites, sites)))[0] == pytest.approx(6 + 1 / 3)


def test_what_is_sent_by_the_end_of_a_round_is_charged_and_the_rest_is_left() -> None:
    solution = _solved(until=4.0)
    assert _outcome(solution) == (INF, INF, 2896, 12.0)
    assert solution.left is not None
    assert solution.left[0] == 2 * UP_RATE


@pytest.mark.parametrize(
    ("how", "lost", "joules"),
    [
        ({"told": 3.0}, 3.0, 9.0),
        ({"charge": 6.0}, 2.0, 6.0),
        ({"behaviour": ClientDynamics(RecordedIntervals([[(0.0, 1.5)]], None))}, 1.5, 4.5),
    ],
)
def test_it_stops_when_its_client_is_told_leaves_or_has_no_power(how: Any, lost: float, joules: float) -> None:
    assert _outcome(_solved(**how)) == (INF, lost, math.floor(4344 * lost / 6), joules)


def test_it_waits_for_a_client_that_comes_back_and_the_radio_stays_awake_after_it() -> None:
    pausing = ClientDynamics(RecordedIntervals([[(0.0, 2.0), (5.0, 100.0)]], None), PAUSE)
    radio: Any = {"tail_watts": 0.5, "tail_seconds": 2.0, "transmit_joules_per_bit": 1e-3}
    # 6 s at 3 W, 3 s at the baseline of 1 W, 1 J of the tail, and a joule for each 1000 bits.
    assert _outcome(_solved(behaviour=pausing, **radio)) == (9.0, INF, 4344, pytest.approx(18 + 3 + 1 + 36.336))


def test_leftovers_are_packed_in_client_order_and_come_back_as_they_were() -> None:
    some = {7: WHOLE, 2: Leftover(0, 0.1, 0.3, 2**53 - 1, 5, 1e9)}
    assert packed(some)[:, 0].tolist() == [2, 7]
    assert unpacked(packed(some)) == some
