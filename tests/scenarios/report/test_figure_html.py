"""A figure within a page: its layouts, its colours, and the numbers for hover values and files."""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from scenarios.report import html_figures, plot_style, theme
from scenarios.report.plot_style import ShownRuns
from scenarios.report.theme import PALETTE
from tests.brief import drawn_figures


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
    with matplotlib.rc_context(plot_style.STYLE), drawn_figures():
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
