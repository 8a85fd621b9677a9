"""How a recording is understood, in words and drawn: length, rates, gaps, silences, presence, populations."""

from __future__ import annotations

from pathlib import Path

from costmodel.config import RateColumns
from costmodel.fleet.recording import Recording, recording
from costmodel.fleet.traces import RateSeries, read

KNOWN = RateColumns()


def understood(folder: Path, text: str, columns: RateColumns = KNOWN) -> Recording:
    file = folder / "recording"
    file.write_text(text)
    return recording(read(file, columns.named))


def test_a_link_has_rates_gaps_and_silences(tmp_path: Path) -> None:
    found = understood(tmp_path, "0 6\n10 0\n20 2\n50 4\n")
    # The last sample lasts as long as the one before it: 80 s in all.
    assert found.text() == "rates over time: 4 values of 1 link, 1.33 min"
    (rate,) = found.figures
    assert rate.text() == ("rate: 0 bit/s to 6 Mbit/s, median 2 Mbit/s, each held at most 30 s, a silence of 10 s")
    # 60 parts of 4/3 s: 7.5 of 6 Mbit/s, 7.5 of none, 22.5 of 2 Mbit/s and of 4 Mbit/s.
    assert (rate.drawn()[:7], rate.drawn()[8:15], len(rate.drawn())) == ("█" * 7, " " * 7, 60)
    assert (rate.silences, rate.silent_seconds, rate.gap_seconds) == (1, 10.0, 30.0)


def test_both_directions_of_several_links_are_over_all_of_them(tmp_path: Path) -> None:
    rows = "client,seconds,down_mbps,up_mbps\na,0,8,1\nb,0,2,1\na,60,4,1\nb,60,2,0\n"
    found = understood(tmp_path, rows)
    assert (found.text(), found.key) == (
        "both directions over time: 4 values of 2 links, 2 min",
        "fleet.bandwidth.file",
    )
    down, up = found.figures
    assert (down.least, down.median, down.most) == (2e6, 2e6, 8e6)
    assert set(down.means) == {5e6, 3e6}
    assert (up.silences, up.silent_seconds) == (1, 60.0)


def test_windows_are_drawn_as_the_share_of_devices_that_are_there(tmp_path: Path) -> None:
    found = understood(tmp_path, "device,start_s,end_s\na,0,43200\nb,0,21600\n")
    assert (found.text(), found.key) == (
        "windows of availability: 2 windows of 2 devices, 1 d",
        "fleet.availability.file",
    )
    available, window = found.figures
    assert available.drawn() == "█" * 15 + "▄" * 15 + " " * 30
    assert window.text() == "a window: 6 h to 12 h, median 9 h"


def test_a_population_has_no_times(tmp_path: Path) -> None:
    found = understood(tmp_path, "quadkey,avg_d_kbps,avg_u_kbps\n1,1000,100\n2,3000,300\n")
    assert (found.text(), found.seconds, found.figures[0].drawn()) == ("a population of clients: 2 rows", None, "")
    assert found.figures[1].text() == "up: 100 kbit/s to 300 kbit/s, median 200 kbit/s"


def test_columns_of_other_names_and_units_are_named(tmp_path: Path) -> None:
    text = "ts;thr;mbps\n1577836800000;1200,5;9\n1577836802000;0;9\n"
    file = tmp_path / "recording"
    file.write_text(text)
    series = read(file, RateColumns(time="ts", down="thr", unit="kbit/s").named)
    assert isinstance(series, RateSeries)
    # Times from 1e11 on are milliseconds since 1970.
    assert (series.bits_per_second[0].seconds, series.bits_per_second[0].values) == ((0.0, 2.0), (1200500.0, 0.0))
    both = understood(tmp_path, text, RateColumns(time="ts", down="thr", up="mbps", unit="kbit/s"))
    assert [figure.most for figure in both.figures] == [1200.5e3, 9e3]
