"""Results in notebooks: tables as HTML, without styles of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.report.tables import Table


def of_rows(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """One table of texts."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def of_tables(tables: Iterable[Table], sentences: Iterable[str] = ()) -> str:
    """Sentences, then tables with their titles and notes."""
    parts = [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    for table in tables:
        notes = "".join(f"<br><small>{escape(note)}</small>" for note in table.notes)
        parts.append(of_rows(table.header, table.texts, table.title) + notes)
    return "".join(parts)


def of_result(result: dict[str, Any]) -> str:
    """The answer and the tables of a sweep or decision; '' for results of other kinds."""
    if {"axes", "rows", "targets", "tests"} <= result.keys():
        from scenarios.experiment import sweep_tables

        return of_tables(sweep_tables.short(result), sweep_tables.answer(result))
    if {"candidates", "objective"} <= result.keys():
        from scenarios.studies.decide import pages

        answer = pages.read(result)
        return of_tables(pages.all_tables(answer)[:2], [pages.lead(answer)])
    return ""
