"""Fixtures of tests that make real runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.workers.launcher import WorkerLauncher
from tests.remains import Watch


@pytest.fixture(scope="module")
def launcher(trainers: WorkerLauncher) -> WorkerLauncher:
    """A launcher of workers that train."""
    return trainers


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Tells what a process leaves behind."""
    watched = Watch()
    yield watched
    watched.close()
