"""The errors that a user can correct, with what they are about as fields; whoever shows one words it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge.protocol.spelling import nearest

LONGEST, HEAD = 1200, 800
"""Characters of the longest message, and of the head that is kept of a longer one; the reason is at its end."""
COMMAND_LINE = "command line"
PYTHON = "Python argument"
"""Sources of values beside the names of files"""


@dataclass(frozen=True)
class Argument:
    """An argument of a command or function in a message: ``--run-id 'x'``, and in Python ``run_id = 'x'``."""

    name: str
    """As Python has it"""
    value: str = ""
    """As it is shown; empty: the name alone"""
    option: str = ""
    """On a command line, where it has another name"""

    def worded(self, in_python: bool) -> str:
        """The argument as who gives it writes it."""
        if in_python:
            return f"{self.name} = {self.value}" if self.value else self.name
        return " ".join(filter(None, [f"--{self.option or self.name.replace('_', '-')}", self.value]))


class ScenarioError(ValueError):
    """A scenario or command line that cannot be run; the text for the user is one short paragraph.

    ``source``: the file, `COMMAND_LINE` or `PYTHON`, of the ``key`` that is wrong; ``why``: what is wrong with it;
    ``given``: a name that is none of the ``choices``, of which the nearest ends the text.
    """

    def __init__(
        self,
        *parts: str | Argument,
        key: str | None = None,
        given: str = "",
        choices: Iterable[str] = (),
        source: str | None = None,
    ) -> None:
        self.key, self.given, self.choices, self.source = key, given, tuple(choices), source
        self._parts = (*parts, nearest(given, self.choices)) if given else parts
        self._in_python = False
        super().__init__(*self._parts)

    @property
    def why(self) -> str:
        """The text without its source."""
        return worded(self._parts, self._in_python)

    def __str__(self) -> str:
        place = "" if self.source in (None, PYTHON) else f"{self.source}: "
        return one_paragraph(f"{place}{self.why}")

    def reword(self, change: Callable[[str], str]) -> None:
        """Change the text without its source."""
        self._parts = (change(self.why),)

    def word_for_python(self) -> None:
        """Word it for a caller in Python, who gave as arguments what is given on a command line otherwise."""
        self._in_python = True
        if self.source == COMMAND_LINE:
            self.source = PYTHON


class ReportError(ScenarioError):
    """A folder that is not a run, or cannot be read as one."""


def worded(parts: Iterable[str | Argument], in_python: bool = False) -> str:
    """The text of these parts."""
    return "".join(part if isinstance(part, str) else part.worded(in_python) for part in parts)


def one_paragraph(text: str) -> str:
    """``text`` without its middle if it is longer than `LONGEST`, and with escapes for unprintable characters."""
    if len(text) > LONGEST:
        text = f"{text[:HEAD]} ... {text[HEAD - LONGEST :]}"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
