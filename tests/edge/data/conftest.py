"""Fixtures of the tests of data."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no folder of data."""
    monkeypatch.delenv("FEDBR_DATA", raising=False)
