"""Reports with the figures that a test looks at: all ten of a run take five seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

VARIABLE = "FEDBR_TEST_FIGURES"
"""With it in their environment, commands that are forked (`tests.warm`) have such reports, too: names with spaces."""


@contextmanager
def brief_figures(*names: str) -> Iterator[None]:
    """Reports of runs draw the figures of these names alone, by default the curves."""
    from scenarios.report import figures  # matplotlib takes half a second

    drawn = names or ("curves",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", partial(figures.draw, names=drawn))
        patch.setenv(VARIABLE, " ".join(drawn))
        yield
