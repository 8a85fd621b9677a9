"""Files that a user names: read up to a limit, TOML parsed within limits. What they say is not known here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

MOST_DOTS = 1000
"""In one key; none has more than two."""
MOST_SIGNS = {"=": 100_000, "[": 100_000, ",": 3_000_000}
"""In one file, of what keys, tables and items of lists take one each; a million clients are named in two lists."""
BETWEEN_KEYS = re.compile(r"[=,{\n]")


def read_bytes(path: Path, most_nbytes: int) -> bytes:
    """What a file holds; ValueError naming it if it is longer, cannot be read, or is none but a device or a pipe."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path}: is a device or a pipe, not a file")
        with path.open("rb") as file:
            content = file.read(most_nbytes + 1)  # a file of the system may hold more than it says
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > most_nbytes:
        raise ValueError(f"{path}: is larger than {most_nbytes:,} bytes")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """ValueError also for more than anybody says, before the parser sits over it: for hours over one long key."""
    for sign, most in MOST_SIGNS.items():
        if text.count(sign) > most:
            raise ValueError(f"more than {most:,} times {sign!r}")
    if text.count(".") > MOST_DOTS and max(part.count(".") for part in BETWEEN_KEYS.split(text)) > MOST_DOTS:
        raise ValueError(f"more than {MOST_DOTS} dots in one key")
    return tomllib.loads(text)
