"""Files that a user names: read up to a limit, TOML parsed within limits. Knows no meaning of their content."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

MOST_DOTS = 1000
"""Dots in one key; no valid key has more than two."""
MOST_SIGNS = {"=": 100_000, "[": 100_000, ",": 3_000_000}
"""Signs in one file; keys, tables and items of lists have one each. Two lists may name a million clients each."""
BETWEEN_KEYS = re.compile(r"[=,{\n]")


def read_bytes(path: Path, most_nbytes: int) -> bytes:
    """The content of a file; ValueError naming it if it is longer, cannot be read, or is a device or a pipe."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path}: is a device or a pipe, not a file")
        with path.open("rb") as file:
            content = file.read(most_nbytes + 1)  # files of /proc have more bytes than their size says
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > most_nbytes:
        raise ValueError(f"{path}: is larger than {most_nbytes:,} bytes")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; ValueError also beyond the limits above: the parser takes hours for a long key."""
    for sign, most in MOST_SIGNS.items():
        if text.count(sign) > most:
            raise ValueError(f"more than {most:,} times {sign!r}")
    if text.count(".") > MOST_DOTS and max(part.count(".") for part in BETWEEN_KEYS.split(text)) > MOST_DOTS:
        raise ValueError(f"more than {MOST_DOTS} dots in one key")
    return tomllib.loads(text)
