"""Loads and resolves scenarios: tables, from a TOML file or given, those that they extend, and other values.

Every error is a `ScenarioError` that names the source of the value, the key, and the nearest valid choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coordinator.methods.registry import Method
from coordinator.rounds.policy import RoundPolicy
from edge.data.locate import check_root
from edge.data.partitioning import check_partition
from edge.data.registry import DataSet, dataset
from edge.models.registry import ModelRow, model
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.plugins import PluginOptions
from edge.training.metrics.registry import metric_rows
from scenarios.config import number_checks, plugin_errors, quantities, search_path, validation
from scenarios.config.error_messages import error_message, foremost, is_branch, known_keys
from scenarios.config.errors import COMMAND_LINE
from scenarios.config.errors import ScenarioError as ScenarioError
from scenarios.config.method_names import named_method
from scenarios.config.plugin_points import BY_KEY, BY_OPTIONS, PLUGIN_POINTS
from scenarios.config.schema import EvalSection, Scenario, all_fields
from scenarios.config.tables import leaves, set_value
from scenarios.config.toml_source import FILES, ValueOrigin, extended, find, read, renamed
from scenarios.config.value_types import type_text

Source = str | Mapping[str, Any]
"""A shipped name, the path of a TOML file, or tables as such a file has them, among them ``extends``"""
RUN_COPY = "scenario.toml"
"""Name of a scenario's file in a run folder"""
UPDATES_TRAVEL = (
    "aggregate.sum = client_order: every update comes to the coordinator; with aggregate.sum=fixed_point each machine "
    "sends one sum (models agree within 1e-6; hashes are others, the same for any machines)"
)


@dataclass(frozen=True)
class Loaded:
    """A scenario with every default written out, and the method, data set and model that it names."""

    name: str
    scenario: Scenario
    method: Method
    options: Options
    server_options: PluginOptions
    dataset: DataSet
    model: ModelRow
    blocks: int
    """The number of blocks, M."""
    notes: tuple[str, ...] = ()
    """Notes for its author: keys that have been renamed."""
    began: Mapping[str, Any] = field(default_factory=dict)
    """Tables of limits that a run began with, if it has been given others since."""
    sum_is_default: bool = True
    """Whether the scenario does not say how updates are summed (aggregate.sum)."""


def load(
    scenario: Source,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    method: str | None = None,
    origin: str = COMMAND_LINE,
) -> Loaded:
    """The scenario of a shipped name, of a TOML file or of tables as such a file has them, with other values.

    ``overrides``: dotted key -> value, which may be a whole table; later ones replace what earlier ones set.
    ``origin``: of these, and of tables, for messages. ``method`` replaces the scenario's method; the entries of
    ``method_options`` that it does not have are then dropped.

    Modules of the user's that a file names are also searched in its folder, unless it is a run's copy: a run folder may
    come from anywhere, and nothing in it is executed.
    """
    notes: set[str] = set()
    try:
        if isinstance(scenario, Mapping):
            default, is_resolved = origin, False
            name, tables = extended(scenario, notes)
        else:
            path = find(scenario)
            if path.parent != FILES and path.name != RUN_COPY:
                search_path.append(path.parent)
            default, is_resolved = path.name, quantities.is_recorded(path)
            name, tables = path.stem, read(path, notes)
        sources = ValueOrigin(default, tables)
        for given in overrides:
            ((key, value),) = renamed({given: overrides[given]}, notes).items()
            try:
                set_value(tables, key, value)
            except ValueError as error:
                raise ScenarioError(str(error), key=key, source=origin) from None
            sources.give(key, origin)
        if method is not None:
            _put_method(tables, method, origin)
        return replace(_resolved(name, tables, sources, is_resolved), notes=tuple(sorted(notes)))
    except RecursionError:
        raise ScenarioError("tables or lists are nested too deeply", source=default) from None


def load_resolved(name: str, tables: Mapping[str, Any]) -> Loaded:
    """The scenario of resolved tables, as ``Loaded.scenario.model_dump()`` has them; its numbers are in SI."""
    return _resolved(name, tables, ValueOrigin(RUN_COPY, tables), is_resolved=True)


def note_on_sums(loaded: Loaded, tell: Callable[[str], None]) -> None:
    """Tell of ``aggregate.sum`` where node agents alone do the work, unless the scenario names it.

    Its default is the same wherever a run is computed, so that the result is, too.
    """
    scenario = loaded.scenario
    if not loaded.sum_is_default or scenario.aggregate.sum == "fixed_point":
        return
    summed = scenario.model_copy(update={"aggregate": replace(scenario.aggregate, sum="fixed_point")})
    with suppress(ValueError):
        validation.check_sum(loaded.method, loaded.options, summed)
        tell(UPDATES_TRAVEL)


