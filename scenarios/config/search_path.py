"""The folders that a user's own modules are imported from: never in front of this product's packages.

A user's folder may hold an ``edge.py`` or a ``scenarios`` of its own, and may be on the path before this product: by
``PYTHONPATH``, or as the current folder of ``python -m``. Such folders are searched last. Workers receive the path of
this process (`coordinator.workers.launcher`), so that the order holds in all of them. Nothing is imported here.

Commands on recorded runs do not search the current folder: it may be the folder of a run, or of whatever came with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coordinator", "costmodel", "edge", "scenarios")


def protect() -> None:
    """Search folders with modules of our names after all others."""
    sys.path[:] = ordered(sys.path)


def add_current_folder() -> None:
    """Search the current folder, too, after all others."""
    with suppress(FileNotFoundError):  # it was removed
        append(Path.cwd())


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
    """Search a folder for a user's modules, after all others, unless it is searched already."""
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
