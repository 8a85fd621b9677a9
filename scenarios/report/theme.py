"""Colours and dashes of figures. They follow from a method's name, so that reports agree.

Where two methods of a figure would have the same colour, one of them has another (`line_styles`).

An SVG names variables of the page's style with light colours beside them; their values in a dark page are in the
template ``page.css.j2``. A file of one figure has the light ones.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a6a00", "#16181d")
"""Okabe and Ito's colours, which readers with any kind of colour vision can tell apart
(https://jfly.uni-koeln.de/color/, 2008)"""
Dash = str | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 1.2)),
    (0, (6, 2, 1, 2)),
    (0, (10, 3)),
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (2, 2)),
    (0, (10, 2, 3, 2)),
    (0, (14, 2, 2, 2, 2, 2)),
)
"""matplotlib's line styles: (offset, (line, gap, ...)) in widths of the line"""
MARKERS = ("", "o", "s", "^")


class LineStyle(TypedDict, total=False):
    """The keywords by which `Axes.plot` draws a line."""

    color: str
    linestyle: Dash
    linewidth: float
    drawstyle: str
    marker: str
    markevery: float | list[int]
    markersize: float
    markerfacecolor: str


REGISTERED = (
    *(name for name, spec in OBJECTIVES.items() if spec.submodels is None and not spec.gathers_data),
    *CORRECTIONS,
    *(name for name, spec in OBJECTIVES.items() if spec.submodels is not None or spec.gathers_data),
)
OF_RUNS = 4
"""Places in `DASHES` between two runs of one method: beyond those that registered methods have"""
MUTED, INK = "#6b7280", "#1f2430"
AXIS, GRID, PAPER, EMPTY = "#c3c8d0", "#eceef2", "#ffffff", "#f3f4f6"
"""Axes and ticks; grid lines; background; cells of a map without a value"""
# Paler than any method's colour, so that a phase is not mistaken for a method.
DOWN, COMPUTING, UP, NOBODY, SHARED = "#9cc3e6", "#ecd9a8", "#5f8f8b", "#d5d8de", "#b9a3cc"
"""Download, computing, upload, waiting, a link that clients share"""
STEPS = "#cf9f8d"
"""What goes back and forth while a model that is cut is trained"""
ON_DARK_CELL, ON_PALE_CELL = "#fffffe", "#1f2431"
"""Text on cells of a map, whose colours are the same in light and dark pages"""
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    AXIS: "axis",
    GRID: "grid",
    PAPER: "paper",
    EMPTY: "empty",
    DOWN: "down",
    COMPUTING: "computing",
    UP: "up",
    NOBODY: "nobody",
    SHARED: "shared",
    STEPS: "steps",
    **{colour: f"series-{index}" for index, colour in enumerate(PALETTE)},
}
"""Light colour -> variable of the page's style"""


def themed(svg: str) -> str:
    """The SVG with variables of the page instead of its colours, where there is one: ``var(--ink,#1f2430)``."""
    known = "|".join(VARIABLES)
    return re.sub(rf"({known})\b", lambda found: f"var(--{VARIABLES[found[1]]},{found[1]})", svg)


def standalone(html: str) -> str:
    """The file of a figure that `html_figures.svg` made: its first element, in pixels.

    It has the namespaces and the light colours that files and printers need.
    """
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    element = html[html.index("<svg") : html.index("</svg>") + len("</svg>")]
    head, end, rest = re.sub(r"var\(--[\w-]+,\s*(#[0-9a-f]{6})\)", r"\1", element).partition(">")
    head = re.sub(r' class="[^"]*" aria-labelledby="[^"]*"', f" {spaces}", head)
    return re.sub(r'(width|height)="([0-9.]+)pt"', r'\1="\2"', head) + end + rest


def method_line(method: str, run: int = 0) -> LineStyle:
    """Style of a line for `Axes.plot`; ``run``: 0 for the first run of the method in a figure, 1 for the next.

    Registered methods follow each other through all colours, then through them with the next dash pattern. A method
    with corrections has the colour of its objective and a dash pattern of its correction. Of a method of the user's own
    both follow from a hash of its name.
    """
    first, *corrections = method.removeprefix("fedavg+").split("+")
    if first in REGISTERED:
        dash, colour = divmod(REGISTERED.index(first), len(PALETTE))
        for name in corrections:
            further = list(CORRECTIONS).index(name) if name in CORRECTIONS else sum(name.encode())
            dash += len(DASHES) // 2 + further
    else:
        colour, dash, *_ = hashlib.sha256(method.encode()).digest()
    return {"color": PALETTE[colour % len(PALETTE)], "linestyle": DASHES[(dash + OF_RUNS * run) % len(DASHES)]}


def line_styles(lines: Iterable[tuple[str, str]]) -> dict[str, LineStyle]:
    """Label -> style of its line, of (label, method): a method's colour and dashes, other dashes for its further lines.

    Where a method has more lines than there are dashes, the further ones also have marks. Lines of one method alone
    have colours of their own, from the method's on, and other dashes where these are used up.
    """
    lines = list(lines)
    colours = _colours(dict.fromkeys(method for _, method in lines))
    if len(lines) > 1 and len({method for _, method in lines}) == 1:
        plain = method_line(lines[0][1])
        first = PALETTE.index(plain["color"])
        return {
            label: {
                "color": PALETTE[(first + number) % len(PALETTE)],
                "linestyle": DASHES[number // len(PALETTE) % len(DASHES)],
            }
            for number, (label, _) in enumerate(lines)
        }
    seen: Counter[str] = Counter()
    found: dict[str, LineStyle] = {}
    for label, method in lines:
        mark = MARKERS[seen[method] // len(DASHES) % len(MARKERS)]
        style = method_line(method, seen[method]) | {"color": colours[method]}
        found[label] = style | {"marker": mark, "markevery": 0.12, "markersize": 5} if mark else style
        seen[method] += 1
    return found


def _colours(methods: Iterable[str]) -> dict[str, str]:
    """Colours of methods in one figure: two share one only where the palette is used up.

    Registered methods choose before a user's own, whose colours say nothing. The first of two with one colour keeps it;
    the other gets the next one that no method of the figure has.
    """
    own = {method: method_line(method)["color"] for method in methods}
    chosen: dict[str, str] = {}
    late = []
    for method in sorted(own, key=lambda each: each.removeprefix("fedavg+").split("+")[0] not in REGISTERED):
        if own[method] in chosen.values():
            late.append(method)
        else:
            chosen[method] = own[method]
    for method in late:
        start = PALETTE.index(own[method])
        after = (*PALETTE[start:], *PALETTE[:start])
        chosen[method] = next((colour for colour in after if colour not in chosen.values()), own[method])
    return chosen
