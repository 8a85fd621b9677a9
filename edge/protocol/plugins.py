"""Plug-in points: a shipped row by its name, or a user's own as ``module:NAME``. Never torch, unless the module has it.

Each point is a plain table of rows: methods, corrections, server optimizers, client selections, round policies,
learning-rate schedules, partitions, data sets, models, metrics.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from traceback import TracebackException, format_exception, walk_tb
from types import FrameType, ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from edge.protocol.allowed import expect_allowed as expect_allowed
from edge.protocol.spelling import FLOWER_APP as FLOWER_APP
from edge.protocol.spelling import closest, nearest
from edge.protocol.spelling import is_own as is_own

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
OUR_FOLDERS = tuple(f"{ROOT / name}/" for name in ("coordinator", "costmodel", "edge", "scenarios"))
INSTALLED = {"site-packages", "dist-packages"}
OBJECT = re.compile(r"(\w+)_([0-9a-f]{12})")
"""The module of an object that was given in Python: its name, and the start of the SHA-256 of the module's text"""
_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*(:| =) ")
"""A scenario's key at the beginning of a message"""
_GIVEN = re.compile(
    rf"\b{OBJECT.pattern}:\w+|([\w-]+)/(?:image|features|series|tokens)-\d+/[\dx]+/\d+/[0-9a-f]{{64}}(?:/ids)?"
)


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


def display_name(name: str) -> str:
    """A name as reports have it: ``Net`` for ``Net_1f2e3d4c5b6a:ROW``, arrays without their shape and hash, and a
    Flower app by its folder's own name."""
    if name.startswith(FLOWER_APP):
        return FLOWER_APP + name.rpartition("/")[2]
    return _GIVEN.sub(lambda match: match[1] or match[3], name)


def load(name: str) -> Any:
    """The object that ``module:NAME`` names; ValueError with the reason if it cannot be loaded, or is not allowed."""
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        as_module = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ValueError(f"cannot load {name!r}: is a file; write MODULE:NAME, {as_module}:{attribute}")
    expect_allowed(module)
    try:
        loaded = importlib.import_module(module)
        if hasattr(loaded, attribute):
            return getattr(loaded, attribute)
        near = closest(attribute, [each for each in vars(loaded) if not each.startswith("_")])
        raise AttributeError(f"{module} has no {attribute!r}{'' if near is None else f'; did you mean {near!r}?'}")
    except Exception as error:  # a user's module may raise anything
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        searched = f"; searched {', '.join(own_folders())}" if is_absent else ""
        raise ValueError(f"cannot load {name!r}: {error_text(error)}{searched}") from error


def error_text(error: BaseException) -> str:
    """An error of a user's code in words, with its last line there: ``KeyError: 'x' (/home/me/rows.py, line 7)``."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    try:
        text = as_text(str(error))
    except Exception as own:  # its class is a user's, too
        text = f"its text cannot be had: {type(own).__name__}"
    return f"{type(error).__name__}: {text}{error_place(error)}"


def as_text(text: str) -> str:
    """A text that can be written: lone surrogates, which no encoding has, as Python's escapes."""
    return text.encode(errors="backslashreplace").decode()


def error_place(error: BaseException) -> str:
    """`` (file, line n)`` of the last frame of a user's own code that an error passed through; '' if there is none."""
    own = [(frame, line) for frame, line in walk_tb(error.__traceback__) if is_users(frame)]
    return f" ({own[-1][0].f_code.co_filename}, line {own[-1][1]})" if own else ""


def definition_place(function: object) -> str:
    """`` (file, line n)`` of the definition of a user's own function; '' for any other."""
    code = getattr(function, "__code__", None)
    is_own = code is not None and _is_users(str(getattr(function, "__module__", "")), code.co_filename)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None and is_own else ""


def error_frames(error: BaseException) -> str:
    """The traceback of an error, as Python prints it; of one of a user's code, or that begins with a key, without
    frames of this product, and '' if there are no others."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    frames = [frame for each in chain for frame, _ in walk_tb(each.__traceback__)]
    if not any(map(is_users, frames)):
        return "" if _KEY.match(str(error)) else "".join(format_exception(error))
    printed = part = TracebackException.from_exception(error)
    while part is not None:
        part.stack[:] = [each for each in part.stack if not each.filename.startswith(OUR_FOLDERS)]
        part = part.__cause__ or part.__context__  # type: ignore[assignment]
    return "".join(printed.format())


def is_users(frame: FrameType) -> bool:
    """Whether the code of a frame is neither this product's, nor Python's, nor that of an installed package."""
    return _is_users(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename)


def is_users_module(module: ModuleType | None) -> bool:
    """As of `is_users`, of a module; False for one without a file."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and _is_users(str(getattr(module, "__name__", "")), file)


@lru_cache(maxsize=4096)
def _is_users(module: str, file: str) -> bool:
    top = module.partition(".")[0]
    foreign = top in sys.stdlib_module_names or file.startswith("<") or INSTALLED & set(Path(file).parts)
    return not foreign and not file.startswith(OUR_FOLDERS)


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
