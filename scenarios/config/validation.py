"""Checks of values that are valid alone but contradict each other. Each raises ValueError, which names the key."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Literal

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS, server_optimizer
from coordinator.methods.registry import Method
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.selectors.registry import selector
from costmodel.config import AccessLinks
from costmodel.fleet.devices import devices, networks
from costmodel.units import format_rate, format_seconds
from edge.data.registry import DataSet
from edge.models.registry import ModelRow
from edge.protocol.config import TrainConfig
from edge.protocol.lr_schedules import lr_schedule
from edge.protocol.options.base import Options
from edge.protocol.payload import BlockShape, Layout
from edge.protocol.plugins import is_own
from edge.protocol.portable import PORTABLE
from edge.protocol.spelling import nearest
from edge.training.metrics.registry import metric_rows
from scenarios.config import fleet_files
from scenarios.config.schema import EvalSection, Scenario

KINDS_OF_EXAMPLES = {"image": "images", "features": "features", "tokens": "tokens"}
"""Kinds of examples, in messages."""


def check_server(name: str, method: Method) -> None:
    """Check that the server optimizer exists, and that the method admits it."""
    if name not in SERVER_OPTIMIZERS and not is_own(name):
        raise ValueError(f"server = {name!r}: {nearest(name, SERVER_OPTIMIZERS)}")
    try:
        server_optimizer(name)
    except ValueError as error:
        raise ValueError(f"server: {error}") from error.__cause__
    if not method.objective.traffic.contacts_server and name != "plain":
        raise ValueError(f'server = "{name}": {method.name} sends no update to the server; choose "plain"')
    for part in method.parts:
        admits = part.refusals.server_optimizers
        if admits is not None and name not in admits:
            admitted = ", ".join(f'"{optimizer}"' for optimizer in admits)
            raise ValueError(f'server = "{name}": {part.name} makes its own server step and admits only {admitted}')


def check_sum(method: Method, options: Options, scenario: Scenario) -> None:
    """Check that nothing needs individual updates where workers add them up."""
    if scenario.aggregate.sum != "fixed_point":
        return
    part = method.needs_individual_updates(options)
    if part is not None:
        raise ValueError(f'aggregate.sum = "fixed_point": {part} needs individual updates')
    for key, value in asdict(scenario.faults).items():
        # max_growth bounds partial sums as it bounds updates.
        if key != "max_growth" and value not in (None, "stop"):
            raise ValueError(f'aggregate.sum = "fixed_point": faults.{key} = {value} needs individual updates')
    rounds = scenario.rounds
    if rounds.is_asynchronous:
        raise ValueError(f'aggregate.sum = "fixed_point": rounds.policy = {rounds.policy} discounts updates one by one')


def check_policy(rounds: RoundPolicy) -> None:
    """Check that a user's policy starts visits and steps."""
    numbers = {"cohort": rounds.cohort, "visits_per_round": rounds.visits_per_round}
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"rounds.policy = {rounds.policy!r}: {name} is {number!r}")


def check_late(rounds: RoundPolicy) -> None:
    """Check that visits may be late, if their messages are to go on."""
    if rounds.on_late == "finish" and (rounds.is_asynchronous or not rounds.synchronous.leaves_late):
        raise ValueError(
            f"rounds.on_late = finish: rounds.policy = {rounds.policy} leaves no visit late; choose over_select or "
            "deadline, or on_late = stop"
        )


def check_late_on_air(scenario: Scenario) -> None:
    """Check that messages of late visits do not share air with those of the other direction."""
    gateways = scenario.fleet.gateways
    if scenario.rounds.on_late == "finish" and gateways.count and gateways.kind == "airtime":
        raise ValueError(
            "rounds.on_late = finish: messages of late visits go on over links, but fleet.gateways.kind = airtime; "
            "choose rate, or on_late = stop"
        )


def check_selection(rounds: RoundPolicy) -> None:
    """Check that the selector's options fit the number of clients that are selected together."""
    together = 1 if rounds.is_asynchronous else rounds.cohort
    try:
        selector(rounds.selection, rounds.selection_options).check(together)
    except ValueError as error:
        raise ValueError(f"rounds.selection_options: {error}") from None


