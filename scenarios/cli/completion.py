"""What shells complete: shipped scenarios, KEY= and names of rows. It answers fast: no slow module is imported.

The words come from `scenarios.config.catalogue`, which takes seconds to import on a busy machine. They are therefore
kept in the cache folder, and made again when a file of the product is newer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

Words = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios" / "config" / "files"
PACKAGES = ("coordinator", "costmodel", "edge", "scenarios")


def complete_scenarios(incomplete: str) -> list[str]:
    """Names of shipped scenarios, and TOML files of the folder that is typed."""
    at = incomplete.rpartition("/")[0]
    names = [path.stem for path in SCENARIOS.glob("*.toml")]
    with suppress(OSError):
        for path in Path(at or ".").iterdir():
            end = "/" if path.is_dir() else ""
            names += [f"{at}/{path.name}{end}" if at else f"{path.name}{end}"] if end or path.suffix == ".toml" else []
    return sorted(_beginning(incomplete, names))


def complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """``KEY=``, and behind it the choices of the key; several joined methods one by one.

    A key alone has its choices or its default beside it, since shells add a space to the only candidate.
    """
    before = list(ctx.params.get("overrides") or ())
    if before[-1:] == ["="] and len(before) > 1:  # bash ends words at =, and begins another one behind it
        return _values(before[-2], incomplete)
    if before and "=" not in before[-1]:
        return _values(before[-1], incomplete)
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={each}" for each in _values(key, value)]
    keys = _beginning(key, words()["keys"])
    beside = [f"{keys[0]}={each}" for each in _values(keys[0], "")] if len(keys) == 1 else []
    return [f"{each}=" for each in keys] + beside


def _values(key: str, typed: str) -> list[str]:
    known = words()
    joined, plus, _ = typed.rpartition("+")
    choices = known["choices"].get(key) or [known["defaults"].get(key, "")]
    return _beginning(typed, [f"{joined}{plus}{each}" for each in choices if each])


def complete_names(incomplete: str) -> list[str]:
    """Names that ``fedbr explain`` takes."""
    known = words()
    rows = [name for names in known["choices"].values() for name in names]
    return _beginning(incomplete, sorted({*known["keys"], *known["tables"], *rows}))


def complete_topics(incomplete: str) -> list[str]:
    """What ``fedbr list`` takes."""
    return _beginning(incomplete, words()["topics"])


def _beginning(typed: str, candidates: Sequence[str]) -> list[str]:
    return [each for each in candidates if each.startswith(typed)]


def words() -> Words:
    """Keys, tables, choices by key, and topics; from the cache if that is no older than the product's files."""
    from scenarios.config.cache import cache_folder

    path, stamp = cache_folder() / "completion.json", _stamp()
    with suppress(OSError, ValueError):
        kept: Words = json.loads(path.read_bytes())
        if isinstance(kept, dict) and kept.get("stamp") == stamp:
            return kept
    made = {"stamp": stamp, **_made()}
    with suppress(OSError):  # a full disk or a read-only home: it is made again the next time
        from edge.protocol.files import write_text

        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(made))
    return made


def _stamp() -> list[Any]:
    """The place of the product, and its newest change."""
    newest = max(path.stat().st_mtime_ns for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [str(ROOT), newest]


def _made() -> Words:
    from scenarios.api import listing
    from scenarios.config import catalogue
    from scenarios.config.plugin_points import BY_STAGE_KEY

    entries = [*catalogue.scenario_keys(), *catalogue.all_options()]
    flags = {entry.key: ("true", "false") for entry in entries if entry.type == "true or false"}
    # Of a stage, the kind: a shell would take the quotes from a table.
    choices = {f"{entry.key}.kind" if entry.key in BY_STAGE_KEY else entry.key: entry.choices for entry in entries}
    return {
        "keys": list(dict.fromkeys([*(entry.key for entry in entries), *(key for key in choices if choices[key])])),
        "tables": list(catalogue.key_tables()),
        "defaults": {entry.key: entry.default_text for entry in entries if entry.default not in (None, {})},
        "choices": flags | {key: list(names) for key, names in choices.items() if names},
        "topics": list(listing.KINDS),
    }
