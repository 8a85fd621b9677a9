"""Files that the operating system writes when it likes, as no product may: for tests, whose machine stays up."""

from __future__ import annotations

import os
from collections.abc import Callable

from coordinator.records import store


def leave_to_the_system(set_attribute: Callable[[object, str, object], None]) -> None:
    """Nothing of this process waits for a disk any more; what it has written outlives its own death all the same."""
    set_attribute(os, "fsync", lambda file: None)
    set_attribute(store, "SYNCHRONOUS", "OFF")
