"""Rows of ``fedbr list`` and ``fedbr explain``: the names that a scenario can use, read from the tables that runs use.

A row is a dict for ``--json`` and Python; `scenarios.cli.listing_text` prints it. A device or network is also written
as a file of the user's own, to change.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from pydantic import BaseModel

from coordinator.aggregation.block_exchange import EVERYTHING
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec, keys_not_downloaded
from costmodel.fleet.devices import MEASUREMENTS, Device, Network, devices, networks
from edge.data.locate import find_data
from edge.protocol import plugins
from edge.protocol.codecs.codec import CodecRow
from edge.protocol.codecs.registry import CLASSES, make_codec, smallest_chain
from edge.protocol.spelling import nearest
from scenarios.config import catalogue, plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.catalogue import field_docs
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import PLUGIN_POINTS
from scenarios.config.toml_source import FILES, shipped
from scenarios.config.toml_writer import toml_text, toml_value

Row = dict[str, Any]
OWN = "my-"
"""Before the name of a row in a user's own file, since shipped names are taken."""
COMMENT_COLUMNS = 100


def rows(kind: str, assumed: bool = False) -> list[Row]:
    """The rows of a kind; with ``assumed``, only those with an assumed figure. ScenarioError for an unknown kind."""
    if kind not in KINDS:
        raise ScenarioError(f"list {kind!r}: {nearest(kind, KINDS)}")
    if assumed and kind not in ("devices", "networks"):
        raise ScenarioError(f"list {kind} --assumed: only devices and networks have assumed figures")
    match kind:
        case "scenarios":
            return [{"name": name, "head": head(name)} for name in shipped()]
        case "keys":
            return [entry.row() for entry in catalogue.scenario_keys()]
    listed = [_row(kind, row, name) for name, row in TABLES[kind]().items()]
    return [row for row in listed if not assumed or row["assumed"]]


def named(name: str) -> dict[str, Row]:
    """Kind -> the row of this name, in all lists but that of keys."""
    tables = {kind: table() for kind, table in TABLES.items()}
    found = {kind: _row(kind, table[name], name) for kind, table in tables.items() if name in table}
    return found | ({"scenarios": {"name": name, "head": head(name)}} if name in shipped() else {})


def own_row(name: str) -> tuple[str, Row]:
    """(kind, row) of a row of the user's own, ``module:ROW``, under that name.

    ScenarioError if it cannot be loaded, is no row of a plug-in point, or raises an error.
    """
    from scenarios.studies.conformance import plugin_point

    point = plugin_point(name)
    with plugin_errors.named({point.key: name}, ScenarioError):
        return point.topic, {**_row(point.topic, plugins.load(name), name), "name": name}


def topics() -> list[Row]:
    """The topics that can be listed, and the key of a scenario that takes such names."""
    keys = {point.topic: point.key for point in PLUGIN_POINTS} | FLEET_KEYS
    return [{"name": kind, "key": keys.get(kind)} for kind in KINDS]


# --- one row of each kind, by the name under which scenarios have it --------------------------------------------------


def _method(spec: ObjectiveSpec | CorrectionSpec, name: str) -> Row:
    from scenarios.studies.forecast.relative_costs import method_costs

    kept = ["vectors of its own"] if spec.client_state is not None else []
    sends_all = isinstance(spec, ObjectiveSpec) and spec.traffic.down(spec.options()) == EVERYTHING
    if isinstance(spec, ObjectiveSpec) and not (spec.traffic.kept_blocks is keys_not_downloaded and sends_all):
        kept.append((inspect.getdoc(spec.traffic.kept_blocks) or "").split("\n")[0])
    row: Row = {
        "name": spec.name,
        "title": spec.title,
        "source": spec.source,
        "neutral": spec.neutral,
        "keeps": "; ".join(kept) or "nothing",
        "costs": method_costs(name).plain(),
        "options": options(spec.options),
    }
    if isinstance(spec, CorrectionSpec):
        limit = "" if spec.refusals.partial_models(spec.options()) is None else " that sends the whole model"
        return row | {"joins": f"any objective{limit}, as in fedmlb+{name}", "weights": None}
    return row | {"joins": None, "weights": spec.weights}


def options(kind: type[BaseModel]) -> list[Row]:
    """Name, the paper's symbol if there is one, default and meaning of each option of a method or server optimizer."""
    texts = field_docs(kind)
    return [
        {"name": name, "symbol": field.title, "default": field.default, "meaning": texts.get(name, "")}
        for name, field in kind.model_fields.items()
    ]


