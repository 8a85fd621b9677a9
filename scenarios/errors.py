"""The one error for whatever a user can mend in a scenario or a command line."""

from __future__ import annotations

LONGEST, HEAD = 1200, 800
"""Characters of a message, and of its beginning where its middle is left out; the reason stands at its end."""


class ScenarioError(ValueError):
    """A scenario that cannot be run; the text is for the user, one short paragraph whatever it quotes."""

    def __init__(self, text: str) -> None:
        super().__init__(one_paragraph(text))


def one_paragraph(text: str) -> str:
    """``text`` without its middle if it is very long, and with escapes for what would break the line or not print."""
    if len(text) > LONGEST:
        text = f"{text[:HEAD]} ... {text[HEAD - LONGEST :]}"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
