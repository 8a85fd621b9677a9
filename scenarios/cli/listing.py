"""Rows of ``fedbr list`` and ``fedbr explain``: the names that a scenario can use, read from the tables that runs use.

A row is a dict for ``--json``; `scenarios.cli.listing_text` prints it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from coordinator.aggregation.block_exchange import EVERYTHING
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec, keys_not_downloaded
from costmodel.fleet.devices import devices, networks
from edge.data.locate import find_data
from edge.data.partition_registry import PartitionRow
from edge.data.registry import DataSet
from edge.protocol import plugins
from edge.protocol.spelling import nearest
from edge.training.metrics.registry import MetricRow
from scenarios.config import catalogue, plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.field_docs import field_docs as field_docs
from scenarios.config.plugin_points import PLUGIN_POINTS, PluginPoint
from scenarios.config.toml_source import FILES, shipped

Row = dict[str, Any]


def rows(kind: str, assumed: bool = False) -> list[Row]:
    """The rows of a kind; with ``assumed``, only those with an assumed figure. ScenarioError for an unknown kind."""
    if kind not in KINDS:
        raise ScenarioError(f"list {kind!r}: {nearest(kind, KINDS)}")
    if assumed and kind not in ("devices", "networks"):
        raise ScenarioError(f"list {kind} --assumed: only devices and networks have assumed figures")
    return [row for row in KINDS[kind]() if not assumed or row["assumed"]]


def own_row(name: str) -> tuple[str, Row]:
    """(kind, row) of a row of the user's own, ``module:ROW``, under that name.

    ScenarioError if it cannot be loaded, is no row of a plug-in point, or raises an error.
    """
    from scenarios.studies.conformance import plugin_point

    point = plugin_point(name)
    with plugin_errors.named({point.key: name}, ScenarioError):
        return point.topic, {**_row(point.topic, plugins.load(name), name), "name": name}


def topics() -> list[Row]:
    """What can be listed, and the key of a scenario that takes such names."""
    keys = {point.topic: point.key for point in PLUGIN_POINTS} | FLEET_KEYS
    return [{"name": kind, "key": keys.get(kind)} for kind in KINDS]


# --- one row of each kind, by the name under which scenarios have it --------------------------------------------------


def _method(spec: ObjectiveSpec | CorrectionSpec, name: str) -> Row:
    from scenarios.studies.forecast.method_costs import method_costs

    row: Row = {
        "name": spec.name,
        "title": spec.title,
        "source": spec.source,
        "neutral": spec.neutral,
        "keeps": _client_state(spec),
        "costs": method_costs(name).plain(),
        "options": options(spec.options),
    }
    if isinstance(spec, CorrectionSpec):
        limit = "" if spec.refusals.partial_models(spec.options()) is None else " that sends the whole model"
        return row | {"joins": f"any objective{limit}, as in fedmlb+{name}", "weights": None}
    return row | {"joins": None, "weights": spec.weights}


def _client_state(spec: ObjectiveSpec | CorrectionSpec) -> str:
    """The vectors that a client keeps from one visit to the next, in words."""
    parts = ["vectors of its own"] if spec.client_state is not None else []
    sends_all = isinstance(spec, ObjectiveSpec) and spec.traffic.down(spec.options()) == EVERYTHING
    if isinstance(spec, ObjectiveSpec) and not (spec.traffic.kept_blocks is keys_not_downloaded and sends_all):
        parts.append((inspect.getdoc(spec.traffic.kept_blocks) or "").split("\n")[0])
    return "; ".join(parts) or "nothing"


def options(kind: type[BaseModel]) -> list[Row]:
    """Name, the paper's symbol if there is one, default and meaning of each option of a method or server optimizer."""
    texts = field_docs(kind)
    return [
        {"name": name, "symbol": field.title, "default": field.default, "meaning": texts.get(name, "")}
        for name, field in kind.model_fields.items()
    ]


def _with_options(row: Any, name: str) -> Row:
    """A plug-in's row that has a title, a source and options."""
    return {key: getattr(row, key) for key in ("name", "title", "source")} | {"options": options(row.options)}


def _server(row: Any, name: str) -> Row:
    keys = ("name", "title", "source", "neutral")
    return {key: getattr(row, key) for key in keys} | {"options": options(row.options)}


def _fields(row: Any, name: str) -> Row:
    return asdict(row)


def _dataset(row: DataSet, name: str) -> Row:
    keys = ("name", "title", "classes", "kind", "shape", "vocabulary", "source")
    found = find_data(name, None, cache_folder())
    return {key: getattr(row, key) for key in keys} | {"natural_clients": row.natural_ids, "found": found}


def _partition(row: PartitionRow, name: str) -> Row:
    return {"name": row.name, "title": row.title, "options": [f"data.partition.{key}" for key in row.keys]}


def _metric(row: MetricRow, name: str) -> Row:
    return asdict(row) | {"options": [] if row.options is None else list(row.options.model_fields)}


ROWS: Mapping[str, Callable[[Any, str], Row]] = {
    "methods": _method,
    "servers": _server,
    "models": _fields,
    "datasets": _dataset,
    "partitions": _partition,
    "metrics": _metric,
    "devices": _fields,
    "networks": _fields,
}
"""Kind -> (object of a table, its name) -> its row; that of any other kind has a title, a source and options"""


def _row(kind: str, row: Any, name: str) -> Row:
    return ROWS.get(kind, _with_options)(row, name)


# --- all rows of a kind -----------------------------------------------------------------------------------------------


def _table(kind: str, table: Callable[[], Mapping[str, Any]]) -> Callable[[], list[Row]]:
    return lambda: [_row(kind, row, name) for name, row in table().items()]


def _shipped(point: PluginPoint) -> Callable[[], list[Row]]:
    return _table(point.topic, lambda: point.shipped)


def _scenarios() -> list[Row]:
    return [{"name": name, "head": head(name)} for name in shipped()]


def head(name: str) -> list[str]:
    """The comment lines at the head of a scenario's file."""
    lines: list[str] = []
    for line in (FILES / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return lines


def _keys() -> list[Row]:
    return [entry.row() for entry in catalogue.scenario_keys()]


FLEET_KEYS = {"devices": "fleet.devices", "networks": "fleet.networks"}
"""Kind of the rows of a fleet, which are figures rather than plug-ins -> the key that takes their names"""
KINDS: Mapping[str, Callable[[], list[Row]]] = {
    **{point.topic: _shipped(point) for point in PLUGIN_POINTS},
    "devices": _table("devices", devices),
    "networks": _table("networks", networks),
    "scenarios": _scenarios,
    "keys": _keys,
}
"""Kind -> all of its rows"""
