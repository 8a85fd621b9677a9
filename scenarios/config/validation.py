"""Contradictions between values of a scenario that are valid alone: (key, message), of which the first is shown.

Nothing is looked up by name here; what a method, a model or a data set checks by itself, `scenarios.config.load` calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Literal

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS
from coordinator.aggregation.server import ServerExtension
from coordinator.aggregation.submodels import SubmodelConfig
from coordinator.methods.compute import fedavg_compute
from coordinator.methods.registry import OBJECTIVES, Method
from coordinator.methods.spec import CorrectionSpec, ModelChange, ObjectiveSpec, Traffic
from coordinator.rounds.budget import Limits
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.selectors.registry import selector
from coordinator.rounds.split import SplitConfig
from coordinator.rounds.tier_schedule import TierSchedule
from costmodel.config import AccessLinks, BandwidthConfig, FleetConfig, RateColumns, TierConfig, UpperTier
from costmodel.fleet.devices import devices, networks
from costmodel.units import format_rate, format_seconds
from edge.data.json_partition import parts_beside
from edge.data.registry import DataSet
from edge.models.registry import MODELS, ModelRow, model
from edge.protocol.better import LOWER
from edge.protocol.codecs.registry import make_codec, smallest_chain
from edge.protocol.codecs.update_codec import most_levels
from edge.protocol.config import AdapterConfig, PrivacyConfig, TrainConfig
from edge.protocol.losses import CROSS_ENTROPY, LOSSES, NEXT_TOKEN
from edge.protocol.lr_schedules import lr_schedule
from edge.protocol.optimizers import SGD
from edge.protocol.options.base import Options
from edge.protocol.payload import CONTROL, BlockShape, Layout
from edge.protocol.plugins import FLOWER_APP, is_own
from edge.protocol.portable import PORTABLE
from edge.protocol.spelling import nearest
from edge.training.metrics.registry import MetricRow, metric_rows
from scenarios.config import fleet_files
from scenarios.config.schema import BlockExchangeSection, Scenario

KINDS_OF_EXAMPLES = {"image": "images", "features": "features", "series": "series", "tokens": "tokens"}
"""Kinds of examples, in messages"""
Contradictions = Iterator[tuple[str, str]]
CHECKED_ROUNDS = 10_000
"""Rounds whose step sizes are checked beforehand; later ones when they begin."""


def of_server(name: str, method: Method) -> Contradictions:
    """A server optimizer that does not exist, or that the method does not admit."""
    if name not in SERVER_OPTIMIZERS and not is_own(name):
        yield "server", f"server = {name!r}: {nearest(name, SERVER_OPTIMIZERS)}"
    if not method.objective.traffic.contacts_server and name != "plain":
        yield "server", f'server = "{name}": {method.name} sends no update to the server; choose "plain"'
    for part in method.parts:
        admits = part.refusals.server_optimizers
        if admits is not None and name not in admits:
            admitted = ", ".join(f'"{optimizer}"' for optimizer in admits)
            yield "server", f'server = "{name}": {part.name} makes its own server step and admits only {admitted}'


def of_rounds(method: Method, rounds: RoundPolicy) -> Contradictions:
    """A policy of the user's that starts no visits or steps, late visits where none can be, and selectors that do not
    fit the clients that are selected together."""
    for name in ("cohort", "visits_per_round"):
        number = getattr(rounds, name)
        if not isinstance(number, int) or number < 1:
            yield "rounds.policy", f"rounds.policy = {rounds.policy!r}: {name} is {number!r}"
    if rounds.on_late != "stop" and (rounds.is_asynchronous or not rounds.synchronous.leaves_late):
        yield (
            "rounds.on_late",
            f"rounds.on_late = {rounds.on_late}: rounds.policy = {rounds.policy} leaves no visit late; choose "
            "over_select or deadline, or on_late = stop",
        )
    try:
        chosen = selector(rounds.selection, rounds.selection_options)
        chosen.check(1 if rounds.is_asynchronous else rounds.cohort)
        if chosen.varies and rounds.is_asynchronous:
            why = f"draws cohorts, and rounds.policy = {rounds.policy} has none"
            yield "rounds.selection", f'rounds.selection = "{rounds.selection}": {why}; choose "uniform"'
    except ValueError as error:
        yield "rounds.selection_options", f"rounds.selection_options: {error}"
    if not method.objective.traffic.contacts_server and rounds.selection != "uniform":
        yield (
            "rounds.selection",
            f'rounds.selection = "{rounds.selection}": clients of {method.name} report nothing to select them by; '
            'choose "uniform"',
        )


def of_tiers(method: Method, scenario: Scenario) -> Contradictions:
    """A schedule of aggregators where there are none, or that does not fit them, and what tiers are not joined with."""
    section, schedule, rounds = scenario.fleet.tiers, scenario.tiers, scenario.rounds
    if not section.count:
        key = next((key for key, value in vars(schedule).items() if value != getattr(TierSchedule(), key)), None)
        if key is not None:
            yield f"tiers.{key}", f"tiers.{key}: there are no aggregators; choose fleet.tiers.count"
        if scenario.codec.wan:
            yield "codec.wan", "codec.wan: there are no aggregators, whose models it encodes; leave it out"
        for limit in ("wan_bytes", "price"):
            has_price = limit == "price" and scenario.fleet.price.are_known
            if getattr(scenario.budget, limit) is not None and not has_price:
                yield "budget", f"budget.{limit}: there are no aggregators, whose messages it limits; leave it out"
        if scenario.eval.aggregators:
            yield "eval.aggregators", "eval.aggregators = true: there are no aggregators; choose fleet.tiers.count"
        return
    if scenario.fleet.price.gb or scenario.fleet.price.plan is not None:
        why = "clients reach their aggregators over a LAN; the price of the WAN is fleet.tiers.price"
        yield "fleet", f"fleet.price: {why}; leave fleet.price.gb and fleet.price.plan out"
    if scenario.fleet.price.kwh and scenario.budget.price is not None:
        yield "budget", "budget.price: limits messages of aggregators alone; leave it out, or fleet.price.kwh"
    levels = 2 if section.above.count else 1
    text = "one number" if levels == 1 else "one number or two, since fleet.tiers.above has aggregators, too"
    if len(schedule.intervals) > levels or not schedule.intervals:
        yield "tiers.interval", f"tiers.interval = {list(schedule.intervals)}: must be {text}"
    for often in schedule.intervals[1:]:
        if isinstance(often, str):
            why = "those of the tier above count how often they have got models, and no seconds"
            yield "tiers.interval", f"tiers.interval = {list(schedule.intervals)}: {why}"
    if schedule.participants is not None:
        counts = schedule.participants if isinstance(schedule.participants, tuple) else (schedule.participants,)
        if len(counts) > levels or not counts:
            yield "tiers.participants", f"tiers.participants = {list(counts)}: must be {text}"
        for count, most, key in zip(counts, (section.count, section.above.count), ("", ".above"), strict=False):
            if count > most:
                why = f"there are only {most} aggregators (fleet.tiers{key}.count)"
                shown = list(counts) if isinstance(schedule.participants, tuple) else count
                yield "tiers.participants", f"tiers.participants = {shown}: {why}"
    yield from _of_upwards(scenario)
    with_tiers = "where aggregators lie between clients and server (fleet.tiers.count)"
    if rounds.is_asynchronous:
        why = f"rounds.policy = {rounds.policy}: is asynchronous, which is not modelled {with_tiers}"
        yield "rounds.policy", f"{why}; choose sync, over_select or deadline"
    if scenario.eval.charged and schedule.is_asynchronous:
        why = "aggregators that meet the server one by one have no model in common that their clients could evaluate"
        yield "eval.charged", f"eval.charged = true: tiers.upwards = asynchronous: {why}; choose false"
    if scenario.eval.aggregators:
        if evaluated(method, scenario) == "clients":
            why = "their models are evaluated beside the global one, and only clients' are"
            yield "eval.aggregators", f'eval.aggregators = true: {why}; choose eval.on = "both" or "global"'
        elif schedule.cycle and scenario.eval.every % schedule.cycle == 0:
            why = f"aggregators have the server's model after each {schedule.cycle} rounds"
            choose = f"choose eval.every other than {scenario.eval.every}, or a longer tiers.interval"
            yield "eval.aggregators", f"eval.aggregators = true: {why}, as often as it is evaluated; {choose}"
    if method.objective.submodels is not None:
        yield "method", f"method = {method.name!r}: parts of a model are not averaged {with_tiers}"
    codec = scenario.codec
    if not make_codec(codec.wan).is_fixed_length:
        why = "an entropy coder makes lengths that depend on numbers, and aggregators are sent models only if budgets"
        yield "codec.wan", f"codec.wan: {why} can pay for the messages that follow; leave it to codec.up"
    if method.app is not None:
        yield "method", "method: a Flower app's messages go to the server directly; leave fleet.tiers out"
    for part in method.parts:
        reason = part.refusals.tiers
        server = part.server if isinstance(part, CorrectionSpec) else None
        if reason is None and server is not None and server.carried is ServerExtension.carried:
            reason = "its server side sees all clients, of which an aggregator has its own"
        if reason is not None:
            yield "method", f"method = {method.name!r}: {part.name} has no aggregators: {reason}"


def _of_upwards(scenario: Scenario) -> Contradictions:
    """What aggregators that meet the server one by one are not joined with, and keys that they alone use."""
    section, schedule = scenario.fleet.tiers, scenario.tiers
    if not schedule.is_asynchronous:
        for key in ("mixing", "staleness_power"):
            if getattr(schedule, key) != getattr(TierSchedule(), key):
                yield f"tiers.{key}", f"tiers.{key}: is used with tiers.upwards = asynchronous alone"
        return
    chosen = "tiers.upwards = asynchronous"
    if section.above.count:
        why = "aggregators that send one by one send to the server, and not to a tier above"
        yield "tiers.upwards", f"{chosen}: {why}; leave fleet.tiers.above out"
    if schedule.participants is not None:
        why = "aggregators never meet the server all together, when those that take part are drawn"
        yield "tiers.participants", f"tiers.participants: {chosen}: {why}; leave it out"
    if section.on_loss != "wait":
        why = "clients of one that is away would have visits at two aggregators at a time"
        yield "fleet.tiers.on_loss", f"fleet.tiers.on_loss = {section.on_loss}: {chosen}: {why}; choose wait"


def of_training(train: TrainConfig) -> Contradictions:
    """A decay that the schedule ignores, portable numerics where they differ between processors, and Nesterov's step
    without momentum."""
    if train.lr_decay != 1 and not lr_schedule(train.lr_schedule).uses_decay:
        yield (
            "train.lr_decay",
            f"train.lr_decay = {train.lr_decay}: train.lr_schedule = {train.lr_schedule!r} ignores it",
        )
    if train.instructions == PORTABLE and train.threads != 1:
        yield (
            "train.instructions",
            f"train.instructions = portable: the order of sums depends on threads, and train.threads = "
            f"{train.threads}; choose 1, or native",
        )
    if train.instructions == PORTABLE and train.precision not in (None, "fp32"):
        yield (
            "train.instructions",
            f"train.instructions = portable: kernels of AVX2 compute in fp32, and train.precision = {train.precision}; "
            "choose fp32, or native",
        )
    if train.nesterov and train.momentum == 0:
        yield "train.nesterov", "train.nesterov = true needs train.momentum above 0"
    if train.partial_work and train.local_steps is not None:
        yield (
            "train.partial_work",
            f"train.partial_work = {train.partial_work}: visits differ in local epochs, and train.local_steps = "
            f"{train.local_steps} gives all as many steps; leave one of them out",
        )


def of_loss(method: Method, options: Options, train: TrainConfig) -> Contradictions:
    """Methods that compare logits of classes, or have a loss of their own."""
    if train.is_cross_entropy:
        return
    for part in method.parts:
        if not part.takes_losses(options):
            takers = ", ".join(name for name, spec in OBJECTIVES.items() if spec.takes_losses(spec.options()))
            why = f"{part.name} needs the logits and the cross-entropy of classes"
            submodels = method.objective.submodels
            if submodels is not None and submodels.masks_classes(options):
                why = f"{part.name} masks the logits of classes; choose method_options.mask = false"
            yield "train.loss", f"train.loss = {train.loss!r}: {why}; methods that take any loss: {takers}"


def of_targets(scenario: Scenario, data: DataSet) -> Contradictions:
    """Losses of other targets than the data set has, and metrics that they cannot give."""
    train, row = scenario.train, scenario.train.loss_row[0]
    has = data.target
    if row.target not in (has, "input"):
        targets = (has,) if data.kind == "tokens" else (has, "input")
        fitting = [name for name, other in LOSSES.items() if other.target in targets]
        real = {"class": "classes", "numbers": "real numbers", "tokens": "the tokens themselves"}[has]
        choose = f"choose train.loss among {', '.join(fitting)}"
        yield "train.loss", f"train.loss = {train.loss!r}: the targets of {data.name} are {real}; {choose}"
    if row.target == "input" and data.kind == "tokens":
        why = f"the examples of {data.name} are tokens, which are no numbers to give back"
        choose = NEXT_TOKEN if data.targets.continues else CROSS_ENTROPY
        yield "train.loss", f"train.loss = {train.loss!r}: {why}; choose {choose}"
    if row.target == "tokens" == has:
        try:
            made = model(scenario.model.name)
        except ValueError:  # refused elsewhere
            return
        if not made.continues and not made.children:
            takers = ", ".join(each.name for each in MODELS.values() if each.continues)
            why = f"{made.name} has one output for a sequence, and train.loss = {train.loss!r} needs one at every token"
            yield "model.name", f"model.name: {why}; choose {takers}"
    given = "numbers" if row.target == "input" else row.target
    for metric in metric_rows(scenario.eval.metrics, train.score):
        if metric.targets != "any" and given not in metric.targets.split("|"):
            needs = "real targets" if metric.targets == "numbers" else "classes"
            why = f"{metric.name} needs {needs}, and train.loss = {train.loss!r} has none"
            yield "eval.metrics", f"eval.metrics: {why}; leave it out"
        elif metric.needs_windows and not data.targets.window:
            why = f"{metric.name} needs windows of series (data.series), and {data.name} has none"
            yield "eval.metrics", f"eval.metrics: {why}; leave it out"
        elif metric.losses and train.loss not in metric.losses:
            why = f"{metric.name} needs the outputs of train.loss = {' or '.join(map(repr, metric.losses))}"
            yield "eval.metrics", f"eval.metrics: {why}, and it is {train.loss!r}; leave it out"


def of_score(scenario: Scenario) -> Contradictions:
    """Targets of another metric than the one by which the run is judged, or of the wrong direction."""
    train, stop, target = scenario.train, scenario.stop, scenario.stop.target
    score = metric_rows((), train.score)[0]
    way = "below" if score.better is LOWER else "above"
    form = f'stop.target = {{ metric = "{score.name}", {way} = .. }}'
    judged = f"runs with train.loss = {train.loss!r} are judged by {score.name}"
    if target is None and stop.target_accuracy is not None and not train.is_cross_entropy:
        yield "stop.target_accuracy", f"stop.target_accuracy = {stop.target_accuracy:g}: {judged}; write {form}"
    if target is None:
        return
    if target.metric != score.name:
        yield "stop.target", f"stop.target.metric = {target.metric!r}: {judged}; write {form}"
    given = {name for name in ("below", "above") if getattr(target, name) is not None}
    if given != {way}:
        better = "lower" if way == "below" else "higher"
        yield "stop.target", f"stop.target: {better} values of {score.name} are better; write {form}"


def of_optimizer(method: Method, scenario: Scenario) -> Contradictions:
    """Keys of SGD beside another optimizer, state that there is not, and methods that count on SGD's steps."""
    train, name = scenario.train, scenario.train.optimizer
    if name != SGD:
        for key in ("momentum", "nesterov", "weight_decay"):
            if value := getattr(train, key):
                options = train.optimizer_row[0].options.model_fields
                instead = f"train.optimizer_options.{key}" if key in options else "sgd"
                shown = str(value).lower()
                yield f"train.{key}", f"train.{key} = {shown}: is sgd's, and train.optimizer = {name}; choose {instead}"
    for part in method.parts:
        if part.needs_step_sum and not train.has_step_sum:
            changed = next(
                f"train.{key} = {getattr(train, key)}"
                for key, plain in (("optimizer", SGD), ("optimizer_state", "reset"), ("visit_schedule", "constant"))
                if getattr(train, key) != plain
            )
            why = f"{part.name} divides a client's change by the sum of sgd's steps, which is then unknown"
            yield "train.optimizer", f"{changed}: {why}; leave it out, or choose another method"
    if train.visit_warmup is not None and train.visit_schedule == "constant":
        yield (
            "train.visit_warmup",
            f"train.visit_warmup = {train.visit_warmup}: train.visit_schedule = constant ignores it; choose warmup or "
            "cosine",
        )
    if train.optimizer_state == "reset":
        return
    state, key = f"train.optimizer_state = {train.optimizer_state}", "train.optimizer_state"
    if not train.optimizer_vectors:
        yield key, f"{state}: sgd keeps nothing without momentum; choose train.momentum above 0, or reset"
    if train.optimizer_state == "mean" and (name == SGD or train.optimizer_row[0].second is None):
        yield key, f"{state}: {name} keeps no squares of gradients; choose send, or another train.optimizer"
    if method.app is not None:
        yield key, f"{state}: a Flower app trains by itself; leave it out"
    if method.objective.submodels is not None:
        why = f"clients of {method.objective.name} hold parts of the model, and the state would be another part's"
        yield key, f"{state}: {why}; choose reset"
    if train.optimizer_state != "keep" and not method.objective.traffic.contacts_server:
        yield key, f"{state}: {method.name} sends nothing to the server; choose keep, or reset"


