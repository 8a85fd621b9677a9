"""Messages over links without limit, sent as a whole: as part by part over links that are only too wide to matter."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.config import Transport
from costmodel.network.links import Links
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work
from tests.costmodel.worlds import fleet_of

CLIENTS = 12
VISIT = Work(bytes_down=700_000, bytes_up=300_000, flops=3e9, steps=5)
WIDE = Links(1e30, 1e30)


def _clock(links: Links) -> Clock:
    """Some clients crash, and some batteries become empty in the middle of a message."""
    fleet = fleet_of(
        CLIENTS,
        links=dataclasses.replace(links, transport=Transport(noise=0.1)),
        devices={"phone-mid": 1},
        networks={"lte": 1, "wifi-4": 1},
        compute_spread=2,
        bandwidth_spread=8,
        jitter=0.1,
        crashes_per_hour=360.0,
        battery=4.0,
    )
    clock = Clock(fleet)
    for client in range(CLIENTS):
        clock.begin(VISIT, clock.conditions([client], 0, visit=client), client)
    return clock


def _ended(links: Links, cut: float) -> dict[int, Timeline]:
    """The timelines of visits that end by ``cut``, and of the others until then."""
    clock = _clock(links)
    ended: dict[int, Timeline] = {}
    while len(ended) < CLIENTS and (item := clock.next(cut)) is not None:
        ended[item.order] = item.timeline
    clock.advance(max(clock.now, min(cut, 1e3)))
    return ended | {order: clock.cut(order).timeline for order in range(CLIENTS) if order not in ended}


@pytest.mark.parametrize("cut", [0.02, 0.26, 1.0, 3.5, math.inf])
def test_each_visit_is_that_over_wide_links_to_the_bit_wherever_it_is_cut(cut: float) -> None:
    whole, by_part = _ended(Links(), cut), _ended(WIDE, cut)

    for order, timeline in whole.items():
        for field in dataclasses.fields(Timeline):
            name = field.name
            assert np.array_equal(getattr(timeline, name), getattr(by_part[order], name)), (order, name)


def test_a_message_takes_one_event_for_its_begin_and_one_for_its_end() -> None:
    events = []
    for links in (Links(), WIDE):
        clock = _clock(links)
        for _ in range(CLIENTS):
            clock.next()
        events.append(clock.events)
    # A begin and an end of each message, the end of computing, and up to three cuts and the end of the visit.
    assert events[0] <= 9 * CLIENTS < events[1]
