"""Pages with few figures, in which nothing is drawn: all ten of a run take five seconds.

Figures are made, with all their lines and labels, and have their place on the page; but nobody draws them, which takes
most of the time of a page, unless a test asks for `drawn_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from scenarios.report import figures, html_figures

ALL, DRAWN = figures.draw, html_figures._element
VARIABLE = "FEDBR_TEST_FIGURES"
"""With it in their environment, commands that are forked (`tests.warm`) have such pages, too: names with spaces."""


def _empty(figure: Any, name: str, layout: str) -> str:
    return f'<svg role="img" class="{layout}" aria-labelledby="{name}-caption"></svg>'


@contextmanager
def brief_figures(*names: str) -> Iterator[None]:
    """Reports of runs have the figures of these names alone, by default the curves, with nothing in them."""
    shown = names or ("curves",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", partial(ALL, names=shown))
        patch.setattr(html_figures, "_element", _empty)
        patch.setenv(VARIABLE, " ".join(shown))
        yield


@contextmanager
def drawn_figures() -> Iterator[None]:
    """Reports of runs have all their figures, drawn, within `brief_figures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", ALL)
        patch.setattr(html_figures, "_element", DRAWN)
        patch.delenv(VARIABLE)
        yield