def _put_method(raw: dict[str, Any], name: str, origin: str) -> None:
    raw["method"] = name
    try:
        accepted = named_method(name).options.model_fields
    except ValueError as error:
        raise ScenarioError(f"method: {error}", key="method", source=origin) from None
    options = raw.get("method_options")
    if isinstance(options, dict):
        raw["method_options"] = {key: value for key, value in options.items() if key in accepted}


def _resolved(name: str, raw: Mapping[str, Any], origin: ValueOrigin, is_resolved: bool) -> Loaded:
    """The scenario of these tables; errors in the user's own rows name them."""
    with plugin_errors.named(raw, ScenarioError, name):
        return _checked(name, raw, origin, is_resolved)


def _checked(name: str, raw: Mapping[str, Any], origin: ValueOrigin, is_resolved: bool) -> Loaded:
    scenario, valid = _parsed(raw, origin, is_resolved), partial(_valid, origin)
    method, options, server_options = _method_and_server(scenario, valid)
    scenario = _with_seeds(_with_validation(scenario, raw, method))
    all_options = _all_options(scenario, options, server_options, valid)
    filled = scenario.model_copy(update=all_options).model_dump()
    number_checks.refuse_large(filled, origin)  # again, for numbers that were given as text
    number_checks.refuse_flags(raw, filled, origin)
    _check_rounds_and_training(valid, method, all_options["rounds"], all_options["train"])
    data, architecture = _data_and_model(scenario, valid)
    blocks = len(valid("method", lambda: validation.named_blocks(method, options, architecture, scenario)))
    _check_together(valid, scenario, method, options, architecture, data, blocks)
    chosen = {"method": method.name, **all_options, **_chosen_by_rows(scenario, method, architecture)}
    resolved = scenario.model_copy(update=chosen)
    is_default = not any(key == "aggregate.sum" for key, _ in leaves(raw))
    return Loaded(
        name, resolved, method, options, server_options, data, architecture, blocks, sum_is_default=is_default
    )


def _parsed(raw: Mapping[str, Any], origin: ValueOrigin, is_resolved: bool) -> Scenario:
    """The scenario as its keys and types say, before any name in it is looked up."""
    number_checks.refuse_large(raw, origin)
    _refuse_several(raw, origin)
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        first = foremost(error.errors())
        key = ".".join(str(part) for part in first["loc"] if not is_branch(part))
        parts, choices = error_message(first, key, known_keys(Scenario), _option_keys())
        raise origin.error(key, *parts, choices=choices) from None
    quantities.refuse_bare(raw, origin, is_resolved)
    return scenario


def _refuse_several(raw: Mapping[str, Any], origin: ValueOrigin) -> None:
    """ScenarioError for several values of a key that takes one, as a sweep has them."""
    for key, value in leaves(raw):
        several = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
        if len(several) > 1 and key in _keys_of_one_value():
            values = ",".join(str(each).strip() for each in several)
            sweep = "compare and sweep take several, as" if key == "method" else "sweep takes several, as"
            raise origin.error(key, f"{key} = {value!r}: a run takes one; {sweep} {key}={values}")


@cache
def _keys_of_one_value() -> frozenset[str]:
    """The keys of plain numbers, flags, words and names of rows: none of their values has a comma."""
    kinds = {key: type_text(field.annotation, tuple(field.metadata)) for key, field in all_fields()}
    one = {key for key, kind in kinds.items() if not re.search(r"\b(list|table|text)\b", kind)}
    return frozenset(one | {key for key in BY_KEY if "list" not in kinds[key]})


@cache
def _option_keys() -> Mapping[str, str]:
    """The options of all shipped rows, in the form of `known_keys`."""
    types = [(table, kind) for point in PLUGIN_POINTS for table, _, kind in point.option_types()]
    options = {f"{table}.{name}" for table, kind in types for name in kind.model_fields}
    return {name: name for name in sorted(options)}


