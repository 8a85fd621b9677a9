"""Notes for a scenario's author on stderr, each of them once in a call."""

from __future__ import annotations

import sys
from collections.abc import Callable


def note_writer() -> Callable[[str], None]:
    """A function that prints notes, and one that it is given again only once; a call has one such function."""
    known = set[str]()

    def write(note: str) -> None:
        if note not in known:
            print(f"fedbr: note: {note}", file=sys.stderr)
        known.add(note)

    return write
