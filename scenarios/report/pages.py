"""HTML pages that open offline: the templates they are made from, and the page of a study.

jinja2 is imported by the function that uses it, so that the command line starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.protocol.files import write_text
from scenarios.report.tables import Table, TableColumn

NO_BREAK = "\u00a0"
"""A space at which no line is broken"""


@dataclass(frozen=True)
class PageTable:
    """A table of a study, as text, for its page and for the terminal."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def table(self) -> Table:
        """The same as a table of texts."""
        return Table(self.title, list(map(TableColumn, self.header)), self.rows, self.notes)


def as_table(table: Table | PageTable) -> Table:
    """Any table as one of values."""
    return table.table if isinstance(table, PageTable) else table


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """A template of this package with these values; everything but figures is escaped."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    templates = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    templates.filters |= {"breakable": _breakable, **(filters or {})}
    return templates.get_template(template).render(**values)


def _breakable(text: str) -> str:
    """The text of a cell, which may be broken between a mean and its interval alone."""
    return text.replace(" ", NO_BREAK).replace(f"{NO_BREAK}±", " ±")


def write_study(
    output: Path,
    title: str,
    lead: str,
    facts: Mapping[str, str],
    figures: Sequence[tuple[str, str, str]],
    tables: Sequence[Table | PageTable],
    warnings: Sequence[str] = (),
) -> Path:
    """Write the page of a study to ``output`` and return it; ``figures`` are (name, SVG, caption)."""
    shown = list(map(as_table, tables))
    text = render(
        "study.html.j2", title=title, lead=lead, facts=facts, figures=figures, tables=shown, warnings=warnings
    )
    write_text(output, text)
    return output
