"""Shared air: stations by hand, bottlenecks of random cells, and published figures of 802.11 cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from costmodel.network.airtime import AirLink
from costmodel.network.bandwidth import DOWN, UP
from tests.costmodel.oracle import flows_without_bottleneck, random_air

OPEN = (math.inf, math.inf)


def _rates(fair: str, flows: list[tuple[float, int]], capacity: tuple[float, float] = OPEN) -> list[float]:
    """The rates of flows of (link rate, direction) behind one access point."""
    link = AirLink(capacity, 1, fair)
    for number, (rate, direction) in enumerate(flows):
        link.join(0.0, number, 100.0, rate, 0, direction, rate)
    return list(link.rates().values())


# By hand: a station of 11 and one of 1.


def test_equal_times_leave_each_station_half_of_its_rate() -> None:
    assert _rates("time", [(11.0, DOWN), (1.0, DOWN)]) == pytest.approx([5.5, 0.5], rel=1e-15)


def test_equal_packets_slow_all_stations_below_the_slowest() -> None:
    # v / 11 + v / 1 = 1.
    assert _rates("packets", [(11.0, DOWN), (1.0, DOWN)]) == pytest.approx([11 / 12] * 2, rel=1e-15)


def test_a_full_server_leaves_its_air_to_the_other_direction() -> None:
    # A download of 1 takes a tenth of the time; the upload has the rest.
    assert _rates("time", [(10.0, DOWN), (10.0, UP)], (1.0, math.inf)) == pytest.approx([1.0, 9.0], rel=1e-12)
    # The fast station at the server's level w, the slow one in the rest of the time: w + (1 - w / 11) = 2.
    fast, slow = _rates("time", [(11.0, DOWN), (1.0, DOWN)], (2.0, math.inf))
    assert (fast, slow) == pytest.approx((1.1, 0.9), rel=1e-12)
    # 11 / 12 each are 1.83 of 2.
    assert _rates("packets", [(11.0, DOWN), (1.0, DOWN)], (2.0, math.inf)) == pytest.approx([11 / 12] * 2, rel=1e-12)
    assert _rates("packets", [(11.0, DOWN), (1.0, DOWN)], (1.0, math.inf)) == pytest.approx([0.5] * 2, rel=1e-12)


def test_totals_are_those_of_a_shared_link() -> None:
    # Alone for 1 s, 10 bits; then both at half of their time until the second leaves at 3 s, with 5 of its bits.
    link = AirLink(OPEN, 1)
    link.join(0.0, 7, 40.0, 10.0, 0, DOWN, 10.0)
    assert link.next_finish() == 4.0
    link.join(1.0, 3, 100.0, 5.0, 0, UP, 5.0)
    link.change(2.0, 3, 0.0, 5.0)  # paused: the first is alone again
    assert link.next_finish() == 4.5
    cut = link.remove(3.0, 3)
    assert (cut.sent, cut.contention_seconds, cut.paused) == (2.5, 0.5, 1.0)
    assert link.finished(4.0) == []
    [(number, served)] = link.finished(4.5)
    assert (number, served.finish, served.sent, served.contention_seconds) == (7, 4.5, 40.0, 0.5)


# The oracle: each flow has a bottleneck, and ends when its rates have added up to its bits.


@pytest.mark.parametrize("fair", ["time", "packets"])
@pytest.mark.parametrize("seed", range(10))
def test_each_flow_of_random_cells_has_a_bottleneck(fair: str, seed: int) -> None:
    flows, access_points, capacity = random_air(np.random.default_rng(seed))
    link = AirLink(capacity, access_points, fair)
    for number, (bits, cap, place, direction, rate) in enumerate(flows.rows()):
        link.join(0.0, number, bits, cap, place, direction, rate)
    left, now = dict(enumerate(flows.bits.tolist())), 0.0
    while (end := link.next_finish()) < math.inf:
        rates = link.rates()
        present = flows.only(list(rates))
        assert flows_without_bottleneck(present, np.array(list(rates.values())), capacity, fair) == []
        left = {number: left[number] - rate * (end - now) for number, rate in rates.items()}
        now = end
        for number, served in link.finished(now):
            assert served.sent == flows.bits[number]
            assert left.pop(number) == pytest.approx(0.0, abs=1e-9 * flows.bits[number])
    assert left == {}


# Published figures.


def _erp_rate(mbps: int) -> float:
    """Useful Mbit/s of one 802.11g station that sends packets of 1000 bytes, alone on the air.

    DIFS 28 us, mean backoff 7.5 slots of 9 us, SIFS 10 us; frames of 1000 bytes with 64 of headers, acknowledged with
    14 bytes at the highest mandatory rate: OFDM symbols of 4 us, with a preamble of 20 us before and 6 us after them.
    """

    def on_air(nbytes: int, rate: int) -> int:
        return 26 + 4 * math.ceil((22 + 8 * nbytes) / (4 * rate))

    acknowledgement = on_air(14, max(rate for rate in (6, 12, 24) if rate <= mbps))
    return 8000 / (28 + 67.5 + on_air(1064, mbps) + 10 + acknowledgement)


# Slow station's Mbit/s -> useful Mbit/s of the whole cell with four stations of 54: the frame-by-frame simulation of
# the INET Framework (showcase "IEEE 802.11 Rate Anomaly", inet-framework/inet, showcases/wireless/rateanomaly).
INET_UPLINK = {54: 24.2, 36: 23.1, 24: 21.2, 18: 19.9, 12: 17.8, 9: 15.2, 6: 12.2}


@pytest.mark.parametrize(("mbps", "published"), INET_UPLINK.items())
def test_one_slow_station_slows_a_cell_as_in_inet(mbps: int, published: float) -> None:
    fast, slow = _erp_rate(54), _erp_rate(mbps)
    whole = sum(_rates("packets", [(slow, UP), *[(fast, UP)] * 4]))
    # 802.11 also loses time to collisions with the slow station's long frames, which a fluid knows nothing of.
    assert published < whole * 1.005
    assert whole == pytest.approx(published, rel=0.04 if mbps > 9 else 0.13)


def test_an_access_point_shares_out_packets_or_time_as_in_inet() -> None:
    # One client at 6, four at 54, downloads: INET has 2.7 Mbit/s for each with packets in turn; and with equal times
    # 0.7 and 5.3, 22 in all. INET's queue charges frames without the gaps and acknowledgements, which favours the fast.
    cell = [(_erp_rate(6), DOWN), *[(_erp_rate(54), DOWN)] * 4]
    assert _rates("packets", cell) == pytest.approx([2.7] * 5, rel=0.03)
    slow, *fast = _rates("time", cell)
    assert fast == pytest.approx([5.3] * 4, rel=0.08)
    assert sum(fast) + slow == pytest.approx(22.0, rel=0.07)
    assert slow == pytest.approx(_erp_rate(6) / 5, rel=1e-12)