def check_selected(method: Method, rounds: RoundPolicy) -> None:
    """Check that the selector needs no reports of clients that send none."""
    if not method.objective.traffic.contacts_server and rounds.selection != "uniform":
        raise ValueError(
            f'rounds.selection = "{rounds.selection}": clients of {method.name} report nothing to select them by; '
            'choose "uniform"'
        )


CHECKED_ROUNDS = 10_000
"""Rounds whose step sizes are checked beforehand; later ones when they begin."""


def check_decay(train: TrainConfig) -> None:
    """Check that the schedule uses the decay, if that is set."""
    if train.lr_decay != 1 and not lr_schedule(train.lr_schedule).uses_decay:
        raise ValueError(f"train.lr_decay = {train.lr_decay}: train.lr_schedule = {train.lr_schedule!r} ignores it")


def check_instructions(train: TrainConfig) -> None:
    """Check that portable numerics are asked for where they are the same on every processor."""
    if train.instructions != PORTABLE:
        return
    if train.threads != 1:
        raise ValueError(
            f"train.instructions = portable: the order of sums depends on threads, and train.threads = "
            f"{train.threads}; choose 1, or native"
        )
    if train.precision not in (None, "fp32"):
        raise ValueError(
            f"train.instructions = portable: kernels of AVX2 compute in fp32, and train.precision = {train.precision}; "
            "choose fp32, or native"
        )


def check_schedule(train: TrainConfig, rounds: int) -> None:
    """Check the step sizes that a schedule gives."""
    if train.lr_schedule != "exponential":
        for round in range(min(rounds, CHECKED_ROUNDS) + 1):
            train.lr_in(round)


def evaluated(method: Method, scenario: Scenario) -> Literal["global", "clients", "both"]:
    """Which models are evaluated: as ``eval.on`` says, by default as the method's spec does."""
    return scenario.eval.on or method.objective.evaluation.on


def check_metrics(scenario: Scenario) -> None:
    """Check that the metrics exist and have names of their own."""
    try:
        metric_rows(scenario.eval.metrics)
    except ValueError as error:
        raise ValueError(f"eval.metrics: {error}") from error.__cause__


def check_metric_options(config: EvalSection) -> None:
    """Check that options are of named metrics that have any."""
    rows = {row.name: row for row in metric_rows(config.metrics) if row.options is not None}
    for name in config.metric_options:
        if name not in rows:
            hint = nearest(name, rows) if rows else "none of eval.metrics has any"
            raise ValueError(f"eval.metric_options.{name}: no metric of eval.metrics with options; {hint}")


def check_global_model(method: Method, scenario: Scenario) -> None:
    """Check that there is a global model, if that is evaluated."""
    if scenario.eval.on in ("global", "both") and not method.objective.evaluation.has_global_model:
        raise ValueError(f'eval.on = "{scenario.eval.on}": {method.name} has no global model; choose "clients"')


def check_validation(method: Method, options: Options, scenario: Scenario) -> None:
    """Check that there are validation examples, if the method needs them."""
    wanted = method.objective.evaluation.validation
    if wanted and method.objective.evaluation.uses_validation(options) and not scenario.data.validation:
        raise ValueError(
            f"data.validation = 0: {method.name} needs validation examples of each client; choose such as {wanted:g}, "
            "which is its default"
        )


def check_subset(method: Method, scenario: Scenario) -> None:
    """Check that the global model is evaluated on the test set, if a part of that is asked for."""
    asked = {"subset": scenario.eval.subset, "drop_last": scenario.eval.drop_last or None}
    for key, value in asked.items():
        if evaluated(method, scenario) == "clients" and value is not None:
            raise ValueError(
                f"eval.{key} = {json.dumps(value)}: {_evaluated_on_clients(method, scenario)}, not on the test set"
            )


def check_own_examples(method: Method, scenario: Scenario) -> None:
    """Check that clients have test examples of their own where their models are evaluated on these."""
    on_clients = evaluated(method, scenario) != "global" and scenario.eval.split == "test"
    if on_clients and scenario.data.partition.kind == "file":
        raise ValueError(
            f"data.partition.kind = file assigns no test examples to clients, but "
            f"{_evaluated_on_clients(method, scenario)}"
        )


