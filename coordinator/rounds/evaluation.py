"""Evaluation by the worker pool: of the global model on the test set, or of each client's model on its test examples.

Evaluations change nothing and cost no virtual time. The run decides when a model is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from coordinator.aggregation.server import ServerStrategy
from coordinator.records.client_states import ClientStates
from coordinator.workers.task import PoolTask, Reply, Workers
from edge.protocol import messages
from edge.protocol.config import Job, ModelProfile
from edge.protocol.messages import Score
from edge.protocol.payload import FORWARD

Total = Callable[[Sequence[Score]], tuple[float, float]]


class Evaluation:
    """A submitted evaluation."""

    def __init__(self, workers: Workers, tasks: Sequence[PoolTask], total: Total) -> None:
        self._total = total
        self._scores: list[Score] = []
        self._group = workers.submit(tasks, self._on_reply)

    def _on_reply(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, Score)
        self._scores.append(reply)

    def wait(self) -> tuple[float, float]:
        """(accuracy, mean loss), summed in the order of clients and examples. PoolError, Stopped."""
        self._group.wait()
        return self._total(sorted(self._scores, key=lambda score: (score.client, score.start)))


class PoolEvaluator:
    """The evaluator of a run that trains. ``states`` is None if clients have no state."""

    def __init__(
        self,
        job: Job,
        evaluated: Literal["global", "clients"],
        description: ModelProfile,
        server: ServerStrategy,
        workers: Workers,
        states: ClientStates | None,
    ) -> None:
        self.job, self._evaluated, self._description = job, evaluated, description
        self._server, self.workers, self._states = server, workers, states

    def evaluate(self, round: int) -> Evaluation:
        """Submit an evaluation of the global model, or of each client's model."""
        return self._clients(round) if self._evaluated == "clients" else self._global_model()

    def _global_model(self) -> Evaluation:
        """On the test examples in use, ``eval.batch`` per task."""
        payload, batch = self._server.global_evaluation_model(), self.job.eval_batch
        count = self.job.scored(self._description.test_count)
        tasks = [
            PoolTask(
                messages.Evaluate(start, min(start + batch, count), messages.GLOBAL, payload),
                flops=self._forward_flops * min(batch, count - start),
            )
            for start in range(0, count, batch)
        ]

        def total(scores: Sequence[Score]) -> tuple[float, float]:
            return sum(score.correct for score in scores) / count, sum(score.loss_sum for score in scores) / count

        return Evaluation(self.workers, tasks, total)

    def _clients(self, round: int) -> Evaluation:
        """The mean over clients with test examples; a client's model joins its state and the server's blocks.

        A task has the choice and the step size of a visit that would start now.
        """
        server, lr = self._server, self.job.train.lr_in(round)
        tasks = [
            PoolTask(
                messages.Evaluate(
                    *(0, int(count), client, server.evaluation_model(client)),
                    *(round, lr, server.download(client, round).choice),
                ),
                None if self._states is None else self._states.newest(client),
                flops=self._forward_flops * count,
            )
            for client, count in enumerate(self._description.test_samples)
            if count
        ]

        def total(scores: Sequence[Score]) -> tuple[float, float]:
            accuracy = float(np.mean([score.correct / score.count for score in scores]))
            return accuracy, float(np.mean([score.loss_sum / score.count for score in scores]))

        return Evaluation(self.workers, tasks, total)

    @property
    def _forward_flops(self) -> float:
        """FLOPs per example."""
        return float(self._description.flops[:, FORWARD].sum())
