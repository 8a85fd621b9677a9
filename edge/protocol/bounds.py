"""Bounds of what a run records, far beyond what runs have. Who writes keeps them, and who reads refuses what is beyond.

So a folder from somebody else takes neither memory nor time without end, and a run that has finished can be read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MOST_NUMBER = 1e30
"""Size of a number: sums and squares of such are finite"""
MOST_INTEGER, MOST_CLIENT = 1 << 60, 10_000_000
MOST_VALUE_NBYTES = 1 << 27
"""Of one text or row; the longest names the client states of a round"""
MOST_NAMES, LONGEST_NAME = 1000, 100
"""Names of numbers that one visit logs, or the server's side of one round, and characters of such a name"""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys"""
NOT_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Those that not even texts of several lines have"""


def is_bounded(number: float) -> bool:
    """Whether a number is one that a run records; False for NaN and infinity."""
    return -MOST_NUMBER <= number <= MOST_NUMBER


def check_numbers(numbers: Mapping[str, float]) -> None:
    """ValueError for names or numbers that no run records; infinity and NaN pass, which are recorded as None."""
    if len(numbers) > MOST_NAMES:
        raise ValueError(f"{len(numbers):,} names of numbers; at most {MOST_NAMES:,}")
    for name, number in numbers.items():
        if not name or len(name) > LONGEST_NAME or not is_text(name):
            shown = ascii(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..")
            raise ValueError(f"{shown}: a name has 1 to {LONGEST_NAME} characters, and no control characters")
        if math.isfinite(number) and not is_bounded(number):
            raise ValueError(f"{name!r}: {number:g} is beyond {MOST_NUMBER:g}, the most that a run records")


def is_text(text: str) -> bool:
    """Whether a text is one that tables take: without control characters, and of characters that files can hold."""
    return CONTROL.search(text) is None and not any("\ud800" <= letter <= "\udfff" for letter in text)


def escaped(value: Any) -> Any:
    """A JSON value whose texts and keys have escapes in place of control characters, but for tabs and ends of lines."""
    if isinstance(value, str):
        return NOT_IN_LINES.sub(lambda found: ascii(found[0])[1:-1], value)
    if isinstance(value, Mapping):
        return {escaped(key): escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and not all(type(each) in (int, float) for each in value):
        return [escaped(each) for each in value]
    return value  # also a list of a number for each client
