"""The cache of the toy: the digits are decoded and models counted once, for all processes of a suite."""

from __future__ import annotations

import atexit
import os
import tempfile

VARIABLE = "FEDBR_TOY_CACHE"


def cache_folder() -> str:
    """The folder, which processes that this one starts have, too; it is removed at the end of the first."""
    if VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="fedbr-toy-")
        atexit.register(folder.cleanup)
        os.environ[VARIABLE] = folder.name
    return os.environ[VARIABLE]
