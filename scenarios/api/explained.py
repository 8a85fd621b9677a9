"""Explanations of a key of a scenario, a table of keys, an option of a row, a row, shipped or a user's own, or a file.

All of it comes from `scenarios.config.catalogue` and from rows of `scenarios.api.listing`; nothing is explained here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodel.fleet import board_table, traces
from costmodel.fleet.carbon import sources
from costmodel.fleet.devices import devices, networks
from costmodel.fleet.implausible import doubts_of_trace
from costmodel.fleet.recording import recording
from edge.data.locate import is_file, is_folder
from edge.protocol.config import FileReading
from edge.protocol.plugins import is_own
from edge.protocol.spelling import closest
from scenarios.api import listing
from scenarios.config import catalogue
from scenarios.config.catalogue import ScenarioKey
from scenarios.config.error_messages import known_keys
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import BY_NAME_KEY, BY_OPTIONS, BY_STAGE_KEY, PLUGIN_POINTS
from scenarios.config.schema import Scenario
from scenarios.config.toml_source import shipped
from scenarios.config.toml_writer import toml_value

Explanation = dict[str, Any]
OTHER_WORDS = {
    **dict.fromkeys(("euro", "euros", "eur", "money", "dollar", "price", "cost of data", "tariff"), "fleet.price"),
    **dict.fromkeys(("co2", "co2e", "co2e_grams", "carbon", "emissions", "carbon footprint"), "fleet.carbon"),
    **dict.fromkeys(("kwh", "electricity", "price of power"), "fleet.price.kwh"),
    **dict.fromkeys(("data plan", "plan", "data allowance", "allowance"), "fleet.price.plan"),
    **dict.fromkeys(("differential privacy", "dp", "user-level privacy", "dp-sgd"), "privacy.unit"),
    **dict.fromkeys(("secure aggregation", "secagg+", "lightsecagg"), "privacy.secagg"),
    **dict.fromkeys(("router", "routers", "gateway"), "fleet.gateways"),
    **dict.fromkeys(("int8", "int4", "8 bits", "4 bits"), "quantize"),
}
"""What users call a key or row, in small letters -> its name"""
MOST_VALUES = 6
"""Shipped scenarios whose values, and keys whose meanings are shown"""
EXAMPLE = "digits"
"""The scenario of an example, if none that ships sets the key"""


def explained(name: str) -> Explanation:
    """The explanation of a name, or of a user's file; ScenarioError with the nearest key or row for any other."""
    name = name.strip()
    if is_file(Path(name)):
        return of_file(Path(name))
    name = BY_NAME_KEY[name].key if name in BY_NAME_KEY else OTHER_WORDS.get(name.lower(), name)
    keys = {entry.key: entry for entry in catalogue.scenario_keys()}
    if name in keys:
        key = keys[name]
        values = {name: value for name, value in catalogue.shipped_values(key.key).items() if value != key.default}
        shipped = {name: toml_value(value) for name, value in values.items()}
        options = {"keys": [_option(option) for option in catalogue.row_options(name)]} if name in BY_OPTIONS else {}
        options |= {"sources": [asdict(source) for source in sources()]} if name == "fleet.carbon.zone" else {}
        return {"kind": "key", **key.row(), "shipped": shipped, "example": _example(key, values), **options}
    tables = catalogue.key_tables()
    if name in tables:
        below = [entry.row() for entry in keys.values() if entry.key.startswith(f"{name}.")]
        return {"kind": "table", "name": name, "meaning": tables[name], "keys": below}
    owners = [entry for entry in catalogue.all_options() if entry.key == name]
    if owners:
        return {"kind": "option", "name": name, "options": [_option(entry) for entry in owners]}
    if is_own(name):
        kind, row = listing.own_row(name)
        return {"kind": "row", "name": name, "rows": {kind: row}}
    rows = listing.named(name)  # a method, a policy, a device ..
    if not rows and is_folder(Path(name)):
        return _data_file(Path(name))
    if not rows:
        raise ScenarioError(f"explain {name!r}: {_nearest(name)}")
    return {"kind": "row", "name": name, "rows": rows}


def of_file(path: Path) -> Explanation:
    """How a recording or a data set of the user's is understood, and by which key; ScenarioError if it is neither."""
    try:
        trace = traces.read(path)
    except ValueError as error:
        with suppress(ValueError):
            return _boards(path)
        return _data_file(path, str(error))
    found = recording(trace)
    return {
        "kind": "recording",
        "name": str(path),
        "meaning": found.text(),
        "figures": [{**asdict(figure), "text": figure.text(), "drawn": figure.drawn()} for figure in found.figures],
        "recording": {key: value for key, value in asdict(found).items() if key != "figures"},
        "doubts": [text for text in doubts_of_trace(trace) if text],
        "example": f"fedbr run {EXAMPLE} {found.key}={path}",
    }