def check_schedule(train: TrainConfig, rounds: int) -> None:
    """ValueError for a step size that a schedule must not give."""
    if train.lr_schedule != "exponential":
        for round in range(min(rounds, CHECKED_ROUNDS) + 1):
            train.lr_in(round)


def evaluated(method: Method, scenario: Scenario) -> Literal["global", "clients", "both"]:
    """Which models are evaluated: as ``eval.on`` says, by default as the method's spec does."""
    return scenario.eval.on or method.objective.evaluation.on


def of_metrics(metrics: Iterable[MetricRow], scenario: Scenario) -> Contradictions:
    """Options of metrics that are not named, or have none."""
    rows = [row.name for row in metrics if row.options is not None]
    for name in scenario.eval.metric_options:
        if name not in rows:
            hint = nearest(name, rows) if rows else "none of eval.metrics has any"
            yield (
                "eval.metric_options",
                f"eval.metric_options.{name}: no metric of eval.metrics with options; {hint}",
            )


def of_evaluation(method: Method, options: Options, scenario: Scenario) -> Contradictions:
    """Evaluations of models or examples that there are not, and what has no effect on those that are made."""
    wants, config, rounds = method.objective.evaluation, scenario.eval, scenario.rounds
    partition = scenario.data.partition
    beside = parts_beside(partition.file) if partition.kind == "file" and partition.file is not None else ()
    on, holds_out = evaluated(method, scenario), bool(scenario.data.validation) or "validation" in beside
    own_examples = (
        f"{method.name} is evaluated on each client's own test examples"
        if config.on is None
        else f"eval.on = {config.on} evaluates models on each client's own test examples"
    )
    is_global, choose = 'eval.on = "global"', 'choose "clients" or "both"'
    if wants.validation and wants.uses_validation(options) and not holds_out:
        yield (
            "data.validation",
            f"data.validation = 0: {method.name} needs validation examples of each client; choose such as "
            f"{wants.validation:g}, which is its default",
        )
    if on != "global" and config.split == "test" and partition.kind == "file" and "test" not in beside:
        yield (
            "data.partition.kind",
            f"data.partition.kind = file assigns no test examples to clients, but {own_examples}",
        )
    if config.on in ("global", "both") and not wants.has_global_model:
        yield "eval.on", f'eval.on = "{config.on}": {method.name} has no global model; choose "clients"'
    for key, value in (("subset", config.subset), ("drop_last", config.drop_last or None)):
        if on == "clients" and value is not None:
            yield "eval.subset", f"eval.{key} = {json.dumps(value)}: {own_examples}, not on the test set"

    if config.split != "test" and on == "global":
        yield "eval.split", f"eval.split = {config.split}: is of clients' own examples, but {is_global}; {choose}"
    if config.split == "validation" and not holds_out:
        yield "eval.split", "eval.split = validation: data.validation = 0 holds out no examples; choose train or test"
    if config.select is not None:
        select = f"eval.select = {config.select}"
        if not holds_out:
            why = "data.validation = 0 holds out no examples; choose data.validation above 0"
            yield "eval.select", f"{select}: {why}"
        if on == "global":
            why = f"is of clients' own examples, but {is_global} evaluates no client's model; {choose}"
            yield "eval.select", f"{select}: {why}"
        if config.split == config.select:
            yield "eval.select", f"{select}: eval.split is evaluated already; choose eval.split = test or train"

    adapt = config.adapt
    if adapt.epochs and on == "global":
        why = f"adapts the models of clients, but {is_global}; {choose}"
        yield "eval.adapt", f"eval.adapt.epochs = {adapt.epochs}: {why}"
    if adapt.lr is not None and not adapt.epochs:
        yield "eval.adapt", f"eval.adapt.lr = {adapt.lr:g}: needs eval.adapt.epochs above 0"
    if adapt.before and not adapt.epochs:
        yield "eval.adapt", "eval.adapt.before = true: needs eval.adapt.epochs above 0"

    if not config.charged:
        return
    if rounds.is_asynchronous:
        yield (
            "eval.charged",
            f"eval.charged = true: needs rounds that end, but rounds.policy = {rounds.policy} is asynchronous; choose "
            "sync, over_select or deadline",
        )
    if rounds.on_late != "stop":
        yield (
            "eval.charged",
            "eval.charged = true: its visits would share links with the messages of late visits, which is not "
            "modelled; choose rounds.on_late = stop",
        )
    if on == "global":
        yield "eval.charged", f"eval.charged = true: charges evaluation on clients, but {is_global}; {choose}"


