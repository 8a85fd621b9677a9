"""Colours and dashes of methods, and when nominal costs are shown."""

from __future__ import annotations

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from scenarios.report import bands, theme
from scenarios.report.theme import PALETTE
from scenarios.run import own_method


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
    drawn = bands.draw([bands.band("fedbr", "rounds", [()])], {})
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
