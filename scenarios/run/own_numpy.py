"""NumPy of a command's own process, which computes virtual times and server steps: limited for portable numerics.

NumPy chooses its kernels when it is imported, and a command learns of its scenario after that. So the command starts
again in its own process, once, with switches (`edge.protocol.portable`). Never in a process that is not the command's
own: tests and Python programs go on as they are, and their runs have a note (`scenarios.run.run_problems`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge.protocol.portable import PORTABLE, numpy_environment, numpy_is_portable

if TYPE_CHECKING:
    from scenarios.config.load import Loaded

_commands: list[bool] = []
"""Not empty in a process of the command ``fedbr``"""


def claim() -> None:
    """Mark this process as the command's own."""
    _commands.append(True)


def is_the_programs() -> bool:
    """Whether a Python program, not a command, has imported NumPy with kernels of this processor's own."""
    return not _commands and not numpy_is_portable(os.environ)


def limit(runs: Sequence[Loaded]) -> None:
    """Start this command again with limited NumPy, if one of the runs has portable numerics; before any output."""
    is_portable = any(loaded.scenario.train.instructions == PORTABLE for loaded in runs)
    if is_portable and _commands and not numpy_is_portable(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], numpy_environment(os.environ))
