"""The folders that a user's own modules are imported from: never in front of this product's packages.

A user's folder may hold an ``edge.py`` or a ``scenarios`` of its own, and may be on the path before this product: by
``PYTHONPATH``, or as the current folder of ``python -m``. Such folders are searched last. Workers receive the path of
this process (`coordinator.workers.launcher`), so that the order holds in all of them. Nothing is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("coordinator", "costmodel", "edge", "scenarios")


def protect() -> None:
    """Search the current folder, too, and folders with modules of our names after all others."""
    with suppress(FileNotFoundError):  # the current folder was removed
        append(Path.cwd())
    sys.path[:] = ordered(sys.path)


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
