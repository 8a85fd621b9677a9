"""Loads and resolves scenarios: tables, from a TOML file or given, those that they extend, and other values.

Every error is a `ScenarioError` that names the source of the value, the key, and the nearest valid choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from coordinator.methods.optimizer_state import with_optimizer_state
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, Method, resolve
from costmodel.fleet import carbon
from edge.data.locate import check_root
from edge.data.partitioning import check_partition
from edge.data.registry import DataSet, dataset
from edge.models.registry import ModelRow, model
from edge.protocol.codecs.registry import CODECS, codec_row, for_feedback, make_codec, why_no_feedback
from edge.protocol.codecs.update_codec import with_levels
from edge.protocol.config import Chain, CodecConfig, PartitionConfig
from edge.protocol.losses import loss
from edge.protocol.messages import LOSS
from edge.protocol.optimizers import optimizer
from edge.protocol.options.base import Options
from edge.protocol.plugins import PluginOptions, is_own
from edge.protocol.spelling import closest, nearest
from edge.training.metrics.registry import metric_rows
from scenarios.config import plugin_errors, quantities, search_path, validation
from scenarios.config.error_messages import error_message, foremost, is_branch, known_keys
from scenarios.config.errors import COMMAND_LINE
from scenarios.config.errors import ScenarioError as ScenarioError
from scenarios.config.plugin_points import BY_KEY, BY_OPTIONS, PLUGIN_POINTS
from scenarios.config.schema import EvalSection, Scenario, all_fields, without_nones
from scenarios.config.tables import TomlValue, leaves, set_value
from scenarios.config.toml_source import FILES, ValueOrigin, extended, find, is_recorded, named_files, read
from scenarios.config.value_types import type_text

Source = str | Mapping[str, TomlValue]
"""A shipped name, the path of a TOML file, or tables as such a file has them, among them ``extends``"""
RUN_COPY = "scenario.toml"
"""Name of a scenario's file in a run folder"""
METHOD = "method"
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
    began: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Tables of limits that a run began with, if it has been given others since."""
    sum_is_default: bool = True
    """Whether the scenario does not say how updates are summed (aggregate.sum)."""


def load(
    scenario: Source,
    overrides: Mapping[str, TomlValue] = MappingProxyType({}),
    method: str | None = None,
    origin: str = COMMAND_LINE,
) -> Loaded:
    """The scenario of a shipped name, of a TOML file or of tables as such a file has them, with other values.

    ``overrides``: dotted key -> value, which may be a whole table; later ones replace what earlier ones set.
    ``origin``: of these, and of tables, for messages. ``method`` replaces the scenario's method; the entries of
    ``method_options`` that it does not have are then dropped.

    Modules of the user's that a file names are also searched `beside` it. An app of Flower that a file names, and the
    user does not, may have to be allowed (`search_path.check_app`).
    """
    try:
        if isinstance(scenario, Mapping):
            default, is_resolved = origin, False
            name, tables = extended(scenario)
        else:
            path = find(scenario)
            default, is_resolved = path.name, is_recorded(path)
            name, tables = path.stem, read(path)
        sources = ValueOrigin(default, tables)
        for key, value in {**overrides, **named_files(overrides, tables, origin)}.items():
            try:
                set_value(tables, key, value)
            except ValueError as error:
                raise ScenarioError(str(error), key=key, source=origin) from None
            sources.give(key, origin)
        is_users_word = method is not None or METHOD in overrides
        if not is_users_word and not (isinstance(scenario, Mapping) and METHOD in scenario):
            _Resolver(sources).make(METHOD, search_path.check_app, tables.get(METHOD), default)
        if method is not None:
            with beside(scenario):
                row = _Resolver(ValueOrigin(origin, {})).row(METHOD, named_method, method)
            accepted = row.options.model_fields
            given_options = tables.get("method_options")
            tables["method"] = method
            if isinstance(given_options, dict):
                tables["method_options"] = {key: each for key, each in given_options.items() if key in accepted}
        with beside(scenario):
            return _resolved(name, tables, sources, is_resolved)
    except RecursionError:
        raise ScenarioError("tables or lists are nested too deeply", source=default) from None


def beside(scenario: Source) -> AbstractContextManager[None]:
    """For a body that names modules as the scenario may: its file's folder is searched, too (`search_path.beside`).

    Not that of a run's copy: a run folder may come from anywhere, and nothing in it is executed.
    """
    if isinstance(scenario, Mapping):
        return nullcontext()
    path = find(scenario)
    return nullcontext() if path.parent == FILES or path.name == RUN_COPY else search_path.beside(path)


def load_resolved(name: str, tables: Mapping[str, TomlValue]) -> Loaded:
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
    if not any(validation.of_sum(loaded.method, loaded.options, summed)):
        tell(UPDATES_TRAVEL)


def named_method(name: str) -> Method:
    """The method of this name; ValueError with the nearest known name, or with the key that takes such a name.

    Papers call a server optimizer or a round policy a method, too (FedAdam, FedAsync).
    """
    try:
        return resolve(name)
    except ValueError:
        elsewhere = {row: BY_KEY[key] for key in ("server", "rounds.policy") for row in BY_KEY[key].shipped}
        methods = {*OBJECTIVES, *CORRECTIONS}
        for part in (part.strip() for part in name.split("+")):
            near = closest(part, [*methods, *elsewhere])
            if part and part not in methods and not is_own(part) and near in elsewhere:
                point = elsewhere[near]
                raise ValueError(f"no method {part!r}; {near} is a {point.noun}: {point.key} = {near!r}") from None
        raise


def _resolved(name: str, raw: Mapping[str, TomlValue], origin: ValueOrigin, is_resolved: bool) -> Loaded:
    """The scenario of these tables; errors in the user's own rows name them."""
    with plugin_errors.named(raw, ScenarioError, name):
        return replace(_checked(_parsed(raw, origin, is_resolved), raw, _Resolver(origin)), name=name)


