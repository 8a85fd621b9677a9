"""Plug-in points: a shipped row by its name, or a user's own as ``module:NAME``. Never torch, unless the module has it.

Each point is a plain table of rows: methods, corrections, server optimizers, client selections, round policies,
learning-rate schedules, partitions, data sets, models, metrics.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from edge.protocol.spelling import nearest

T = TypeVar("T")


class PluginOptions(BaseModel):
    """Options of a row; subclasses add fields, each with its range, its meaning and, as title, the paper's symbol."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class OptionsRow:
    """Base of rows that a scenario names together with options."""

    name: str
    """Under which scenarios name it"""
    title: str
    source: str
    """Authors, venue, year"""
    options: type[PluginOptions]


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own object, ``module:NAME``."""
    return ":" in name


_check: ContextVar[Callable[[str], None] | None] = ContextVar("check", default=None)


@contextmanager
def checked(check: Callable[[str], None]) -> Iterator[None]:
    """Within it, `load` first calls ``check`` with the name of the module, which may raise a ValueError instead."""
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)


def load(name: str) -> Any:
    """The object that ``module:NAME`` names; ValueError with the reason if it cannot be loaded, or is not allowed."""
    module, _, attribute = name.partition(":")
    if (check := _check.get()) is not None:
        check(module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        searched = f"; searched {', '.join(own_folders())}" if is_absent else ""
        raise ValueError(f"cannot load {name!r}: {type(error).__name__}: {error}{searched}") from None


def own_folders() -> list[str]:
    """The folders of the search path that do not belong to Python's installation, nor to what is installed in it."""
    installed = tuple(f"{prefix}/" for prefix in {sys.prefix, sys.base_prefix})
    folders = [str(Path(entry or ".").resolve()) for entry in sys.path if not entry.startswith(installed)]
    return [folder for folder in dict.fromkeys(folders) if Path(folder).is_dir()] or ["no folder of yours"]


def find(name: str, shipped: Mapping[str, T], kind: type[T] | tuple[type[T], ...], noun: str) -> T:
    """The row of this name. ValueError with the nearest shipped name, or if a user's object is no ``kind``.

    ``noun``: the kind of row in messages, such as ``model row``.
    """
    if name in shipped:
        return shipped[name]
    if not is_own(name):
        raise ValueError(f"no {noun} {name!r}; {nearest(name, shipped)}")
    row = load(name)
    if not isinstance(row, kind):
        raise ValueError(f"{name!r} is not a {noun}")
    return row
