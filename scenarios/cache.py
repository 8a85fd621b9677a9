"""Where this user's cache is. Nothing in it is part of a result, but calibrated devices that a fleet names."""

from __future__ import annotations

import os
from pathlib import Path

from scenarios.errors import ScenarioError


def cache_folder() -> Path:
    """Where decoded data, partitions and calibrated devices are kept; ScenarioError for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "fedbr-edge"
    except RuntimeError:  # neither HOME nor an entry of this user in the system's list
        raise ScenarioError("there is no home folder for the cache: set HOME or XDG_CACHE_HOME") from None
