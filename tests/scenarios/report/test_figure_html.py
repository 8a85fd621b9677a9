"""A figure within a page: its layouts, long labels, its colours, and the numbers for hover values and files."""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from scenarios.report import bands, html_figures, plot_style, theme
from scenarios.report.plot_style import ShownRuns
from scenarios.report.theme import PALETTE
from scenarios.run import own_method
from scenarios.run.progress import Trail


def two_panels() -> Figure:
    """Accuracy against rounds and seconds of two runs, with a target; the panels share the y axis."""
    with matplotlib.rc_context(plot_style.STYLE):
        figure, (left, right) = ShownRuns([]).panels(2, 2, 300, sharey=True)
        for label, colour, seconds in (("fedavg", PALETTE[0], [0.5, 2.0]), ("a < b", PALETTE[7], [1.0, 4.0])):
            left.plot([1, 2], [20.0, float("nan")], label=label, color=colour)
            right.plot(seconds, [20.0, 40.0], label=label, color=colour)
        left.axhline(90, color=theme.MUTED, label="target")
        left.set(title="Against rounds", xlabel="rounds", ylabel="accuracy (%)")
        right.set(title="Against time", xlabel="time (s)", xlim=(0, 5))
        plot_style.legend(figure, left)
    return figure


@pytest.fixture(scope="module")
def html() -> str:
    with matplotlib.rc_context(plot_style.STYLE):
        return html_figures.svg(two_panels(), "curves", log_x=True)


