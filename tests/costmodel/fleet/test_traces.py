"""Recorded files in, SI units out; and whatever does not fit is refused with its file, line and column."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.devices import Device, own_rows
from costmodel.fleet.traces import Capacities, Cases, Machines, RateSeries, Series, Users, WindowTrace, read
from tests.peak import refusal

CAPACITIES = "client_id,computation_ms_per_sample,communication_kbps\n"
USERS = "down_kbps_mean,down_kbps_std,up_kbps_mean,up_kbps_std\n"
WINDOWS = "device,start_s,end_s\n"
DEVICES = "device,trace_start_s,trace_end_s\n"
MACHINES = "client,flops_per_second,down_bits_per_second,up_bits_per_second"
SERIES = "seconds,factor\n"
DAY = 86400.0


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def real(name: str) -> Path:
    root = Path(os.environ.get("FEDBR_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    file = root / "devices" / name
    if not file.is_file():
        pytest.skip(f"no devices/{name} below {root}; name a folder in FEDBR_TEST_DATA")
    return file


# What is read


def test_capacities_become_seconds_and_bits(tmp_path: Path) -> None:
    trace = read(write(tmp_path, CAPACITIES + "1,153,2209.6\n7,39,18437.3\n"))
    assert isinstance(trace, Capacities)
    assert trace.compute_seconds.tolist() == [0.153, 0.039]
    assert trace.bits_per_second.tolist() == [2_209_600.0, 18_437_300.0]


def test_users_have_a_mean_and_a_cv_each_way(tmp_path: Path) -> None:
    trace = read(write(tmp_path, USERS + "1000,500,400,100\n2000,0,800,80\n"))
    assert isinstance(trace, Users)
    assert trace.down.tolist() == [1e6, 2e6]
    assert trace.up.tolist() == [4e5, 8e5]
    assert trace.down_cv.tolist() == [0.5, 0.0]
    assert trace.up_cv.tolist() == [0.25, 0.1]


def test_cases_are_kept_apart(tmp_path: Path) -> None:
    trace = read(write(tmp_path, "case,slot,kbps_mean,kbps_std\n4,0,100,50\n1,0,200,20\n4,1,300,30\n"))
    assert isinstance(trace, Cases)
    found = {case: (mean.tolist(), cv.tolist()) for case, (mean, cv) in trace.cases.items()}
    assert found == {1: ([200e3], [0.1]), 4: ([100e3, 300e3], [0.5, 0.1])}


def test_columns_may_stand_in_any_order_among_others_and_blank_lines_between(tmp_path: Path) -> None:
    text = '\ufeffnote, factor ,seconds\r\n"a, ""b""",2,0\r\n\r\n,3, 10\r\n'
    trace = read(write(tmp_path, text))
    assert isinstance(trace, Series)
    assert (trace.seconds[0].tolist(), trace.factor[0].tolist()) == ([0.0, 10.0], [2.0, 3.0])


def test_a_cell_may_have_a_unit_where_its_column_says_one(tmp_path: Path) -> None:
    header = "client;flops_per_second;down_bits_per_second;up_bits_per_second;rtt_seconds\n"
    trace = read(write(tmp_path, header + "a;5 GFLOP/s;2,5 Mbit/s;500 kbit/s;40 ms\nb;6e9;1e6;1e6;0,02\n"))
    assert isinstance(trace, Machines)
    assert (trace.flops_per_second.tolist(), trace.down.tolist()) == ([5e9, 6e9], [2.5e6, 1e6])
    assert trace.rtt_seconds is not None
    assert (trace.up.tolist(), trace.rtt_seconds.tolist()) == ([5e5, 1e6], [0.04, 0.02])
    # A column in another unit keeps it for numbers alone.
    rates = read(write(tmp_path, "seconds,mbps\n0,2\n1 min,500 kbit/s\n"))
    assert isinstance(rates, RateSeries)
    (series,) = rates.bits_per_second
    assert (series.seconds, series.values) == ((0.0, 60.0), (2e6, 5e5))
    for cell, why in (
        ("5 Mbps", "'5 Mbps' is not a data rate: unknown unit 'Mbps', did you mean '5 Mbit/s'?"),
        ("-5 Mbit/s", "'-5 Mbit/s' is not a data rate: it must not be negative"),
    ):
        file = write(tmp_path, f"seconds,bits_per_second\n0,{cell}\n")
        with pytest.raises(ValueError) as error:
            read(file)
        assert str(error.value) == f"{file}, line 2, column bits_per_second: {why}"


