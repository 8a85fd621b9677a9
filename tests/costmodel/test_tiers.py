"""Aggregators between clients and server: who belongs to which, and the times and costs of their messages by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.config import (
    AvailabilityConfig,
    BandwidthConfig,
    FleetConfig,
    ServerLink,
    TierConfig,
    Transport,
    UpperTier,
)
from costmodel.fleet.csv_table import parse_table
from costmodel.fleet.devices import devices, networks
from costmodel.fleet.inputs import FleetInputs, read_inputs
from costmodel.fleet.traces import Series, WindowTrace
from costmodel.tiers import TierClock, TierMessages, assigned
from costmodel.visits.work import Work
from tests.costmodel.worlds import fleet_of, streams

INF = math.inf
# 100 frames of 1448 bytes, 12 112 bits each: 1 s down at 1.2112 Mbit/s and 2 s up at half of that, 0.1 s on the way. A
# new connection takes 3.5 round trips, 0.7 s; its window of ten frames is acknowledged 0.1 s after it was sent down,
# and fills the slower link up at once.
NBYTES, DOWN_RATE, UP_RATE = 144_800, 1_211_200.0, 605_600.0
BOARD = dataclasses.replace(devices()["raspberry-pi-4"], name="board", idle_watts=2.0, memory_bytes=10**9)
WAN = dataclasses.replace(
    networks()["broadband"],
    name="wan",
    down_bits_per_second=DOWN_RATE,
    up_bits_per_second=UP_RATE,
    rtt_seconds=0.2,
    goodput=False,
    transmit_watts=3.0,
    receive_watts=1.0,
)
ROWS: Any = {"devices": {"board": BOARD}, "networks": {"wan": WAN, "slow": dataclasses.replace(WAN, name="slow")}}
OPEN = ServerLink(INF, INF, INF)


def config_of(
    count: int = 2, server: ServerLink = OPEN, transport: Transport | None = None, **keys: Any
) -> FleetConfig:
    tiers = TierConfig(count, {"board": 1.0}, {"wan": 1.0}, **keys)
    return FleetConfig(server=server, jitter=0.0, tiers=tiers, transport=transport or Transport())


def clock_of(config: FleetConfig, **recordings: Any) -> TierClock:
    aggregators = FleetInputs(**ROWS, **recordings)
    return TierClock.build(config, streams=streams, inputs=FleetInputs(**ROWS, aggregators=aggregators))


def at(*seconds: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The times at which messages begin, and the aggregators that have one: those of finite times."""
    times = np.array(seconds)
    return times, np.isfinite(times)


# --- clients below aggregators ----------------------------------------------------------------------------------------


def test_three_clients_share_the_lan_of_their_gateway_and_not_the_servers_link() -> None:
    # Three downloads of 12 112 bits at once over as many bit/s, 3 s; the other gateway's three as long. The server's
    # link would take years.
    tiers = TierConfig(2, down=12_112.0, up=INF, aggregate=8e6, visit=0.5)
    fleet = fleet_of(6, tiers=tiers, server=ServerLink(1.0, 1.0, 1.0), transport=Transport(slow_start=False))
    conditions = fleet.conditions(range(6), 0)
    timeline = Clock(fleet).solve([0.0] * 6, [Work(1448, 0, 0.0)] * 6, conditions)

    assert conditions.access_link.tolist() == [0, 1] * 3
    assert timeline.down_end.tolist() == pytest.approx(3.0 + 4 * conditions.rtt)
    assert (fleet.links.down, fleet.links.aggregate_bytes_per_second, fleet.links.seconds_per_visit) == (INF, 1e6, 0.5)

    # Four below one gateway, two below the other, which take 4 and 2 s.
    unequal = fleet.below(np.array([0, 0, 0, 0, 1, 1]))
    timeline = Clock(unequal).solve([0.0] * 6, [Work(1448, 0, 0.0)] * 6, unequal.conditions(range(6), 0))
    assert timeline.down_end.tolist() == pytest.approx(np.array([4.0] * 4 + [2.0] * 2) + 4 * conditions.rtt)
    assert unequal.conditions([5, 1], 0).access_link.tolist() == [1, 0]


# --- messages between aggregators and the server ----------------------------------------------------------------------


