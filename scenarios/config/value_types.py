"""What values a key takes, in words: its type, its unit, its range and its choices, read from the annotation.

Nothing is known here of single keys.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types

from scenarios.config.quantities import QuantityUnits, marks_of, quantity

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table"}
LISTS = (list, tuple)
BOUNDS: tuple[tuple[type, str, str], ...] = (
    (annotated_types.Ge, "ge", "at least"),
    (annotated_types.Gt, "gt", "above"),
    (annotated_types.Le, "le", "at most"),
    (annotated_types.Lt, "lt", "below"),
)
"""Kind of bound -> its attribute, and how it reads"""


def type_text(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """``a number or text``, ``a list of text``, ``text with a unit of bit/s, ..``."""
    unit = quantity(annotation, metadata)
    texts = [_alternative(each, unit) for each in _alternatives(annotation)]
    return " or ".join(dict.fromkeys(texts))


def _alternative(kind: Any, unit: QuantityUnits | None) -> str:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in LISTS:
        items = [
            "numbers" if unit is None and each in (int, float) else _alternative(each, unit)
            for each in _alternatives(inner[0])
        ]
        return "a list of " + " or ".join(dict.fromkeys("tables" if item == WORDS[dict] else item for item in items))
    if unit is not None and origin in (int, float):
        return f"text with a unit ({', '.join(unit.units)})"
    return WORDS.get(origin, "a table")


def literals(annotation: Any) -> tuple[str, ...]:
    """The words that a key takes."""
    alternatives = _alternatives(annotation)
    return tuple(word for each in alternatives if get_origin(each) is Literal for word in get_args(each))


def range_text(annotation: Any, metadata: tuple[Any, ...] = ()) -> str | None:
    """``at least 0, below 1``; quantities with their unit; None without bounds."""
    unit = quantity(annotation, metadata)
    show: Callable[[float], str] = (lambda value: f"{value:,.10g}") if unit is None else unit.show
    marks = list(marks_of(annotation, metadata))
    parts = [
        f"{word} {show(float(getattr(mark, bound)))}"
        for kind, bound, word in BOUNDS
        for mark in marks
        if isinstance(mark, kind) and getattr(mark, bound) != math.inf
    ]
    return ", ".join(dict.fromkeys(parts)) or None


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union but None, without what is said of them."""
    plain = _plain(annotation)
    if get_origin(plain) in (Union, types.UnionType):
        return [inner for each in get_args(plain) for inner in _alternatives(each)]
    return [] if plain is type(None) else [plain]


def _plain(annotation: Any) -> Any:
    return _plain(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation
