"""Reports with one figure: all ten of a run take five seconds, for tests that look at something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

VARIABLE = "FEDBR_TEST_BRIEF"
"""With it in their environment, commands that are forked (`tests.warm`) have such reports."""


@contextmanager
def brief_figures() -> Iterator[None]:
    """Reports of runs draw the curves alone, in this process and in those of `tests.warm`."""
    from scenarios.report import figures  # matplotlib takes half a second

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", partial(figures.draw, names=("curves",)))
        patch.setenv(VARIABLE, "1")
        yield
