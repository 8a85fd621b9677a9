"""Both directions of a shared link at once: rates and rounds by hand, and links that leave each other alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel.config import Transport
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.duplex import held_rate
from costmodel.network.fair_link import FairLink
from costmodel.network.links import Links
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works
from tests.costmodel.worlds import INF, connected

HOME = Links(site_down=(10e6,), site_up=(1e6,))
SHORT = Transport(queue=3028)
# 1448 bytes make a frame of 12 112 bits.
DOWNLOAD, UPLOAD = Work(1448 * 2000, 0, 0.0), Work(0, 1448 * 200, 0.0)
DOWN_BITS, UP_BITS = 12_112 * 2000, 12_112 * 200


def _clients(count: int, up: float = 1e9) -> Conditions:
    return connected(count, rtt=0.0, down=1e9, up=up)


def _solve(works: list[Work], links: Links = HOME, up: float = 1e9) -> Timeline:
    return solve([0.0] * len(works), Works.of(works), _clients(len(works), up), links)


def test_a_full_uplink_lets_half_again_its_rate_through_the_downlink_and_more_of_several_downloads() -> None:
    full = [held_rate(10e6, 1e6, n, is_full=True) for n in (1, 2, 4, 8)]
    assert full == pytest.approx([1.55e6, 1.85e6, 2.45e6, 3.65e6])
    # Never more than its own rate.
    assert held_rate(10e6, 5e6, 8, is_full=True) == 10e6
    # Messages with queues of their own.
    assert [held_rate(INF, 1e6, n, is_full=False) for n in (1, 4)] == [3e6, 12e6]


def test_a_download_beside_an_upload_is_slow_until_that_has_ended() -> None:
    timeline = _solve([DOWNLOAD, UPLOAD])
    # 66 bytes per two frames of 1514: the upload has 1 Mbit/s less 2.2 % of 1.55 Mbit/s.
    upload = UP_BITS / (1e6 - 66 / 3028 * 1.55e6)
    assert timeline.up_end[1] == pytest.approx(upload)
    assert timeline.down_end[0] == pytest.approx(upload + (DOWN_BITS - 1.55e6 * upload) / 10e6)
    # Each alone has the link.
    assert _solve([DOWNLOAD]).down_end[0] == pytest.approx(DOWN_BITS / 10e6)
    assert _solve([UPLOAD]).up_end[0] == pytest.approx(UP_BITS / 1e6)


@pytest.mark.parametrize("links", [HOME, Links(INF, 1e6)])
def test_a_download_that_its_own_link_holds_back_has_three_times_the_uplink(links: Links) -> None:
    works = Works.of([DOWNLOAD, replace(UPLOAD, bytes_up=1448 * 2000)])
    # 3 Mbit/s of 4; the acknowledgements take 2.2 % of it from the upload.
    timeline = solve([0.0] * 2, works, replace(_clients(2), down=np.array([4e6, 1e9])), links)
    assert timeline.down_end[0] == pytest.approx(DOWN_BITS / 3e6)
    rest = DOWN_BITS - (1e6 - 66 / 3028 * 3e6) * DOWN_BITS / 3e6
    assert timeline.up_end[1] == pytest.approx(DOWN_BITS / 3e6 + rest / 1e6)
    # One of 2 Mbit/s does not wait for acknowledgements.
    assert (
        solve([0.0] * 2, works, replace(_clients(2), down=np.array([2e6, 1e9])), links).down_end[0] == DOWN_BITS / 2e6
    )


def test_the_server_s_link_holds_up_its_other_direction_too_and_sites_only_their_own() -> None:
    slow = _solve([DOWNLOAD, UPLOAD])
    assert _solve([DOWNLOAD, UPLOAD], Links(10e6, 1e6)).end[0] == pytest.approx(slow.end[0])
    reverse = _solve(
        [replace(DOWNLOAD, bytes_down=1448 * 200), replace(UPLOAD, bytes_up=1448 * 2000)], Links(1e6, 10e6)
    )
    assert reverse.up_end[1] == pytest.approx(slow.down_end[0])
    apart = Links(site_down=(10e6,) * 2, site_up=(1e6,) * 2)
    clients = replace(_clients(2), access_link=np.array([0, 1]))
    timeline = solve([0.0] * 2, Works.of([DOWNLOAD, UPLOAD]), clients, apart)
    assert (timeline.down_end[0], timeline.up_end[1]) == (DOWN_BITS / 10e6, UP_BITS / 1e6)


def test_directions_know_nothing_of_each_other_where_the_slower_one_has_a_short_queue_or_none_is_slower() -> None:
    for links in (replace(HOME, transport=SHORT), Links(1e6, 1e6), Links(INF, 1e8), Links(1e9, 1e8)):
        assert links.held_up is None, links
    assert (HOME.held_up, Links(10e6, 1e6).held_up, Links(1e6, 10e6).held_up) == (DOWN, DOWN, UP)
    assert HOME.are_held_up(DOWN) == (False, True)
    assert replace(HOME, site_down=(INF,), site_up=(INF,), airtime="time").held_up is None


def test_access_links_that_are_apart_meet_when_the_servers_link_becomes_narrow_and_part_again() -> None:
    # Sites of 4 and 6 bit/s with one flow each; from 1 s on the server has 6 for both, 3 each; from 3 s on none again.
    link = FairLink(math.inf, (4.0, 6.0))
    link.join(0.0, 0, 100.0, 9.0, 0)
    link.join(0.0, 1, 100.0, 9.0, 1)
    assert link.rates() == [4.0, 6.0]
    link.resize(1.0, 6.0, (4.0, 6.0))
    assert link.rates() == [3.0, 3.0]
    link.resize(3.0, math.inf, (4.0, 6.0))
    assert link.rates() == [4.0, 6.0]
    link.resize(3.0, math.inf, (2.0, 6.0))
    assert link.rates() == [2.0, 6.0]
    assert [link.remove(5.0, flow).sent for flow in (0, 1)] == [4.0 + 6.0 + 4.0, 6.0 + 6.0 + 12.0]
