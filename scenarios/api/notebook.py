"""Progress of runs for Python: the command line's live table, or one line that is updated in a notebook."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import IO, Any

from scenarios.report.live import LiveTable, ParallelTable


def progress_display(methods: Sequence[str], wanted: bool | None) -> LiveTable:
    """The progress of runs that follow each other, one for each of ``methods``.

    ``wanted``: None for progress where a person sees it, in a notebook or on a terminal; True for progress anywhere.
    """
    return LiveTable(methods, *_where(wanted))


def parallel_display(names: Sequence[str], wanted: bool | None) -> ParallelTable:
    """The progress of runs that are made at the same time, by their names; ``wanted`` as of `progress_display`."""
    return ParallelTable(names, *_where(wanted))


def _where(wanted: bool | None) -> tuple[IO[str] | None, bool]:
    """The stream of a progress display, and whether it is quiet."""
    if wanted is not False and in_notebook():
        return UpdatedLine(), False
    return None, not (wanted or (wanted is None and sys.stderr.isatty()))


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
