"""Recordings that clients follow together: whose rows they are, when they begin, and what is said and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.tcp import WIRE_FACTOR
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run.setup import RunInputs

HOUR, DAY = 3600.0, 86400.0
# Of 40 s. The first client is away from 20 s to 30 s; the other's link has an outage down from 10 s to 20 s.
DAYS = """client,seconds,down_bits_per_second,up_bits_per_second,flops_per_second,available
x,0,4e6,1e6,1e9,1
x,20,4e6,1e6,1e9,0
x,30,2e6,1e6,5e8,1
y,0,8e6,3e6,2e9,1
y,10,0,3e6,2e9,1
y,20,8e6,3e6,2e9,1
"""
TWO = ("data.clients=2", "rounds.participants=2", "fleet.trace_assign=by_client")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDBR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "days.csv").write_text(DAYS)
    return tmp_path


def rate(fleet: Fleet, client: int, direction: int, t: float) -> tuple[float, float]:
    """(bit/s without headers, next change)."""
    nominal = (fleet.down, fleet.up)[direction][client]
    bits_per_second, until = fleet.behaviour.rate(client, direction, float(nominal), t)
    return bits_per_second / WIRE_FACTOR, until


def present(fleet: Fleet, client: int, end: float) -> list[tuple[float, float]]:
    spans, t = [], 0.0
    while t < end:
        is_there, until = fleet.behaviour.availability.interval(client, t)
        spans += [(t, until)] if is_there else []
        t = until
    return spans


def refusal(*overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        _ = RunInputs(load("digits", parse_all(overrides))).drawn_fleet
    return str(caught.value).removeprefix("digits: ")


def test_a_recorded_day_drives_speed_link_and_presence_of_each_client_together() -> None:
    fleet = RunInputs(load("digits", parse_all(["fleet.trace=days.csv", *TWO]))).drawn_fleet
    assert rate(fleet, 0, DOWN, 25.0) == pytest.approx((4e6, 30.0))
    assert rate(fleet, 0, DOWN, 35.0) == pytest.approx((2e6, 40.0))
    assert rate(fleet, 0, DOWN, 45.0) == pytest.approx((4e6, 70.0))
    assert rate(fleet, 0, UP, 35.0)[0] == pytest.approx(1e6)
    assert [rate(fleet, 1, DOWN, t)[0] for t in (5.0, 15.0, 25.0, 55.0)] == pytest.approx([8e6, 0.0, 8e6, 0.0])
    assert present(fleet, 0, 80.0) == [(0.0, 20.0), (30.0, 60.0), (70.0, 100.0)]
    assert present(fleet, 1, 80.0) == [(0.0, float("inf"))]
    # On average 0.875 GFLOP/s: work of 10 s at that speed has 8.75 GFLOP, of which 5 are done in 5 s and 3.75 in 7.5 s.
    assert fleet.flops_per_second.tolist() == pytest.approx([8.75e8, 2e9])
    end, computed = fleet.behaviour.computing_of(0, 25.0, 10.0)
    assert (end, computed) == pytest.approx((37.5, 12.5))


def test_rows_meet_clients_in_order_and_again_from_the_first(folder: Path) -> None:
    (folder / "f").write_text("client,seconds,factor\na,0,1\na,10,2\nb,0,3\nb,10,4\nc,0,5\nc,10,0\n")
    settings = ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=f", "fleet.trace_assign=by_client")
    variation = RunInputs(load("digits", parse_all(settings))).drawn_fleet.behaviour.variation
    assert [variation.factor(client, UP, 0.0) for client in range(4)] == [(1, 10), (3, 10), (5, 10), (1, 10)]
    assert variation.factor(2, DOWN, 10.0) == (0.0, 20.0)


def test_a_repeated_trace_of_windows_begins_with_its_first_day(folder: Path) -> None:
    (folder / "w").write_text("device,start_s,end_s\na,100,200\na,113600,113700\n")
    trace = ("fleet.availability.kind=trace", "fleet.availability.file=w")
    assert present(RunInputs(load("digits", parse_all(trace))).drawn_fleet, 0, DAY) == [(100.0, 200.0)]
    hour = RunInputs(load("digits", parse_all([*trace, "fleet.availability.start_hour=1"]))).drawn_fleet
    assert present(hour, 0, 2 * DAY) == [(110000.0, 110100.0), (2 * DAY - 3500.0, 2 * DAY - 3400.0)]


def test_a_packet_series_gives_its_mean_rate_and_another_one_uploads(folder: Path) -> None:
    (folder / "down").write_text("100\n100\n200\n")
    (folder / "up").write_text("100\n")
    settings = ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=down", "fleet.bandwidth.up_file=up")
    fleet = RunInputs(load("digits", parse_all([*settings, "fleet.trace_assign=by_client"]))).drawn_fleet
    # 3 packets in 0.2 s, each a frame of 1514 bytes.
    assert fleet.down.tolist() == pytest.approx([3 * 8 * 1514 / 0.2] * 10)
    assert rate(fleet, 4, DOWN, 0.05) == pytest.approx((2 * 8 * 1448 / 0.1, 0.1))
    assert rate(fleet, 4, UP, 0.05) == pytest.approx((8 * 1448 / 0.1, float("inf")))
    shuffled = RunInputs(load("digits", parse_all(settings))).drawn_fleet
    assert len({shuffled.behaviour.variation.factor(client, DOWN, 0.0)[1] for client in range(10)}) == 10


def test_the_identity_of_a_run_has_all_files_that_its_recordings_come_from(folder: Path) -> None:
    text = "client,flops_per_second,down_bits_per_second,up_bits_per_second,down_series\na,1e9,1e6,1e6,cell\n"
    (folder / "m").write_text(text)
    (folder / "cell").write_text("100\n")
    loaded = load("digits", parsed(["fleet.trace=m"]))
    before = RunInputs(loaded).identity
    assert list(before["files"]) == ["fleet.trace", "fleet.trace, cell"]
    (folder / "cell").write_text("101\n")
    assert RunInputs(loaded).identity["files"] != before["files"]


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        (DAYS, ["fleet.availability.kind=renewal"], "fleet.availability.kind = renewal: fleet.trace says who is "
         'available; choose "always"'),
        (DAYS, ["fleet.bandwidth.kind=ou"], 'fleet.bandwidth.kind = ou: fleet.trace has rates over time; choose '
         '"constant"'),
        (DAYS, ['fleet.rates=["1 Mbit/s", "2 Mbit/s"]'], "fleet.rates = [1000000.0, 2000000.0]: fleet.trace has rates; "
         "leave one of them out"),
        (DAYS.replace("0,4e6", "0,0").replace("30,2e6", "30,0"), [], "fleet.trace: client x: its down_bits_per_second "
         "is 0 whenever the client is available"),
        (DAYS.replace("y,10,0", "y,10,0.5"), [], "fleet.trace: client y: has a rate of 0.5 bit/s; the least is 1, or 0 "
         "for an outage"),
        (DAYS.replace("y,20,", "y,10.0001,"), [], "fleet.trace: client y: seconds must be 0.001 or more apart"),
        (DAYS.replace("y,20,", "y,2e9,"), [], "fleet.trace: client y: its samples span 2e+09 s, the most is 1e+09 (30 "
         "years)"),
        (DAYS.replace(",1\n", ",0\n"), [], "fleet.trace: available is 0 in all rows: no client ever comes"),
    ],
)  # fmt: skip
def test_recordings_that_contradict_other_keys_or_stop_for_good_are_refused(
    folder: Path, text: str, overrides: list[str], said: str
) -> None:
    (folder / "days.csv").write_text(text)
    assert refusal("fleet.trace=days.csv", *TWO, *overrides) == said
