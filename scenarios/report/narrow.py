"""Columns of tables on narrow terminals: whole columns are left out or put below, and no number loses its unit."""

from __future__ import annotations

from collections.abc import Sequence


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column: its longest line."""
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


def column_groups(needed: Sequence[int], width: int, gap: int) -> list[list[int]]:
    """Columns of the tables that follow each other: the first one in each, and as many others as fit ``width``.

    ``needed``: the width of each column, without the ``gap`` between two. A column that is too wide alone has a table
    of its own.
    """
    groups: list[list[int]] = []
    left = -1
    for index in range(1, len(needed)):
        if left < needed[index] + gap:
            groups.append([0])
            left = width - needed[0] if needed else width
        groups[-1].append(index)
        left -= needed[index] + gap
    return groups or [[0]]


def fitting(needed: Sequence[int], width: int, gap: int, dispensable: Sequence[int]) -> list[int]:
    """The columns that stay where not all fit ``width``; ``dispensable``: those that may go, the first one first."""
    stay = list(range(len(needed)))
    for index in dispensable:
        if sum(needed[each] for each in stay) + gap * (len(stay) - 1) <= width:
            break
        stay = [each for each in stay if each != index]
    return stay
