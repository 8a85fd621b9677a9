"""How good a model is, asked of the workers: the global one on the test set, or each client's own on its own examples.

It changes nothing, costs no virtual time, and never decides when a model is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coordinator.aggregation.server import ServerStrategy
from coordinator.workers.task import PoolTask, Reply, Workers
from edge.protocol import messages
from edge.protocol.config import ModelProfile
from edge.protocol.messages import Score
from edge.protocol.payload import FORWARD

Total = Callable[[Sequence[Score]], tuple[float, float]]


class Evaluation:
    """A score under way: workers have been asked, and go on to other things when they have answered."""

    def __init__(self, workers: Workers, tasks: Sequence[PoolTask], total: Total) -> None:
        self._total = total
        self._scores: list[Score] = []
        self._order = workers.submit(tasks, self._heard)

    def _heard(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, Score)
        self._scores.append(reply)

    def wait(self) -> tuple[float, float]:
        """(accuracy, mean loss); sums run in the order of clients and shards. PoolError, Stopped."""
        self._order.wait()
        return self._total(sorted(self._scores, key=lambda score: (score.client, score.start)))


def evaluate_global_model(
    workers: Workers, server: ServerStrategy, description: ModelProfile, batch: int, count: int
) -> Evaluation:
    """On the first ``count`` examples of those that scores use, ``batch`` at a time."""
    payload, forward = server.global_evaluation_model(), float(description.flops[:, FORWARD].sum())
    tasks = [
        PoolTask(
            messages.Evaluate(start, min(start + batch, count), messages.GLOBAL, payload),
            flops=forward * min(batch, count - start),
        )
        for start in range(0, count, batch)
    ]

    def total(scores: Sequence[Score]) -> tuple[float, float]:
        return sum(s.correct for s in scores) / count, sum(s.loss_sum for s in scores) / count

    return Evaluation(workers, tasks, total)


def evaluate_clients(
    workers: Workers, server: ServerStrategy, description: ModelProfile, kept: Callable[[int], str | None]
) -> Evaluation:
    """The mean over clients with test examples of their own.

    ``kept``: client -> the file of what it has kept, which it joins with what the server has for it.
    """
    forward = float(description.flops[:, FORWARD].sum())
    tasks = [
        PoolTask(
            messages.Evaluate(0, int(count), client, server.evaluation_model(client)),
            kept(client),
            flops=forward * count,
        )
        for client, count in enumerate(description.test_samples)
        if count
    ]

    def total(scores: Sequence[Score]) -> tuple[float, float]:
        accuracy = float(np.mean([score.correct / score.count for score in scores]))
        return accuracy, float(np.mean([score.loss_sum / score.count for score in scores]))

    return Evaluation(workers, tasks, total)
