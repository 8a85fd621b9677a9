"""What a notebook or a prompt shows of results: a line, or a table."""

from __future__ import annotations

from pathlib import Path

from scenarios.api import notebook
from scenarios.api.calls import RunList
from scenarios.api.figures import DrawnFigure
from tests.scenarios.sweeps import result_of_sweep


def test_a_figure_is_one_line_at_a_prompt_and_svg_in_a_notebook() -> None:
    figure = DrawnFigure("curves", "<svg>" + "x" * 100_000 + "</svg>", (Path("a"), Path("b")))
    assert repr(figure) == "<fedbr.DrawnFigure curves: 100 kB of SVG, runs drawn: 2>"
    assert figure._repr_svg_() == figure.svg


def test_a_list_of_runs_is_one_line() -> None:
    assert repr(RunList()) == "<fedbr.RunList: 0 runs and run sets>"
    assert RunList()._repr_html_().startswith("<table><thead><tr><th>folder</th>")


def test_a_sweep_shows_its_answer_and_tables() -> None:
    html = notebook.of_result(result_of_sweep() | {"axes": {"method": ["slow", "fast"]}})
    assert html.startswith("<p>2 fast has the lowest virtual time to 90 %: 20.8 ± 2.6 s.")
    assert "<caption>until accuracy 90 %</caption>" in html
    assert notebook.of_result({"runs": []}) == ""


def test_texts_of_a_table_are_escaped() -> None:
    assert "<td>&lt;b&gt;</td>" in notebook.of_rows(["name"], [["<b>"]])
