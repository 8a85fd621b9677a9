"""The scope of a run's evaluations: which models, on which examples, and the clients that have none. Nothing is
evaluated here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from coordinator.rounds.evaluation import EvaluationScope, Finish, evaluated_examples, measured_examples
from edge.protocol.config import ModelProfile, TrainConfig
from edge.protocol.messages import LOSS, EvaluatedQuantity
from edge.protocol.payload import Payload
from edge.protocol.plugins import load
from edge.protocol.submodels import depths
from edge.training.metrics.registry import metric_rows
from scenarios.config.load import ScenarioError
from scenarios.config.schema import EvalSection
from scenarios.config.validation import evaluated
from scenarios.run.setup import Setup


def examples_of_clients(setup: Setup) -> NDArray[np.int64]:
    """(clients,) examples that pass through each client's model in an evaluation on clients, an adaptation aside."""
    config = setup.scenario.eval
    return measured_examples(setup.description, config.split, config.select, config.adapt.before)


def evaluation_scope(setup: Setup) -> EvaluationScope:
    """The scope of evaluations. ScenarioError, naming the key, if it is the clients' models and no client has examples,
    and for a metric that ``fedbr replay --measure`` alone can measure with its options."""
    loaded, description, config = setup.loaded, setup.description, setup.scenario.eval
    on = evaluated(loaded.method, setup.scenario)
    score = setup.scenario.train.score
    rows = metric_rows(config.metrics, score)
    for row in rows:
        if reason := getattr(row.chosen(config.metric_options), "measure_alone", None):
            raise ScenarioError(f"{loaded.name}: eval.metric_options.{row.name}.{reason}")
    if on != "global" and not evaluated_examples(description, config.split).any():
        raise ScenarioError(f'{loaded.name}: eval.on = "{on}": no client has {config.split} examples')
    if config.select is not None and not evaluated_examples(description, config.select).any():
        raise ScenarioError(f"{loaded.name}: eval.select = {config.select}: no client has {config.select} examples")
    measured = quantities(config, description, score)
    compares = any(row.over_clients is not None for row in rows)
    return EvaluationScope(
        on=on,
        round=loaded.method.objective.evaluation.on if on == "both" else on,
        split=config.split,
        quantities=measured,
        keeps_values=config.keeps_values or len(measured) > len(rows),
        over_clients=partial(values_over_clients, config) if compares else None,
        aggregators=config.aggregators,
        **score_fields(setup.scenario.train, config),
    )


class _ScoreFields(TypedDict):
    score: str
    finishes: Mapping[str, Finish]
    pools_clients: bool


def score_fields(train: TrainConfig, config: EvalSection) -> _ScoreFields:
    """The fields of a scope that say how the round's score is made of sums."""
    rows = metric_rows(config.metrics, train.score)
    finishes: dict[str, Finish] = {row.name: load(row.finish) for row in rows if row.finish is not None}
    return {"score": train.score, "finishes": finishes, "pools_clients": not train.is_cross_entropy}


def quantities(config: EvalSection, description: ModelProfile, score: str) -> frozenset[EvaluatedQuantity]:
    """The quantities that an evaluation measures: metrics, and score and loss of the parts and exits of the global
    model."""
    metrics = (EvaluatedQuantity(row.name) for row in metric_rows(config.metrics, score))
    rates = (EvaluatedQuantity(name, rate=rate) for rate in description.rates if rate != 1 for name in (score, LOSS))
    numbers = range(1, depths(description.axes) + 1)
    exits = (EvaluatedQuantity(name, exit=number) for number in numbers for name in (score, LOSS))
    return frozenset((*metrics, *rates, *exits))


def values_over_clients(
    config: EvalSection,
    values: Mapping[int, Mapping[EvaluatedQuantity, float]],
    vectors: Mapping[int, Payload] = MappingProxyType({}),
) -> dict[EvaluatedQuantity, float]:
    """The values over clients of the metrics of ``eval`` that have any, from each client's values.

    ``vectors``: client -> name of a metric -> its vectors by name.
    """
    compared: dict[EvaluatedQuantity, float] = {}
    for row in metric_rows(config.metrics):
        if row.over_clients is not None:
            by_part = {
                client: {
                    of.part: value for of, value in by_quantity.items() if of.metric == row.name and of.part is not None
                }
                for client, by_quantity in values.items()
            }
            given = {
                client: {name: vector.data for name, vector in payload[row.name].items()}
                for client, payload in vectors.items()
                if row.name in payload
            }
            parts = load(row.over_clients)(by_part, row.chosen(config.metric_options), given)
            compared |= {EvaluatedQuantity(row.name, part): value for part, value in parts.items()}
    return compared


def check_validation(setup: Setup) -> None:
    """ScenarioError, naming the key, if validation is used and a client that trains has no validation examples."""
    loaded, description = setup.loaded, setup.description
    config, objective = loaded.scenario.eval, loaded.method.objective
    by_method = objective.evaluation.validation > 0 and objective.evaluation.uses_validation(loaded.options)
    on_clients = evaluated(loaded.method, loaded.scenario) != "global"
    if not (by_method or (on_clients and "validation" in (config.split, config.select))):
        return
    samples = description.samples
    without = np.flatnonzero((samples > 0) & (description.validation_samples == 0))
    if len(without):
        others = f", and of {len(without) - 1} other clients" if len(without) > 1 else ""
        data, of_client = loaded.scenario.data, f"of client {without[0]}, which has {samples[without[0]]}{others}"
        if data.partition.kind == "file" and not data.validation:
            file = f"data.partition.file = {data.partition.file!r}"
            raise ScenarioError(f"{loaded.name}: {file} has no validation example {of_client}; name some")
        raise ScenarioError(
            f"{loaded.name}: data.validation = {data.validation:g} holds out no example {of_client}; raise it, or "
            "lower data.clients"
        )


def left_out(setup: Setup) -> int:
    """The clients that are left out of means over clients, since they have no examples of ``eval.split``."""
    if evaluated(setup.loaded.method, setup.scenario) == "global":
        return 0
    return int((evaluated_examples(setup.description, setup.scenario.eval.split) == 0).sum())