def test_windows_keep_the_time_of_day(tmp_path: Path) -> None:
    """A trace of two days from 06:00 on the fourth day: t = 0 is that day's midnight."""
    write(tmp_path, DEVICES + "a,280800,453600\nnobody,0,86400\n", "x_devices.csv")
    trace = read(write(tmp_path, WINDOWS + "a,284400,288000\na,453000,453600\n", "x_windows.csv"))
    assert isinstance(trace, WindowTrace)
    assert trace.devices == ("a", "nobody")
    assert trace.windows == (((25_200.0, 28_800.0), (193_800.0, 194_400.0)), ())
    assert trace.trace_start.tolist() == [21_600.0, 0.0]
    assert trace.trace_end.tolist() == [194_400.0, 86_400.0]
    assert trace.period.tolist() == [2 * DAY, DAY]
    clients = RecordedIntervals(trace.windows, trace.period)
    # The second window lies before 06:00 of the third day, so of every odd day of a run.
    assert clients.interval(0, 0.0) == (False, 193_800.0 - 2 * DAY)
    assert clients.interval(0, 193_900.0) == (True, 194_400.0)
    assert clients.interval(0, 25_200.0 + 20 * DAY) == (True, 28_800.0 + 20 * DAY)
    assert clients.permanently_gone_at(1) == -np.inf


@pytest.mark.parametrize("name", ["x_windows.csv", "mine.csv"])
def test_windows_alone_last_whole_days_until_the_last_ends(tmp_path: Path, name: str) -> None:
    trace = read(write(tmp_path, WINDOWS + "b,100,200\na,5,90000\nb,300,300\n", name))
    assert isinstance(trace, WindowTrace)
    assert trace.devices == ("b", "a")
    assert trace.windows == (((100.0, 200.0), (300.0, 300.0)), ((5.0, 90_000.0),))
    assert trace.trace_start.tolist() == [0.0, 0.0]
    assert trace.period.tolist() == [2 * DAY, 2 * DAY]


def test_a_series_per_client_each_from_0_on(tmp_path: Path) -> None:
    trace = read(write(tmp_path, "client,seconds,factor\nb,10,1\na,3,2\nb,15,0.5\n"))
    assert isinstance(trace, Series)
    assert trace.client == ("b", "a")
    assert [seconds.tolist() for seconds in trace.seconds] == [[0.0, 5.0], [0.0]]
    assert [factor.tolist() for factor in trace.factor] == [[1.0, 0.5], [2.0]]


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty"),
        (b"seconds,factor\n0,1\n5,\xff\n", ", line 3: not UTF-8 text"),
        (SERIES, ": there are no rows below the header"),
        ("seconds,factor,factor\n0,1,1\n", ", line 1: column 'factor' occurs twice"),
        (SERIES + "0,1\n\n5\n", ", line 4: 1 cells below a header of 2"),
        (SERIES + "0,\n", ", line 2, column factor: the cell is empty"),
        (SERIES + "0,nan\n", ", line 2, column factor: nan is not a finite number"),
        (SERIES + "0,1\n-1,1\n", ", line 3, column seconds: -1 is negative"),
        (SERIES + "0,1e300\n", ", line 2, column factor: 1e300 is out of range: 1e-18 to 1e+18"),
        (SERIES + "0,1\n5,1\n5,2\n", ", line 4, column seconds: 5 does not come after 5"),
        ("case,kbps_mean,kbps_std\n1.5,1,1\n", ", line 2, column case: 1.5 is not a whole number"),
        (WINDOWS + "a,1,2\na,9,8\n", ", line 3, column end_s: the window ends at 8 before it starts at 9"),
        (MACHINES + "\na,1,1,1\na,1,1,1\n", ", line 3, column client: 'a' is in an earlier row already"),
    ],
)
def test_a_bad_file_is_refused_where_it_is_bad(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}{message}')}$"):
        read(file)


KNOWN = (
    "known are client capacities (client_id, computation_ms_per_sample, communication_kbps); "
    "network users (down_kbps_mean, down_kbps_std, up_kbps_mean, up_kbps_std); "
    "means of networks (down_kbps_mean, up_kbps_mean); "
    "network cases (case, kbps_mean, kbps_std); availability windows (device, start_s, end_s); "
    "recorded days (seconds, down_bits_per_second, up_bits_per_second); "
    "machines (client, flops_per_second, down_bits_per_second, up_bits_per_second); "
    "bandwidth series (seconds, factor); rate series (seconds, bits_per_second)"
)


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("when,what", ""),
        ("device,start_s,stop", "the nearest is availability windows, without end_s; "),
        ("seconds,rate", "the nearest is rate series, without bits_per_second (bit/s, for rate?); "),
    ],
)
def test_an_unknown_header_gets_the_nearest_kind(tmp_path: Path, header: str, hint: str) -> None:
    file = write(tmp_path, header + "\n" + ",".join("1" for _ in header.split(",")) + "\n")
    columns = header.replace(",", ", ")
    message = f"{file}, line 1: no known trace has the columns {columns}; {hint}{KNOWN}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(file)


@pytest.mark.parametrize(
    ("devices", "windows", "message"),
    [
        (DEVICES + "a,0,86400\n", "b,1,2\n", "x_windows.csv, line 2, column device: 'b' is not in x_devices.csv"),
        (
            DEVICES + "a,100,86500\n",
            "a,200,300\na,99,300\n",
            "x_windows.csv, line 3, column start_s: the trace of device a lasts from 100 to 86500",
        ),
        (
            DEVICES + "a,5,5\n",
            "a,5,5\n",
            "x_devices.csv, line 2, column trace_end_s: the trace ends at 5, not after its start at 5",
        ),
    ],
)
def test_windows_must_agree_with_the_devices_beside_them(
    tmp_path: Path, devices: str, windows: str, message: str
) -> None:
    write(tmp_path, devices, "x_devices.csv")
    with pytest.raises(ValueError, match=f"^{re.escape(f'{tmp_path}/{message}')}$"):
        read(write(tmp_path, WINDOWS + windows, "x_windows.csv"))