def _evaluated_on_clients(method: Method, scenario: Scenario) -> str:
    if scenario.eval.on is None:
        return f"{method.name} is evaluated on each client's own test examples"
    return f"eval.on = {scenario.eval.on} evaluates models on each client's own test examples"


def check_split(method: Method, scenario: Scenario) -> None:
    """Check that clients' models are evaluated, if a split of their examples is chosen, and that there is one."""
    split = scenario.eval.split
    if split != "test" and evaluated(method, scenario) == "global":
        raise ValueError(
            f'eval.split = {split}: is of clients\' own examples, but eval.on = "global"; choose "clients" or "both"'
        )
    if split == "validation" and not scenario.data.validation:
        raise ValueError("eval.split = validation: data.validation = 0 holds out no examples; choose train or test")


def check_adapt(method: Method, scenario: Scenario) -> None:
    """Check that clients' models are evaluated, if they are adapted before."""
    adapt = scenario.eval.adapt
    if adapt.epochs and evaluated(method, scenario) == "global":
        raise ValueError(
            f'eval.adapt.epochs = {adapt.epochs}: adapts the models of clients, but eval.on = "global"; choose '
            '"clients" or "both"'
        )
    if adapt.lr is not None and not adapt.epochs:
        raise ValueError(f"eval.adapt.lr = {adapt.lr:g}: needs eval.adapt.epochs above 0")

    if adapt.before and not adapt.epochs:
        raise ValueError("eval.adapt.before = true: needs eval.adapt.epochs above 0")


def check_select(method: Method, scenario: Scenario) -> None:
    """Check that clients' models are evaluated on another split than the one that selects, and that this exists."""
    if scenario.eval.select is None:
        return
    name = f"eval.select = {scenario.eval.select}"
    if not scenario.data.validation:
        raise ValueError(f"{name}: data.validation = 0 holds out no examples; choose data.validation above 0")
    if evaluated(method, scenario) == "global":
        raise ValueError(
            f"{name}: is of clients' own examples, but eval.on = \"global\" evaluates no client's model; choose "
            '"clients" or "both"'
        )
    if scenario.eval.split == scenario.eval.select:
        raise ValueError(f"{name}: eval.split is evaluated already; choose eval.split = test or train")


def check_charged(method: Method, scenario: Scenario) -> None:
    """Check that clients' models are evaluated, at the ends of rounds, if evaluations are charged."""
    if not scenario.eval.charged:
        return
    rounds = scenario.rounds
    if rounds.is_asynchronous:
        raise ValueError(
            f"eval.charged = true: needs rounds that end, but rounds.policy = {rounds.policy} is asynchronous; choose "
            "sync, over_select or deadline"
        )
    if rounds.on_late == "finish":
        raise ValueError(
            "eval.charged = true: its visits would share links with the messages of late visits, which is not "
            "modelled; choose rounds.on_late = stop"
        )
    if evaluated(method, scenario) == "global":
        raise ValueError(
            'eval.charged = true: charges evaluation on clients, but eval.on = "global"; choose "clients" or "both"'
        )


def check_nesterov(scenario: Scenario) -> None:
    """Check that there is momentum, which Nesterov's step needs."""
    if scenario.train.nesterov and scenario.train.momentum == 0:
        raise ValueError("train.nesterov = true needs train.momentum above 0")


def check_participants(scenario: Scenario) -> None:
    """Check that there are enough clients for a round."""
    participants, clients = scenario.rounds.participants, scenario.data.clients
    if participants > clients:
        raise ValueError(f"rounds.participants = {participants}: there are only {clients} clients (data.clients)")


def check_shapes(architecture: ModelRow, data: DataSet) -> None:
    """Check that the model takes examples of the data set's kind and size."""
    takes, has = (KINDS_OF_EXAMPLES[kind] for kind in (architecture.kind, data.kind))
    if takes != has:
        raise ValueError(f"model.name = {architecture.name!r} takes {takes}; {data.name} has {has}")
    shape = data.shape[1:] if data.kind == "image" else data.shape
    if not architecture.flexible and architecture.shape != shape:
        sizes = ["x".join(map(str, each)) for each in (architecture.shape, shape)]
        raise ValueError(
            f"model.name = {architecture.name!r} is made for {sizes[0]} {takes}; {data.name} has {sizes[1]}"
        )


