"""The error for everything that a user can correct in a scenario or a command line."""

from __future__ import annotations

LONGEST, HEAD = 1200, 800
"""Characters of the longest message, and of the head that is kept of a longer one; the reason is at its end."""


class ScenarioError(ValueError):
    """A scenario or command line that cannot be run; the text for the user is one short paragraph."""

    def __init__(self, text: str) -> None:
        super().__init__(one_paragraph(text))


class ReportError(ScenarioError):
    """A folder that is not a run, or cannot be read as one."""


def one_paragraph(text: str) -> str:
    """``text`` without its middle if it is longer than `LONGEST`, and with escapes for unprintable characters."""
    if len(text) > LONGEST:
        text = f"{text[:HEAD]} ... {text[HEAD - LONGEST :]}"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