def of_levels(scenario: Scenario) -> Contradictions:
    """What levels that change between visits cannot be joined with."""
    rounds, levels, most = scenario.rounds, scenario.codec.levels, most_levels(scenario.codec.up)
    if not levels.is_used:
        return
    what = f"codec.levels.{'by_round' if levels.by_round else 'by_client'} = true"
    if not most:
        yield "codec.levels", f"{what}: needs a stage quantize, whose levels they are, in codec.up"
    if most and levels.least > most:
        yield "codec.levels.least", f"codec.levels.least = {levels.least}: the stage quantize has {most} levels"
    if rounds.is_asynchronous:
        yield (
            "codec.levels",
            f"{what}: needs the cohort of a round, but rounds.policy = {rounds.policy} is asynchronous; choose sync, "
            "over_select or deadline",
        )
    if scenario.budget.client != Limits():
        yield (
            "codec.levels",
            f"{what}: which client can pay for a visit decides on the cohort, on which its levels depend; leave "
            "budget.client out",
        )


def of_submodels(method: Method, scenario: Scenario) -> Contradictions:
    """What parts of the model cannot be joined with, and keys of parts that have no effect."""
    config, rules, codec = scenario.submodel, method.objective.submodels, scenario.codec
    if rules is None:
        if config != SubmodelConfig():
            names = ", ".join(name for name, spec in OBJECTIVES.items() if spec.submodels is not None)
            key = next(name for name, value in vars(config).items() if value != getattr(SubmodelConfig(), name))
            why = f"every client of {method.name} holds the whole model; choose among {names}"
            yield f"submodel.{key}", f"submodel.{key}: {why}"
        return
    if config.by not in (None, rules.by):
        yield "submodel.by", f"submodel.by = {config.by}: parts of {method.objective.name} have less {rules.by}"
    draws = config.rate in ("client", "round")
    if config.shares and not draws:
        yield "submodel.shares", "submodel.shares: needs submodel.rate = client or round, which draw from them"
    if config.shares and (len(config.shares) != len(config.rates) or not sum(config.shares)):
        yield (
            "submodel.shares",
            f"submodel.shares: must be {len(config.rates)} shares, one for each of submodel.rates, and one above 0",
        )
    if config.deadline is not None and config.rate != "deadline":
        yield "submodel.deadline", f"submodel.deadline: submodel.rate = {config.rate} ignores it; choose deadline"
    if isinstance(config.rate, dict) and not config.rate:
        yield "submodel.rate", "submodel.rate: is empty; name a rate for each device of the fleet"
    if scenario.travels != BlockExchangeSection():
        yield "travels", "travels: parts of the model are sent whole; leave it out"
    if scenario.aggregate.sum == "fixed_point":
        why = f"parts of {method.name} have elements of their own"
        yield "aggregate.sum", f'aggregate.sum = "fixed_point": {why}; choose client_order'
    for part in method.corrections:
        if part.server is not None:
            why = f"{part.name} has vectors of the whole model, of which its clients hold parts"
            yield "method", f"method = {method.name!r}: {why}"
    changes = "submodel.rate = round" if config.rate == "round" else f"{method.name} moves them" if rules.rolls else ""
    if changes and codec.down and codec.of == "update":
        yield (
            "codec.down",
            f"codec.down: is the difference from the last part, but {changes}; choose codec.of = weights",
        )
    if changes and (codec.error_feedback or make_codec(codec.up).kept(((64, 64),))):
        yield (
            "codec.error_feedback",
            f"codec.error_feedback: what a client keeps is of its last part, but {changes}; choose false, and stages "
            "that keep nothing",
        )


