"""The plug-in points of a scenario: the keys whose values name rows, shipped or a user's own as ``module:ROW``.

A new plug-in point is a row of `PLUGIN_POINTS`: its rows are then listed, explained, completed and in the JSON Schema,
their options are replaced as one by a file that extends another, a user's own are checked by ``fedbr check --plugin``,
and their sources are recorded, and refused when they have changed. Nothing of a point is imported before it is used,
so that help and usage errors appear at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from edge.protocol.spelling import is_own
from scenarios.config.tables import TomlValue, value_at


@dataclass(frozen=True)
class PluginPoint:
    """A key of a scenario whose value names a row, or rows."""

    key: str
    noun: str
    """A row of it in messages"""
    topic: str
    """Its rows in ``fedbr list``"""
    module: str
    """Where its rows are, with all that is named below"""
    tables: tuple[str, ...]
    """Tables of shipped rows, by name; every row has a title"""
    row_types: tuple[str, ...]
    find: str
    """The function that resolves a name, also a user's own; ValueError with the nearest shipped name"""
    options_key: str | None = None
    """The table of options of the row that the key names"""
    takes_several: bool = False
    """Whether the key is a list of names, and its table of options has a table for each of them."""
    stage_keys: tuple[str, ...] = ()
    """All keys that name such rows, if not by names alone: their values are stages, ``{ kind = "NAME", OPTION = VALUE,
    .. }``, lists of stages, or tables of these"""

    @property
    def name_key(self) -> str:
        """Where a name is given on its own."""
        return f"{self.key}.kind" if self.stage_keys else self.key

    @cached_property
    def shipped(self) -> Mapping[str, Any]:
        """Name -> row."""
        module = import_module(self.module)
        return {name: row for table in self.tables for name, row in getattr(module, table).items()}

    def row(self, name: str) -> Any:
        """The row of a name, shipped or a user's own; ValueError with the nearest shipped name."""
        return getattr(import_module(self.module), self.find)(name)

    def option_types(self) -> list[tuple[str, str, Any]]:
        """(table of options, name of a shipped row, the class of its options), for rows that have any."""
        types = [(name, row.options) for name, row in self.shipped.items() if self.options_key is not None]
        at = f"{self.options_key}.{{}}" if self.takes_several else self.options_key or ""
        return [(at.format(name), name, kind) for name, kind in types if kind is not None]

    def is_row(self, value: object) -> bool:
        """Whether an object is a row of this point."""
        module = import_module(self.module)
        return isinstance(value, tuple(getattr(module, kind) for kind in self.row_types))


PLUGIN_POINTS = (
    PluginPoint(
        "method", "method", "methods", "coordinator.methods.registry", ("OBJECTIVES", "CORRECTIONS"),
        ("ObjectiveSpec", "CorrectionSpec"), "resolve", "method_options",
    ),
    PluginPoint(
        "server", "server optimizer", "servers", "coordinator.aggregation.optimizers", ("SERVER_OPTIMIZERS",),
        ("ServerOptimizerRow",), "server_optimizer", "server_options",
    ),
    PluginPoint(
        "rounds.selection", "client selection", "selections", "coordinator.rounds.selectors.registry", ("SELECTIONS",),
        ("SelectionRow",), "selection", "rounds.selection_options",
    ),
    PluginPoint(
        "rounds.policy", "round policy", "policies", "coordinator.rounds.policy", ("POLICIES",), ("PolicyRow",),
        "policy_row", "rounds.policy_options",
    ),
    PluginPoint(
        "train.lr_schedule", "learning-rate schedule", "schedules", "edge.protocol.lr_schedules", ("LR_SCHEDULES",),
        ("LrSchedule",), "lr_schedule", "train.lr_schedule_options",
    ),
    PluginPoint(
        "train.loss", "loss", "losses", "edge.protocol.losses", ("LOSSES",), ("LossRow",), "loss", "train.loss_options",
    ),
    PluginPoint(
        "train.optimizer", "optimizer", "optimizers", "edge.protocol.optimizers", ("OPTIMIZERS",), ("OptimizerRow",),
        "optimizer", "train.optimizer_options",
    ),
    PluginPoint(
        "model.name", "model", "models", "edge.models.registry", ("MODELS",), ("ModelRow",), "model", "model.options",
    ),
    PluginPoint("data.name", "data set", "datasets", "edge.data.registry", ("DATASETS",), ("DataSet",), "dataset"),
    PluginPoint(
        "data.partition.kind", "partition", "partitions", "edge.data.partition_registry", ("PARTITIONS",),
        ("PartitionRow",), "partition_row",
    ),
    PluginPoint(
        "eval.metrics", "metric", "metrics", "edge.training.metrics.registry", ("METRICS",), ("MetricRow",),
        "metric_row", "eval.metric_options", takes_several=True,
    ),
    PluginPoint(
        "codec.up", "codec", "codecs", "edge.protocol.codecs.registry", ("CODECS",), ("CodecRow",), "codec_row",
        "codec.up", stage_keys=("codec.up", "codec.down", "codec.up_slots", "codec.down_slots", "codec.wan"),
    ),
)  # fmt: skip
"""In the order of ``fedbr list``. Values are text, or lists of text; methods join names with ``+``."""
BY_KEY: Mapping[str, PluginPoint] = {point.key: point for point in PLUGIN_POINTS}
BY_NAME_KEY: Mapping[str, PluginPoint] = {point.name_key: point for point in PLUGIN_POINTS}
BY_STAGE_KEY: Mapping[str, PluginPoint] = {key: point for point in PLUGIN_POINTS for key in point.stage_keys}
BY_OPTIONS: Mapping[str, PluginPoint] = {
    point.options_key: point for point in PLUGIN_POINTS if point.options_key is not None
}
"""Key of a table of options -> the point whose rows have them"""
WHOLE = (
    "fleet.devices",
    "fleet.networks",
    "data.partition.options",
    *(key for key, point in BY_OPTIONS.items() if not point.takes_several),
    *(key for key in BY_STAGE_KEY if key not in BY_OPTIONS),
)
"""Tables that a file or mapping replaces as one: their keys are names, or those of the row that is named beside them"""


def own_names(tables: Mapping[str, TomlValue]) -> set[str]:
    """The names of a user's own rows, ``module:ROW``, in the tables of a scenario."""
    return {name for _, name in own_rows(tables)}


def own_rows(tables: Mapping[str, TomlValue]) -> list[tuple[str, str]]:
    """(key, ``module:ROW``) of a user's own rows in the tables of a scenario."""
    keys = dict.fromkeys((*BY_KEY, *BY_STAGE_KEY))
    return [(key, name) for key in keys for name in _names(value_at(tables, key)) if is_own(name)]


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (name.strip() for name in value.split("+"))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)
    elif isinstance(value, Mapping):
        kind = value.get("kind")  # of a stage; without one, it is a table of chains
        for item in value.values() if kind is None or isinstance(kind, Mapping | list | tuple) else (kind,):
            yield from _names(item)