NO_LISTS = (
    "clients' examples are given by a function of (y, ids, clients, classes, rng, options) that returns such lists, in "
    'a row of your own, or by a JSON file {client: [indices]}: data.partition.kind = "file" and data.partition.file'
)
"""Why lists are no kind of partition"""


def _parsed(raw: Mapping[str, TomlValue], origin: ValueOrigin, is_resolved: bool) -> Scenario:
    """The scenario as its keys and types say, before any name in it is looked up."""
    quantities.refuse_large(raw, origin)
    quantities.refuse_control(raw, origin)
    for key, value in leaves(raw):  # several values of a key that takes one, as a sweep has them
        if key == "data.partition.kind" and isinstance(value, list) and any(isinstance(each, list) for each in value):
            raise origin.error(key, f"{key} = {value!r}: {NO_LISTS}")
        several = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
        if len(several) > 1 and key in _keys_of_one_value():
            values = ",".join(str(each).strip() for each in several)
            sweep = "compare and sweep take several, as" if key == "method" else "sweep takes several, as"
            raise origin.error(key, f"{key} = {value!r}: a run takes one; {sweep} {key}={values}")
    try:
        scenario = Scenario.model_validate(without_nones(raw))
    except ValidationError as error:
        first = foremost(error.errors())
        key = ".".join(str(part) for part in first["loc"] if not is_branch(part))
        types = [(table, kind) for point in PLUGIN_POINTS for table, _, kind in point.option_types()]
        options = sorted(f"{table}.{option}" for table, kind in types for option in kind.model_fields)
        parts, choices = error_message(first, key, known_keys(Scenario), dict(zip(options, options, strict=True)))
        raise origin.error(key, *parts, choices=choices) from None
    quantities.refuse_bare(raw, origin, is_resolved)
    return scenario


@cache
def _keys_of_one_value() -> frozenset[str]:
    """The keys of plain numbers, flags, words and names of rows: none of their values has a comma."""
    kinds = {key: type_text(field.annotation, tuple(field.metadata)) for key, field in all_fields()}
    one = {key for key, kind in kinds.items() if not re.search(r"\b(list|table|text)\b", kind)}
    return frozenset(one | {key for key in BY_KEY if "list" not in kinds[key]})


