"""The pause of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from costmodel.garbage import without_garbage_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was_before_an_error_included(enabled: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="on the way"), without_garbage_collection():
            assert not gc.isenabled()
            raise ValueError("on the way")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_on else gc.disable)()
