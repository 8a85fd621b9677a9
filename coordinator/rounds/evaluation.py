"""Evaluation by the worker pool: of the global model on the test set, of each client's model on its examples, or both.

Where aggregators have models of their own, these may be evaluated as well, on the test set.

Evaluations change nothing. The run decides when a model is evaluated, and whether that is charged
(`coordinator.rounds.synchronous`); here it takes no virtual time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from types import MappingProxyType
from typing import Literal

import numpy as np

from coordinator.aggregation.server import LaterPayload, ServerStrategy
from coordinator.aggregation.tiers import TieredServer
from coordinator.records.client_states import ClientStates
from coordinator.records.round_record import EvalResult
from coordinator.records.schema import EvaluationRow
from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolTask, Reply, ReplyValidator, Workers
from edge.protocol import messages
from edge.protocol.bounds import is_bounded
from edge.protocol.config import EvalSplit, Job, ModelProfile
from edge.protocol.messages import ACCURACY, CORRECT, CROSS_ENTROPY, GLOBAL, EvaluatedQuantity, Score
from edge.protocol.payload import FORWARD, Payload, shapes

NO_ROUND = -1
"""The round of rows that are not committed"""
Sums = Mapping[EvaluatedQuantity, tuple[float, int]]
"""Quantity -> (sum, number of examples or measurements)"""
Finish = Callable[[Mapping[str, tuple[float, int]]], float]
"""Part, "" of a metric with one -> (sum, number): the value"""
TRAINING_PASSES = 3
"""Cost of a training step in forward passes, to foresee the work of an adaptation."""


@dataclass(frozen=True)
class EvaluationScope:
    """Which models are evaluated, on which examples, and where the results go."""

    on: Literal["global", "clients", "both"] = "global"
    round: Literal["global", "clients"] = "global"
    """Whose accuracy and loss are the round's; those of clients as means over clients"""
    split: EvalSplit = "test"
    """The clients' examples that are used"""
    quantities: frozenset[EvaluatedQuantity] | None = None
    """Quantities that are measured, whatever their parts, but for `further_quantities` of clients; None: anything"""
    keeps_values: bool = False
    """Whether the values beside the round's are kept in the ledger"""
    over_clients: (
        Callable[[Mapping[int, Mapping[EvaluatedQuantity, float]]], Mapping[EvaluatedQuantity, float]] | None
    ) = None
    """(client -> values) -> further values over the evaluated clients; kept with the values"""
    aggregators: bool = False
    """Whether the own models of aggregators are evaluated, too"""
    score: str = ACCURACY
    """The metric by which the run is judged: its value is the round's score"""
    finishes: Mapping[str, Finish] = field(default_factory=dict)
    """Metric -> its one value from the sums of its parts, of metrics that are no mean"""
    pools_clients: bool = False
    """Whether the round's score and loss are those of all clients' examples together, where they are the clients'; else
    the mean over clients"""


class Scoring:
    """Submitted tasks of an evaluation, whose scores tell which client and examples they are of."""

    def __init__(self, workers: Workers, tasks: Sequence[PoolTask]) -> None:
        self._scores: list[Score] = []
        self._group = workers.submit(tasks, self._on_reply)

    def _on_reply(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, Score)
        self._scores.append(reply)

    def wait(self) -> list[Score]:
        """In the order of clients and examples. PoolError, Stopped."""
        self._group.wait()
        return sorted(self._scores, key=lambda score: (score.client, score.start))


@dataclass(frozen=True)
class Evaluation:
    """A submitted evaluation."""

    scoring: Scoring
    scope: EvaluationScope
    of_aggregators: Sequence[tuple[Sequence[int], Scoring]] = ()
    """(aggregators, scores of the model that they all have)"""

    def wait(self) -> EvalResult:
        """The result, summed in the order of clients and examples. PoolError, Stopped."""
        evaluated = result(self.scoring.wait(), self.scope)
        rows = {
            index: [row._replace(aggregator=index) for row in means]
            for indices, scoring in self.of_aggregators
            for means in [_means(GLOBAL, _added(scoring.wait()), self.scope.finishes)]
            for index in indices
        }
        of_aggregators = chain.from_iterable(rows[index] for index in sorted(rows))
        return evaluated._replace(values=(*evaluated.values, *of_aggregators))