class _Resolver:
    """Resolves what keys name; an error is a ScenarioError that names the key, and where that was given."""

    def __init__(self, origin: ValueOrigin) -> None:
        self.origin = origin

    def make(self, key: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """The result of ``make``, or of a check."""
        try:
            return make(*arguments)
        except ValueError as error:
            raise self.origin.error(key, str(error)) from error.__cause__

    def row(self, key: str, find: Callable[[Any], Any], name: Any) -> Any:
        """What a name stands for, by a function whose errors do not name the key."""
        try:
            return find(name)
        except ValueError as error:
            raise self.origin.error(key, f"{key}: {error}") from error.__cause__

    def options(self, key: str, given: Any, kind: Any) -> Any:
        """Every option of a row, of the class ``kind``."""
        try:
            return kind.model_validate(without_nones(given, kind.model_fields) if isinstance(given, Mapping) else given)
        except ValidationError as error:
            first = foremost(error.errors())
            inner = ".".join([key, *(str(part) for part in first["loc"] if not is_branch(part))])
            fields = {f"{key}.{field}": f"{key}.{field}" for field in kind.model_fields}
            symbols = {f"{key}.{info.title}": f"{key}.{field}" for field, info in kind.model_fields.items()}
            if inner in symbols:  # the paper's, such as k for models
                fields = {inner: symbols[inner]}
            parts, choices = error_message(first, inner, fields, known_keys(Scenario))
            if first["type"] == "extra_forbidden" and len(first["loc"]) == 1 and key in BY_OPTIONS:
                option, rows = first["loc"][0], BY_OPTIONS[key].option_types()
                if owners := [name for _, name, other in rows if option in other.model_fields]:
                    parts = (f"unknown key {inner}: it is an option of {', '.join(owners)}",)
            raise self.origin.error(inner, *parts, choices=choices) from None

    def row_options(self, key: str, name: str, given: Mapping[str, TomlValue]) -> PluginOptions:
        """Every option of the row that a plug-in point's key names."""
        point = BY_KEY[key]
        assert point.options_key is not None
        options: PluginOptions = self.options(point.options_key, given, self.row(key, point.row, name).options)
        return options

    def refuse(self, key: str, contradictions: validation.Contradictions) -> None:
        """ScenarioError for the first of them; ``key``: that of an error which finding them raises."""
        if first := self.make(key, next, contradictions, None):
            raise self.origin.error(*first)


def _checked(scenario: Scenario, raw: Mapping[str, TomlValue], resolver: _Resolver) -> Loaded:
    """The scenario with every default written out; checks are in the order of the messages that a user should see."""
    method: Method = resolver.row("method", named_method, scenario.method)
    train, travels = scenario.train, scenario.travels
    resolver.row("train.loss", loss, train.loss)
    resolver.row_options("train.loss", train.loss, train.loss_options)
    resolver.row("train.optimizer", optimizer, train.optimizer)
    resolver.row_options("train.optimizer", train.optimizer, train.optimizer_options)
    resolver.refuse("train.optimizer", validation.of_optimizer(method, scenario))
    method = with_optimizer_state(method, train, travels.down, travels.up)
    options: Options = resolver.options("method_options", scenario.method_options, method.options)
    resolver.refuse("train.loss", validation.of_loss(method, options, train))
    resolver.refuse("stop", validation.of_score(scenario))
    if scenario.stop.target is not None:
        scenario = scenario.model_copy(update={"stop": replace(scenario.stop, target_accuracy=None)})
    resolver.refuse("server", validation.of_server(scenario.server, method))
    server_options = resolver.row_options("server", scenario.server, scenario.server_options)
    scenario = _with_options(_with_defaults(scenario, raw, method), resolver)
    written = {"method_options": options.model_dump(), "server_options": server_options.model_dump()}
    scenario = scenario.model_copy(update={"method": method.name, **written})
    quantities.refuse_large(scenario.model_dump(), resolver.origin)  # again, for numbers that were given as text
    quantities.refuse_flags(raw, scenario.model_dump(), resolver.origin)

    rounds = scenario.rounds
    resolver.refuse("rounds.policy", validation.of_rounds(method, rounds))
    resolver.refuse("tiers", validation.of_tiers(method, scenario))
    resolver.refuse("train", validation.of_training(scenario.train))
    resolver.refuse("codec.levels", validation.of_levels(scenario))
    resolver.make("train.lr_schedule", validation.check_schedule, scenario.train, rounds.max)
    data: DataSet = resolver.make("data.name", dataset, scenario.data.name)
    resolver.make("data.root", check_root, data, scenario.data.root)
    architecture: ModelRow = resolver.make("model.name", model, scenario.model.name)
    model_options = resolver.options("model.options", scenario.model.options, architecture.options).model_dump()
    resolver.make("model.blocks", architecture.block_count, scenario.model.blocks)
    layout = resolver.make("method", validation.named_blocks, method, options, architecture, scenario)

    resolver.make("method_options", method.check, options, len(layout))
    resolver.make("method", method.check_corrections, options)
    if rounds.is_asynchronous:
        resolver.make("rounds.policy", method.check_asynchronous, options, rounds.updates_per_step == 1)
    if method.app is None:  # an app brings its own data
        resolver.make("data.partition", check_partition, scenario.data, data)
    resolver.refuse("eval", validation.of_evaluation(method, options, scenario))
    resolver.refuse("submodel", validation.of_submodels(method, scenario))
    resolver.refuse("aggregate.sum", validation.of_sum(method, options, scenario))
    resolver.refuse("codec", validation.of_codec(scenario))
    resolver.refuse("adapter", validation.of_adapter(method, scenario))
    resolver.refuse("split", validation.of_split(method, scenario))
    resolver.refuse("privacy", validation.of_privacy(method, options, scenario))
    resolver.refuse("train.loss", validation.of_targets(scenario, data))
    resolver.refuse("model.name", validation.of_examples(method, architecture, data))
    resolver.make("model.width", architecture.check_width, scenario.model.width)
    resolver.make("model.norm", architecture.check_norm, scenario.model.norm, scenario.model.width)
    resolver.refuse("fleet", validation.of_fleet(scenario))
    resolver.make("fleet.carbon", carbon.intensity, scenario.fleet.carbon)
    resolver.make("travels", method.travels, options, layout, travels.down, travels.up)
    resolver.make("method", method.check_whole, options, layout, travels.down, travels.up)

    width, norm = scenario.model.width or architecture.width, scenario.model.norm or architecture.norm
    weights = scenario.aggregate.weights or method.objective.weights
    if scenario.privacy.is_central and scenario.aggregate.weights is None:
        weights = "uniform" if scenario.privacy.weight_cap is None else "size"
    chosen = {
        "data": replace(scenario.data, validation_by=scenario.data.validation_by or data.validation_by),
        "model": replace(scenario.model, width=width, norm=norm, options=model_options),
        "aggregate": replace(
            scenario.aggregate,
            weights=weights,
            sum=scenario.aggregate.sum if scenario.privacy.secagg is None else "fixed_point",
        ),
    }
    return Loaded(
        name="",
        scenario=scenario.model_copy(update=chosen),
        method=method,
        options=options,
        server_options=server_options,
        dataset=data,
        model=architecture,
        blocks=len(layout),
        sum_is_default=not any(key == "aggregate.sum" for key, _ in leaves(raw)),
    )


def _with_defaults(scenario: Scenario, raw: Mapping[str, TomlValue], method: Method) -> Scenario:
    """The scenario with its seed for partition and fleet, and the validation examples that its method wants, where it
    gives none; with one client of a method that gathers all data."""
    data, fleet, rounds, given = scenario.data, scenario.fleet, scenario.rounds, raw.get("data")
    if method.objective.gathers_data:
        data = replace(data, clients=1, partition=PartitionConfig(kind="iid", seed=data.partition.seed))
        rounds = replace(rounds, participants=1)
    if not isinstance(given, Mapping) or "validation" not in given:
        data = replace(data, validation=method.objective.evaluation.validation)
    if data.partition.seed is None:
        data = replace(data, partition=replace(data.partition, seed=scenario.seed))
    if fleet.seed is None:
        fleet = replace(fleet, seed=scenario.seed)
    return scenario.model_copy(update={"data": data, "fleet": fleet, "rounds": rounds})


def _with_options(scenario: Scenario, resolver: _Resolver) -> Scenario:
    """The scenario with every option of the metrics, policy, selector, schedules and optimizer that it names.

    A schedule but the default, which does not depend on the number of rounds, spans those of the run unless it says
    otherwise.
    """
    rounds, train, key = scenario.rounds, scenario.train, "eval.metric_options"
    names = (train.score, LOSS) if scenario.eval.metrics == EvalSection().metrics else scenario.eval.metrics
    metrics = resolver.row("eval.metrics", lambda given: metric_rows(given, train.score), names)
    resolver.refuse(key, validation.of_metrics(metrics, scenario))
    given = scenario.eval.metric_options
    metric_options = {
        row.name: resolver.options(f"{key}.{row.name}", given.get(row.name, {}), row.options).model_dump()
        for row in metrics
        if row.options is not None
    }
    policy = resolver.row_options("rounds.policy", rounds.policy, rounds.policy_options)
    selection = resolver.row_options("rounds.selection", rounds.selection, rounds.selection_options)
    schedule = resolver.row_options("train.lr_schedule", train.lr_schedule, train.lr_schedule_options)
    loss_options = resolver.row_options("train.loss", train.loss, train.loss_options).model_dump()
    optimizer_options = resolver.row_options("train.optimizer", train.optimizer, train.optimizer_options).model_dump()
    span = train.lr_rounds if train.lr_schedule == "exponential" else train.lr_rounds or rounds.max
    tables = {
        "codec": _resolved_codec(scenario.codec, resolver),
        "eval": replace(scenario.eval, metrics=names, metric_options=metric_options),
        "rounds": replace(rounds, policy_options=policy.model_dump(), selection_options=selection.model_dump()),
        "train": replace(
            train,
            lr_schedule_options=schedule.model_dump(),
            lr_rounds=span,
            optimizer_options=optimizer_options,
            loss_options=loss_options,
        ),
    }
    return scenario.model_copy(update=tables)


def _resolved_codec(codec: CodecConfig, resolver: _Resolver) -> CodecConfig:
    """The codec with every option of its stages written out, and whether it feeds errors back."""
    upwards = {"codec.up": codec.up, **{f"codec.up_slots.{slot}": chain for slot, chain in codec.up_slots.items()}}
    made = {key: resolver.row(key, make_codec, stages) for key, stages in upwards.items()}
    feedback, least = codec.error_feedback, codec.levels.least if codec.levels.is_used else None

    def refuses_feedback(key: str) -> str | None:
        """Why errors of this chain cannot be fed back, if it has any; also with the fewest levels of a visit."""
        chains = [upwards[key]] if least is None else [upwards[key], with_levels(upwards[key], least)]
        return next(filter(None, (resolver.row(key, why_no_feedback, stages) for stages in chains)), None)

    if feedback is None:
        feedback = any(each.loses_much and refuses_feedback(key) is None for key, each in made.items())
    elif feedback and (why := next(filter(None, map(refuses_feedback, upwards)), None)) is not None:
        raise resolver.origin.error("codec.error_feedback", f"codec.error_feedback = true: {why}")

    def chain(key: str, stages: Chain) -> Chain:
        resolver.row(key, make_codec, stages)
        resolved = []
        feeds_back = feedback and key in upwards and refuses_feedback(key) is None
        for stage in for_feedback(stages, feeds_back):
            given = {name: value for name, value in stage.items() if name != "kind"}
            row = codec_row(stage["kind"])
            if is_own(stage["kind"]) and row.costs_like not in CODECS:
                like = f"costs_like = {row.costs_like!r} must name the shipped stage that takes as long"
                raise resolver.origin.error(key, f"{key}: {row.name}: {like}; {nearest(row.costs_like, CODECS)}")
            options = row.options.model_validate(given)
            resolved.append({"kind": stage["kind"], **options.model_dump(exclude_none=True)})
        return tuple(resolved)

    def chains(direction: str, slots: Mapping[str, Chain]) -> dict[str, Chain]:
        return {slot: chain(f"codec.{direction}.{slot}", stages) for slot, stages in slots.items()}

    return replace(
        codec,
        up=chain("codec.up", codec.up),
        down=chain("codec.down", codec.down),
        wan=chain("codec.wan", codec.wan),
        steps=chain("codec.steps", codec.steps),
        up_slots=chains("up_slots", codec.up_slots),
        down_slots=chains("down_slots", codec.down_slots),
        error_feedback=feedback,
    )
