"""Colours of figures that follow the page: an SVG names variables of the page's style, with light colours beside them.

The values in a dark page are in the template ``page.css.j2``. A file of one figure has the light ones.
"""

from __future__ import annotations

import re

from scenarios.report.method_style import PALETTE

MUTED, INK = "#6b7280", "#1f2430"
AXIS, GRID, PAPER, EMPTY = "#c3c8d0", "#eceef2", "#ffffff", "#f3f4f6"
"""Axes and ticks; grid lines; background; cells of a map without a value"""
# Paler than any method's colour, so that a phase is not mistaken for a method.
DOWN, COMPUTING, UP, NOBODY, SHARED = "#9cc3e6", "#ecd9a8", "#5f8f8b", "#d5d8de", "#b9a3cc"
"""Download, computing, upload, waiting, a link that clients share"""
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
    **{colour: f"series-{index}" for index, colour in enumerate(PALETTE)},
}
"""Light colour -> variable of the page's style"""


def themed(svg: str) -> str:
    """The SVG with variables of the page instead of its colours, where there is one: ``var(--ink,#1f2430)``."""
    known = "|".join(VARIABLES)
    return re.sub(rf"({known})\b", lambda found: f"var(--{VARIABLES[found[1]]},{found[1]})", svg)


def plain(svg: str) -> str:
    """The SVG with the light colours again, as files and printers need it."""
    return re.sub(r"var\(--[\w-]+,\s*(#[0-9a-f]{6})\)", r"\1", svg)
