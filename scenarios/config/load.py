"""Loads and resolves scenarios: a TOML file, the files that it extends, and KEY=VALUE overrides.

Every error is a `ScenarioError` that names the file or override, the key, and the nearest valid choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS, server_optimizer
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, Method
from coordinator.methods.spec import Options
from coordinator.rounds.policy import POLICIES, RoundPolicy, policy_row
from coordinator.rounds.selectors.registry import SELECTIONS, selection
from edge.data.locate import check_root
from edge.data.partitioning import check_partition
from edge.data.registry import DataSet, dataset
from edge.models.registry import ModelRow, model
from edge.protocol.config import TrainConfig
from edge.protocol.lr_schedules import LR_SCHEDULES, lr_schedule
from edge.protocol.plugins import PluginOptions
from edge.training.metrics.registry import metric_rows
from scenarios.config import number_checks, plugin_errors, quantities, search_path, validation
from scenarios.config.error_messages import error_message, foremost, is_branch, known_keys
from scenarios.config.errors import ScenarioError as ScenarioError
from scenarios.config.method_names import named_method
from scenarios.config.plugin_keys import PLUGIN_KEYS
from scenarios.config.schema import EvalSection, Scenario, all_fields
from scenarios.config.toml_source import COMMAND_LINE, FILES, ValueOrigin, find, leaves, parse, read, renamed, set_key
from scenarios.config.value_types import type_text

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


def load(name: str, overrides: Sequence[str] = (), method: str | None = None) -> Loaded:
    """The scenario of a shipped name or a TOML file, with KEY=VALUE overrides.

    Modules of the user's that it names are also searched in the folder of the file, unless it is a run's copy: a run
    folder may come from anywhere, and nothing in it is executed. ``method`` replaces the scenario's method; the entries
    of ``method_options`` that it does not have are then dropped.
    """
    path = find(name)
    if path.parent != FILES and path.name != RUN_COPY:
        search_path.append(path.parent)
    try:
        return _load(path, overrides, method)
    except RecursionError:
        raise ScenarioError(f"{path.name}: tables or lists are nested too deeply") from None


def load_resolved(name: str, tables: Mapping[str, Any]) -> Loaded:
    """The scenario of a name from its resolved tables, as `quantities.with_units` has them; nothing of it is a default.

    Modules of the user's are searched where this process finds them.
    """
    file = Path(f"{name}.toml")
    with plugin_errors.named(tables, ScenarioError, name):
        return _resolve(file, dict(tables), ValueOrigin(file.name, {}))


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


def _load(path: Path, overrides: Sequence[str], method: str | None) -> Loaded:
    notes: set[str] = set()
    raw = read(path, notes)
    origin = dict.fromkeys((key for key, _ in leaves(raw)), str(path.name))
    for override in overrides:
        key, value = parse(override)
        ((key, value),) = renamed({key: value}, notes).items()
        set_key(raw, key, value)
        origin = {before: source for before, source in origin.items() if not before.startswith(f"{key}.")}
        origin[key] = COMMAND_LINE
    if method is not None:
        _put_method(raw, method)
    with plugin_errors.named(raw, ScenarioError, path.stem):
        loaded = _resolve(path, raw, ValueOrigin(path.name, origin))
        return replace(loaded, notes=tuple(sorted(notes)))


def _put_method(raw: dict[str, Any], name: str) -> None:
    raw["method"] = name
    try:
        accepted = named_method(name).options.model_fields
    except ValueError as error:
        raise ScenarioError(f"{COMMAND_LINE}: method: {error}") from None
    options = raw.get("method_options")
    if isinstance(options, dict):
        raw["method_options"] = {key: value for key, value in options.items() if key in accepted}


def _resolve(file: Path, raw: dict[str, Any], origin: ValueOrigin) -> Loaded:
    scenario, valid = _parsed(file, raw, origin), partial(_valid, origin)
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
        file.stem, resolved, method, options, server_options, data, architecture, blocks, sum_is_default=is_default
    )


def _parsed(file: Path, raw: dict[str, Any], origin: ValueOrigin) -> Scenario:
    """The scenario as its keys and types say, before any name in it is looked up."""
    number_checks.refuse_large(raw, origin)
    _refuse_several(raw, origin)
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        first = foremost(error.errors())
        key = ".".join(str(part) for part in first["loc"] if not is_branch(part))
        raise origin.error(key, error_message(first, key, known_keys(Scenario), _option_keys())) from None
    quantities.refuse_bare(raw, origin, file)
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
    return frozenset(one | {key for key in PLUGIN_KEYS if "list" not in kinds[key]})


@cache
def _option_keys() -> Mapping[str, str]:
    """The options of all shipped rows, in the form of `known_keys`."""
    options = {
        f"{key}.{name}" for key, rows in OPTIONS.items() for row in rows.values() for name in row.options.model_fields
    }
    return {name: name for name in sorted(options)}


def _method_and_server(scenario: Scenario, valid: Callable[..., Any]) -> tuple[Method, Options, PluginOptions]:
    """The method with its options, and the options of the server optimizer."""
    method: Method = valid("method", lambda: _named("method", named_method, scenario.method))
    options: Options = valid(
        "method_options", lambda kind: kind.model_validate(scenario.method_options), method.options
    )
    valid("server", lambda: validation.check_server(scenario.server, method))
    server_options: PluginOptions = valid(
        "server_options",
        lambda kind: kind.model_validate(scenario.server_options),
        server_optimizer(scenario.server).options,
    )
    return method, options, server_options


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
        raise origin.error(
            inner, _other_rows(key, first) or error_message(first, inner, fields, known_keys(Scenario))
        ) from None
    except ValueError as error:
        raise origin.error(key, str(error)) from error.__cause__


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "method_options": {**OBJECTIVES, **CORRECTIONS},
    "server_options": SERVER_OPTIMIZERS,
    "rounds.selection_options": SELECTIONS,
    "rounds.policy_options": POLICIES,
    "train.lr_schedule_options": LR_SCHEDULES,
}
"""Table of options -> the shipped rows that could have them."""


def _other_rows(key: str, error: ErrorDetails) -> str:
    """The message for an option that other rows have than the one that the scenario names; '' for any other error."""
    if error["type"] != "extra_forbidden" or len(error["loc"]) != 1:
        return ""
    option = str(error["loc"][0])
    rows = [name for name, row in OPTIONS.get(key, {}).items() if option in row.options.model_fields]
    return f"unknown key {key}.{option}: it is an option of {', '.join(rows)}" if rows else ""


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
        valid("rounds.policy", lambda: method.check_asynchronous(options))
        if scenario.rounds.updates_per_step == 1:
            valid("rounds.policy", lambda: method.check_single_updates(options))
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
    data = replace(scenario.data, validation=method.objective.validation)
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
    filled: dict[str, Any] = {}
    for key, find_row in (("policy", policy_row), ("selection", selection)):
        row = valid(f"rounds.{key}", _named, f"rounds.{key}", find_row, getattr(rounds, key))
        given = getattr(rounds, f"{key}_options")
        options = valid(f"rounds.{key}_options", lambda given, kind: kind.model_validate(given), given, row.options)
        filled[f"{key}_options"] = options.model_dump()
    filled_in = replace(rounds, **filled)
    valid("rounds.policy", lambda: validation.check_policy(filled_in))
    valid("rounds.on_late", lambda: validation.check_late(filled_in))
    return filled_in


def _with_schedule(scenario: Scenario, valid: Callable[..., Any]) -> TrainConfig:
    """The table ``train`` with the options of its schedule written out, and the rounds that the schedule spans.

    The default schedule does not depend on the number of rounds.
    """
    train, key = scenario.train, "train.lr_schedule"
    row = valid(key, lambda: _named(key, lr_schedule, train.lr_schedule))
    options = valid(f"{key}_options", lambda kind: kind.model_validate(train.lr_schedule_options), row.options)
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
