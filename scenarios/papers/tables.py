"""A published table as the paper prints it, one table per setting, with ours beside each value. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scenarios.papers.cells import MARKS, Plan, changed
from scenarios.papers.spec import ACCURACY_AT, Figure, Panel, Setting
from scenarios.report.bands import Table
from scenarios.studies.sweep import lacks

UNKNOWN = "setting unknown"
CUT = "*"
Cell = Mapping[str, Any]


def tables(made: Plan, result: Mapping[str, Any]) -> list[Table]:
    """One table per setting: for each measure the paper's value, and ours with its marks."""
    cells = {(cell["panel"], cell["row"]): cell for cell in result["cells"]}
    shown = []
    for panels in by_setting(made.panels):
        header = [""]
        for panel in panels:
            header += [f"paper, {panel.column}", f"ours, {_limit(panel, made.limit(panel))}"]
        rows = [
            [row, *(text(cells[panel.name, row]) for panel in panels for text in (_printed, _ours))]
            for row in made.rows
        ]
        mine = [cells[panel.name, row] for panel in panels for row in made.rows]
        notes = [*_legend(mine), *_differences(mine), *lacks(result)]
        shown.append(Table(panels[0].title, header, rows, notes))
    return shown


def listed(figure: Figure, rows: Sequence[Cell]) -> list[Table]:
    """What the paper prints, one table per setting, and what stands for it at each scale; ``rows`` of `catalogue`."""
    cells = {(cell["panel"], cell["row"]): cell for cell in rows}
    shown = []
    for panels in by_setting(figure.panels):
        values = [[row, *(_printed(cells[panel.name, row]) for panel in panels)] for row in figure.rows]
        notes = [_scale(scale, setting, panels) for scale, setting in figure.settings[panels[0].setting].items()]
        title = f"{panels[0].title} ({panels[0].setting})"
        shown.append(Table(title, ["published", *(panel.column for panel in panels)], values, notes))
    return shown


def row_notes(figure: Figure) -> Iterator[str]:
    """What each row is run as, and what of it is left open."""
    for name, row in figure.rows.items():
        run = " ".join([row.method, *row.overrides])
        each = f"the mean over {len(row.each)} of them: {', '.join(' '.join(one) for one in row.each)}"
        yield f"{name}: {'; '.join(text for text in (run, each if len(row.each) > 1 else '', row.note) if text)}"


def by_setting(panels: Sequence[Panel]) -> list[list[Panel]]:
    """The panels of each setting."""
    settings = dict.fromkeys(panel.setting for panel in panels)
    return [[panel for panel in panels if panel.setting == setting] for setting in settings]


def _scale(scale: str, setting: Setting, panels: Sequence[Panel]) -> str:
    limits = ", ".join(_limit(panel, setting.limit(panel)) for panel in panels)
    words = dict.fromkeys(word for panel in panels for word in changed(setting, panel))
    return "; ".join([f"{scale}: {' '.join([setting.scenario, *setting.overrides])}", limits, *words])


def _limit(panel: Panel, limit: float) -> str:
    return f"{limit:g}R" if panel.measure in ACCURACY_AT else f"{100 * limit:g} %"


def _printed(cell: Cell) -> str:
    """As the paper writes it: percent without a sign, rounds with a ``+`` where they did not suffice."""
    if cell["measure"] not in ACCURACY_AT:
        return f"{cell['published']:g}{'+' if cell['published_is_bound'] else ''}"
    return _percent(cell["published"], cell["published_deviation"])


def _ours(cell: Cell) -> str:
    """Ours likewise, with its deviation over seeds and a sign for each of its marks."""
    if cell["method"] is None:
        return UNKNOWN
    mean, deviation, at_least = cell["ours"]["mean"], cell["ours"]["deviation"], cell["at_least"]
    if cell["measure"] in ACCURACY_AT:
        text = "-" if mean is None else _percent(mean, deviation) + ("" if all(cell["complete"]) else CUT)
    elif at_least is not None:
        text = f"{at_least:.4g}+"
    else:
        text = "-" if mean is None else f"{mean:.4g}" + ("" if deviation is None else f" ± {deviation:.3g}")
    return text + "".join(MARKS[mark][0] for mark in cell["marks"])


def _percent(mean: float, deviation: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def _legend(cells: Sequence[Cell]) -> Iterator[str]:
    for mark, (sign, meaning) in MARKS.items():
        if any(mark in cell["marks"] for cell in cells):
            yield f"{sign} {meaning}"
    if any(cell["at_least"] is not None for cell in cells):
        yield "+ at least: a run ended before it reached the target, and counts with the rounds that it had"
    if any(not all(cell["complete"]) for cell in cells if cell["measure"] in ACCURACY_AT):
        yield f"{CUT} a run ended before that round"


def _differences(cells: Sequence[Cell]) -> Iterator[str]:
    """What is not the paper's in all rows, then what is so in single ones."""
    notes = {cell["row"]: cell["note"] for cell in cells if cell["note"]}
    words = dict.fromkeys(word for cell in cells for word in cell["changed"].split("; "))
    common = [word for word in words if word and not any(word in note.split("; ") for note in notes.values())]
    if common:
        yield f"changed: {'; '.join(common)}"
    for note in dict.fromkeys(notes.values()):
        yield f"{', '.join(row for row, own in notes.items() if own == note)}: {note}"