WHOLE = [
    CAPACITIES + "1,153,2209.6\n7,39,18437.3\n",
    USERS + "1000,500,400,100\n2000,0,800,80\n",
    "case,kbps_mean,kbps_std\n4,100,50\n1,200,20\n",
    WINDOWS + "a,1,2\na,5,9\nb,0,86400\n",
    MACHINES + ",rtt_seconds\na,1,2,3,0\nb,1,2,3,0.1\n",
    SERIES + "0,1\n5,2\n7,0.5\n",
    "client,seconds,down_bits_per_second,up_bits_per_second,available\na,0,1e6,0,1\na,9,0,1e6,0\nb,4,1e6,1e6,1\n",
    "seconds,bits_per_second\n0,1e6\n5,0\n",
    "1\n50\n130\n130\n400\n",
]
CELLS = [
    "nan",
    "-1",
    "inf",
    "-0",
    "1e-300",
    "1e400",
    "0x1",
    "",
    '"',
    "\0",
    "\ud7ff",
    "1,1",
    "\n",
    "\r",
    "x" * 200_000,
    "9" * 5000,
]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.sampled_from(WHOLE), st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_file_that_is_damaged_anywhere_is_read_or_refused_by_its_name(whole: str, draw: Random, hits: int) -> None:
    text = whole.encode()
    for _ in range(hits):
        at = draw.randrange(len(text) + 1)
        cell = draw.choice([*(cell.encode() for cell in CELLS), b"\xff", bytes(draw.randrange(256) for _ in range(9))])
        cells = re.split(rb"([,\n])", text)
        cells[draw.randrange(len(cells))] = cell
        text = draw.choice([text[:at], text[:at] + cell + text[at:], b"".join(cells)])
    with TemporaryDirectory() as folder:
        file = write(Path(folder), text)
        try:
            trace = read(file)
        except ValueError as error:
            assert re.match(rf"{file}(, line \d+(, column \w+)?)?: ", str(error)), error
        else:
            for figures in (each for each in vars(trace).values() if isinstance(each, np.ndarray)):
                assert np.isfinite(figures).all()
                assert (figures >= 0).all()


# The published files


def test_the_710_phones_of_flash_are_ready_as_long_as_their_table_says() -> None:
    """Ready over three repetitions of each phone's trace; 5, 50 and 95 % of the phones: 0.02, 5.5 and 32 %."""
    trace = read(real("availability_windows.csv"))
    assert isinstance(trace, WindowTrace)
    clients = RecordedIntervals(trace.windows, trace.period)
    shares = []
    for phone, period in enumerate(trace.period.tolist()):
        t, ready = 0.0, 0.0
        while t < 3 * period:
            available, change = clients.interval(phone, t)
            end = min(change, 3 * period)
            ready += end - t if available else 0.0
            t = end
        shares.append(ready / (3 * period))
    assert (len(shares), sum(len(row) for row in trace.windows)) == (710, 13_295)
    assert 100 * np.quantile(shares, [0.05, 0.5, 0.95]) == pytest.approx([0.02, 5.5, 32.4], abs=0.05)
    assert sum(shares * trace.period) == pytest.approx(27_302_673.0)


# --- files that are no traces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "nbytes", "said"),
    [
        (b"", 300_000_000, "{file}: is larger than 64,000,000 bytes"),
        (b"\0", 60_000_000, "{file}, line 1: not CSV: field larger than field limit (131072)"),
        (b",,,,,,,,,,,,,,,,,,,\n", 20_000_000, "{file}, line 500001: more than 10,000,000 cells"),
    ],
)
def test_a_file_that_is_no_trace_costs_little(tmp_path: Path, content: bytes, nbytes: int, said: str) -> None:
    file = write(tmp_path, content * (nbytes // len(content)) if content else b"")
    os.truncate(file, nbytes)
    complaint, grown_mb = refusal("from costmodel.fleet.traces import read", "read(path)", file)
    assert complaint == said.format(file=file)
    assert grown_mb < 300


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/dev/zero", "is a device or a pipe, not a file"),
        ("pipe", "is a device or a pipe, not a file"),  # to open it would wait for somebody who writes
        ("/proc/self/mem", "cannot be read: Input/output error"),
    ],
)
def test_what_is_no_file_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for reader in (read, partial(own_rows, kind=Device)):
        with pytest.raises(ValueError, match=f"^{name}: {said}$"):
            reader(Path(name))


def test_a_device_file_beyond_all_use_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is larger than 4,000,000 bytes$"):
        own_rows(write(tmp_path, b"#" * 4_000_001), Device)
    with pytest.raises(ValueError, match=r"not a TOML file: more than 1000 dots in one key$"):
        own_rows(write(tmp_path, "a." * 1_000_000 + "a = 1"), Device)
