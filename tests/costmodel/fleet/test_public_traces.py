"""Recordings in the forms in which others publish them, with their units, times and separators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodel.fleet.traces import RateSeries, RecordedDays, Users, WindowTrace, read

FEDSCALE = '{"7": {"active": [0, 600], "inactive": [500, 90000], "finish_time": 172800}}'


def written(folder: Path, text: str) -> Path:
    file = folder / "recording"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "seconds", "rates"),
    [
        ("0.25 1.5\n0.75\t2\n\n1.25 0\n", (0.0, 0.5, 1.0), (1.5e6, 2e6, 0.0)),  # Pensieve
        ("\ufeffdtime,bytes_sec\n2013-02-06 01:00:00,1000\n2013-02-06 01:00:05,500\n", (0.0, 5.0), (8e3, 4e3)),  # FCC
        ("time;mbps\n08:00;2,5\n08:01;0,5\n", (0.0, 60.0), (2.5e6, 0.5e6)),
        ("time\tkbps\n10\t2,5\n10\t3,5\n12\t1\n", (0.0, 2.0), (3e3, 1e3)),  # the mean of the same second
        ("time,mbps\n2024-03-31T00:59:59.5+01:00,1\n2024-03-31T03:00:00+02:00,2\n", (0.0, 3600.5), (1e6, 2e6)),
    ],
)
def test_rates_have_their_unit_and_begin_at_0(
    text: str, seconds: tuple[float, ...], rates: tuple[float, ...], tmp_path: Path
) -> None:
    recorded = read(written(tmp_path, text))
    assert isinstance(recorded, RateSeries)
    (series,) = recorded.bits_per_second
    assert (series.seconds, series.values) == (seconds, rates)


def test_the_5g_set_of_ucc_has_both_directions_and_several_rows_a_second(tmp_path: Path) -> None:
    rows = ("49.59,D,1200,300", "49.59,D,1800,500", "50.01,I,0,0", "50.04,D,22000,900")
    text = "Timestamp,State,DL_bitrate,UL_bitrate\n" + "".join(f"2019.12.16_11.{row}\n" for row in rows)
    recorded = read(written(tmp_path, text))
    assert isinstance(recorded, RecordedDays)
    assert (recorded.down[0].seconds, recorded.down[0].values) == ((0.0, 2.0, 5.0), (1.5e6, 0.0, 22e6))
    assert (recorded.up[0].values, recorded.length) == ((0.4e6, 0.0, 0.9e6), 8.0)


def test_tiles_of_ookla_are_links_that_keep_their_mean(tmp_path: Path) -> None:
    users = read(written(tmp_path, "quadkey,avg_d_kbps,avg_u_kbps,avg_lat_ms\n0313,50000,9000,20\n0314,8000,1000,40\n"))
    assert isinstance(users, Users)
    assert (users.down.tolist(), users.up.tolist(), users.down_cv.tolist()) == ([5e7, 8e6], [9e6, 1e6], [0.0, 0.0])


def test_devices_of_fedscale_are_there_between_active_and_inactive(tmp_path: Path) -> None:
    windows = read(written(tmp_path, FEDSCALE))
    assert isinstance(windows, WindowTrace)
    assert (windows.devices, windows.windows) == (("7",), (((0, 500), (600, 90000)),))
    assert windows.period.tolist() == [172800.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.25 1.5\n0.75 2 3\n", ", line 2: 3 cells; the lines before have seconds and Mbit/s"),
        ("0.25 1.5\n0.75 fast\n", ", line 2, column 2 (Mbit/s): 'fast' is not a number"),
        ("0.75 1.5\n0.25 2\n", ", line 2, column seconds: 0.25 does not come after 0.75"),
        ("time,mbps\n08:00,1\nnoon,2\n", ", line 3, column time: 'noon' is no number of seconds, no time such as"),
        ("{", ": no JSON: "),
        ('{"a": {"active": [1], "inactive": [2]}}', ": device a: must have active, inactive, finish_time, in seconds"),
        (FEDSCALE.replace("500, ", ""), ": device 7: becomes active 2 times, inactive 1 times"),
        (FEDSCALE.replace("90000", "300"), ": device 7: is active from 600 to 300 s, of 172800 s"),
        ("{}", ": there are no devices"),
    ],
)
def test_a_wrong_one_is_refused_where_it_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}{message}')}"):
        read(file)


def test_two_columns_of_the_same_rates_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: kbps and mbps are the same rates; keep one"):
        read(written(tmp_path, "time,kbps,mbps\n0,1000,2\n"))
