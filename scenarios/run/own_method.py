"""What reports show of a method: whether nominal costs, and of one of the user's own its table and figure.

A run records these of the user's own method, since no code is imported to read a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coordinator.methods.registry import Method, resolve
from coordinator.methods.spec import MethodFigure, MethodMap, ObjectiveSpec
from coordinator.records.schema import TABLES
from edge.protocol.plugins import is_own

KEY = "own_method"
"""Of ``environment.json``"""
MOST_PERIODS = 12
"""Of a map over rounds, each of which is a panel"""


@dataclass(frozen=True)
class OwnMethod:
    """The part of an objective's spec that reports use."""

    nominal: bool = False
    """`has_nominal_period`"""
    table: str | None = None
    figure: MethodFigure | None = None
    map: MethodMap | None = None
    """The drawing of the table: one of the two, or neither"""


def has_nominal_period(spec: ObjectiveSpec) -> bool:
    """Whether the method's paper counts bytes otherwise than messages hold, as FedBR's does."""
    return spec.costs.nominal_period(spec.options()) is not None


def shows_nominal(methods: Iterable[str]) -> bool:
    """Whether reports show nominal costs beside these methods. One that cannot be loaded here has none."""
    for method in dict.fromkeys(methods):
        with suppress(ValueError):
            if has_nominal_period(resolve(method).objective):
                return True
    return False


def record(method: Method) -> dict[str, Any]:
    """The entry of ``environment.json``; empty for a method whose parts are all shipped."""
    if not is_own(method.name):
        return {}
    spec = method.objective
    own = OwnMethod(
        has_nominal_period(spec),
        None if spec.records.table is None else spec.records.table.name,
        spec.records.figure if isinstance(spec.records.figure, MethodFigure) else None,
        spec.records.figure if isinstance(spec.records.figure, MethodMap) else None,
    )
    return {KEY: asdict(own)}


def read(entry: Mapping[str, Any]) -> OwnMethod:
    """The entry of a run's environment, if it has one; ValueError for one that no run has written.

    Names of tables and columns become SQL, so they must be plain words, and the table must be none of a run's own.
    """
    try:
        own = TypeAdapter(OwnMethod).validate_python(entry)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, (KEY, *first['loc'])))}: {first['msg']}") from None
    columns = [own.table] if own.table is not None else []
    if own.figure is not None:
        columns += [own.figure.counted, *own.figure.averaged, *(own.figure.marked or ())[:1]]
    if own.map is not None:
        columns += [*own.map.across, own.map.value]
        if not 1 <= own.map.periods <= MOST_PERIODS:
            raise ValueError(f"{KEY}.map.periods: must be from 1 to {MOST_PERIODS}")
    wrong = [name for name in columns if not name.isidentifier() or name in TABLES]
    if wrong:
        raise ValueError(f"{KEY}: {wrong[0]!r} is no name of a table or column of a method")
    return own