def test_the_first_message_connects_and_starts_slowly_and_the_next_does_not() -> None:
    clock = clock_of(config_of(price=5.0))
    first = clock.down(0, *at(0.0, INF), NBYTES, 0)
    assert first.end.tolist() == pytest.approx([0.7 + 0.1 + 1.0 + 0.1, INF])
    up = clock.up(0, *at(2.0, INF), NBYTES, 0)
    assert up.end.tolist() == pytest.approx([2.0 + 2.0 + 0.1, INF])
    # Idle for more than a round trip and 0.2 s: its window has to grow again, which an upload meanwhile did not help.
    assert clock.down(0, *at(4.2, INF), NBYTES, 1).end[0] == pytest.approx(4.2 + 0.1 + 1.0 + 0.1)
    assert clock.down(0, *at(5.5, INF), NBYTES, 2).end[0] == pytest.approx(5.5 + 1.0 + 0.1)

    # The board's 2 W at all times, and 1 W more to receive, 3 W more to send.
    assert first.joules.tolist() == pytest.approx([1.9 * 3.0, 0.0])
    assert up.joules.tolist() == pytest.approx([2.1 * 5.0, 0.0])
    assert (first.start.tolist(), first.nbytes.tolist()) == ([0.0, INF], [NBYTES, 0])
    assert first.price.tolist() == pytest.approx([5.0 * NBYTES / 1e9, 0.0])
    assert clock.idle_watts(0).tolist() == [2.0, 2.0]


def test_aggregators_share_the_servers_link_max_min_fair() -> None:
    # Down each has half of 1.2112 Mbit/s, so that its first window fills its share. Up 0.6056 Mbit/s are shared from
    # 10.5 s on: aggregator 0 has sent 0.25 of its message by then, aggregator 1 sends 0.75 beside it in 3 s.
    clock = clock_of(config_of(server=ServerLink(DOWN_RATE, UP_RATE, 8e6, 0.25)))
    down = clock.down(0, *at(0.0, 0.0), NBYTES, 0)
    assert down.end.tolist() == pytest.approx([0.7 + 2.0 + 0.1] * 2)
    assert down.contention_seconds.tolist() == pytest.approx([0.9] * 2)  # alone it would have waited 0.1 s
    up = clock.up(0, *at(10.0, 10.5), NBYTES, 0)
    assert up.end.tolist() == pytest.approx([13.6, 14.1])
    assert up.contention_seconds.tolist() == pytest.approx([1.5] * 2)
    # Two updates of 144.8 kB at 1 MB/s, and 0.25 s for each.
    assert clock.aggregation_seconds(0, 2 * NBYTES, 2) == pytest.approx(0.2896 + 0.5)


def test_a_tier_above_has_lans_of_its_own_and_the_servers_link_above_it() -> None:
    above = UpperTier(2, {"board": 1.0}, {"wan": 1.0}, down=DOWN_RATE, up=UP_RATE, aggregate=8e6, price=7.0)
    clock = clock_of(config_of(3, ServerLink(DOWN_RATE / 2, INF, 16e6), Transport(slow_start=False), above=above))

    assert (clock.levels, clock.sizes) == (2, (3, 2))
    assert clock.parent(0).tolist() == [0, 1, 0]
    assert clock.parent(1).tolist() == [0, 0]
    # At the top two share half of what each could take: 4 s. Below, 0 and 2 share a LAN, and 1 has one to itself.
    assert clock.down(1, *at(0.0, 0.0), NBYTES, 0).end.tolist() == pytest.approx([4.8] * 2)
    assert clock.down(0, *at(5.0, 5.0, 5.0), NBYTES, 0).end.tolist() == pytest.approx([7.8, 6.8, 7.8])
    assert clock.up(0, *at(9.0, 9.0, 9.0), NBYTES, 0).end.tolist() == pytest.approx([13.1, 11.1, 13.1])
    assert clock.aggregation_seconds(0, 10**6, 2) == pytest.approx(1.0)
    assert clock.aggregation_seconds(1, 10**6, 2) == pytest.approx(0.5)
    assert clock.up(1, *at(20.0, INF), 10**9, 0).price[0] == pytest.approx(7.0)
    assert clock.up(0, *at(9e5, INF, INF), 10**9, 1).price[0] == 0.0


# --- aggregators that leave, and links that fail ----------------------------------------------------------------------


def windows(*present: tuple[float, float]) -> dict[str, Any]:
    """Aggregator 0 is there in these seconds, aggregator 1 at all times."""
    trace = WindowTrace(("0", "1"), (present, ((0.0, 1e6),)), np.zeros(2), np.full(2, 1e6))
    return {"windows": trace}