class PoolEvaluator:
    """The evaluator of a run that trains. ``states`` is None if clients have no state."""

    def __init__(
        self,
        job: Job,
        scope: EvaluationScope,
        description: ModelProfile,
        server: ServerStrategy,
        workers: Workers,
        states: ClientStates | None,
    ) -> None:
        self.job, self._scope, self._description = job, scope, description
        self._server, self.workers, self._states = server, workers, states

    def evaluate(self, round: int, clients: Sequence[int] | None = None) -> Evaluation:
        """Submit an evaluation of the global model, of each client's model, or of both.

        ``clients``: as of `coordinator.rounds.ports.Evaluator.evaluate`.
        """
        tasks: list[PoolTask] = []
        if self._scope.on != "clients":
            tasks += self._on_test_set(self._server.global_evaluation_model(), round)
        if self._scope.on != "global":
            examples = evaluated_examples(self._description, self._scope.split)
            those = np.flatnonzero(examples).tolist() if clients is None else clients
            tasks += [self._of_client(client, int(examples[client]), round) for client in those]
        scoring = Scoring(self.workers, tasks)
        of_aggregators: list[tuple[Sequence[int], Scoring]] = []
        if self._scope.aggregators and isinstance(self._server, TieredServer):
            of_aggregators = [
                (indices, Scoring(self.workers, self._on_test_set(payload, round)))
                for indices, payload in self._server.own_evaluation_models()
            ]
        return Evaluation(scoring, self._scope, of_aggregators)

    def _on_test_set(self, payload: Payload, round: int) -> list[PoolTask]:
        """Tasks for one model on the test examples in use, ``eval.batch`` per task."""
        batch, count = self.job.eval_batch, self.job.scored(self._description.test_count)
        variant = self._server.global_evaluation_variant()
        return [
            PoolTask(
                messages.Evaluate(start, min(start + batch, count), GLOBAL, payload, round, variant=variant),
                flops=self._forward_flops * min(batch, count - start),
                validator=ReplyValidator(
                    self._scope.quantities, most_losses=self.job.train.loss_row[0].most_of_an_example
                ),
            )
            for start in range(0, count, batch)
        ]

    def _of_client(self, client: int, count: int, round: int) -> PoolTask:
        """The client's model joins its state and the server's blocks.

        The task has the choice, the variant and the step size of a visit that would start now. A `LaterPayload` is
        built when the task is sent; other payloads share their vectors, which are sent to a worker once.
        """
        job, server, quantities = self.job, self._server, self._scope.quantities
        try:
            model = server.evaluation_model(client)
        except Exception as error:  # a user's server side may raise anything
            raise _no_model(client, error) from error
        payload, build = (model, None) if not isinstance(model, LaterPayload) else ({}, partial(_built, client, model))
        if quantities is not None:
            quantities |= {*messages.further_quantities(job)}
        adapted = TRAINING_PASSES * job.adapt_epochs * int(self._description.samples[client])
        measured = measured_examples(self._description, self._scope.split, job.eval_select, job.adapt_before)[client]
        lr, choice = job.train.lr_in(round), server.evaluation_choice(client, round)
        variant = server.evaluation_variant(client)
        return PoolTask(
            messages.Evaluate(0, count, client, payload, round, lr, choice, self._scope.split, variant),
            None if self._states is None else self._states.newest(client),
            flops=self._forward_flops * float(measured + adapted),
            validator=ReplyValidator(quantities, most_losses=job.train.loss_row[0].most_of_an_example),
            build=build,
        )

    @property
    def _forward_flops(self) -> float:
        """FLOPs per example."""
        return float(self._description.flops[:, FORWARD].sum())


def _built(client: int, model: LaterPayload) -> Payload:
    """A client's model, with its shapes checked."""
    try:
        payload = model.build()
    except Exception as error:  # a user's server side may raise anything
        raise _no_model(client, error) from error
    if shapes(payload) != model.shapes:
        raise RunFailed(f"client {client}: evaluation_model has {shapes(payload)}, but foresees {model.shapes}")
    return payload


def _no_model(client: int, error: Exception) -> RunFailed:
    return RunFailed(f"client {client}: its model for an evaluation cannot be built: {type(error).__name__}: {error}")


def evaluated_examples(description: ModelProfile, split: EvalSplit) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(clients,) examples of each client in a split."""
    splits = {
        "train": description.samples,
        "validation": description.validation_samples,
        "test": description.test_samples,
    }
    return splits[split]


def measured_examples(
    description: ModelProfile, split: EvalSplit, select: EvalSplit | None, before: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(clients,) examples that pass through each client's model; 0 for a client without examples of ``split``.

    ``select``: a split that is evaluated as well; ``before``: whether ``split`` is, too, before an adaptation. A client
    without examples of ``split`` is not evaluated.
    """
    examples = evaluated_examples(description, split)
    passes = examples * (2 if before else 1)
    if select is not None:
        passes = passes + evaluated_examples(description, select)
    return np.where(examples > 0, passes, 0)


