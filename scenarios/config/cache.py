"""The user's cache folder. Only calibrated devices, which a fleet may name, affect a result."""

from __future__ import annotations

from pathlib import Path

from edge.protocol import home
from scenarios.config.errors import ScenarioError


def cache_folder() -> Path:
    """The folder of decoded data, partitions and calibrated devices; ScenarioError for a user without a home."""
    try:
        return home.cache_folder()
    except RuntimeError:  # neither HOME nor an entry in the password database
        raise ScenarioError("there is no home folder for the cache: set HOME or XDG_CACHE_HOME") from None


def objects_folder() -> Path:
    """The folder of the modules that Python calls write for objects of notebooks and scripts (`scenarios.api.objects`).

    Their names hold the hash of their text, so that all runs and processes share it.
    """
    return cache_folder() / "objects"


def restored_objects_folder() -> Path:
    """The same for those that run folders bring, whose code was allowed; it is searched for such a run alone."""
    return cache_folder() / "received" / "objects"