def leaving(on_loss: Any = "abort") -> FleetConfig:
    config = config_of(availability=AvailabilityConfig("trace", on_loss, file="there.csv"))
    return dataclasses.replace(config, trace_assign="by_client")


def test_a_gateway_that_leaves_loses_its_message_and_connects_again() -> None:
    # It leaves 0.8 s after its first bit, of which it waits 0.1 s for the first acknowledgement: 70 of 100 frames.
    clock = clock_of(leaving(), **windows((0.0, 1.5), (10.0, 1e6)))
    lost = clock.down(0, *at(0.0, 0.0), NBYTES, 0)
    assert lost.end.tolist() == pytest.approx([INF, 1.9])
    assert (lost.lost.tolist(), lost.nbytes.tolist()) == ([1.5, INF], [70 * 1448, NBYTES])
    assert lost.joules.tolist() == pytest.approx([1.5 * 3.0, 1.9 * 3.0])

    assert [clock.is_there(0, aggregator, 3.0) for aggregator in (0, 1)] == [False, True]
    assert [clock.first_there(0, aggregator, 3.0) for aggregator in (0, 1)] == [10.0, 3.0]
    # Nothing is sent to one that is not there, nor to one that is never ready; back again, it connects.
    assert clock.down(0, *at(3.0, INF), NBYTES, 1).lost.tolist() == [3.0, INF]
    assert clock.up(0, np.array([12.0, INF]), np.ones(2, bool), NBYTES, 2).end.tolist() == [pytest.approx(14.8), INF]


def test_an_outage_of_the_wan_stops_a_message_until_its_sender_tries_again() -> None:
    # 40 frames are sent when the WAN fails at 1.2 s; the tries are at 1.6 and 2.4 s, the link is back at 2 s. From a
    # new window on: ten frames, 0.1 s for their acknowledgement, 50 frames.
    factors = Series(("0", "1"), (np.array([0.0, 1.2, 2.0, 1e6]),) * 2, (np.array([1.0, 0.0, 1.0, 1.0]),) * 2)
    config = config_of(bandwidth=BandwidthConfig("trace", file="wan.csv"))
    clock = clock_of(dataclasses.replace(config, trace_assign="by_client"), link=(factors, None))
    assert clock.down(0, *at(0.0, INF), NBYTES, 0).end[0] == pytest.approx(2.4 + 0.1 + 0.1 + 0.5 + 0.1)


# --- draws and state --------------------------------------------------------------------------------------------------


def messages(clock: TierClock, rounds: range) -> list[TierMessages]:
    """Each round down and up at both levels, ten seconds apart."""
    sent = []
    for number in rounds:
        for level, size in enumerate(clock.sizes):
            times = np.full(size, 10.0 * number)
            sent += [clock.down(level, times, times >= 0, NBYTES, number)]
            sent += [clock.up(level, times + 4.0, times >= 0, NBYTES, number)]
    return sent


def noisy() -> TierClock:
    """Aggregators whose WANs lose segments, and vary."""
    lossy = {"wan": dataclasses.replace(WAN, loss=0.01)}
    config = config_of(
        3,
        ServerLink(2 * DOWN_RATE, UP_RATE, INF),
        Transport(noise=0.2, reconnect=30.0),
        bandwidth=BandwidthConfig("ou"),
        availability=AvailabilityConfig("renewal", on=60.0, off=5.0),
        above=UpperTier(2, {"board": 1.0}, {"wan": 1.0}),
    )
    rows = FleetInputs(ROWS["devices"], lossy)
    return TierClock.build(config, streams=streams, inputs=dataclasses.replace(rows, aggregators=rows))


def test_a_clock_with_another_ones_state_goes_on_to_the_bit() -> None:
    whole, first, rest = noisy(), noisy(), noisy()
    expected = messages(whole, range(8))
    messages(first, range(5))
    rest.restore(50.0, {name: array.copy() for name, array in first.state().items()})

    assert {name.split("/")[0] for name in first.state()} == {"tier0", "tier1"}
    for ours, theirs in zip(messages(rest, range(5, 8)), expected[-12:], strict=True):
        for name, column in vars(ours).items():
            assert np.array_equal(column, getattr(theirs, name)), name
    assert any(np.isfinite(each.lost).any() for each in expected)


