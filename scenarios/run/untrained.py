"""Rounds of a run that trains nothing: its real clients, messages, prices, budgets and times.

The loop, the method's server side, client selection, codecs, tiers and the clock are those of the run. Updates report
no loss, and 0 for all else that a method has them report; evaluations have no value. So choices that depend on learning
are those of a run in which nothing is learned:

- GMBS (FedBR) gets no fall of the loss, hence rewards of 0 (Eq. 5), and chooses by its bonus for what it tried less;
- utility selection and levels by round know no loss, and go by durations, or stay as they are;
- a method that learns from the vectors of updates learns nothing;
- clusters and branches are the first ones; a server that keeps vectors of clients has those of all that were visited.

An upload whose length depends on its numbers counts with the bound of it. No accuracy ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.aggregation.server import ServerStrategy, VisitFeedback
from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import TRAIN, RoundRow
from coordinator.rounds.ports import PendingCommit, RunMemory, Snapshot
from coordinator.rounds.synchronous import run_rounds
from coordinator.rounds.untrained import DecisionOnlyServer, Untrained
from coordinator.rounds.visit import PlannedVisit
from costmodel.clock import Clock
from costmodel.garbage import without_garbage_collection
from edge.protocol.messages import Update
from scenarios.run import evaluated_clients
from scenarios.run.setup import Setup

NO_FILE = "no-file"


@dataclass(frozen=True)
class UntrainedRound:
    """A round that has ended."""

    record: RoundRecord
    row: RoundRow
    visits: Sequence[PlannedVisit]
    """Training visits whose updates counted, as they were planned"""
    virtual_seconds: float
    """Absolute seconds of its end"""


class _Enough(Exception):  # noqa: N818 - no error
    """There are as many rounds as were asked for."""


class UntrainedServer(DecisionOnlyServer):
    """The decisions of a server side whose models stay zeros."""

    def __init__(self, server_side: ServerStrategy, learns: bool) -> None:
        """``learns``: whether its method learns from what updates report, and not from their vectors."""
        super().__init__(server_side)
        self._learns = learns

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        return super().feedback(round, outcomes) if self._learns else []

    def step(self) -> None:
        """A step without updates, so that downloads have the slots that they have after one."""
        self.server_side.step()


@dataclass
class UntrainedRun(Untrained):
    """The first rounds of a run, untrained."""

    setup: Setup
    """Without the data set, each client has one example (`Setup.with_examples`)"""
    clock: Clock
    """Where the rounds take place; changed by them"""
    rounds: list[UntrainedRound] = field(default_factory=list)
    stopped_by: str | None = None
    """The rule that has ended the run; None: it would go on"""

    def __post_init__(self) -> None:
        setup = self.setup
        self._begun: dict[int, PlannedVisit] = {}
        """Number -> visit that was submitted for training"""
        self._visited: set[int] = set()
        super().__init__(len(setup.description.samples))
        self.server_side = setup.server_of_zeros()
        learns = setup.loaded.method.decides_without_updates(setup.loaded.options)
        is_charged = setup.scenario.eval.charged
        self.run = setup.federated(
            *(UntrainedServer(self.server_side, learns), self.clock, self, self, self),
            refused=setup.refused,
            charged_examples=evaluated_clients.examples_of_clients(setup) if is_charged else None,
            solves_for_bottlenecks=False,
            is_stopped=self._is_stopped,
        )
        self._most = math.inf

    def play(self, most: int) -> None:
        """Play rounds until there are ``most``, or a rule ends the run; to be called once."""
        self._most = most
        with suppress(_Enough), without_garbage_collection():  # visits are many, and in no cycle
            self.stopped_by = run_rounds(self.run)

    def _is_stopped(self) -> bool:
        if len(self.rounds) >= self._most:
            raise _Enough
        return False

    # --- in place of workers and ledger -------------------------------------------------------------------------------

    def updates(self, visits: Sequence[PlannedVisit]) -> list[Update]:
        self._begun |= {visit.number: visit for visit in visits}
        numbers = dict.fromkeys(self.run.job.reports, 0.0)
        return [Update(visit.client, visit.rng_round, numbers, {}) for visit in visits]

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """No model is kept. The server has vectors of the clients that were visited, where its method stores any."""
        columns = zip(record.visits["client"], record.visits["kind"], strict=True)
        self._visited |= {client for client, kind in columns if kind == TRAIN}
        slots = self.server_side.store_shapes()
        if slots:
            self.server_side.store.restore({(client, slot): NO_FILE for client in self._visited for slot in slots})
        return Snapshot("")

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """Keep a round."""
        columns = zip(pending.record.visits["visit"], pending.record.visits["kind"], strict=True)
        visits = [self._begun.pop(number) for number, kind in columns if kind == TRAIN]
        self.rounds.append(UntrainedRound(pending.record, row, visits, pending.virtual_seconds))
