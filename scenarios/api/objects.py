"""What a scenario names, given in Python as the thing itself: rows, classes, functions and arrays get names.

An object of an importable module is named where it is, ``my_nets:Net``. For one of a notebook, or of the script that
runs, a module is written (`scenarios.api.object_modules`); from then on it is like any other of the user's: a run keeps
a copy, with which it is resumed, verified, and computed elsewhere (`scenarios.run.plugin_sources`).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from types import FunctionType
from typing import Any, cast

from edge.data.arrays import Arrays, arrays
from edge.data.registry import ExampleKind, dataset
from edge.models.registry import INPUTS, module_row
from edge.protocol.plugins import display_name
from edge.protocol.spelling import nearest
from scenarios.api.object_modules import Closure, UnusableError, dotted, is_row, label
from scenarios.api.values import shown
from scenarios.config import data_file
from scenarios.config.cache import cache_folder
from scenarios.config.errors import PYTHON, ScenarioError
from scenarios.config.load import NO_LISTS
from scenarios.config.plugin_points import BY_KEY, BY_STAGE_KEY, PLUGIN_POINTS
from scenarios.config.tables import TomlValue, leaves, value_at
from scenarios.config.toml_source import extended, find, read

SHORT = {"model": "model.name", "data": "data.name"}
"""Tables -> the key whose object may be given in their place"""
GIVEN_AS = {key: table for table, key in SHORT.items()}
MODEL = "model.name"
KINDS: tuple[ExampleKind, ...] = ("image", "features", "series", "tokens")
_SPEC = "coordinator.methods.spec"
_CLIENT = "edge.training.client_update"
_OPTIMIZERS = "coordinator.aggregation.optimizers"
_SELECTION = "coordinator.rounds.selection"
_POLICY = "coordinator.rounds.policy"
_CODEC = "edge.protocol.codecs.codec"
_TORCH_MODULE = "torch.nn.modules.module:Module"
_WRAPPERS = (
    ("method", f"{_CLIENT}:ClientUpdate", f"{_SPEC}:ObjectiveSpec"),
    ("method", f"{_CLIENT}:GradientCorrection", f"{_SPEC}:CorrectionSpec"),
    ("server", f"{_OPTIMIZERS}:ServerOptimizer", f"{_OPTIMIZERS}:ServerOptimizerRow"),
    ("rounds.selection", f"{_SELECTION}:ClientSelector", "coordinator.rounds.selectors.registry:SelectionRow"),
    ("rounds.policy", f"{_POLICY}:SynchronousPolicy", f"{_POLICY}:PolicyRow"),
    ("rounds.policy", f"{_POLICY}:AsynchronousPolicy", f"{_POLICY}:PolicyRow"),
    ("eval.metrics", "edge.training.metrics.metric:Metric", "edge.training.metrics.registry:MetricRow"),
    ("data.partition.kind", "", "edge.data.partition_registry:PartitionRow"),
    ("train.lr_schedule", "", "edge.protocol.lr_schedules:LrSchedule"),
    ("codec.up", f"{_CODEC}:Reduction", f"{_CODEC}:CodecRow"),
    ("codec.up", f"{_CODEC}:NumberFormat", f"{_CODEC}:CodecRow"),
    ("codec.up", f"{_CODEC}:EntropyCoder", f"{_CODEC}:CodecRow"),
)  # fmt: skip
"""Plug-in point, the class that the object inherits from ('': it is a function), and the row that it then gets"""
_ABOUT = "{name!r}, '{name}, given in Python', 'given in Python'"
_ROWS = {
    "ObjectiveSpec": f"_Row({_ABOUT}, _Options, 'none', {{dotted}})",
    "CorrectionSpec": f"_Row({_ABOUT}, _Options, 'none', {{dotted}})",
    "ServerOptimizerRow": f"_Row({_ABOUT}, _Options, 'none', lambda options: {{object}}())",
    "SelectionRow": f"_Row({_ABOUT}, _Options, lambda options: {{object}}())",
    "PolicyRow": f"_Row({_ABOUT}, _Options, lambda options: {{object}}())",
    "MetricRow": "_Row({name!r}, '{name}, given in Python', {dotted}, per_example={per_example})",
    "PartitionRow": "_Row({name!r}, '{name}, given in Python', {object})",
    "LrSchedule": f"_Row({_ABOUT}, _Options, {{object}})",
    "CodecRow": f"_Row({_ABOUT}, _Options, {{object}}, costs_like={{costs_like!r}})",
}
"""The rows of bare classes and functions: ``object`` is imported with its row, and ``dotted``, which trains, named"""


_COSTS_LIKE = {"Reduction": "topk", "NumberFormat": "quantize", "EntropyCoder": "zstd"}
"""Class of a codec's stage -> the shipped one whose time a bare class takes; a row says it itself"""


