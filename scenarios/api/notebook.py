"""Progress of runs for Python: the command line's live table, or one line that is updated in a notebook."""

from __future__ import annotations

import io
import sys
from typing import Any


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class UpdatedLine(io.StringIO):
    """A stream whose last line is shown in the cell's output, in the place of the one before."""

    _shown: Any = None

    def write(self, text: str) -> int:
        """Show the last line of ``text``."""
        from IPython import display as output

        display: Any = output.display
        lines = text.split("\n")
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None and self._shown is None:
            self._shown = display({"text/plain": last}, raw=True, display_id=True)
        elif last is not None:
            self._shown.update({"text/plain": last}, raw=True)
        return len(text)
