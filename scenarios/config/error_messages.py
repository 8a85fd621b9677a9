"""Messages for invalid keys of a scenario, in the terms of TOML, with the nearest key or choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pydantic_core import ErrorDetails

from edge.protocol.config import Also
from edge.protocol.spelling import closest
from scenarios.config.errors import Argument
from scenarios.config.quantities import beyond_limit
from scenarios.config.schema import NONE, fields, is_table

Parts = tuple[str | Argument, ...]
"""Of a message"""


def known_keys(table: type, at: str = "") -> dict[str, str]:
    """Every dotted key, and every name that other tools use for it -> the dotted key."""
    keys: dict[str, str] = {}
    for name, field in fields(table).items():
        kind = field.annotation
        if is_table(kind):
            keys |= known_keys(kind, f"{at}{name}.")
            keys[f"{at}{name}"] = f"{at}{name}"
        else:
            synonyms = [synonym for mark in field.metadata if isinstance(mark, Also) for synonym in mark.names]
            keys |= {f"{at}{synonym}": f"{at}{name}" for synonym in [name, *synonyms]}
    return keys


FOREIGN: Mapping[str, Parts] = {
    **dict.fromkeys(
        ("workers", "n_workers", "num_workers", "n_jobs"), ("no key of a scenario; use ", Argument("workers"))
    ),
    **dict.fromkeys(("device", "gpu", "num_gpus"), ("no key of a scenario; use ", Argument("device"))),
    **dict.fromkeys(("out", "output", "output_dir", "out_dir"), ("no key of a scenario; use ", Argument("out"))),
    **dict.fromkeys(
        ("fraction", "fraction_fit", "frac", "client_frac", "client_fraction", "sample_fraction", "join_ratio"),
        ("a round has a number of clients, not a share of them; did you mean 'rounds.participants'?",),
    ),
    **dict.fromkeys(("callbacks", "callback"), ("callbacks are the argument on_round of fedbr.run, in Python",)),
}
"""Name that other tools have for what no key is -> what there is instead"""


def named_like(name: str, keys: Mapping[str, str]) -> str | None:
    """The first key, in the order of ``keys``, whose last part is that of ``name``, for a table the key within it that
    is meant; None if there is none. Keys of the same table come first."""
    table, _, last = name.rpartition(".")
    same = [key for called, key in keys.items() if called.rpartition(".")[2] == last]
    same.sort(key=lambda key: not key.startswith(f"{table}."))
    return _inside(same[0], keys) or same[0] if same else None


def is_branch(part: str | int) -> bool:
    """Whether a part of an error's location is an alternative of a union, which pydantic adds, and not a key."""
    kinds = ("int", "str", "float", "constrained-float", "constrained-int", "none", "literal")
    return isinstance(part, int) or "[" in part or part in kinds


COUNTS = {"rounds.participants": "a number of clients, 1 or more"}
"""Key -> what its whole number is, where other tools have a share"""
A_TABLE = "must be a table"
MESSAGES = {
    "dataclass_type": A_TABLE,
    "dict_type": A_TABLE,
    "tuple_type": "must be a list",
    "missing": "too few values",
    "too_long": "too many values",
}
"""Pydantic's type of error -> the message in the terms of TOML."""


def foremost(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """The error to report: the first; for a text at a key that takes a number or few words, all of these choices, and
    at one that takes a number or a quantity, what is wrong with this."""
    first = errors[0]
    if first["type"] == "int_parsing":
        for error in errors:
            if error["type"] == "value_error" and error["loc"][:-1] == first["loc"][:-1]:
                return error
    if first["type"] == "float_parsing":
        for error in errors:
            if error["type"] == "literal_error" and error["loc"][:-1] == first["loc"][:-1]:
                return {**error, "ctx": {"expected": f"a number, {error['ctx']['expected']}"}}
    return first


def error_message(
    error: ErrorDetails, key: str, keys: Mapping[str, str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> tuple[Parts, Sequence[str]]:
    """The message for an error that pydantic reports for ``key``, and the valid choices; ``keys``: of `known_keys`.

    ``elsewhere``: further keys, in the same form, of which a name must be exactly one's last part to be meant.
    """
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return (f"unknown key {key}", *_did_you_mean(key, keys, elsewhere)), sorted(set(keys.values()))
    message, choices = error["msg"].removeprefix("Value error, "), list[str]()
    if error["type"] == "literal_error":
        expected = str(error.get("ctx", {}).get("expected", ""))
        choices = [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(", ")]
        near = closest(str(error["input"]), choices)
        message = f"must be one of {', '.join(choices)}" + ("" if near is None else f"; did you mean {near!r}?")
    message = beyond_limit(error, key) or MESSAGES.get(error["type"], message)
    if key in ("fleet.devices", "fleet.networks") and message == A_TABLE:
        message += " of shares, or a list of names, one per client"
    elif message == A_TABLE and (meant := _inside(key, keys)):
        message += f"; did you mean {meant!r}?"
    if error["input"] == NONE:
        message += "; leave the key out for its default"
    elif key in COUNTS and error["type"].startswith("int"):
        message = f"must be {COUNTS[key]}"
    return (f"{key} = {error['input']!r}: {message[0].lower()}{message[1:]}",), choices


def _inside(table: str, keys: Mapping[str, str]) -> str | None:
    """The key that a value in place of its table was meant for: one that is also called so, or the name."""
    return keys.get(f"{table}.{table.rpartition('.')[2]}") or keys.get(f"{table}.name")


def _did_you_mean(key: str, keys: Mapping[str, str], elsewhere: Mapping[str, str]) -> Parts:
    table, _, last = key.rpartition(".")
    near = named_like(key, keys) or named_like(key, elsewhere)
    if near is None and last in FOREIGN:
        return ": ", *FOREIGN[last]
    near = near or keys.get(closest(key, keys) or "")
    if near is None:
        by_last = {name.rpartition(".")[2]: full for name, full in keys.items()}
        near = by_last.get(closest(last, by_last, cutoff=0.7) or "")
    if near is not None:
        return (f", did you mean {near!r}?",)
    inside = sorted({name for name in keys.values() if name.rpartition(".")[0] == table})
    return (f" (known here: {', '.join(inside) or 'none'})" if table else "",)
