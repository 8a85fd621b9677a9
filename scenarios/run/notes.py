"""Notes for a scenario's author on stderr, each of them once in a call or command."""

from __future__ import annotations

import sys
from collections.abc import Callable


def note_printer() -> Callable[[str], None]:
    """A function that prints notes to stderr, and one that it is given again only once."""
    known = set[str]()

    def print_once(note: str) -> None:
        if note not in known:
            print(f"fedbr: note: {note}", file=sys.stderr)
        known.add(note)

    return print_once
