"""The folders that a user's own modules are imported from: never in front of this product's packages.

A user's folder may hold an ``edge.py`` or a ``scenarios`` of its own, and may be on the path before this product: by
``PYTHONPATH``, or as the current folder of ``python -m``. Such folders are searched last. Other processes receive the
path of this one (`edge.protocol.interpreter`), so that the order holds in all of them. Nothing is imported here.

The current folder and that of a scenario's file join the path when a module is named, and not before: libraries import
some packages only if these are installed, and a file must not run because it has the name of one. Beside a scenario's
file outside of the current folder lies whatever came with it: what is named there, a module or a Flower app, is refused
unless the user allows it. Nothing is ever imported from within a run's folder.

Commands on recorded runs do not search the current folder: it may be the folder of a run, or of whatever came with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from edge.protocol.allowed import checked
from edge.protocol.interpreter import ROOT
from edge.protocol.spelling import FLOWER_APP

PACKAGES = ("coordinator", "costmodel", "edge", "scenarios")
OF_RUN = ("scenario.toml", "ledger.sqlite")
"""A folder with these is that of a run."""
ALLOW = "--allow-code (allow_code=True in Python)"
"""How a user calls `allowing`"""
_is_allowed: ContextVar[bool] = ContextVar("is_allowed", default=False)


def protect() -> None:
    """Search folders with modules of our names after all others."""
    sys.path[:] = ordered(sys.path)


def add_current_folder() -> None:
    """Search the current folder, too, after all others, unless it is a run's."""
    with suppress(FileNotFoundError):  # it was removed
        append(Path.cwd())


@contextmanager
def allowing(is_allowed: bool) -> Iterator[None]:
    """Within it, code that scenarios outside of the current folder bring with them may run, or may not."""
    before = _is_allowed.set(is_allowed)
    try:
        yield
    finally:
        _is_allowed.reset(before)


@contextmanager
def with_current_folder() -> Iterator[None]:
    """For a body that searches the current folder, too, once a module is named."""

    def join(name: str) -> None:
        if not name.startswith(FLOWER_APP):
            add_current_folder()

    with checked(join):
        yield


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """For a body that searches the folder of a scenario's ``file``, too, once a module is named.

    Outside of the current folder it is searched if `allowing` says so. Else a module that lies only there is a
    ValueError of `edge.protocol.plugins.load`.
    """
    with checked(partial(_join, file)):
        yield


def _join(file: Path, name: str) -> None:
    top, folder = name.partition(".")[0], file.absolute().parent
    if name.startswith(FLOWER_APP) or top in PACKAGES:
        return
    if _is_allowed.get() or is_within_current_folder(folder):
        append(folder)
        return
    places = (folder / f"{top}.py", folder / top)
    place = next((place for place in places if os.path.lexists(place)), None)
    if place is not None and not _is_found(top):
        raise ValueError(
            f"the module {name!r} lies beside {file}, in {place}, outside of the current folder; it is imported from "
            f"there only if you trust it: add {ALLOW}, or name its folder in PYTHONPATH"
        )


def _is_found(top: str) -> bool:
    """Whether a top-level module is imported, or is on the search path."""
    return top in sys.modules or find_spec(top) is not None


def check_app(method: object, source: str) -> None:
    """ValueError if ``method`` is a Flower app in a folder that may not run; ``source``: the file that names it."""
    if not isinstance(method, str) or not method.startswith(FLOWER_APP) or _is_allowed.get():
        return
    from edge.protocol.home import expanded

    app = method.removeprefix(FLOWER_APP)
    if not is_within_current_folder(expanded(app)):
        raise ValueError(
            f"the Flower app {app}, which {source} names, lies outside of the current folder; it runs only if you "
            f"trust it: add {ALLOW}, or name it yourself: method={method}"
        )


def is_within_current_folder(folder: Path) -> bool:
    """Whether a folder is the current one or below it, wherever links lead."""
    try:
        return folder.resolve().is_relative_to(Path.cwd().resolve())
    except (OSError, RuntimeError):  # the current folder was removed, or links lead in a circle
        return False


def is_of_run(path: Path) -> bool:
    """Whether a path is a run's folder, or below one, wherever links lead."""
    resolved = path.resolve()
    return any(all((place / name).exists() for name in OF_RUN) for place in (resolved, *resolved.parents))


def leave_current_folder() -> None:
    """Search only folders that are the user's own wherever this process was started (`independent`)."""
    sys.path[:] = independent(sys.path)


@contextmanager
def without_current_folder() -> Iterator[None]:
    """`leave_current_folder` for a body."""
    with restored():
        leave_current_folder()
        yield


@contextmanager
def restored() -> Iterator[None]:
    """Leave the search path as it was, whatever the body does to it."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def independent(path: Sequence[str]) -> list[str]:
    """``path`` without the current folder, and without those that ``PYTHONPATH`` names relative to it.

    A folder stays that ``PYTHONPATH`` names by its whole path, that holds the script which runs, or this product.
    """
    named = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    kept = {ROOT, *(entry.resolve() for entry in named if entry.is_absolute())}
    kept |= {Path(script).resolve().parent} if script else set()
    try:
        found = {entry.resolve() for entry in (Path(), *named) if not entry.is_absolute()} - kept
    except FileNotFoundError:  # the current folder was removed
        found = set()
    return [entry for entry in path if Path(entry).is_absolute() and Path(entry).resolve() not in found]


def append(folder: Path) -> None:
    """Search a folder for a user's modules, after all others, unless it is searched already, or lies within a run's."""
    if is_of_run(folder):
        return
    known = {Path(entry or ".").resolve() for entry in sys.path}
    if folder.resolve() not in known:
        sys.path[:] = ordered([*sys.path, str(folder.resolve())])


def ordered(path: Sequence[str]) -> list[str]:
    """``path`` with the folders that hold other packages of our names at its end, and ours before them."""
    foreign = [entry for entry in path if _is_foreign(Path(entry or "."))]
    others = [entry for entry in path if entry not in foreign]
    if foreign and str(ROOT) not in others:  # an editable install is found by a hook, after all folders
        others.append(str(ROOT))
    return [*others, *foreign]


def _is_foreign(folder: Path) -> bool:
    if folder.resolve() == ROOT:
        return False
    return any((folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in PACKAGES)
