"""One colour and dash pattern per method, the same in every report: they follow from the method's name alone.

The colours are Okabe and Ito's, which readers with any kind of colour vision can tell apart
(https://jfly.uni-koeln.de/color/, 2008).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a6a00", "#16181d")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 1.2)),
    (0, (6, 2, 1, 2)),
    (0, (10, 3)),
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (2, 2)),
    (0, (10, 2, 3, 2)),
)
"""matplotlib's line styles: (offset, (line, gap, ...)) in widths of the line"""
REGISTERED = (*OBJECTIVES, *CORRECTIONS)
OF_RUNS = 3
"""Places in `DASHES` between two runs of one method: beyond those that registered methods have"""


def place(method: str) -> tuple[int, int]:
    """(place in `PALETTE`, place in `DASHES`) of a method.

    Registered methods follow each other through all colours, then through them with the next dash pattern. A method
    with corrections has the colour of its objective and a dash pattern of its correction. Of a method of the user's own
    both follow from a hash of its name.
    """
    first, *corrections = method.removeprefix("fedavg+").split("+")
    if first not in REGISTERED:
        digest = hashlib.sha256(method.encode()).digest()
        return digest[0] % len(PALETTE), digest[1] % len(DASHES)
    dash, colour = divmod(REGISTERED.index(first), len(PALETTE))
    for name in corrections:
        further = list(CORRECTIONS).index(name) if name in CORRECTIONS else sum(name.encode())
        dash += len(DASHES) // 2 + further
    return colour, dash % len(DASHES)


def colour(method: str) -> str:
    """The colour of a method."""
    return PALETTE[place(method)[0]]


def line(method: str, run: int = 0) -> dict[str, Any]:
    """Style of a line for `Axes.plot`; ``run``: 0 for the first run of the method in a figure, 1 for the next."""
    index, dash = place(method)
    return {"color": PALETTE[index], "linestyle": DASHES[(dash + OF_RUNS * run) % len(DASHES)]}


MARKERS = ("", "o", "s", "^")


def styles(lines: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Label -> style of its line, of (label, method): a method's colour and dashes, other dashes for its further lines.

    Where a method has more lines than there are dashes, the further ones also have marks.
    """
    seen: Counter[str] = Counter()
    found: dict[str, dict[str, Any]] = {}
    for label, method in lines:
        mark = MARKERS[seen[method] // len(DASHES) % len(MARKERS)]
        marks = {"marker": mark, "markevery": 0.12, "markersize": 5} if mark else {}
        found[label] = {**line(method, seen[method]), **marks}
        seen[method] += 1
    return found


def dash_array(linestyle: Any, width: float = 1.9) -> str:
    """One of `DASHES` as an SVG attribute ``stroke-dasharray``, for lines of ``width`` pixels."""
    return "none" if linestyle == "-" else " ".join(f"{width * length:g}" for length in linestyle[1])