def _boards(path: Path) -> Explanation:
    """A table of boards; ValueError for any other file."""
    if not board_table.is_table(path):
        raise ValueError(f"{path}: is no table")
    unread = board_table.unread_columns(path)
    return {
        "kind": "boards",
        "name": str(path),
        "meaning": "a table of boards, which fleet.devices names",
        "notes": [f"not used: {', '.join(unread)}"] if unread else [],
        "example": f"fedbr check {EXAMPLE} fleet.device_file={path}",
    }


def _data_file(path: Path, no_recording: str = "") -> Explanation:
    """A data set; ``no_recording``: why a file is no recording."""
    from edge.data.own_files import find, read

    try:
        data = read(path, find(path), FileReading())
    except ValueError as error:
        if not no_recording:
            raise ScenarioError(f"explain {path}: is no data set: {error}") from None
        of_link, of_data = (
            text.removeprefix(str(path)).lstrip(",: ").partition("; known are")[0]
            for text in (no_recording, str(error))
        )
        of_link += "; fleet.bandwidth.columns names others"
        raise ScenarioError(f"explain {path}: is no recording ({of_link}), and no data set ({of_data})") from None
    return {
        "kind": "data",
        "name": str(path),
        "meaning": f"a data set: {repr(data).strip('<>').partition(';')[0]}",
        "notes": list(data.notes),
        "example": f"fedbr run {EXAMPLE} data.file={path}",
    }


def _option(entry: ScenarioKey) -> Explanation:
    return {**entry.row(), "example": _example(entry, {})}


def _example(entry: ScenarioKey, shipped: Mapping[str, Any]) -> str | None:
    """A command line with another value than the default; None for keys that no short value makes plain."""
    users = "".join(f" {user.replace(' ', '')}" for user in entry.used_by[:1])
    value = toml_value(next(iter(shipped.values()))) if shipped else _other(entry)
    if value is None or value == "{}" or len(value) > 60:
        return None
    plain = value.strip('"')
    quoted = f"'{value}'" if '"' in plain else f'"{plain}"' if " " in plain else plain  # for a shell
    return f"fedbr run {EXAMPLE}{users} {entry.key}={quoted}"


def _other(entry: ScenarioKey) -> str | None:
    """A value that differs from the default, where one can be named; else the default."""
    others = [name for name in entry.choices if name != entry.default]
    if others:
        return f'{{ kind = "{others[0]}" }}' if entry.key in BY_STAGE_KEY else others[0]
    if isinstance(entry.default, bool):
        return str(not entry.default).lower()
    if entry.default is None and entry.unit is not None:
        return f"1 {entry.type.partition('(')[2].rstrip(')').split(', ')[2]}"
    return None if entry.default is None else entry.default_text


def _nearest(name: str) -> str:
    """The key or row of a similar name, those whose meaning has the word, or that there is none."""
    keys = known_keys(Scenario) | {table: table for table in catalogue.key_tables()}
    keys |= {entry.key: entry.key for entry in catalogue.all_options()}
    rows = [row for point in PLUGIN_POINTS for row in point.shipped]
    known = keys | {row: row for row in (*rows, *devices(), *networks(), *shipped())}
    by_last = {key.rpartition(".")[2]: full for key, full in reversed(keys.items())}  # the first of the schema wins
    near = by_last.get(name) or known.get(closest(name, known, cutoff=0.75) or "")
    near = near or by_last.get(closest(name, by_last, cutoff=0.75) or "")
    if near is not None:
        return f"did you mean {near!r}?"
    meanings = [(entry.key, entry.meaning) for entry in (*catalogue.scenario_keys(), *catalogue.all_options())]
    meanings += catalogue.key_tables().items()
    meanings += [(row_name, row.title) for point in PLUGIN_POINTS for row_name, row in point.shipped.items()]
    begins = re.compile(rf"(?<!\w){re.escape(name)}", re.IGNORECASE)
    having = list(dict.fromkeys(key for key, meaning in meanings if len(name) > 2 and begins.search(meaning)))
    others = f" and {len(having) - MOST_VALUES} more" if len(having) > MOST_VALUES else ""
    if having:
        return f"neither a key nor a name, but a word of {', '.join(having[:MOST_VALUES])}{others}"
    return "neither a key nor a name; see fedbr list keys"
