"""Paths in files that a user shares, without the user's name: ``~/data`` instead of ``/home/ada/data``.

A run folder, a report or a study may go to a reviewer who must not learn who made it. `abbreviated` is applied where
such files are written, and to paths in scenarios when they are read; `expanded` where a path is used.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from edge.protocol.bounds import escaped

USER = "$USER"
"""In place of a part of a path outside of the home folder that is the user's name"""


def abbreviated(text: str) -> str:
    """A text with ``~`` for the user's home folder, and `USER` for other parts of paths that are the user's name."""
    for home in _homes():
        text = re.sub(rf"(?<![^\s\"'=(\[,;:>`]){re.escape(home)}(?![^/\s\"')\],;:<`])", "~", text)
    name = _user()
    return re.sub(rf"(?<=/){re.escape(name)}(?![^/\s\"')\],;:<`])", USER, text) if name else text


def expanded(text: str) -> Path:
    """The path that `abbreviated` wrote; RuntimeError for ``~`` without a home folder."""
    name = _user()
    parts = [name if part == USER and name else part for part in Path(text).parts]
    return Path(*parts).expanduser()


def contained(text: str) -> bool:
    """Whether a text names the user's home folder."""
    return any(re.search(rf"(?<![\w./-]){re.escape(home)}(?![\w.-])", text) for home in _homes())


def shared(value: Any) -> Any:
    """A JSON value in which every text is `abbreviated` and `escaped`; keys stay."""
    if isinstance(value, str):
        return escaped(abbreviated(value))
    if isinstance(value, Mapping):
        return {key: shared(of) for key, of in value.items()}
    return [shared(each) for each in value] if isinstance(value, list | tuple) else value


def cache_folder() -> Path:
    """The folder of decoded data, partitions and calibrated devices; RuntimeError for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "fedbr-edge"


FilePath = Annotated[str, AfterValidator(abbreviated)]
"""The type of a key that names a file or folder"""


def _homes() -> list[str]:
    """The home folder as it is named, and without links; none where it is unknown, or is the root folder."""
    try:
        home = Path.home()
    except RuntimeError:
        return []
    return [str(each) for each in dict.fromkeys((home, home.resolve())) if each.parent != each and each.is_absolute()]


def _user() -> str:
    """The user's name; empty where it is unknown."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return ""