def of_sum(method: Method, options: Options, scenario: Scenario) -> Contradictions:
    """What needs individual updates where workers add them up."""
    if scenario.aggregate.sum != "fixed_point":
        return
    part = method.needs_individual_updates(options)
    if part is not None:
        yield "aggregate.sum", f'aggregate.sum = "fixed_point": {part} needs individual updates'
    for key, value in asdict(scenario.faults).items():
        # max_growth bounds partial sums as it bounds updates.
        if key != "max_growth" and value not in (None, "stop"):
            why = f"faults.{key} = {value} needs individual updates"
            yield "aggregate.sum", f'aggregate.sum = "fixed_point": {why}'
    if scenario.rounds.is_asynchronous:
        why = f"rounds.policy = {scenario.rounds.policy} discounts updates one by one"
        yield "aggregate.sum", f'aggregate.sum = "fixed_point": {why}'


def of_adapter(method: Method, scenario: Scenario) -> Contradictions:
    """Keys of adapters that have no effect, and methods that do more than ordinary training with a model."""
    adapter, plain = scenario.adapter, AdapterConfig()
    rules = method.objective.submodels
    if rules is not None and rules.by == "rank":
        needs = "parts have adapters of a lower rank"
        if adapter.kind != "lora":
            yield "method", f"method = {method.name}: {needs}; choose adapter.kind = lora"
        elif adapter.aggregate != "fedit":
            yield "adapter", f"adapter.aggregate = {adapter.aggregate}: {needs}, and both factors learn; choose fedit"
        if scenario.codec.down and method.charges_otherwise:
            why = f"{method.name} charges stacks of adapters, which travel as they are"
            yield "codec.down", f"codec.down: {why}; choose none"
        if scenario.train.instructions == PORTABLE:
            why = "products of adapters come from a library whose last bits depend on the processor"
            yield "train.instructions", f"train.instructions = {PORTABLE}: {method.name}: {why}; choose native"
    if adapter.kind is None:
        key = next((key for key, value in vars(adapter).items() if value != getattr(plain, key)), None)
        if key is not None:
            yield "adapter", f"adapter.{key}: the whole model learns; choose adapter.kind = lora or freeze"
        if scenario.model.base != "shipped":
            yield "model.base", f"model.base = {scenario.model.base}: there is no frozen base; choose adapter.kind"
        return
    chosen = f"adapter.kind = {adapter.kind}"
    if adapter.kind == "freeze":
        for key in ("rank", "alpha", "on", "dropout", "aggregate"):
            if getattr(adapter, key) != getattr(plain, key):
                yield "adapter", f"adapter.{key}: {chosen} has no adapters; choose lora, or leave it out"
        if not adapter.train:
            yield "adapter", f"{chosen}: name the blocks that learn in adapter.train"
    spec = method.objective
    if method.app is not None:
        yield "adapter", f"{chosen}: a Flower app has a model of its own; leave adapter out"
    if scenario.model.base == "download" and not spec.traffic.contacts_server:
        yield "model.base", f"model.base = download: {spec.name} has no messages; choose shipped"
    if not _takes_adapters(spec):
        takers = ", ".join(name for name, each in OBJECTIVES.items() if _takes_adapters(each))
        yield "adapter", f"{chosen}: {spec.name} does more with a model than to train it; choose among {takers}"


