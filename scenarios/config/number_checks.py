"""Numbers that no key of a scenario may have, whatever it is for: too large ones, and flags in their place.

Looks at tables as they were written, before pydantic reads them; the bounds of single keys are the schema's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.rounds.budget import LARGEST_INTEGER
from costmodel.units import LARGEST
from scenarios.config import quantities
from scenarios.config.tables import leaves
from scenarios.config.toml_source import ValueOrigin


def refuse_large(raw: Mapping[str, Any], origin: ValueOrigin) -> None:
    """Refuse numbers beyond every sensible value, before they are used or written."""
    for key, value in leaves(raw):
        for number in _numbers(value):
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                raise origin.error(key, f"{key}: an integer must lie within -2^53 .. 2^53")
            if isinstance(number, float) and LARGEST < abs(number) < math.inf:
                raise origin.error(key, f"{key} = {number!r}{quantities.si_unit(key)}: is too large")


def refuse_flags(raw: Mapping[str, Any], resolved: Mapping[str, Any], origin: ValueOrigin) -> None:
    """Refuse true and false where a number is expected, which pydantic would read as 1 and 0."""
    flags = {key for key, value in leaves(resolved) if any(isinstance(item, bool) for item in _numbers(value))}
    for key, value in leaves(raw):
        for item in _numbers(value):
            if isinstance(item, bool) and key not in flags:
                raise origin.error(key, f"{key} = {str(item).lower()}: must not be true or false")


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers and flags of a value, including those of nested lists and tables."""
    if isinstance(value, list | tuple | Mapping):
        inner = value.values() if isinstance(value, Mapping) else value
        if set(map(type, inner)) != {str}:  # there may be a million names
            for item in inner:
                yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value
