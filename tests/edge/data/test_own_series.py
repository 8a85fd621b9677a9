"""Windows of series as examples: the grid of times, gaps, the cut in time, and what is refused by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.data.decoded_cache import open_data
from edge.data.own_files import kept
from edge.data.own_series import Counts, read_devices, windows
from edge.data.registry import DataError, Split, dataset
from edge.protocol.config import DataConfig, FileReading, SeriesReading
from edge.protocol.intervals import interval_seconds
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parsed

HOURLY = SeriesReading(target="load", window=3, step=3600.0, test=0.25)


def table(folder: Path, rows: list[str], name: str = "meters.csv", head: str = "device,time,load,heat") -> Path:
    (folder / name).write_text("\n".join([head, *rows]))
    return folder / name


def hours(device: str, values: dict[int, object], heat: int = 0) -> list[str]:
    return [f"{device},2026-03-01 {hour:02}:00:00,{value},{heat + hour}" for hour, value in values.items()]


def made(file: Path, series: SeriesReading) -> tuple[Split, Split, tuple[str, ...], Counts]:
    counts = Counts()
    train, test, names = windows(str(file), read_devices([(file, "")], series, counts), series, counts)
    return train, test, names, counts


def test_a_window_has_the_values_before_its_targets_and_none_lies_across_the_cut(tmp_path: Path) -> None:
    file = table(tmp_path, hours("a", {hour: 10 * hour for hour in range(16)}))
    train, test, names, _ = made(file, HOURLY)
    assert names == ("a",)
    # 12 hours train: windows begin at 0 .. 8, and the last target is hour 11's. Of the last four hours one is whole.
    assert train.x[:, 0].tolist() == [[10 * hour, 10 * hour + 10, 10 * hour + 20] for hour in range(9)]
    assert train.y.tolist() == [[30 + 10 * hour] for hour in range(9)]
    assert (test.x.tolist(), test.y.tolist()) == ([[[120, 130, 140]]], [[150]])
    longer, _, _, _ = made(file, replace(HOURLY, horizon=2, features=("heat",), every=4, test=0.4))
    assert longer.x.tolist() == [[[0, 10, 20], [0, 1, 2]], [[40, 50, 60], [4, 5, 6]]]
    assert longer.y.tolist() == [[30, 40], [70, 80]]


def test_rows_come_in_order_of_time_and_the_first_of_two_at_one_time_counts(tmp_path: Path) -> None:
    rows = hours("a", {hour: hour for hour in range(16)})
    rows = [*reversed(rows), "a,2026-03-01 04:10:00,99,0"]
    train, _, _, counts = made(table(tmp_path, rows), HOURLY)
    assert train.y.ravel().tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert (counts.rows, counts.twice, counts.gaps) == (17, 1, 0)


def test_a_gap_is_a_missing_row_no_number_or_a_value_out_of_range(tmp_path: Path) -> None:
    values: dict[int, object] = {hour: hour for hour in range(24)}
    values |= {4: "", 9: 500, 14: -1}
    del values[19]
    file = table(tmp_path, hours("a", values))
    series = replace(HOURLY, window=2, least=0.0, most=100.0, test=0.125)
    train, _, _, counts = made(file, series)
    assert train.y.ravel().tolist() == [2, 3, 7, 8, 12, 13, 17, 18]
    assert (counts.missing, counts.beyond, counts.gaps, counts.left_out) == (1, 2, 1, 11)
    assert counts.notes(series) == [
        "23 rows: 1 values that are missing or no numbers, taken as gaps, 2 values below 0.0 or above 100.0, taken as "
        "gaps, 1 times without a row; windows with a gap are left out, 11 windows left out"
    ]
    filled, _, _, counts = made(file, replace(series, gaps="last"))
    assert filled.y.ravel().tolist() == [2, 3, 3, 5, 6, 7, 8, 8, 10, 11, 12, 13, 13, 15, 16, 17, 18, 18, 20]
    assert counts.left_out == 0


def test_a_bound_may_be_a_column(tmp_path: Path) -> None:
    file = table(tmp_path, hours("a", dict.fromkeys(range(20), 5), heat=0))
    _, _, _, counts = made(file, replace(HOURLY, most="heat", window=2))
    assert counts.beyond == 5  # those of the first five hours, whose heat is 0 .. 4


def test_without_a_step_rows_follow_each_other_whatever_lies_between(tmp_path: Path) -> None:
    file = table(tmp_path, [f"a,{10 * place * place},{place},0" for place in range(12)])
    train, _, _, counts = made(file, replace(HOURLY, step=None, test=0.34))
    assert (train.y.ravel().tolist(), counts.gaps) == ([3, 4, 5, 6, 7], 0)


def test_year_month_and_day_are_a_date(tmp_path: Path) -> None:
    file = table(
        tmp_path, [f"61,1,{day},{day}" for day in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11)], head="year,month,day,load"
    )
    _, _, names, counts = made(file, replace(HOURLY, step=86_400.0, test=0.4))
    assert (names, counts.gaps) == (("meters",), 1)


@pytest.mark.parametrize(
    ("rows", "changes", "problem"),
    [
        ([], {"target": "lod"}, "data.series.target: has no column 'lod'; did you mean 'load'?"),
        ([], {"time": "when"}, "data.series.time: has no column 'when'"),
        ([], {"most": "places"}, "data.series.most: has no column 'places'"),
        (["a,2026-03-01 17:00:00,many,0"], {}, "line 18, column load: 'many' is no number"),
        (
            ["a,yesterday,3,0"],
            {},
            "line 18, column time: 'yesterday' is no time; write 2016-10-04 08:00:00, or seconds",
        ),
        (["b,2026-03-01 00:00:00,3,0"], {}, "device b: has no 4 training steps without a gap in a row"),
        ([], {"horizon": 30}, "device a: has no 33 training steps without a gap in a row, which data.series.window"),
        ([], {"test": 0.1}, "no device has a whole window in the last 0.1 of its time"),
        ([",2026-03-01 17:00:00,3,0"], {}, "line 18, column device: the device is missing"),
    ],
)
def test_what_is_no_series_is_named(rows: list[str], changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = table(tmp_path, [*hours("a", {hour: hour for hour in range(16)}), *rows])
    with pytest.raises(DataError) as refused:
        made(file, replace(HOURLY, **changes))
    assert str(file) in str(refused.value) and problem in str(refused.value)


def test_a_folder_has_a_table_for_each_device(tmp_path: Path) -> None:
    folder = tmp_path / "meters"
    folder.mkdir()
    for device in ("north", "south"):
        table(folder, [f"2026-03-01 {hour:02}:00:00,{hour}" for hour in range(16)], f"{device}.csv", "time,load")
    name, clients = kept(folder, FileReading(), tmp_path / "cache", HOURLY)
    row = dataset(name)
    assert (clients, row.shape, row.numbers, row.kind) == (2, (3,), 1, "features")


def test_a_scenario_names_a_file_of_series(tmp_path: Path) -> None:
    file = table(tmp_path, [row for name in "abcde" for row in hours(name, {hour: hour * hour for hour in range(16)})])
    words = ["method=fedavg", f"data.file={file}", "data.series.target=load", "data.series.window=3",
             "data.series.step='1 h'", "data.series.test=0.25", "model.name=mlp", "train.loss=mse",
             'stop.target={metric="rmse",below=1}']  # fmt: skip
    loaded = load("digits", parsed(words))
    assert (loaded.scenario.data.clients, loaded.scenario.data.augment) == (5, "standardise-client")
    assert loaded.scenario.data.series == SeriesReading(target="load", window=3, step=3600.0, test=0.25)
    with pytest.raises(ScenarioError, match=r"data.reading: data.series says how data.file is read; leave one of them"):
        load("digits", parsed([*words, "data.reading.label=load"]))
    with pytest.raises(ScenarioError, match="must be an interval, such as 30 min"):
        load("digits", parsed([word for word in words if "step" not in word] + ["data.series.step='3 weeks'"]))
    with pytest.raises(ScenarioError, match=r"data.series: says how data.file is read, and there is none"):
        load("digits", parsed(["data.series.target=load"]))


def test_intervals_in_words() -> None:
    assert [interval_seconds(text) for text in ("30 min", "1 day", "1.5 h", 20)] == [1800, 86_400, 5400, 20]


def real(name: str) -> Path:
    root = Path(os.environ.get("FEDBR_TEST_DATA", "../shared/data"))
    if not (root / name / f"{name}.csv").is_file():
        pytest.skip(f"no {name} below {root}; name a folder in FEDBR_TEST_DATA")
    return root


def test_the_car_parks_are_as_published(tmp_path: Path) -> None:
    data = open_data(DataConfig("parking", root=str(real("parking"))), tmp_path)
    assert (len(data.names.clients), data.train.x.shape[1:], data.train.y.shape[1:]) == (30, (8,), (2,))
    assert data.notes[0].startswith("35,717 rows: 268 rows at a time that has one")
    assert float(data.train.y.min()) >= 0


def test_the_wind_stations_are_as_published(tmp_path: Path) -> None:
    data = open_data(DataConfig("wind", root=str(real("wind"))), tmp_path)
    # 6,574 days each: 5,259 to train, of which 14 and a target are a window.
    assert (len(data.train.y), len(data.test.y)) == (12 * 5245, 12 * 1301)
    assert data.notes == ("78,888 rows: all whole",)
    assert data.test.ids is not None
    assert np.bincount(data.test.ids).tolist() == [1301] * 12