def of_split(method: Method, scenario: Scenario) -> Contradictions:
    """Keys of a split that have no effect, and what a model that is cut is not joined with."""
    split, plain = scenario.split, SplitConfig()
    if split.after is None:
        key = next((key for key, value in vars(split).items() if value != getattr(plain, key)), None)
        if key is not None:
            yield "split", f"split.{key}: clients train whole models; name the last block of the front in split.after"
        if scenario.codec.steps:
            yield "codec.steps", "codec.steps: clients train whole models; choose none, or name a block in split.after"
        return
    cut, spec, rounds = f"split.after = {split.after}", method.objective, scenario.rounds
    if method.app is not None or spec.costs.compute is not fedavg_compute or spec.traffic != Traffic():
        takers = ", ".join(
            name
            for name, each in OBJECTIVES.items()
            if each.costs.compute is fedavg_compute and each.traffic == Traffic() and each.submodels is None
        )
        yield "split", f"{cut}: {method.name} does more than training and averaging; choose among {takers}"
    if spec.submodels is not None:
        yield "split", f"{cut}: clients of {method.name} have parts of the model; choose fedavg"
    for correction in method.corrections:
        yield "split", f"{cut}: {correction.name} changes the steps of whole models; leave it out"
    if scenario.codec.is_used:
        yield "codec", f"codec: {cut}: clients send their blocks alone, as they are; choose none, or codec.steps"
    for stage in scenario.codec.steps:
        codec = make_codec(smallest_chain(stage["kind"]))
        if not codec.is_fixed_length or codec.kept(((64, 64),)):
            why = "lengths depend on numbers" if not codec.is_fixed_length else "it keeps numbers between messages"
            yield "codec.steps", f"codec.steps: {stage['kind']}: {why}; choose quantize, topk or others"
    if split.noise and split.clip is None:
        yield "split.noise", f"split.noise = {split.noise:g}: is in units of split.clip; set that, too"
    if scenario.privacy.unit is not None or scenario.privacy.secagg is not None:
        yield "privacy", f"privacy: {cut}: the server sees activations of every example; leave privacy out"
    if scenario.fleet.tiers.count:
        yield "fleet.tiers", f"fleet.tiers: {cut}: the server's device trains with clients; leave aggregators out"
    if rounds.on_late != "stop":
        yield "rounds.on_late", f"rounds.on_late = {rounds.on_late}: {cut}: steps need both sides; choose stop"
    is_in_turn = rounds.policy == "fedasync" and rounds.participants == 1 and rounds.mixing == 1
    if split.kind == "sequential" and not is_in_turn:
        needs = "rounds.policy = fedasync, rounds.participants = 1 and rounds.mixing = 1"
        yield "split.kind", f"split.kind = sequential: clients train in turn; it needs {needs}"
    if split.is_shared:
        yield from _of_shared_server_part(method, scenario)
    if split.kind == "frozen-front" and scenario.adapter.kind is None:
        yield "split.kind", "split.kind = frozen-front: the whole model learns; choose adapter.kind = lora or freeze"
    if split.labels == "u-shaped" and split.kind == "frozen-front":
        yield (
            "split.labels",
            "split.labels = u-shaped: with split.kind = frozen-front devices train nothing; choose share",
        )


def _of_shared_server_part(method: Method, scenario: Scenario) -> Contradictions:
    """What clients that train one server part together (SplitFed V2) are not joined with."""
    kind, rounds, faults = "split.kind = splitfed-v2", scenario.rounds, scenario.faults
    if method.objective.server is not OBJECTIVES["fedavg"].server:
        why = f"{method.name} gives clients models of their own, or weighs their changes; choose fedavg or mixup"
        yield "split.kind", f"{kind}: {why}"
    if scenario.travels != type(scenario.travels)():
        yield "travels", f"travels: {kind}: clients send and get whole fronts; leave it out"
    if faults.on_bad_client == "skip":
        why = "a round is trained as one, and fails as one; choose stop"
        yield "faults.on_bad_client", f"faults.on_bad_client = skip: {kind}: {why}"
    if faults.on_bad_update == "zero":
        why = "would put the server part of a round before into the mean; choose stop or reject"
        yield "faults.on_bad_update", f"faults.on_bad_update = zero: {kind}: {why}"
    if scenario.server != "plain":
        why = f"server = {scenario.server}: would move the server part that clients have trained; choose plain"
        yield "server", f"{kind}: {why}"
    if rounds.is_asynchronous:
        why = f"rounds.policy = {rounds.policy}: clients of a round train one server part together"
        yield "split.kind", f"{kind}: {why}; choose sync, over_select or deadline"


