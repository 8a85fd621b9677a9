"""One figure of the report for a paper: a file of a given width, or axes of the reader's own."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import fedbr
from scenarios.cli import main
from scenarios.config.errors import ReportError
from tests.ledgers import made_run

SCENARIO = 'method = "{}"\n[stop]\ntarget_accuracy = 0.6\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg ends at 60 % and FedProx at 40 %, after 30 s and 3 kB."""
    place = tmp_path_factory.mktemp("runs")
    made_run(place / "fedavg", (0.2, 0.5, 0.6), SCENARIO.format("fedavg"))
    made_run(place / "fedprox", (0.1, 0.3, 0.4), SCENARIO.format("fedprox"))
    return place


def test_a_pdf_is_as_wide_as_asked_and_its_text_has_eight_points(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "paper" / "curves.pdf"
    assert main.run_command(["report", str(folder), "--figure", "curves", "--pdf", str(path), "--width", "3.5in"]) == 0
    content = path.read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
    assert float(box[0]) == pytest.approx(3.5 * 72)
    assert float(box[1]) > float(box[0])  # three panels below each other
    assert b"/FontFile2" in content and b"/Type3" not in content  # as publishers ask for
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    page = next(text for text in map(_inflated, streams) if b" cm" in text)
    assert re.search(rb"0\.6666666667 0 0 0\.6666666667 0 0 cm", page)
    assert set(re.findall(rb"/F\d+ ([\d.]+) Tf", page)) <= {b"12", b"12.5", b"11"}  # 12 points times 2/3


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_an_svg_of_one_panel_is_drawn_alone(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "bytes.svg"
    assert main.run_command(["report", str(folder), "--figure", "curves", "--pdf", str(path), "--panel", "3"]) == 0
    text = path.read_text()
    assert re.search(r'<svg [^>]*width="237.6pt"', text)
    assert ("Against bytes moved" in text, "Against rounds" in text) == (True, False)
    assert "test accuracy (%)" in text  # which the panels share
    again = tmp_path / "again.svg"
    assert main.run_command(["report", str(folder), "--figure", "curves", "--pdf", str(again), "--panel", "3"]) == 0
    assert again.read_text() == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figure", "curvs"], "figure 'curvs', did you mean 'curves'?; they have data for: curves, losses, pareto"),
        (["--figure", "staleness"], "figure 'staleness': these runs have no data for it; they have data for: curves"),
        (["--figure", "curves", "--width", "3"], "--width '3': must be a number with one of in, cm, mm, pt"),
        (["--figure", "curves", "--width", "0.1in"], "--width '0.1in': must be from 1in to 40in"),
        (["--figure", "curves", "--pdf", "a.jpg"], "a.jpg: a figure is written as one of .pdf, .svg, .png: a.pdf"),
        (["--figure", "curves", "--panel", "4"], "there is no panel 4: the figure has 3 panels"),
        (["--figure", "curves", "--csv", "a.csv"], "--csv a.csv: is of a whole report: leave out --figure"),
        (["--width", "3in"], "--width 3in: is of one figure: name it with --figure"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(
    words: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run_command(["report", str(folder), *words]) == 2
    assert capsys.readouterr().err.startswith(f"fedbr: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_drawn_onto_axes_of_the_reader_in_their_style(folder: Path) -> None:
    run = fedbr.open(folder / "fedavg")
    axes = Figure().subplots(1, 2)
    axes[0].set_title("mine")
    assert run.plot("curves", axes[0], panel=3) is axes[0]
    assert axes[0].get_xlabel() == "bytes down and up, real (kB)"
    assert axes[0].get_ylabel() == "test accuracy (%)"
    (line, target) = axes[0].get_lines()
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3], [20, 50, 60])
    assert target.get_label() == "target"
    assert not axes[1].has_data()
    run.plot("curves", axes)
    assert [each.get_xlabel() for each in axes] == ["rounds", "virtual time (s)"]


@pytest.mark.usefixtures("drawn_figures")
def test_a_drawn_figure_is_saved_as_a_page_or_a_paper_has_it(folder: Path, tmp_path: Path) -> None:
    drawn = fedbr.open(folder / "fedavg").plot("curves")
    assert 'width="1160"' in drawn.save(tmp_path / "page.svg").read_text()
    assert 'width="252pt"' in drawn.save(tmp_path / "paper.svg", width="3.5in").read_text()
    with pytest.raises(ReportError, match=r"^width = '3': must be a number with one of in, cm, mm, pt"):
        drawn.save(tmp_path / "paper.svg", width="3")
    assert drawn.save(tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF-")