def as_names(given: Mapping[str, object], scenario: Any = None) -> dict[str, Any]:
    """Overrides, or the tables of a scenario, with names in place of the objects at plug-in points.

    ``scenario``: the one that they override; a model is made for its data. ScenarioError, by the key, for an object
    that no other process could rebuild.
    """
    named = _named(given, "", lambda key, value: value if key == MODEL else _name(key, value))
    flat = dict(leaves(given))
    data = flat.get("data", flat.get("data.name"))
    if isinstance(data, Arrays) and data.client_names:
        own = {"data.partition.kind": "natural", "data.clients": len(data.client_names)}
        named |= {key: value for key, value in own.items() if key not in flat}
    return _named(named, "", lambda key, value: _model_name(value, _data_name(named, scenario)))


def with_names(scenario: Any) -> Any:
    """A scenario as it is, or if it is a mapping with names in place of its objects."""
    return as_names(scenario, scenario) if isinstance(scenario, Mapping) else scenario


def axis_names(key: str, given: Any, overrides: Mapping[str, object], scenario: Any) -> tuple[str, Any]:
    """A key of a grid and its values, with names in place of objects; ``overrides``: those of all runs."""
    if not isinstance(key, str) or not isinstance(given, Sequence) or all(map(_is_text, given)):
        return key, given
    named = [next(iter(as_names({key: each, **overrides}, scenario).items())) for each in given]
    pairs = zip(named, given, strict=True)
    labels = [display_name(text) for (_, text), each in pairs if isinstance(text, str) and not _is_text(each)]
    for name in labels:
        if labels.count(name) > 1:
            raise ScenarioError(f"{key}: {name} is given twice; give each class or function a name of its own")
    return (named[0][0] if named else key), [value for _, value in named]


def _named(tables: Mapping[str, object], at: str, name: Any) -> dict[str, object]:
    """The tables with ``name(key, object)`` for each object."""
    result: dict[str, object] = {}
    for part, value in tables.items():
        key = SHORT.get(f"{at}{part}", f"{at}{part}")
        if point := next((point for stages, point in BY_STAGE_KEY.items() if f"{key}.".startswith(f"{stages}.")), None):
            result[part] = _stages(key, value, partial(name, point.key))
        elif isinstance(value, Mapping):
            result[part] = _named(value, f"{at}{part}.", name)
        elif key not in BY_KEY or _is_text(value):
            result[part] = value
        elif key == "eval.metrics" and isinstance(value, list | tuple):
            result[part] = [each if _is_text(each) else name(key, each) for each in value]
        elif key == "method" and isinstance(value, tuple):  # joined; a list stands for several
            result[part] = "+".join(each if _is_text(each) else name(key, each) for each in value)
        else:
            result[key if part in SHORT and not at else part] = name(key, value)
    return result


def _stages(key: str, value: Any, name: Any) -> Any:
    """Stages, with names for the objects that they have as kinds, or that stand for them; options are left as given."""
    if isinstance(value, Mapping):
        is_stage = not isinstance(value.get("kind", {}), Mapping | list | tuple)
        return {
            part: each if is_stage and part != "kind" else _stages(f"{key}.{part}", each, name)
            for part, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_stages(key, each, name) for each in value]
    if _is_text(value):
        return value
    return name(value) if key.endswith(".kind") else {"kind": name(value)}