def _takes_adapters(spec: ObjectiveSpec) -> bool:
    is_plain = spec.costs.compute is fedavg_compute and spec.model == ModelChange()
    is_whole = spec.submodels is None or spec.submodels.by == "rank"
    return is_plain and is_whole


def of_privacy(method: Method, options: Options, scenario: Scenario) -> Contradictions:
    """Keys of privacy that have no effect, and what differential privacy is not joined with."""
    privacy, rounds, aggregate = scenario.privacy, scenario.rounds, scenario.aggregate
    yield from _of_secure_aggregation(method, options, scenario)
    if privacy.unit is None:
        key = next((key for key, value in vars(privacy).items() if value != getattr(PrivacyConfig(), key)), None)
        if key is not None and not key.startswith("secagg"):
            yield "privacy", f"privacy.{key}: there is no differential privacy; choose privacy.unit = client or example"
        if scenario.budget.epsilon is not None:
            why = "there is no differential privacy, which it limits"
            yield "budget", f"budget.epsilon: {why}; choose privacy.unit = client or example"
        return
    unit = f"privacy.unit = {privacy.unit}"
    if scenario.budget.epsilon is not None and not privacy.noise:
        yield "budget", "budget.epsilon: privacy.noise = 0, and without noise epsilon is infinite; choose more"
    if method.app is not None:
        yield "privacy", f"{unit}: a Flower app trains and adds up by itself; leave privacy out"
    if not method.objective.traffic.contacts_server:
        yield "privacy", f"{unit}: {method.name} sends nothing; leave privacy out"
    central_only = {"adaptive_clip": False, "weight_cap": None}
    for key, plain in central_only.items():
        if getattr(privacy, key) != plain and not privacy.is_central:
            shown = str(getattr(privacy, key)).lower()
            why = "is of sums at the server; choose privacy.unit = client and privacy.where = server"
            yield "privacy", f"privacy.{key} = {shown}: {why}, or leave it out"
    if privacy.accountant == "pld" and privacy.is_central and rounds.selection == "uniform":
        why = "cohorts of a fixed size have no known distribution of the loss"
        yield "privacy", f"privacy.accountant = pld: {why}; choose rounds.selection = poisson, or rdp"
    if privacy.unit == "example":
        yield from _of_examples_privacy(method, scenario)
        return
    where = f"privacy.where = {privacy.where}"
    if (reason := method.refuses_privacy(options, scenario.train, privacy.is_central)) is not None:
        yield "privacy", f"{unit}: {reason}"
    if scenario.codec.levels.by_client or scenario.codec.levels.by_round:
        why = "levels of codecs are learned from losses, which have no noise"
        yield "privacy", f"{unit}: {why}; leave codec.levels out"
    if not privacy.is_central:
        return
    if rounds.is_asynchronous:
        why = f"rounds.policy = {rounds.policy}: updates are mixed one by one, and noise is on the sum of a cohort"
        yield "privacy", f"{where}: {why}; choose privacy.where = client, or sync, over_select or deadline"
    if method.objective.submodels is not None:
        why = "clients hold parts of the model, so that each element has a cohort of its own"
        yield "privacy", f"{where}: {why}; choose privacy.where = client"
    if aggregate.weights not in (None, "uniform") and not (aggregate.weights == "size" and privacy.weight_cap):
        why = "one client could weigh any amount; choose uniform, or size with privacy.weight_cap"
        yield "aggregate.weights", f"aggregate.weights = {aggregate.weights}: {where}: {why}"
    if aggregate.weights == "uniform" and privacy.weight_cap is not None:
        why = "aggregate.weights = uniform weighs all alike; choose size, or leave it out"
        yield "privacy", f"privacy.weight_cap = {privacy.weight_cap}: {why}"
    if privacy.adaptive_clip and aggregate.sum == "fixed_point":
        why = "workers add updates up, and do not send how many are below the clip"
        yield "privacy", f"privacy.adaptive_clip = true: aggregate.sum = fixed_point: {why}; choose client_order"
    if privacy.adaptive_clip and scenario.fleet.tiers.count:
        why = "each aggregator (fleet.tiers) would learn a clip of its own from few updates"
        yield "privacy", f"privacy.adaptive_clip = true: {why}; choose false"
    if privacy.adaptive_clip and privacy.noise >= rounds.participants / 10:
        why = f"learning the clip takes part of the noise, and rounds.participants = {rounds.participants} clients"
        yield "privacy", f"privacy.adaptive_clip = true: {why} are too few for privacy.noise = {privacy.noise:g}"


