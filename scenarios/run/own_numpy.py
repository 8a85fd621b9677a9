"""NumPy of a command's own process, which computes virtual times and server steps: limited for portable numerics.

NumPy chooses its kernels when it is imported, and a command learns of its scenario after that. So the command starts
again in its own process, once, with switches (`edge.protocol.portable`). Never in a process that is not the command's
own: tests and Python programs go on as they are, and are told once (`note`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge.protocol.portable import NUMPY_SKIPS, OPENBLAS_KERNELS, PORTABLE, numpy_environment, numpy_is_portable

if TYPE_CHECKING:
    from scenarios.config.load import Loaded

_commands: list[bool] = []
"""Not empty in a process of the command ``fedbr``"""
_told: list[bool] = []
"""Not empty after the first `note`"""


def claim() -> None:
    """Mark this process as the command's own."""
    _commands.append(True)


def note(runs: Sequence[Loaded]) -> str:
    """Advice to a Python program about NumPy, which it has imported with kernels of this processor's own, if one of
    these runs has portable numerics. '' otherwise, for a command, and after the first time."""
    is_portable = any(loaded.scenario.train.instructions == PORTABLE for loaded in runs)
    if _commands or _told or not is_portable or numpy_is_portable(os.environ):
        return ""
    _told.append(True)
    limited = numpy_environment(os.environ)
    switches = " ".join(f"{name}='{limited[name]}'" for name in (OPENBLAS_KERNELS, NUMPY_SKIPS) if name in limited)
    return (
        "train.instructions = portable: workers train with portable numerics, but NumPy of this process, which "
        "computes times and the server's steps, does not, so that last bits may differ on other processors; start "
        f"Python with {switches} to have them the same"
    )


def limit(runs: Sequence[Loaded]) -> None:
    """Start this command again with limited NumPy, if one of the runs has portable numerics; before any output."""
    is_portable = any(loaded.scenario.train.instructions == PORTABLE for loaded in runs)
    if is_portable and _commands and not numpy_is_portable(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], numpy_environment(os.environ))