def check_kind(method: Method, data: DataSet) -> None:
    """Check that the method takes the data set's kind of examples."""
    takes = method.objective.refusals.kinds
    if takes and data.kind not in takes:
        named = " or ".join(KINDS_OF_EXAMPLES[kind] for kind in KINDS_OF_EXAMPLES if kind in takes)
        raise ValueError(
            f"data.name = {data.name!r}: its examples are {KINDS_OF_EXAMPLES[data.kind]}; {method.objective.name} "
            f"takes {named}"
        )


def check_fleet(scenario: Scenario) -> None:
    """Check that devices and networks exist, one per client where they are lists, and that rates are consistent."""
    own_devices, own_networks = fleet_files.own_rows(scenario)
    for key, chosen, table in (
        ("fleet.devices", scenario.fleet.devices, {**devices(), **own_devices}),
        ("fleet.networks", scenario.fleet.networks, {**networks(), **own_networks}),
    ):
        for name in chosen:
            if name not in table:
                raise ValueError(f"{key}: {name!r}: {nearest(name, table)}")
        if isinstance(chosen, list) and len(chosen) != scenario.data.clients:
            raise ValueError(f"{key} names {len(chosen)} clients, but data.clients = {scenario.data.clients}")
        if not chosen:
            raise ValueError(f"{key} is empty")
    _check_gateways(scenario.fleet.gateways)
    rates = scenario.fleet.rates
    if rates is not None and not 0 < rates[0] <= rates[1] < math.inf:
        shown = ", ".join(map(format_rate, rates))
        raise ValueError(f"fleet.rates = {shown}: must be the lowest and the highest rate, both finite")
    varies = scenario.fleet.bandwidth
    if varies.kind == "ou" and varies.step < varies.tau / 1000:
        raise ValueError(
            f"fleet.bandwidth.step = {format_seconds(varies.step)}: must be at least a thousandth of tau = "
            f"{format_seconds(varies.tau)}"
        )


def _check_gateways(gateways: AccessLinks) -> None:
    """Check that the keys of the other kind of access links keep their defaults."""
    kind, other = ("rate", "airtime") if gateways.kind == "rate" else ("airtime", "rate")
    default = AccessLinks()
    for key in ("fair",) if kind == "rate" else ("down", "up"):
        value = getattr(gateways, key)
        if value != getattr(default, key):
            shown = repr(value) if isinstance(value, str) else format_rate(value)
            raise ValueError(
                f"fleet.gateways.{key} = {shown}: fleet.gateways.kind = {kind!r} ignores it; choose {other!r}"
            )
    if kind == "airtime" and gateways.count == 0:
        raise ValueError("fleet.gateways.kind = 'airtime': fleet.gateways.count = 0; choose 1 or more")


def check_travels(method: Method, options: Options, architecture: ModelRow, scenario: Scenario) -> None:
    """Check that block exchange names blocks of the model."""
    layout = named_blocks(method, options, architecture, scenario)
    method.travels(options, layout, scenario.travels.down, scenario.travels.up)


def check_whole(method: Method, options: Options, architecture: ModelRow, scenario: Scenario) -> None:
    """Check that corrections which need the whole model receive it."""
    layout = named_blocks(method, options, architecture, scenario)
    method.check_whole(options, layout, scenario.travels.down, scenario.travels.up)


def named_blocks(method: Method, options: Options, architecture: ModelRow, scenario: Scenario) -> Layout:
    """A layout with the names of the blocks as the method has them; its sizes are placeholders."""
    blocks, stages = architecture.block_count(scenario.model.blocks), scenario.model.blocks == "stages"
    names = architecture.blocks if stages else tuple(f"b{number + 1}" for number in range(blocks))
    names = method.objective.model.wrapped_blocks(names, options)
    return Layout(tuple(BlockShape(name, 1) for name in names))