def _method_and_server(scenario: Scenario, valid: Callable[..., Any]) -> tuple[Method, Options, PluginOptions]:
    """The method with its options, and the options of the server optimizer."""
    method: Method = valid("method", lambda: _named("method", named_method, scenario.method))
    options: Options = valid(
        "method_options", lambda kind: kind.model_validate(scenario.method_options), method.options
    )
    valid("server", lambda: validation.check_server(scenario.server, method))
    return method, options, _row_options("server", scenario.server, scenario.server_options, valid)


def _row_options(key: str, name: str, given: Mapping[str, Any], valid: Callable[..., Any]) -> PluginOptions:
    """Every option of the row that a plug-in point's key names."""
    point = BY_KEY[key]
    row = valid(key, _named, key, point.row, name)
    options: PluginOptions = valid(
        point.options_key, lambda given, kind: kind.model_validate(given), given, row.options
    )
    return options


def _all_options(
    scenario: Scenario, options: Options, server_options: PluginOptions, valid: Callable[..., Any]
) -> dict[str, Any]:
    """The tables of a scenario that hold options of rows, with every option written out."""
    evaluation = _with_metric_options(scenario, valid)
    rounds = _with_row_options(scenario.rounds, valid)
    train = _with_schedule(scenario, valid)
    return {
        "method_options": options.model_dump(),
        "server_options": server_options.model_dump(),
        "rounds": rounds,
        "train": train,
        "eval": evaluation,
    }


def _check_rounds_and_training(
    valid: Callable[..., Any], method: Method, rounds: RoundPolicy, train: TrainConfig
) -> None:
    valid("rounds.selection_options", lambda: validation.check_selection(rounds))
    valid("rounds.selection", lambda: validation.check_selected(method, rounds))
    valid("train.lr_decay", lambda: validation.check_decay(train))
    valid("train.instructions", lambda: validation.check_instructions(train))
    valid("train.lr_schedule", lambda: validation.check_schedule(train, rounds.max))


def _data_and_model(scenario: Scenario, valid: Callable[..., Any]) -> tuple[DataSet, ModelRow]:
    data: DataSet = valid("data.name", dataset, scenario.data.name)
    valid("data.root", check_root, data, scenario.data.root)
    architecture: ModelRow = valid("model.name", model, scenario.model.name)
    valid("model.blocks", architecture.block_count, scenario.model.blocks)
    return data, architecture


def _chosen_by_rows(scenario: Scenario, method: Method, architecture: ModelRow) -> dict[str, Any]:
    """The tables with defaults that the rows of model and method have."""
    return {
        "model": replace(
            scenario.model,
            width=scenario.model.width or architecture.width,
            norm=scenario.model.norm or architecture.norm,
        ),
        "aggregate": replace(scenario.aggregate, weights=scenario.aggregate.weights or method.objective.weights),
    }


def _valid(origin: ValueOrigin, key: str, make: Any, *arguments: Any) -> Any:
    """The result of ``make``; its error as that of the key, where that was given."""
    try:
        return make(*arguments)
    except ValidationError as error:
        first = foremost(error.errors())
        inner = ".".join([key, *(str(part) for part in first["loc"] if not is_branch(part))])
        options = arguments[-1].model_fields
        fields = {f"{key}.{field}": f"{key}.{field}" for field in options}
        symbols = {f"{key}.{info.title}": f"{key}.{field}" for field, info in options.items()}
        if inner in symbols:  # the paper's, such as k for models
            fields = {inner: symbols[inner]}
        parts, choices = error_message(first, inner, fields, known_keys(Scenario))
        if rows := _rows_with(key, first):
            parts = (f"unknown key {inner}: it is an option of {', '.join(rows)}",)
        raise origin.error(inner, *parts, choices=choices) from None
    except ValueError as error:
        raise origin.error(key, str(error)) from error.__cause__


def _rows_with(key: str, error: ErrorDetails) -> list[str]:
    """The rows that have an option which is unknown to the row that the scenario names; none for any other error."""
    if error["type"] != "extra_forbidden" or len(error["loc"]) != 1 or key not in BY_OPTIONS:
        return []
    return [name for _, name, kind in BY_OPTIONS[key].option_types() if str(error["loc"][0]) in kind.model_fields]