def _codec(row: CodecRow, name: str) -> Row:
    """Its properties are those with default options."""
    stages = smallest_chain(name)
    codec = make_codec(stages)
    ranges = {entry.key.rpartition(".")[2]: entry.range for entry in catalogue.options_of(row.options, "codec.up")}
    listed = [option | {"range": ranges[option["name"]]} for option in options(row.options)]
    words = [f"codec.up.kind={name}"]
    defaults = {option["name"]: option["default"] for option in listed if option["default"] is not None}
    words += [f"codec.up.{option}={toml_value(default)}" for option, default in defaults.items()]
    if len(stages) > 1:
        words = [f"'codec.up=[{','.join(toml_value(stage).replace(' ', '') for stage in stages)}]'"]
    return {
        "name": row.name,
        "title": row.title,
        "class": next(noun for kind, noun in CLASSES.items() if issubclass(row.stage, kind)).partition(" ")[2],
        "fixed_length": codec.is_fixed_length,
        "unbiased": codec.is_unbiased,
        "error": row.title_of_error,
        "source": row.source,
        "options": listed,
        "example": " ".join(["fedbr run digits", *words[:2]]),
    }


def _row(kind: str, row: Any, name: str) -> Row:
    """The row of an object of a table, by the name under which it is there."""
    match kind:
        case "methods":
            return _method(row, name)
        case "codecs":
            return _codec(row, name)
        case "datasets":
            shown = ("name", "title", "classes", "kind", "shape", "vocabulary", "source")
            data = find_data(name, None, cache_folder())
            return {key: getattr(row, key) for key in shown} | {
                "real_targets": row.numbers if row.target == "numbers" else 0,
                "targets": row.target_text,
                "natural_clients": row.id_column is not None,
                "found": data,
            }
        case "partitions":
            return {"name": row.name, "title": row.title, "options": [f"data.partition.{key}" for key in row.keys]}
        case "metrics":
            return asdict(row) | {"options": [] if row.options is None else list(row.options.model_fields)}
        case "losses":
            about = {key: getattr(row, key) for key in ("name", "title", "source", "target", "score")}
            return {**about, "options": options(row.options)}
        case "optimizers":
            made = row.options()
            costs = {"state": list(row.state(made)), "step_bytes": row.traffic(made), "step_flops": row.flops}
            about = {key: getattr(row, key) for key in ("name", "title", "source", "lr")}
            return {**about, **costs, "options": options(row.options)}
        case "models":
            return asdict(row) | {"options": options(row.options)}
        case "devices" | "networks":
            return asdict(row)
    keys = ("name", "title", "source", *(["neutral"] if kind == "servers" else []))
    return {key: getattr(row, key) for key in keys} | {"options": options(row.options)}


def head(name: str) -> list[str]:
    """The comment lines at the head of a scenario's file."""
    lines: list[str] = []
    for line in (FILES / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return lines


FLEET_KEYS = {"devices": "fleet.devices", "networks": "fleet.networks"}
"""Kind of the rows of a fleet, which are figures rather than plug-ins -> the key that takes their names"""
TABLES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    **{point.topic: partial(getattr, point, "shipped") for point in PLUGIN_POINTS},
    "devices": devices,
    "networks": networks,
}
"""Kind -> its table of rows, by name"""
KINDS = (*TABLES, "scenarios", "keys")


# --- a row as a file --------------------------------------------------------------------------------------------------


def row_text(kind: str, name: str) -> str:
    """The TOML of a row under a name of its own, each key with its meaning. ScenarioError for an unknown row."""
    tables: Mapping[str, Mapping[str, Device] | Mapping[str, Network]] = {"devices": devices(), "networks": networks()}
    if kind not in tables:
        raise ScenarioError(f"list {kind} --toml: only devices and networks are rows of a file")
    if name not in tables[kind]:
        raise ScenarioError(f"list {kind} --toml {name}: {nearest(name, tables[kind])}")
    row, singular = tables[kind][name], kind.removesuffix("s")
    docs = field_docs(type(row))
    lines = [
        f"# Save it as mine.toml, change it, and use it with fleet.{singular}_file=mine.toml",
        f'# "fleet.{kind}={{{OWN}{name}=1}}". All figures are in SI units.',
        "",
        f"[{OWN}{name}]",
    ]
    for key, value in asdict(row).items():
        if key not in ("name", MEASUREMENTS) and value != {}:
            meaning = docs.get(key, "").replace("`", "")
            lines += textwrap.wrap(meaning, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# ")
            if isinstance(value, Mapping):
                inner = ", ".join(toml_text({name: figure}).strip() for name, figure in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(toml_text({key: value}).strip())
    return "\n".join(lines) + "\n"