def test_no_two_messages_have_the_same_draw() -> None:
    clock = clock_of(config_of(4, OPEN, Transport(noise=0.2, slow_start=False), above=UpperTier(4, {"board": 1.0})))
    sent, now = messages(clock, range(2)), np.full(4, 30.0)
    sent += [send(0, now, now > 0, NBYTES, 1, is_second=True) for send in (clock.down, clock.up)]
    assert len(np.unique(np.round(np.concatenate([each.end - each.start for each in sent]), 9))) == 10 * 4


# --- who belongs to which ---------------------------------------------------------------------------------------------


def test_clients_are_assigned_in_turn_or_by_place() -> None:
    assert assigned(config_of(3), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert assigned(config_of(3, assign="place"), 7).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_clients_with_one_label_each_are_together_or_apart() -> None:
    # 50 clients, five of each of ten labels, five aggregators: two labels at each, or all ten.
    labels = np.arange(50) * 7 % 10
    histogram = np.eye(10, dtype=np.int64)[labels] * 30
    alike, mixed = (assigned(config_of(5, assign=kind), 50, histogram) for kind in ("alike", "mixed"))

    assert np.bincount(alike).tolist() == np.bincount(mixed).tolist() == [10] * 5
    assert [sorted(set(labels[alike == k].tolist())) for k in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [sorted(labels[mixed == k].tolist()) for k in range(5)] == [list(range(10))] * 5


def test_the_rows_of_a_file_are_taken_and_bad_cells_named(tmp_path: Path) -> None:
    file, config = tmp_path / "who.csv", config_of(2, assign="file")

    def of(text: str) -> list[int]:
        return list(assigned(config, 3, recorded=parse_table(file, text.encode())))

    assert of("client,aggregator\n2,0\n0,1\n1,0\n") == [1, 0, 0]
    for rows, line, column, reason in (
        ("0,0\n1,2\n2,0\n", 3, "aggregator", "2 is none of the 2 aggregators, 0 to 1"),
        ("0,0\n1,1\n0,1\n", 4, "client", "0 is in an earlier row already"),
    ):
        with pytest.raises(ValueError, match="line") as caught:
            of("client,aggregator\n" + rows)
        assert str(caught.value) == f"{file}, line {line}, column {column}: {reason}"
    with pytest.raises(ValueError, match="client 1 is missing: every client needs a row"):
        of("client,aggregator\n0,0\n2,0\n")
    with pytest.raises(ValueError, match="no client is behind aggregator 1: name it in a row, or leave it out"):
        of("client,aggregator\n0,0\n1,0\n2,0\n")


def test_the_files_of_tiers_are_in_the_record_of_the_fleets_files(tmp_path: Path) -> None:
    who, there = tmp_path / "who.csv", tmp_path / "there.csv"
    who.write_text("client,aggregator\n0,1\n1,0\n")
    there.write_text("device,start_s,end_s\n0,0,100\n1,50,100\n")
    config = config_of(assign="file", file=str(who), availability=AvailabilityConfig("trace", file=str(there)))
    paths = {"fleet.tiers.file": who, "fleet.tiers.availability.file": there}
    assert list(config.file_names) == list(paths)

    inputs = read_inputs(paths, config, (ROWS["devices"], ROWS["networks"]))
    assert list(inputs.sha256) == list(paths)
    assert assigned(config, 2, recorded=inputs.memberships).tolist() == [1, 0]
    by_client = dataclasses.replace(config, trace_assign="by_client")
    clock = TierClock.build(by_client, streams=streams, inputs=inputs)
    assert [clock.first_there(0, aggregator, 0.0) for aggregator in (0, 1)] == [0.0, 50.0]
    assert (inputs.windows, inputs.link) == (None, None)
    repeats = (
        "fleet.tiers.availability.file: records 1.67 min, which come again after a whole day "
        "(fleet.tiers.availability.repeat)"
    )
    assert inputs.notes(config, 2) == [repeats]


def test_devices_without_the_memory_are_named() -> None:
    tiers = TierConfig(2, ["board", "jetson-agx-orin"], ["wan", "slow"])
    clock = clock_of(FleetConfig(tiers=tiers))
    assert clock.check_memory(0, 10**8) == []
    assert clock.check_memory(0, 10**9) == ["board"]  # 0.7 GB of the board's 1 GB are for it
    with pytest.raises(ValueError, match=r"^fleet.tiers.above: 1 device names for 2 clients"):
        clock_of(FleetConfig(tiers=dataclasses.replace(tiers, above=UpperTier(2, ["board"], ["wan", "wan"]))))
