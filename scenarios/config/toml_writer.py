"""Writes a resolved scenario as TOML text with every default; `scenarios.config.load` reads the same scenario from it.

The standard library reads TOML but does not write it; a scenario holds only tables, lists, text, numbers and flags.
None has no form in TOML: such keys are written as comments, and reading them back gives their default, None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scenarios.config.tables import TomlValue


def toml_text(tables: Mapping[str, TomlValue]) -> str:
    """The TOML of nested dicts."""
    return "\n".join(_lines(tables, "")) + "\n"


def _lines(table: Mapping[str, TomlValue], at: str) -> list[str]:
    lines = [
        f"# {_key(key)} is not set" if value is None else f"{_key(key)} = {toml_value(value)}"
        for key, value in table.items()
        if not isinstance(value, Mapping)
    ]
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{at}{_key(key)}"
            lines += ["", f"[{name}]", *_lines(value, f"{name}.")]
    return lines


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _text(key)


def toml_value(value: Any) -> str:
    """One value as it stands behind ``KEY =``; a table on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {toml_value(inner)}' for key, inner in value.items())}}}"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are valid in TOML, but JSON does not escape DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
