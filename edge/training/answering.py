"""A trainer that answers at once instead of training: the workers of ``fedbr stress``. Never a socket.

Real: the model and the client's number of examples, the decoded download, the method's ``begin`` and ``end``, vectors
and client state of their shapes, encoded frames, partial sums, the file of a client's state, the reported numbers.
Not real: no step is made. A visit uploads what it received plus `SHIFT`, so that the server's next model is another
one; the first visit with a download, a choice and a variant is answered so, and the others with these repeat it. The
FLOPs are those executed, which are none. The first evaluation of each kind is computed, and repeated.

A run with more clients than the data are divided among repeats these in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as replace_fields

from edge.protocol.config import Job
from edge.protocol.files import write_bytes
from edge.protocol.messages import GLOBAL, Evaluate, Score, Train, Update
from edge.protocol.payload import ARRIVALS, Payload, Vector, nbytes, vectors
from edge.training.batches import LocalBatches
from edge.training.block_model import BlockModel
from edge.training.client_update import Batch, Batches, ClientUpdate, Step, VisitContext, no_batches
from edge.training.trainer import LocalTrainer, MeasuredVisit

ANSWERING = f"{__name__}:AnsweringTrainer"
SHIFT = 1e-4
"""Added to every number of the model: little beside its weights, and not lost to rounding"""
MOST_ANSWERS, MOST_NBYTES = 8, 64 << 20
"""That a worker keeps: as many as the choices of a round, unless they are long"""
MOST_SCORES = 1024


@dataclass(frozen=True)
class RepeatedVisit:
    """An update that is repeated, and the rest of its visit."""

    update: Update
    state: bytes
    """The file of its client's state; empty without one"""
    coded: tuple[Any, ...]
    """As of `AnsweringTrainer._coded`"""

    @property
    def nbytes(self) -> int:
        """Bytes of vectors, frames and state."""
        frames = sum(frame.nbytes for named in self.update.encoded.values() for frame in named.values())
        return nbytes(self.update.payload) + frames + len(self.state)


class AnsweringTrainer(LocalTrainer):
    """The task executor of workers that do not train."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        assert job.is_untrained, "the run would take the FLOPs of its answers for wrong ones"
        self._answers: dict[tuple[Any, ...], RepeatedVisit] = {}
        self._scores: dict[tuple[Any, ...], Score] = {}

    def train(self, task: Train, state_in: str | None, state_out: str | None) -> Update:
        """The answer to a visit."""
        payload = {slot: named for slot, named in task.payload.items() if slot != ARRIVALS}
        own = replace_fields(task, client=self._repeated(task.client), payload=payload)
        choice = tuple(sorted(task.choice.items()))
        key = task.variant, choice, *(vector.version for _, _, vector in vectors(own.payload))
        answer = self._answers.get(key)
        if answer is None:
            update = super().train(own, state_in, state_out)
            state = b"" if state_out is None else Path(state_out).read_bytes()
            update = replace_fields(update, payload=_copied(update.payload))  # these are views of the model
            answer = self._answers[key] = RepeatedVisit(update, state, self._coded)
            while len(self._answers) > max(1, min(MOST_ANSWERS, MOST_NBYTES // max(answer.nbytes, 1))):
                del self._answers[next(iter(self._answers))]
        elif state_out is not None:
            write_bytes(Path(state_out), answer.state)
        self._coded = answer.coded
        plan = self._train_of(own).plan(len(self.client_indices.train[own.client]))
        counted = {"samples": float(plan.samples), "steps": float(plan.steps)}
        numbers = {name: counted.get(name, number) for name, number in answer.update.numbers.items()}
        return replace_fields(answer.update, client=task.client, round=task.round, numbers=numbers)

    def evaluate(self, task: Evaluate, state_in: str | None) -> Score:
        """The score of the first task of this kind, which has as many examples."""
        is_global = task.client == GLOBAL
        own = task if is_global else replace_fields(task, client=self._repeated(task.client))
        key = is_global, task.start == 0, task.stop - task.start, task.split, task.variant
        if key not in self._scores:
            if len(self._scores) >= MOST_SCORES:
                self._scores.clear()
            self._scores[key] = super().evaluate(own, state_in)
        return replace_fields(self._scores[key], start=task.start, client=task.client)

    def _repeated(self, client: int) -> int:
        """The client of the data whose examples this one has."""
        return client % len(self.client_indices.train)

    @property
    def _coded(self) -> tuple[Any, ...]:
        """The parts of the last visit that `clipped` and `decoded` need."""
        codec = (self._visit_codec, self._references, self._sent) if self.job.codec.is_used else ()
        return (self._downloaded, *codec)

    @_coded.setter
    def _coded(self, parts: tuple[Any, ...]) -> None:
        self._downloaded, *codec = parts
        if codec:
            self._visit_codec, self._references, self._sent = codec

    def _objective(self) -> ClientUpdate:
        return AnsweredVisit(super()._objective())

    def _batches(self, task: Train | Evaluate) -> LocalBatches:
        batches = super()._batches(task)
        return NoBatches(batches.loader, batches.indices, batches.config, batches.key)

    def _visit(self, task: Train | Evaluate) -> VisitContext:
        return replace(super()._visit(task), local=no_batches, validation=no_batches)


class NoBatches(LocalBatches):
    """Batches of no phase."""

    def phase(self, purpose: str, epochs: int | None) -> LocalBatches:
        return self

    def __call__(self) -> Iterator[Batch]:
        return no_batches()


class AnsweredVisit(MeasuredVisit):
    """The method's client side, whose local model is what it started from, plus `SHIFT`."""

    @property
    def reference_slots(self) -> Mapping[str, str]:
        return self.own.reference_slots

    def take_logged(self) -> dict[str, float]:
        """As the method's."""
        return self.own.take_logged()

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Move the model without a step; ``batches`` has none."""
        self.own.train(net, batches, step)
        with torch.no_grad():
            net.flat.add_(SHIFT)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """As the method's."""
        return self.own.end(net, visit)

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """As the method's."""
        self.own.prepare_score(net, down, state, visit)


def _copied(payload: Payload) -> Payload:
    return {slot: {key: Vector(vector.data.copy()) for key, vector in named.items()} for slot, named in payload.items()}