def _check_together(
    valid: Callable[..., Any],
    scenario: Scenario,
    method: Method,
    options: Options,
    architecture: ModelRow,
    data: DataSet,
    blocks: int,
) -> None:
    """Check values that are valid alone, key by key, in the order of the messages that a user should see first."""
    valid("method_options", lambda: method.check(options, blocks))
    valid("method", lambda: method.check_corrections(options))
    if scenario.rounds.is_asynchronous:
        single_updates = scenario.rounds.updates_per_step == 1
        valid("rounds.policy", lambda: method.check_asynchronous(options, single_updates))
    valid("data.partition", lambda: check_partition(scenario.data, data))
    valid("data.validation", lambda: validation.check_validation(method, options, scenario))
    valid("data.partition.kind", lambda: validation.check_own_examples(method, scenario))
    valid("eval.on", lambda: validation.check_global_model(method, scenario))
    valid("eval.subset", lambda: validation.check_subset(method, scenario))
    valid("eval.split", lambda: validation.check_split(method, scenario))
    valid("eval.select", lambda: validation.check_select(method, scenario))
    valid("eval.adapt", lambda: validation.check_adapt(method, scenario))
    valid("eval.charged", lambda: validation.check_charged(method, scenario))
    valid("rounds.on_late", lambda: validation.check_late_on_air(scenario))
    valid("train.nesterov", lambda: validation.check_nesterov(scenario))
    valid("aggregate.sum", lambda: validation.check_sum(method, options, scenario))
    valid("rounds.participants", lambda: validation.check_participants(scenario))
    valid("model.name", lambda: validation.check_shapes(architecture, data))
    valid("data.name", lambda: validation.check_kind(method, data))
    valid("model.width", architecture.check_width, scenario.model.width)
    valid("model.norm", architecture.check_norm, scenario.model.norm, scenario.model.width)
    valid("fleet", lambda: validation.check_fleet(scenario))
    valid("travels", lambda: validation.check_travels(method, options, architecture, scenario))
    valid("method", lambda: validation.check_whole(method, options, architecture, scenario))


def _with_validation(scenario: Scenario, raw: Mapping[str, Any], method: Method) -> Scenario:
    """The scenario with as many validation examples as its method wants, if it does not say how many."""
    given = raw.get("data")
    if isinstance(given, Mapping) and "validation" in given:
        return scenario
    data = replace(scenario.data, validation=method.objective.evaluation.validation)
    return scenario.model_copy(update={"data": data})


def _with_seeds(scenario: Scenario) -> Scenario:
    """The scenario with the run's seed for its partition and its fleet, where it gives none."""
    rule, fleet = scenario.data.partition, scenario.fleet
    if rule.seed is None:
        rule = replace(rule, seed=scenario.seed)
    if fleet.seed is None:
        fleet = replace(fleet, seed=scenario.seed)
    return scenario.model_copy(update={"data": replace(scenario.data, partition=rule), "fleet": fleet})


def _with_row_options(rounds: RoundPolicy, valid: Callable[..., Any]) -> RoundPolicy:
    """The table ``rounds`` with every option of the rows that it names written out."""
    policy_options = _row_options("rounds.policy", rounds.policy, rounds.policy_options, valid)
    selection_options = _row_options("rounds.selection", rounds.selection, rounds.selection_options, valid)
    filled_in = replace(
        rounds, policy_options=policy_options.model_dump(), selection_options=selection_options.model_dump()
    )
    valid("rounds.policy", lambda: validation.check_policy(filled_in))
    valid("rounds.on_late", lambda: validation.check_late(filled_in))
    return filled_in


def _with_schedule(scenario: Scenario, valid: Callable[..., Any]) -> TrainConfig:
    """The table ``train`` with the options of its schedule written out, and the rounds that the schedule spans.

    The default schedule does not depend on the number of rounds.
    """
    train = scenario.train
    options = _row_options("train.lr_schedule", train.lr_schedule, train.lr_schedule_options, valid)
    rounds = train.lr_rounds if train.lr_schedule == "exponential" else train.lr_rounds or scenario.rounds.max
    return replace(train, lr_schedule_options=options.model_dump(), lr_rounds=rounds)


def _with_metric_options(scenario: Scenario, valid: Callable[..., Any]) -> EvalSection:
    """The table ``eval`` with every option of the metrics that it names written out."""
    config, key = scenario.eval, "eval.metric_options"
    valid("eval.metrics", lambda: validation.check_metrics(scenario))
    valid(key, lambda: validation.check_metric_options(config))
    filled = {
        row.name: valid(
            f"{key}.{row.name}",
            lambda given, kind: kind.model_validate(given),
            config.metric_options.get(row.name, {}),
            row.options,
        ).model_dump()
        for row in metric_rows(config.metrics)
        if row.options is not None
    }
    return replace(config, metric_options=filled)


def _named(key: str, make: Any, value: str) -> Any:
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error.__cause__
