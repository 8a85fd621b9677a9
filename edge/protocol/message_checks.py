"""The error of a message that does not follow the protocol, and values from other machines in its text."""

from __future__ import annotations

from typing import NoReturn


class WireError(ValueError):
    """A message that does not follow the protocol; the text has the reason."""


def reject(what: str, value: object) -> NoReturn:
    """WireError that names the value."""
    raise WireError(f"{what}: {shown(value)} does not fit")


def shown(value: object) -> str:
    """The beginning of a value from another machine, however deeply it is nested."""
    try:
        return repr(value)[:100]
    except RecursionError:
        return f"a nested {type(value).__name__}"


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of a text from another machine, on one line and without control characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:most])


def expect(fits: bool, what: str, value: object) -> None:
    """WireError that names the value, unless ``fits``."""
    if not fits:
        reject(what, value)