def _is_text(value: Any) -> bool:
    """Whether it is no object, but what files have, too."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, str) for each in value)
    return value is None or isinstance(value, str | PathLike | bool | int | float)


def _data_name(given: Mapping[str, object], scenario: Any) -> str:
    """The data of a scenario with these overrides."""
    beneath: Mapping[str, Any] = {}
    if isinstance(scenario, Mapping):
        own = {key: value for key, value in scenario.items() if key.partition(".")[0] in ("data", "extends")}
        beneath = extended(cast(Mapping[str, TomlValue], _named(own, "", _name)))[1]
    elif scenario is not None:
        beneath = read(find(str(scenario)))
    of_file = data_file.named(cast(Mapping[str, TomlValue], given), beneath, PYTHON)
    names = (of_file.get("data.name"), dict(leaves(given)).get("data.name"), value_at(beneath, "data.name"))
    return str(next((name for name in names if name), "digits"))


def plugin_name(value: Any, key: str | None, overrides: Mapping[str, object]) -> str:
    """The name of a plug-in that is given as text, or as the thing itself; ``key``: the one that would name it.

    ``overrides``: with names; a model is made for their data. ScenarioError for what is no plug-in, or may be one
    of several kinds.
    """
    if isinstance(value, str):
        return value
    chosen = key or _key_of(value)
    if chosen not in BY_KEY:
        raise ScenarioError(f"key = {chosen!r}: no key of a plug-in; {nearest(chosen, BY_KEY)}")
    return _model_name(value, _data_name(overrides, None)) if chosen == MODEL else _name(chosen, value)


def _key_of(value: Any) -> str:
    """The key that would name an object."""
    if is_row(value):
        keys = [point.key for point in PLUGIN_POINTS if point.is_row(value)]
    else:
        bases = [f"{base.__module__}:{base.__qualname__}" for base in getattr(value, "__mro__", ())]
        keys = [point for point, base, _ in _WRAPPERS if base in bases] + [MODEL] * (_TORCH_MODULE in bases)
        if isinstance(value, FunctionType):
            keys = [MODEL, *(point for point, base, _ in _WRAPPERS if not base)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise ScenarioError(f"{label(value)}: say which it is: key = {', '.join(map(repr, keys))}")
    kinds = ", ".join(sorted({base.rpartition(":")[2] for _, base, _ in _WRAPPERS if base}))
    raise ScenarioError(
        f"{shown(value)}: is no plug-in; give its row, a class derived from {kinds} or torch.nn.Module, a function, or "
        "'module:ROW'"
    )


# --- names ------------------------------------------------------------------------------------------------------------


def _name(key: str, value: Any) -> str:
    """The name of an object at a plug-in point, under which any process finds it."""
    try:
        if is_row(value):
            return dotted(value)
        if key == "data.name":
            return _kept(value if isinstance(value, Arrays) else arrays(value))
        if isinstance(value, type | FunctionType):
            return _row_of(key, value)
        if isinstance(value, list | tuple) and key == "data.partition.kind" and not any(map(callable, value)):
            raise UnusableError(NO_LISTS)
        if isinstance(value, list | tuple):
            raise UnusableError("a run takes one; fedbr.compare and fedbr.sweep take several")
        raise UnusableError(
            f"a {type(value).__name__} has a state that no other process can rebuild; give the class or function "
            "itself, or a row of it"
        )
    except ValueError as why:
        raise ScenarioError(f"{GIVEN_AS.get(key, key)} = {label(value)}: {why}") from why.__cause__


def _kept(data: Arrays) -> str:
    """The name of arrays that are in the cache now."""
    for note in data.notes:
        warnings.warn(f"data: {note}", UserWarning, stacklevel=2)
    return data.keep(cache_folder())


def _row_of(key: str, value: Any) -> str:
    """The name of the row of a bare class or function."""
    bases = [f"{base.__module__}:{base.__qualname__}" for base in getattr(value, "__mro__", ())]
    points = [(base, row) for point, base, row in _WRAPPERS if point == key]
    base, row = next(((base, row) for base, row in points if (base in bases if base else not bases)), ("", None))
    if row is None:
        kinds = " or ".join(
            f"class derived from {base.rpartition(':')[2]}" if base else "function" for base, _ in points
        )
        raise UnusableError(f"must be a {kinds}, or a row" if kinds else "must be a row")
    module, _, kind = row.partition(":")
    closure, pattern, name = Closure(), _ROWS[kind], label(value)
    text = pattern.format(
        name=name,
        object=closure.add_object(value) if "{object}" in pattern else "",
        dotted=repr(dotted(value)) if "{dotted}" in pattern else "",
        costs_like=_COSTS_LIKE.get(base.rpartition(":")[2], ""),
        per_example=kind == "MetricRow" and "edge.training.metrics" in value.measure_model.__module__,
    )
    options = f"edge.protocol.{'options.base import Options' if module == _SPEC else 'plugins import PluginOptions'}"
    imports = [f"from {module} import {kind} as _Row", *([f"from {options} as _Options"] if "_Options" in text else [])]
    return f"{closure.module(name, *imports, f'ROW = {text}')}:ROW"


def _model_name(value: Any, data_name: str) -> str:
    """The name of the row of a torch module's class, cut into its children, for this data."""
    from edge.models.user_module import own_blocks

    try:
        if is_row(value):
            return dotted(value)
        if not isinstance(value, type | FunctionType):
            raise UnusableError(
                "each run initialises a model of its own; give the class, or a function that makes the module"
            )
        data, name = dataset(data_name), label(value)
        parameters = inspect.signature(value).parameters
        kind: ExampleKind = next((each for each in (data.kind, *KINDS) if INPUTS[each] in parameters), data.kind)
        width = parameters["width"].default if "width" in parameters else None
        width = width if isinstance(width, int) else None
        title = f"{name}, given in Python"
        given = f"{name!r}, {dotted(value)!r}, {{}}, kind={kind!r}, width={width}, title={title!r}"
        row = module_row(name, dotted(value), ["all"], kind=kind, width=width)
        blocks = own_blocks(row, data.classes, data.inputs if kind == data.kind else 1)
        text = f"ROW = module_row({given.format(blocks)})"
        return f"{Closure().module(name, 'from edge.models.registry import module_row', text)}:ROW"
    except UnusableError as why:
        raise ScenarioError(f"model = {label(value)}: {why}") from why.__cause__
    except ValueError as error:
        raise ScenarioError(display_name(str(error))) from error.__cause__