@pytest.fixture(scope="module")
def numbers(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', html)
    assert found is not None
    return dict(json.loads(found[1]))


def test_a_figure_is_drawn_as_wide_as_a_page_and_as_a_phone(html: str) -> None:
    drawn = re.findall(r'<svg role="img" class="([\w ]+)" aria-labelledby="curves-caption" width="(\d+)', html)
    assert drawn == [("wide linear", "1160"), ("wide log", "1160"), ("narrow", "372")]


def test_panels_stand_under_each_other_on_a_phone_each_with_the_shared_label(
    html: str, numbers: dict[str, Any]
) -> None:
    wide, narrow = (numbers["frames"][layout] for layout in ("wide linear", "narrow"))
    assert wide[0]["box"][1] == wide[1]["box"][1]
    left, top, _, height = narrow[0]["box"]
    assert (narrow[1]["box"][0], narrow[1]["box"][1] > top + height) == (left, True)
    assert html[html.index('class="narrow"') :].count(">accuracy (%)</text>") == 2


def test_only_amounts_have_logarithmic_axes_and_the_figure_is_linear_again_after_them(numbers: dict[str, Any]) -> None:
    logarithmic = {layout: [frame["log"] for frame in frames] for layout, frames in numbers["frames"].items()}
    assert logarithmic == {"wide linear": [False, False], "wide log": [False, True], "narrow": [False, False]}
    assert numbers["frames"]["wide log"][1]["xlim"] == [0.45, 5.0]
    assert numbers["frames"]["narrow"][1]["xlim"] == [0.0, 5.0]


def test_the_numbers_are_those_of_the_lines_without_the_target(numbers: dict[str, Any]) -> None:
    left, right = numbers["panels"]
    blue = f"var(--series-0,{PALETTE[0]})"
    assert left["series"][0] == {"label": "fedavg", "colour": blue, "x": [1, 2], "y": [20, None]}
    assert [series["label"] for series in left["series"]] == ["fedavg", "a < b"]
    assert (right["title"], right["x"], right["y"]) == ("Against time", "time (s)", "accuracy (%)")


def test_bars_have_the_names_of_their_places() -> None:
    with matplotlib.rc_context(plot_style.STYLE):
        figure, (axes,) = ShownRuns([]).panels(1, 1, 200)
        axes.barh([0, 1], [3.0, 4.0], color="#9cc3e6", label="_compute")
        axes.set_yticks([0, 1], ["fedavg", "fedbr"])
        html = html_figures.svg(figure, "bars")
    numbers = json.loads(html[html.index("{") : html.rindex("}") + 1].partition('json">')[2])
    (series,) = numbers["panels"][0]["series"]
    assert (series["label"], series["x"], series["names"]) == ("compute", [3, 4], ["fedavg", "fedbr"])


def test_colours_follow_the_page_and_a_file_has_the_light_ones(html: str) -> None:
    assert "var(--series-7,#16181d)" in html
    assert re.search(rf"(?<!,){theme.INK}", html) is None
    alone = theme.standalone(html)
    assert alone.count("<svg") == 1
    assert "var(" not in alone
    assert theme.INK in alone


def test_names_from_outside_are_no_tags_in_the_numbers(html: str) -> None:
    assert "a \\u003c b" in html
    assert html.count("<script") == 1


# --- long labels -----------------------------------------------------------------------------------------------------


LONG = "fedavg, server=fedadam, fedbuff, raspberry-pi-5 0.5 + jetson-nano 0.5"


def bars(*labels: str) -> Figure:
    """Two panels with a bar per label, as of a report."""
    figure, panels = plot_style.rows_of_bars(ShownRuns([]), labels, 2, 44)
    for axes in panels:
        axes.barh(range(len(labels)), [1.0] * len(labels), label=LONG)
    plot_style.legend(figure, panels[0])
    return figure


def test_long_labels_at_ticks_leave_room_for_both_layouts() -> None:
    # A warning of matplotlib's, that axes collapsed to nothing, is an error here.
    with matplotlib.rc_context(plot_style.STYLE):
        figure = bars(LONG, "fedbr")
        assert [text.get_text().count("\n") for text in figure.axes[0].get_yticklabels()] == [1, 0]
        html_figures.svg(figure, "bars")
    width, height = figure.get_size_inches() * plot_style.PIXELS_PER_INCH
    assert round(width) == plot_style.NARROW_PIXELS
    for axes in figure.axes:
        texts = [text.get_text() for text in axes.get_yticklabels()]
        assert max(len(line) for text in texts for line in text.split("\n")) <= plot_style.TICK_LETTERS
        assert " ".join(texts[0].split("\n")).replace("- ", "-") == LONG
        assert axes.get_position().width * width > plot_style.NARROW_PIXELS / 3
        lines = 1 + texts[0].count("\n")
        assert axes.get_position().height * height / len(texts) > lines * plot_style.TICK_LINE_PIXELS


def test_a_long_label_of_a_legend_stays_inside_a_narrow_figure() -> None:
    with matplotlib.rc_context(plot_style.STYLE):
        figure = bars("fedavg")
        html_figures.svg(figure, "bars")
        box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_rows_are_as_high_as_their_labels_and_titles_as_wide_as_their_panels() -> None:
    figure, (axes, _) = plot_style.rows_of_bars(ShownRuns([]), [LONG, f"{LONG} {LONG}"], 2, 34, frame_pixels=90)
    assert [text.get_text().count("\n") for text in axes.get_yticklabels()] == [1, 3]
    one, _ = plot_style.rows_of_bars(ShownRuns([]), [LONG], 2, 34, frame_pixels=90)
    heights = [each.get_size_inches()[1] * plot_style.PIXELS_PER_INCH for each in (one, figure)]
    assert heights == pytest.approx([90 + 34, 90 + 2 * 4 * plot_style.TICK_LINE_PIXELS])
    assert [plot_style.wide_title(LONG, columns).count("\n") for columns in (1, 2, 3)] == [0, 0, 1]


# --- colours and dashes of methods ------------------------------------------------------------------------------------


def look(method: str, run: int = 0) -> tuple[str, str]:
    style = theme.method_line(method, run)
    return style["color"], str(style["linestyle"])


def test_all_shipped_methods_look_different_also_in_a_second_run() -> None:
    shipped = [*OBJECTIVES, *CORRECTIONS]
    assert len(shipped) >= 16
    assert len({look(method, run) for method in shipped for run in (0, 1)}) == 2 * len(shipped)


def test_a_method_has_the_look_of_its_name_whatever_is_beside_it() -> None:
    assert [look(name) for name in ("fedavg", "fedmlb", "fedbr")] == [(colour, "-") for colour in PALETTE[:3]]
    assert look("fedavg+scaffold") == look("scaffold")
    assert look("fedmlb+scaffold")[0] == look("fedmlb")[0]
    joined = {look("fedmlb"), *(look(f"fedmlb+{name}") for name in CORRECTIONS)}
    assert len(joined) == 1 + len(CORRECTIONS)
    assert look("mine:SPEC") == look("mine:SPEC")


def test_a_study_draws_a_method_as_a_report_does() -> None:
    drawn = bands.draw([bands.band("fedbr", "rounds", [Trail()])], {})
    assert "var(--series-2,#009e73)" in drawn
    assert "var(--series-0" not in drawn


def test_nominal_costs_are_shown_only_beside_fedbr() -> None:
    assert own_method.shows_nominal(["fedavg", "fedbr"])
    assert own_method.shows_nominal(["fedbr+fedprox"])
    assert not own_method.shows_nominal(["fedavg", "scaffold", "fedmlb", "no_such:SPEC"])


def test_rows_of_one_method_have_its_colour_and_dashes_of_their_own() -> None:
    rows = [(f"{number} fedbr lr={number}", "fedbr") for number in range(9)] + [("fedavg", "fedavg")]
    found = theme.line_styles(rows)
    assert [found[label]["color"] for label, _ in rows] == [PALETTE[2]] * 9 + [PALETTE[0]]
    assert len({(str(style["linestyle"]), style.get("marker")) for style in found.values()}) == 9
    assert found[rows[1][0]] == theme.method_line("fedbr", 1)
    assert found["fedavg"] == theme.method_line("fedavg")


def test_no_two_methods_of_a_figure_share_a_colour() -> None:
    own = next(f"mine_{number}:SPEC" for number in range(99) if look(f"mine_{number}:SPEC")[0] == look("fedprox")[0])
    found = theme.line_styles([("mine", own), ("FedProx", "fedprox"), ("FedAvg", "fedavg")])
    assert list(found) == ["mine", "FedProx", "FedAvg"]
    assert found["FedProx"] == theme.method_line("fedprox")
    assert found["FedAvg"] == theme.method_line("fedavg")
    after = PALETTE[(PALETTE.index(look("fedprox")[0]) + 1) % len(PALETTE)]
    assert found["mine"]["color"] == after
    registered = list(OBJECTIVES)[: len(PALETTE)]
    eight = theme.line_styles((name, name) for name in [*registered[: len(PALETTE) - 2], "a:SPEC", "b:SPEC"])
    assert len({style["color"] for style in eight.values()}) == len(PALETTE)
    assert len(theme.line_styles((name, name) for name in [*OBJECTIVES, *CORRECTIONS])) >= 16


def test_rows_of_one_method_alone_have_colours_of_their_own() -> None:
    found = theme.line_styles((f"codec {number}", "fedbr") for number in range(9))
    assert [found[f"codec {number}"]["color"] for number in (0, 1, 8)] == [PALETTE[2], PALETTE[3], PALETTE[2]]
    assert [found[f"codec {number}"]["linestyle"] for number in (0, 7, 8)] == ["-", "-", (0, (5, 2))]
