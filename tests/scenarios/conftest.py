"""Fixtures of tests that make real runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from scenarios.studies.forecast import relative_costs
from tests.remains import Watch
from tests.scenarios.in_this_process import training_here


@pytest.fixture(scope="session", autouse=True)
def methods_are_priced_once() -> Iterator[None]:
    """A list of the methods plays rounds of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative_costs, "method_costs", cache(relative_costs.method_costs))
        yield


@pytest.fixture
def trained_here() -> Iterator[None]:
    """Runs of this test train in its process."""
    with training_here():
        yield


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Tells what a process leaves behind."""
    watched = Watch()
    yield watched
    watched.close()
