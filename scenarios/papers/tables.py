"""The published figures and tables by name, what each of their cells needs and prints, and ours beside it.

Each of our values comes with the differences from the paper's setting. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypedDict

from coordinator.rounds.amounts import ROUNDS
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import words
from scenarios.experiment.experiment import Result
from scenarios.experiment.run_set import missing_note
from scenarios.papers import (
    adaptive,
    dadaquant,
    depthfl,
    edgeflowertune,
    fedalign,
    fedbr,
    fedmlb,
    heterofl,
    hierfavg,
    pfedmb,
    splitnn,
)
from scenarios.papers.cells import MARKS, CellSelection, PublishedCell, ReproducedCell, changed, described
from scenarios.papers.published import TABLE_AMOUNTS
from scenarios.papers.spec import (
    ACCURACY_AT,
    BEST_MEASURES,
    PAPER,
    SCALES,
    TO_ACCURACY,
    VALIDATION,
    PaperFigure,
    PaperPanel,
    PaperSetting,
    TablePart,
)
from scenarios.report import columns, terminal
from scenarios.report.readings import quantity
from scenarios.report.tables import Number, Table, TableColumn, of_texts

FIGURES: dict[str, PaperFigure] = {
    **fedbr.FIGURES,
    **fedmlb.FIGURES,
    **pfedmb.FIGURES,
    **fedalign.FIGURES,
    **dadaquant.FIGURES,
    **heterofl.FIGURES,
    **depthfl.FIGURES,
    **hierfavg.FIGURES,
    **edgeflowertune.FIGURES,
    **splitnn.FIGURES,
    **adaptive.FIGURES,
}
UNKNOWN = "setting unknown"
INTERVALS = "ours: mean ± half of the 95 % interval over seeds; ± of printed values is as the paper has it"
CUT = "*"
Places = Mapping[tuple[str, str], ReproducedCell]
"""(panel, row) -> cell"""
NOT_PRINTED, LOST = "not printed", "value lost"
"""What a paper shows in a drawing alone, or never had; and what its text at hand has lost."""
NOT_MEASURED = "not measured"
"""An amount that no run folder has"""
PRINTED: dict[str, Callable[[float], str]] = {
    "s": "{:,g} s".format,
    "B": lambda nbytes: f"{nbytes / 1e9:g} GB",
    "J": "{:,g} J".format,
    "": "{:g}".format,
}
"""Unit of an amount -> as papers write it, so that no digit is lost"""


def named(name: str) -> PaperFigure:
    """A figure of the registry; ScenarioError with the nearest for an unknown one."""
    if name not in FIGURES:
        raise ScenarioError(f"no published figure {name!r}: {nearest(name, FIGURES)}")
    return FIGURES[name]


class SettingOfCell(TypedDict):
    """The runs of a cell at one scale."""

    scenario: str
    overrides: list[str]
    limit: float
    changed: str


class CataloguedCell(PublishedCell):
    """A cell, and how each scale reproduces it."""

    name: str
    panel: str
    title: str
    scales: dict[str, SettingOfCell]


def catalogue(name: str | None = None) -> list[CataloguedCell]:
    """Every cell of one figure, or of all: its setting at each scale and its printed value."""
    wanted = FIGURES if name is None else {name: named(name)}
    return [
        {
            "name": key,
            "panel": panel.name,
            "title": panel.title,
            **described(panel, label, row),
            "scales": {
                scale: {
                    "scenario": setting.scenario,
                    "overrides": words({**setting.of_method(row.method), **part.overrides}),
                    "limit": setting.limit(panel),
                    "changed": "; ".join([*changed(setting, panel), *([part.changed] if part.changed else [])]),
                }
                for scale, setting in figure.settings[panel.setting].items()
                for part in [row.scaled.get(scale, TablePart())]
            },
        }
        for key, figure in wanted.items()
        for panel in figure.panels
        for label, row in figure.rows.items()
    ]


def tables(plan: CellSelection, result: Result) -> list[Table]:
    """The tables of a result: one per setting, as in the paper, or one per panel of a figure."""
    reproduced: list[ReproducedCell] = result["cells"]
    cells = {(cell["panel"], cell["row"]): cell for cell in reproduced}
    missing = missing_note(result.get("missing", []))
    if plan.figure.is_table:
        return [_setting_table(plan, panels, cells, missing) for panels in by_setting(plan.panels)]
    return [_panel_table(plan, panel, cells, missing) for panel in plan.panels]


def _setting_table(plan: CellSelection, panels: Sequence[PaperPanel], cells: Places, notes: Sequence[str]) -> Table:
    """A row per row of the paper; for each measure the printed value, and ours with its marks."""
    headings: list[tuple[PaperPanel, Callable[[ReproducedCell], str]]] = []
    header = [""]
    for panel in panels:
        if panel.published or panel.measure not in TABLE_AMOUNTS:  # no paper prints the other amounts, which are ours
            headings.append((panel, _printed))
            header.append(f"paper, {panel.column}")
        headings.append((panel, _ours))
        limit = limit_text(panel.measure, plan.limit(panel))
        unit = TO_ACCURACY[panel.measure].unit if panel.measure in TO_ACCURACY else ""
        unit = f"{unit} to " if unit in ("s", "J") else ""
        header.append(f"ours, {panel.column if panel.measure in TABLE_AMOUNTS else f'{unit}{limit}'}")
    rows = [[row, *(text(cells[panel.name, row]) for panel, text in headings)] for row in plan.rows]
    shown = [cells[panel.name, row] for panel in panels for row in plan.rows]
    return of_texts(panels[0].title, header, rows, [*_legend(shown), *_differences(shown), *notes])


def _panel_table(plan: CellSelection, panel: PaperPanel, cells: Places, notes: Sequence[str]) -> Table:
    """A row per method: published, ours, and what had been spent by then."""
    shown = [cells[panel.name, row] for row in plan.rows]
    measured = columns.PERCENT if panel.measure in ACCURACY_AT else quantity(TO_ACCURACY[panel.measure])
    by_nominal = [TableColumn("by nominal", measured)] if shown[0]["nominal"] is not None else []
    limit, missing = plan.limit(panel), "-"
    here = "" if limit == panel.limit else f"; here {limit_text(panel.measure, limit)}"
    intervals = [INTERVALS] if any(cell["ours"].get("half_width") is not None for cell in shown) else []
    notes = [f"changed: {shown[0]['changed']}", *intervals, *notes]
    if not all(all(cell["complete"]) for cell in shown) and panel.measure in ACCURACY_AT:
        notes.append(f"{CUT} not used up: a run ended before the budget")
    return Table(
        f"{panel.name}: {panel.title}{here}",
        [
            *map(TableColumn, ("method", "published")),
            TableColumn("ours" if plan.scale == PAPER else "ours, scaled", measured),
            *by_nominal,
            TableColumn("bytes", columns.BYTES, missing=missing),
            TableColumn("nominal", columns.BYTES, missing=missing),
            TableColumn("time", columns.SECONDS, missing=missing),
        ],
        [
            [
                *(cell["row"], _published(cell), _number(cell, "ours")),
                *(_number(cell, "nominal") for _ in by_nominal),
                *(cell["bytes"], cell["nominal_bytes"], cell["virtual_seconds"]),
            ]
            for cell in shown
        ],
        notes,
    )


def _number(cell: ReproducedCell, key: Literal["ours", "nominal"]) -> Number:
    """A value with its interval over seeds; a star where a run ended before the budget."""
    complete, is_accuracy = cell["complete"], cell["measure"] in ACCURACY_AT
    missing = "-" if is_accuracy else f"{sum(complete)} of {len(complete)} runs"
    mark = CUT if is_accuracy and key == "ours" and not all(complete) else ""
    found = cell[key]
    assert found is not None, cell["measure"]
    return Number(found["mean"], found.get("half_width"), found["deviation"], missing, mark)


def listed(figure: PaperFigure, rows: Sequence[CataloguedCell]) -> list[Table]:
    """The printed values of a figure, and its settings at each scale; ``rows`` are those of `catalogue`."""
    cells, shown = {(cell["panel"], cell["row"]): cell for cell in rows}, []
    for panels in by_setting(figure.panels) if figure.is_table else [[panel] for panel in figure.panels]:
        first, settings = panels[0], figure.settings[panels[0].setting]
        scales = [_scale(scale, setting, panels) for scale, setting in settings.items()]
        if figure.is_table:
            title, header = f"{first.title} ({first.setting})", ["published", *(panel.column for panel in panels)]
            lines = [[row, *(_printed(cells[panel.name, row]) for panel in panels)] for row in figure.rows]
        else:
            title, header = f"{first.name}: {first.title}", ["", *figure.rows]
            lines = [["published", *(_published(cells[first.name, row]) for row in figure.rows)]]
        shown.append(of_texts(title, header, lines, scales))
    return shown


def row_notes(figure: PaperFigure) -> Iterator[str]:
    """The method and overrides of each row, and what the paper leaves open."""
    for name, row in figure.rows.items():
        run = " ".join([row.method, *words(row.overrides)])
        runs = ", ".join(" ".join(words(overrides)) for overrides in row.each)
        each = f"the mean over {len(row.each)} of them: {runs}"
        yield f"{name}: {'; '.join(text for text in (run, each if len(row.each) > 1 else '', row.note) if text)}"
    for scale in SCALES:
        parts = {name: row.scaled[scale] for name, row in figure.rows.items() if scale in row.scaled}
        for name, part in parts.items():
            rows = [other for other in parts if parts[other] == part]
            if name == rows[0]:
                yield f"{scale}, {', '.join(rows)}: {'; '.join([' '.join(words(part.overrides)), part.changed])}"


def by_setting(panels: Sequence[PaperPanel]) -> list[list[PaperPanel]]:
    """The panels of each setting."""
    settings = dict.fromkeys(panel.setting for panel in panels)
    return [[panel for panel in panels if panel.setting == setting] for setting in settings]


def _scale(scale: str, setting: PaperSetting, panels: Sequence[PaperPanel]) -> str:
    read = [panel for panel in panels if panel.measure not in TABLE_AMOUNTS]
    limits = ", ".join(limit_text(panel.measure, setting.limit(panel)) for panel in read)
    differences = dict.fromkeys(text for panel in panels for text in changed(setting, panel))
    own = [f"{method} {' '.join(words(overrides))}" for method, overrides in setting.of_methods.items()]
    texts = [f"{scale}: {' '.join([setting.scenario, *words(setting.overrides)])}", *own, limits, *differences]
    return "; ".join(text for text in texts if text)


def limit_text(measure: str, limit: float) -> str:
    """A budget or a target with its unit: ``50 GB``, ``1000R`` for rounds, ``80 %``."""
    if measure not in ACCURACY_AT:
        return f"{100 * limit:g} %"
    if measure in BEST_MEASURES:
        return "validation" if measure == VALIDATION else "best round"
    amount = ACCURACY_AT[measure]
    return f"{limit:g}R" if amount is ROUNDS else amount.shown(limit)


def _printed(cell: PublishedCell) -> str:
    """As the paper writes it: percent without a sign, rounds with a ``+`` for a lower bound."""
    if cell["published"] is None:
        return LOST if cell["published_is_lost"] else NOT_PRINTED
    if cell["measure"] in TABLE_AMOUNTS:
        unit, deviation = TABLE_AMOUNTS[cell["measure"]].unit, cell["published_deviation"]
        return f"{cell['published'] / unit:.10g}" + ("" if deviation is None else f" ± {deviation / unit:g}")
    if cell["measure"] not in ACCURACY_AT:
        return f"{cell['published']:g}{'+' if cell['published_is_bound'] else ''}"
    return _percent(cell["published"], cell["published_deviation"])


def _ours(cell: ReproducedCell) -> str:
    """Our value in the same form, with half of its interval over seeds and the signs of its marks."""
    if cell["method"] is None:
        return UNKNOWN
    mean, half_width, at_least = cell["ours"]["mean"], cell["ours"].get("half_width"), cell["at_least"]
    if cell["measure"] in TABLE_AMOUNTS:
        amount = TABLE_AMOUNTS[cell["measure"]]
        unit = amount.unit
        interval = "" if half_width is None else f" ± {half_width / unit:.2g}"
        text = NOT_MEASURED if mean is None else f"{mean / unit:.{amount.digits}g}{interval}"
    elif cell["measure"] in ACCURACY_AT:
        text = "-" if mean is None else _percent(mean, half_width) + ("" if all(cell["complete"]) else CUT)
    elif at_least is not None:
        text = f"{at_least:.4g}+"
    else:
        text = "-" if mean is None else f"{mean:.4g}" + ("" if half_width is None else f" ± {half_width:.3g}")
    return text + "".join(MARKS[mark][0] for mark in cell["marks"])


def _percent(mean: float, beside: float | None) -> str:
    """With half of an interval of ours, or the deviation that a paper prints."""
    return f"{100 * mean:.2f}" + ("" if beside is None else f" ± {100 * beside:.2f}")


def _legend(cells: Sequence[ReproducedCell]) -> Iterator[str]:
    if any(cell["ours"].get("half_width") is not None for cell in cells if cell["method"] is not None):
        yield INTERVALS
    for mark, (sign, meaning) in MARKS.items():
        if any(mark in cell["marks"] for cell in cells):
            yield f"{sign} {meaning}"
    if any(cell["at_least"] is not None for cell in cells):
        yield "+ lower bound: a run ended before it reached the target, and counts with its rounds"
    if any(not all(cell["complete"]) for cell in cells if cell["measure"] in ACCURACY_AT):
        yield f"{CUT} a run ended before that round"


def _differences(cells: Sequence[ReproducedCell]) -> Iterator[str]:
    """The differences from the paper in all rows, then those of single rows."""
    notes = {cell["row"]: cell["note"] for cell in cells if cell["note"]}
    words = dict.fromkeys(word for cell in cells for word in cell["changed"].split("; "))
    common = [word for word in words if word and not any(word in note.split("; ") for note in notes.values())]
    if common:
        yield f"changed: {'; '.join(common)}"
    for note in dict.fromkeys(notes.values()):
        yield f"{', '.join(row for row, text in notes.items() if text == note)}: {note}"


def _published(cell: PublishedCell) -> str:
    if cell["published"] is None:
        return LOST if cell["published_is_lost"] else NOT_PRINTED
    measure, value = cell["measure"], cell["published"]
    return f"{100 * value:.1f} %" if measure in ACCURACY_AT else PRINTED[TO_ACCURACY[measure].unit](value)


def show_catalogue(rows: Sequence[CataloguedCell]) -> None:
    """Print `catalogue`: the printed values of each figure, and its settings at each scale."""
    for name in dict.fromkeys(row["name"] for row in rows):
        figure = FIGURES[name]
        print(f"{name}: {figure.title}\n{figure.source}")
        for table in listed(figure, [row for row in rows if row["name"] == name]):
            terminal.print_table(table)
        if figure.is_table:
            print("", *row_notes(figure), sep="\n")
        print(*(f"note: {note}" for note in figure.notes), "", sep="\n")