def _of_secure_aggregation(method: Method, options: Options, scenario: Scenario) -> Contradictions:
    """Keys of secure aggregation that have no effect, and what sees single updates."""
    privacy, rounds, codec = scenario.privacy, scenario.rounds, scenario.codec
    if privacy.secagg is None:
        for key, value in vars(privacy).items():
            if key.startswith("secagg") and value != getattr(PrivacyConfig(), key):
                choose = "choose privacy.secagg = secagg, secagg+ or lightsecagg"
                yield "privacy", f"privacy.{key}: there is no secure aggregation; {choose}"
        return
    chosen = f"privacy.secagg = {privacy.secagg}"
    if method.app is not None:
        yield "privacy", f"{chosen}: a Flower app sends its own messages; leave it out"
    if rounds.is_asynchronous:
        why = f"rounds.policy = {rounds.policy}: masks cancel in the sum of a cohort alone"
        yield "privacy", f"{chosen}: {why}; choose sync, over_select or deadline"
    if rounds.on_late != "stop":
        why = f"rounds.on_late = {rounds.on_late}: masks of late clients have been taken off"
        yield "privacy", f"{chosen}: {why}; choose stop"
    if (part := method.needs_individual_updates(options)) is not None:
        yield "privacy", f"{chosen}: {part} needs individual updates, and the server sees their sum alone"
    if method.objective.submodels is not None:
        yield "privacy", f"{chosen}: clients of {method.name} send parts of several shapes, which have no sum"
    if not method.objective.traffic.contacts_server:
        yield "privacy", f"{chosen}: {method.name} sends nothing; leave it out"
    if codec.is_used:
        where = "up" if codec.up or codec.up_slots else "down"
        why = "frames of a codec have no sum under masks" if where == "up" else "numbers differ from the server's"
        yield "privacy", f"{chosen}: codec.{where}: {why}; leave it out"
    for key, value in asdict(scenario.faults).items():
        if key not in ("max_growth", "on_bad_client") and value not in (None, "stop"):
            yield "privacy", f"{chosen}: faults.{key} = {value}: the server sees no single update; leave it out"
    if scenario.faults.on_bad_client != "stop":
        yield "privacy", f"{chosen}: faults.on_bad_client = skip: the sum is of all or none; choose stop"
    if privacy.adaptive_clip:
        yield "privacy", f"{chosen}: privacy.adaptive_clip = true: the server sees no norms; choose false"
    if privacy.secagg_wire == "flower" and privacy.secagg == "lightsecagg":
        yield "privacy", f"privacy.secagg_wire = flower: Flower has no {privacy.secagg}; choose published"
    if privacy.secagg != "secagg+" and privacy.secagg_shares is not None:
        yield "privacy", f"privacy.secagg_shares: of {privacy.secagg} all clients hold shares; choose secagg+"
    if privacy.secagg_shares is not None and privacy.secagg_shares % 2 == 0:
        yield "privacy", f"privacy.secagg_shares = {privacy.secagg_shares}: must be odd, as many on either side"
    if privacy.secagg == "lightsecagg" and privacy.secagg_quorum <= privacy.secagg_colluding:
        least = f"above privacy.secagg_colluding = {privacy.secagg_colluding:g}"
        yield "privacy", f"privacy.secagg_quorum = {privacy.secagg_quorum:g}: must be {least}"
    if privacy.secagg_levels is not None and privacy.secagg_levels & (privacy.secagg_levels - 1):
        yield "privacy", f"privacy.secagg_levels = {privacy.secagg_levels}: must be a power of two"


def _of_examples_privacy(method: Method, scenario: Scenario) -> Contradictions:
    """Methods and training that have no gradient of each example."""
    train, unit = scenario.train, "privacy.unit = example"
    if scenario.privacy.where == "client":
        yield "privacy", f"privacy.where = client: {unit} has noise on the device anyway; leave it out"
    if method.objective.client != ObjectiveSpec.client:
        plain = ", ".join(name for name, spec in OBJECTIVES.items() if spec.client == ObjectiveSpec.client)
        why = f"{method.objective.name} has a client side of its own, whose loss is not of single examples"
        yield "privacy", f"{unit}: {why}; choose among {plain}"
    if train.clip:
        yield "train.clip", f"train.clip = {train.clip:g}: {unit} clips the gradient of each example; leave it out"
    if train.drop_last or train.partial_work:
        key = "drop_last" if train.drop_last else "partial_work"
        yield f"train.{key}", f"train.{key}: {unit} draws each batch anew, of any size; leave it out"
    if train.graphs or train.precision not in (None, "fp32"):
        key = "graphs" if train.graphs else "precision"
        yield f"train.{key}", f"train.{key}: {unit} takes the gradient of each example in fp32; leave it out"


def of_codec(scenario: Scenario) -> Contradictions:
    """Entropy coders where the length of a message must follow from shapes."""
    codec = scenario.codec
    for key, chains in (("down", [codec.down]), ("down_slots", list(codec.down_slots.values()))):
        if not all(make_codec(stages).is_fixed_length for stages in chains):
            yield (
                f"codec.{key}",
                f"codec.{key}: an entropy coder makes lengths that depend on numbers, but a visit is priced before its "
                "download is made; leave it out",
            )
    if scenario.method_options.get("lean") and codec.down_slots.get(CONTROL):
        yield (
            f"codec.down_slots.{CONTROL}",
            f"codec.down_slots.{CONTROL}: with method_options.lean = true the server must know the control variate "
            "that clients subtract; choose lean = false, or leave it out",
        )
    if all(make_codec(stages).is_fixed_length for stages in (codec.up, *codec.up_slots.values())):
        return
    if scenario.aggregate.sum == "fixed_point":
        why = "codec.up has an entropy coder, and workers do not send the lengths of what they add up"
        yield "aggregate.sum", f'aggregate.sum = "fixed_point": {why}'


def of_examples(method: Method, architecture: ModelRow, data: DataSet) -> Contradictions:
    """A model or method that does not take examples of the data set's kind or size."""
    takes, has = (KINDS_OF_EXAMPLES[kind] for kind in (architecture.kind, data.kind))
    shape = data.shape[1:] if data.kind == "image" else data.shape
    fitting = [row.name for row in MODELS.values() if row.kind == data.kind and (row.flexible or row.shape == shape)]
    instead = f"; choose {', '.join(fitting[:-1])} or {fitting[-1]}" if len(fitting) > 1 else ""
    if takes != has:
        is_given = ", or say kind='features' (fedbr.dataset)" if data.content and data.kind == "tokens" else ""
        yield (
            "model.name",
            f"model.name = {architecture.name!r} takes {takes}; {data.name} has {has}{instead}{is_given}",
        )
    if not architecture.flexible and architecture.shape != shape:
        made_for, size = ("x".join(map(str, each)) for each in (architecture.shape, shape))
        why = f"is made for {made_for} {takes}; {data.name} has {size}{instead}"
        yield "model.name", f"model.name = {architecture.name!r} {why}"
    kinds = method.objective.refusals.kinds
    if kinds and data.kind not in kinds:
        named = " or ".join(text for kind, text in KINDS_OF_EXAMPLES.items() if kind in kinds)
        why = f"its examples are {has}; {method.objective.name} takes {named}"
        yield "data.name", f"data.name = {data.name!r}: {why}"


