"""Recorded days and packet series by hand, and what is refused of them with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from costmodel.fleet.traces import Machines, RateSeries, RecordedDays, files_beside, read
from costmodel.step_series import StepSeries

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


def test_a_packet_series_may_begin_with_a_silence_and_repeats_after_its_last_line(tmp_path: Path) -> None:
    series = packets(tmp_path, "150\n150\n")
    assert series == StepSeries((0.0, 0.1), (0.0, 2 * PACKET / 0.05), 0.15, zero_waits=True)
    assert series.at(0.15)[0] == series.at(0.0)[0] == 0.0
    assert series.at(0.27) == (2 * PACKET / 0.05, 0.3)
    assert packets(tmp_path, "\ufeff150\r\n150\r\n") == series


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5\n3\n", ", line 2: 3 comes before 5"),
        ("5\n6.5\n", ", line 2: '6.5' is not a whole number of milliseconds below 10^12"),
        ("5\n-6\n", ", line 2: '-6' is not a whole number of milliseconds below 10^12"),
        ("9999999999999\n", ", line 1: '9999999999999' is not a whole number of milliseconds below 10^12"),
        ("0\n0\n", ": the series lasts for 0 ms"),
        (DAYS + "a,0,1,1,1,2\n", ", line 2, column available: 2 is neither 0 nor 1"),
        (DAYS + "a,0,1,1,0,1\n", ", line 2, column flops_per_second: it must be more than 0"),
        (DAYS + "a,5,1,1,1,1\na,5,1,1,1,1\n", ", line 3, column seconds: 5 does not come after 5"),
        (MACHINES + "a,1,1,1,,no\n", ", line 2, column up_series: 'no': there is no such file beside trace"),
        (MACHINES + "a,1,1,1,../up,\n", ", line 2, column down_series: '../up': there is no such file beside trace"),
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
