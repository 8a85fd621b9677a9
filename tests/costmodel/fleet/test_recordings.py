"""Recorded days and packet series by hand, and what is refused of them with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.config import AccessLinks, BandwidthConfig, FleetConfig, Scale, ServerLink
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs, read_inputs
from costmodel.fleet.traces import Machines, RateSeries, RecordedDays, files_beside, read
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.step_series import StepSeries
from costmodel.visits.work import Work
from tests.costmodel.worlds import streams

DAYS = "client,seconds,down_bits_per_second,up_bits_per_second,flops_per_second,available\n"
MACHINES = "client,flops_per_second,down_bits_per_second,up_bits_per_second,down_series,up_series\n"
PACKET = 8 * 1448.0


def write(folder: Path, text: str, name: str = "trace") -> Path:
    (folder / name).write_text(text)
    return folder / name


def packets(folder: Path, text: str) -> StepSeries:
    trace = read(write(folder, text))
    assert isinstance(trace, RateSeries)
    return trace.bits_per_second[0]


def test_a_recorded_day_has_one_clock_for_all_clients_and_figures(tmp_path: Path) -> None:
    # The recording begins with b's first row, at 100 s; a's first state holds from then on. a's last interval is 20 s.
    rows = "b,100,8e6,1e6,1e9,1\na,110,4e6,1e6,2e9,1\na,130,4e6,0,2e9,0\nb,120,8e6,2e6,5e8,1\n"
    days = read(write(tmp_path, DAYS + rows))
    assert isinstance(days, RecordedDays)
    assert (days.client, days.length) == (("b", "a"), 50.0)
    assert days.flops_per_second is not None
    assert days.up == (StepSeries((0.0, 20.0), (1e6, 2e6), 50.0), StepSeries((0.0, 30.0), (1e6, 0.0), 50.0))
    assert days.flops_per_second[0] == StepSeries((0.0, 20.0), (1e9, 5e8), 50.0)
    assert [days.windows(row) for row in (0, 1)] == [[(0.0, 50.0)], [(0.0, 30.0)]]
    # 1 Mbit/s for 20 s and 2 Mbit/s for 30 s.
    assert days.up[0].mean() == 1.6e6


def test_a_packet_series_delivers_the_same_bytes_as_its_lines_do(tmp_path: Path) -> None:
    # 3 packets by 100 ms, none by 200 ms, 2 by 300 ms; the last bin is 50 ms long and has 1.
    series = packets(tmp_path, "1\n50\n100\n201\n300\n350\n")
    assert series.seconds == (0.0, 0.1, 0.2)
    assert series.values == pytest.approx((3 * PACKET / 0.1, 0.0, 2 * PACKET / 0.1))
    assert series.length == 0.35
    assert series.mean() * series.length == pytest.approx(6 * PACKET)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5\n3\n", ", line 2: 3 comes before 5"),
        ("5\n6.5\n", ", line 2: '6.5' is not a whole number of milliseconds below 10^12"),
        ("0\n0\n", ": the series lasts for 0 ms"),
        (DAYS + "a,0,1,1,1,2\n", ", line 2, column available: 2 is neither 0 nor 1"),
        (DAYS + "a,5,1,1,1,1\na,5,1,1,1,1\n", ", line 3, column seconds: 5 does not come after 5"),
        (MACHINES + "a,1,1,1,,no\n", ", line 2, column up_series: 'no': there is no such file beside trace"),
    ],
)
def test_a_bad_recording_is_refused_where_it_is_bad(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}{said}')}$"):
        read(file)


def test_machines_may_have_series_of_their_links_in_files_beside_them(tmp_path: Path) -> None:
    cell, home = write(tmp_path, "100\n100\n", "cell"), write(tmp_path, "seconds,bits_per_second\n0,1e6\n5,0\n", "home")
    file = write(tmp_path, MACHINES + "a,1e9,7,8e6,cell,\nb,1e9,9e6,3,,home\n")
    trace = read(file)
    assert isinstance(trace, Machines)
    assert trace.series is not None
    # A row's series gives its rate: 2 packets in 0.1 s; 1 Mbit/s in half of the time.
    assert np.column_stack([trace.down, trace.up]).tolist() == [[2 * PACKET / 0.1, 8e6], [9e6, 5e5]]
    assert trace.series[1] == (None, StepSeries((0.0, 5.0), (1e6, 0.0), 10.0))
    assert files_beside(file) == [cell, home]


# --- gateways ---------------------------------------------------------------------------------------------------------

LOG = """time,router,down_mbps,up_mbps
2026-03-01T08:00:00,north,8,2
2026-03-01T08:00:00,south,2,1
2026-03-01T08:00:10,north,2,2
2026-03-01T08:00:10,south,2,1
"""


def gateways(folder: Path, log: str = LOG, who: str = "", **keys: object) -> tuple[FleetConfig, FleetInputs]:
    """Two gateways with the rates of a log, and the clients behind each as a file says."""
    paths = {"fleet.gateways.bandwidth.file": write(folder, log, "log.csv")}
    if who:
        paths["fleet.gateways.file"] = write(folder, who, "who.csv")
    table = AccessLinks(
        2,
        assign="file" if who else "turn",
        file="who.csv" if who else None,
        bandwidth=BandwidthConfig(file="log.csv"),
    )
    config = FleetConfig(jitter=0.0, server=ServerLink(1e12, 1e12), networks={"wifi-4": 1.0}, gateways=table, **keys)  # type: ignore[arg-type]
    return config, read_inputs(paths, config, ({}, {}))


@pytest.mark.parametrize(
    ("log", "names"),
    [
        (LOG, ("north", "south")),
        (LOG.replace("router", "gateway").replace("north", "1").replace("south", "0"), ("0", "1")),
        (LOG.replace("router", "client").replace("2026-03-01T", ""), ("north", "south")),
        ("seconds,mbps\n0,8\n10,2\n", ("0", "1")),  # one series for all
    ],
)
def test_gateways_follow_their_recorded_rates_from_the_beginning(
    tmp_path: Path, log: str, names: tuple[str, ...]
) -> None:
    config, inputs = gateways(tmp_path, log)
    assert inputs.gateway_names == names
    links = Fleet.build(2, config, streams=streams, inputs=inputs).links
    first, second = (8e6, 2e6) if names[0] == "north" else (2e6, 8e6)
    if "mbps" in log.split(",")[1]:
        first = second = 8e6
    (_, *sites), until = links.capacities_at(DOWN, 0.0)
    assert [*sites, until] == pytest.approx([WIRE_FACTOR * first, WIRE_FACTOR * second, 10.0])
    (_, *sites), until = links.capacities_at(DOWN, 10.0)
    assert [*sites, until] == pytest.approx([WIRE_FACTOR * 2e6] * 2 + [20.0])


def test_recorded_gateways_limit_their_clients_and_are_scaled(tmp_path: Path) -> None:
    config, inputs = gateways(tmp_path, LOG.replace("08:00:10", "08:00:02"), "client,router\n0,south\n1,north\n")
    fleet = Fleet.build(2, config, streams=streams, inputs=inputs)
    assert fleet.access_link_of(np.array([0, 1])).tolist() == [1, 0]
    work = Work(2_500_000, 0, 0.0)
    solved = Clock(fleet).solve([0.0, 0.0], [work, work], fleet.conditions([0, 1], 0))
    # North: 20 Mbit in 2 s at 8 and 2 s at 2 Mbit/s; then 8 again, as the log repeats after 4 s. South: at 2 Mbit/s.
    handshake, trip, slow = 3.5 * float(fleet.rtt[0]), float(fleet.rtt[0]) / 2, 0.05
    assert solved.down_end.tolist() == pytest.approx([10.0 + handshake + trip, 4.0 + handshake + trip], abs=slow)
    slower = Fleet.build(
        2, gateways(tmp_path, LOG, scale=Scale(links=0.5))[0], streams=streams, inputs=gateways(tmp_path)[1]
    )
    assert slower.links.capacities_at(UP, 3.0)[0][1:] == pytest.approx((WIRE_FACTOR * 1e6, WIRE_FACTOR * 0.5e6))


@pytest.mark.parametrize(
    ("log", "who", "message"),
    [
        (
            LOG + "2026-03-01T08:00:00,east,1,1\n",
            "",
            "fleet.gateways.bandwidth.file: {0}/log.csv, line 6, column router: 'east' is gateway 3, but "
            "fleet.gateways.count = 2",
        ),
        (
            "time,router,mbps\nnoon:,a,5\n",
            "",
            "fleet.gateways.bandwidth.file: {0}/log.csv, line 2, column time: 'noon:' is no number of seconds, no time "
            "such as 08:15:00, and no date and time (ISO 8601)",
        ),
        (
            LOG,
            "client,router\n0,north\n1,west\n",
            "fleet.gateways.file: {0}/who.csv, line 3, column router: west is none of the 2 routers, choose from "
            "north, south",
        ),
        (
            LOG,
            "client,router\n0,north\n",
            "fleet.gateways.file: {0}/who.csv: client 1 is missing: every client needs a row",
        ),
    ],
)
def test_gateways_and_clients_that_do_not_meet_are_refused_where_they_are_named(
    tmp_path: Path, log: str, who: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(tmp_path))}$"):
        Fleet.build(2, gateways(tmp_path, log, who)[0], streams=streams, inputs=gateways(tmp_path, log, who)[1])