def result(scores: Sequence[Score], scope: EvaluationScope) -> EvalResult:
    """The result of an evaluation from its scores, in the order of clients and examples."""
    sums = {client: _added(group) for client, group in groupby(scores, lambda score: score.client)}
    values = _values(sums, scope) if scope.keeps_values else ()
    if scope.round == "global":
        return _of_round(sums[GLOBAL], scope, values)
    clients = [of_client for client, of_client in sums.items() if client != GLOBAL]
    if not clients:  # none could be visited
        return EvalResult(None, None, values)
    if scope.pools_clients:
        return _of_round(_pooled(clients), scope, values)
    accuracy, loss = (
        float(np.mean([_mean(of_client, of) for of_client in clients])) for of in (CORRECT, CROSS_ENTROPY)
    )
    return EvalResult(accuracy, loss, values)


def _of_round(sums: Sums, scope: EvaluationScope, values: tuple[EvaluationRow, ...]) -> EvalResult:
    loss, whole = _mean(sums, CROSS_ENTROPY), EvaluatedQuantity(scope.score)
    if whole == CORRECT:
        return EvalResult(_mean(sums, whole), loss, values)
    if scope.score not in scope.finishes:
        return EvalResult(None, loss, values, _mean(sums, whole))
    parts = {of.part or "": each for of, each in sums.items() if of._replace(part=None) == whole}
    return EvalResult(None, loss, values, scope.finishes[scope.score](parts))


def _pooled(clients: Sequence[Sums]) -> Sums:
    """The sums over clients, in their order."""
    pooled: dict[EvaluatedQuantity, tuple[float, int]] = {}
    for of_client in clients:
        _add(pooled, of_client)
    return pooled


def _added(scores: Iterable[Score]) -> Sums:
    added: dict[EvaluatedQuantity, tuple[float, int]] = {}
    for score in scores:
        _add(added, score.values)
    return added


def _add(added: dict[EvaluatedQuantity, tuple[float, int]], sums: Sums) -> None:
    for quantity, (total, count) in sums.items():
        before, number = added.get(quantity, (0.0, 0))
        added[quantity] = before + total, number + count


def _mean(sums: Sums, quantity: EvaluatedQuantity) -> float:
    total, count = sums[quantity]
    return total / count


def _values(sums: Mapping[int, Sums], scope: EvaluationScope) -> tuple[EvaluationRow, ...]:
    """All values but the score and loss that the round has.

    Those over clients come last, as values of the global model, whose number of clients they have.
    """
    of_round = EvaluatedQuantity(scope.score), CROSS_ENTROPY
    rows = tuple(
        row
        for client, of_client in sums.items()
        for row in _means(client, of_client, scope.finishes)
        if not (client == GLOBAL and scope.round == "global" and row.quantity in of_round)
    )
    if scope.over_clients is None:
        return rows
    by_client: dict[int, dict[EvaluatedQuantity, float]] = {client: {} for client in sums if client != GLOBAL}
    for row in rows:
        if row.client != GLOBAL and row.value is not None:
            by_client[row.client][row.quantity] = row.value
    compared = {quantity: (value, 1) for quantity, value in scope.over_clients(by_client).items()}
    return (*rows, *(row._replace(count=len(by_client)) for row in _means(GLOBAL, compared)))


def _means(client: int, sums: Sums, finishes: Mapping[str, Finish] = MappingProxyType({})) -> list[EvaluationRow]:
    """A row of each quantity that has been measured on any examples; one of all parts of a metric that ``finishes``."""
    rows, parts = list[EvaluationRow](), defaultdict[EvaluatedQuantity, dict[str, tuple[float, int]]](dict)
    for quantity, (total, count) in sums.items():
        if not count:
            continue
        if quantity.metric in finishes:
            parts[quantity._replace(part=None)][quantity.part or ""] = total, count
        else:
            rows.append(_row(client, quantity, total / count, count))
    for quantity, by_part in parts.items():
        count = max(number for _, number in by_part.values())
        rows.append(_row(client, quantity, finishes[quantity.metric](by_part), count))
    return rows


def _row(client: int, quantity: EvaluatedQuantity, value: float, count: int) -> EvaluationRow:
    return EvaluationRow(NO_ROUND, client, quantity.metric, _finite(value), count, *quantity[1:])


def _finite(value: float) -> float | None:
    """A value that a run records; None, as for one that is not finite, for the far larger ones of a diverged model."""
    return value if is_bounded(value) else None