def of_fleet(scenario: Scenario) -> Contradictions:
    """Too few clients or links that are not modelled for these rounds, devices and networks that do not exist or are
    not one per client, and rates that contradict each other. ScenarioError for files that cannot be read."""
    fleet, clients = scenario.fleet, scenario.data.clients
    gateways, participants = fleet.gateways, scenario.rounds.participants
    on_late = scenario.rounds.on_late
    if on_late != "stop" and gateways.count and gateways.kind == "airtime":
        yield (
            "rounds.on_late",
            f"rounds.on_late = {on_late}: messages of late visits go on over links, but fleet.gateways.kind = airtime; "
            "choose rate, or on_late = stop",
        )
    if fleet.transport.by_windows:
        yield from _of_windows(scenario)
    if participants > clients and not scenario.method.startswith(FLOWER_APP):  # which decides it itself
        yield (
            "rounds.participants",
            f"rounds.participants = {participants}: there are only {clients} clients (data.clients)",
        )
    own_devices, own_networks = fleet_files.own_rows(scenario)
    rows: dict[str, Collection[str]] = {
        "devices": {**devices(), **own_devices},
        "networks": {**networks(), **own_networks},
    }
    yield from _of_rows("fleet", fleet, rows, f"clients, but data.clients = {clients}", clients)
    yield from _of_aggregators(scenario, rows)

    is_rate = gateways.kind == "rate"
    for key in ("fair",) if is_rate else ("down", "up"):  # the keys of the other kind of access links
        value = getattr(gateways, key)
        if value != getattr(AccessLinks(), key):
            shown = repr(value) if isinstance(value, str) else format_rate(value)
            why = f"fleet.gateways.kind = {gateways.kind!r} ignores it; choose {'airtime' if is_rate else 'rate'!r}"
            yield "fleet", f"fleet.gateways.{key} = {shown}: {why}"
    yield from _of_members("fleet.gateways", gateways)
    varies = gateways.bandwidth
    if varies != BandwidthConfig() and not (is_rate and gateways.count):
        why = "fleet.gateways.count = 0; choose 1 or more"
        if not is_rate:
            why = "with fleet.gateways.kind = airtime clients send at the rates of their own links; choose rate"
        yield "fleet", f"fleet.gateways.bandwidth: {why}, or leave the table out"
    if varies.outages:
        yield "fleet", "fleet.gateways.bandwidth.outages = true: gateways have no network with a row; record rates of 0"
    if gateways.count > clients and gateways.assign != "turn":
        yield "fleet", f"fleet.gateways.count = {gateways.count}: there are only {clients} clients (data.clients)"
    if not is_rate and gateways.count == 0:
        yield "fleet", "fleet.gateways.kind = 'airtime': fleet.gateways.count = 0; choose 1 or more"
    if fleet.rates is not None and not 0 < fleet.rates[0] <= fleet.rates[1] < math.inf:
        shown = ", ".join(map(format_rate, fleet.rates))
        yield "fleet", f"fleet.rates = {shown}: must be the lowest and the highest rate, both finite"
    tables = {"fleet": fleet.bandwidth, "fleet.gateways": gateways.bandwidth, "fleet.tiers": fleet.tiers.bandwidth}
    for key, varies in tables.items():
        if varies.columns != RateColumns() and varies.file is None:
            yield "fleet", f"{key}.bandwidth.columns: {key}.bandwidth.file has these columns, and there is none"
        if varies.form == "ou" and varies.step < varies.tau / 1000:
            yield (
                "fleet",
                f"{key}.bandwidth.step = {format_seconds(varies.step)}: must be at least a thousandth of tau = "
                f"{format_seconds(varies.tau)}",
            )


def _of_rows(
    table: str, chosen: FleetConfig | UpperTier, rows: Mapping[str, Collection[str]], counts: str, size: int
) -> Contradictions:
    """Devices and networks of a table that do not exist, or are not one for each of ``size``; ``counts``: in words."""
    for kind, known in rows.items():
        key, names = f"{table}.{kind}", getattr(chosen, kind)
        for name in names:
            if name not in known:
                yield "fleet", f"{key}: {name!r}: {nearest(name, known)}"
        if isinstance(names, list) and len(names) != size:
            yield "fleet", f"{key} names {len(names)} {counts}"
        if not names:
            yield "fleet", f"{key} is empty"


def _of_members(key: str, table: AccessLinks | TierConfig) -> Contradictions:
    """A file that says who belongs to whom and is not read, or is missing."""
    if table.assign == "file" and table.file is None:
        yield "fleet", f"{key}.assign = file: needs {key}.file"
    if table.assign != "file" and table.file is not None:
        yield "fleet", f"{key}.file = {table.file!r}: {key}.assign = {table.assign} ignores it; choose file"
    if table.file is not None and not table.count:
        yield "fleet", f"{key}.file = {table.file!r}: {key}.count = 0; choose 1 or more"


def _of_windows(scenario: Scenario) -> Contradictions:
    """What links that are shared by windows do not know."""
    fleet, sharing = scenario.fleet, "fleet.transport.sharing = windows"
    if fleet.transport.congestion == "bbr":
        yield "fleet", f"{sharing}: bbr's window is not modelled; choose congestion cubic or reno, or sharing fair"
    if fleet.gateways.count and fleet.gateways.kind == "airtime":
        why = "clients of an access point share its time; choose fleet.gateways.kind rate, or sharing fair"
        yield "fleet", f"{sharing}: {why}"
    if fleet.tiers.count:
        yield "fleet", f"{sharing}: messages of aggregators (fleet.tiers) have fair shares alone; choose fair"
    if scenario.rounds.on_late != "stop":
        why = f"rounds.on_late = {scenario.rounds.on_late}: messages of late visits go on, but {sharing}"
        yield "rounds.on_late", f"{why}; choose fair, or on_late = stop"


def _of_aggregators(scenario: Scenario, rows: Mapping[str, Collection[str]]) -> Contradictions:
    """Aggregators that have no effect, no clients, or no rows, and links that they cannot stand beside."""
    tiers, clients = scenario.fleet.tiers, scenario.data.clients
    if not tiers.count:
        if tiers != TierConfig():
            yield "fleet", "fleet.tiers: fleet.tiers.count = 0; choose 1 or more, or leave the table out"
        return
    above = tiers.above
    if tiers.count > clients:
        yield "fleet", f"fleet.tiers.count = {tiers.count}: there are only {clients} clients (data.clients)"
    if above.count > tiers.count:
        why = f"there are only {tiers.count} aggregators below them (fleet.tiers.count)"
        yield "fleet", f"fleet.tiers.above.count = {above.count}: {why}"
    if not above.count and above != UpperTier():
        yield "fleet", "fleet.tiers.above: fleet.tiers.above.count = 0; choose 1 or more, or leave the table out"
    if scenario.fleet.gateways != AccessLinks():
        why = "clients reach their aggregators over fleet.tiers.down and .up"
        yield "fleet", f"fleet.gateways: {why}; leave fleet.gateways out"
    yield from _of_members("fleet.tiers", tiers)
    for key, tier in (("fleet.tiers", tiers), ("fleet.tiers.above", above)):
        if tier.count:
            yield from _of_rows(key, tier, rows, f"aggregators, but {key}.count = {tier.count}", tier.count)


def named_blocks(method: Method, options: Options, architecture: ModelRow, scenario: Scenario) -> Layout:
    """A layout with the names of the blocks as the method has them; its sizes are placeholders."""
    blocks, stages = architecture.block_count(scenario.model.blocks), scenario.model.blocks == "stages"
    names = architecture.blocks if stages else tuple(f"b{number + 1}" for number in range(blocks))
    names = method.objective.model.wrapped_blocks(names, options)
    return Layout(tuple(BlockShape(name, 1) for name in names))
