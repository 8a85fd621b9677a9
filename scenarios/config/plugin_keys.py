"""The plug-in points of a scenario: the keys whose values name rows, shipped or a user's own as ``module:ROW``.

A new plug-in point is a line here; sources are then recorded, and refused when they have changed, as those of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge.protocol.plugins import is_own

PLUGIN_KEYS = (
    "method",
    "server",
    "data.name",
    "data.partition.kind",
    "model.name",
    "train.lr_schedule",
    "rounds.selection",
    "rounds.policy",
    "eval.metrics",
)
"""Values are text, or lists of text; methods join names with ``+``."""


def own_names(tables: Mapping[str, Any]) -> set[str]:
    """The names of a user's own rows, ``module:ROW``, in the tables of a scenario."""
    return {name for _, name in own_rows(tables)}


def own_rows(tables: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(key, ``module:ROW``) of a user's own rows in the tables of a scenario."""
    return [(key, name) for key in PLUGIN_KEYS for name in _names(_at(tables, key)) if is_own(name)]


def _at(tables: Mapping[str, Any], key: str) -> Any:
    value: Any = tables
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (name.strip() for name in value.split("+"))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)
