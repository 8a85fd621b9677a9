"""Round policies: in which order visits are prepared, timed, trained and applied.

``sync``: a cohort is drawn, all its visits count, and the server steps when the last one has ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coordinator import cohort
from coordinator.budget import SECONDS, Cost
from coordinator.federation import Federation, Visit, state_name
from coordinator.ledger import ChoiceRow, RoundRow, TransferRow, VisitRow
from coordinator.server import Outcome
from edge.messages import Update
from edge.payload import ITEM_NBYTES, Shapes, shapes

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Timeline
    from costmodel.fleet import Conditions


def sync(run: Federation) -> str:
    """Synchronous rounds until a rule stops the run; returns the rule."""
    while True:
        stopped_by = _Round(run, run.rounds).play()
        if stopped_by is not None:
            return stopped_by


Scored = tuple[float | None, float | None]
"""(accuracy, mean loss)"""
NOT_SCORED: Scored = (None, None)

POLICIES: dict[str, Callable[[Federation], str]] = {"sync": sync}


class _Round:
    """One synchronous round."""

    def __init__(self, run: Federation, number: int) -> None:
        self.run = run
        self.number = number
        self.wall_started = time.monotonic()
        self.start = run.clock.now

    def play(self) -> str | None:
        """The whole round; returns the rule that stops the run after it, or None."""
        if self.start >= self.run.budget.limits.virtual_seconds:
            return self._closed(SECONDS)
        visits, refused_by = self._admitted()
        if not visits:
            return self._closed(refused_by)
        conditions, timeline = self._timed(visits)
        if not np.isfinite(timeline.up_end).all():
            self._cut(visits, conditions, timeline)
            return SECONDS
        self.run.server.started(self.number, [visit.dispatch for visit in visits])
        replies = self.run.train([visit for visit in visits if visit.kind == "train"], self.number)
        self._wait(visits, timeline)
        accuracy = self._step(visits, replies, conditions, timeline, refused_by)
        return self.run.budget.reached(self.run.rounds, accuracy) or refused_by

    # --- who takes part -------------------------------------------------------------------------------------------

    def _admitted(self) -> tuple[list[Visit], str | None]:
        """Visits that the budget lets start, in client order, and the rule that refused the first other one.

        What a visit spends depends on who else uses the server's link, so whoever is left is timed again.
        """
        run = self.run
        chosen = cohort.draw(run.job.seed, self.number, run.candidates, run.participants)
        visits = [run.prepare(client, self.number) for client in chosen]
        visits += [run.prepare_listener(client) for client in run.server.listeners(self.number, chosen)]
        visits.sort(key=lambda visit: visit.client)
        refused_by: str | None = None
        while visits:
            fits, rule = run.budget.reserve(self._costs(visits))
            refused_by = refused_by or rule
            if all(fits):
                break
            run.budget.settle(0, 0.0, 0.0)
            visits = [visit for visit, fit in zip(visits, fits, strict=True) if fit]
        return visits, refused_by

    def _costs(self, visits: Sequence[Visit]) -> list[Cost]:
        conditions, timeline = self._timed(visits, bounded=False)
        joules = timeline.joules + timeline.waiting_joules(float(timeline.up_end.max()), conditions)
        return [
            Cost(visit.work.bytes_down + visit.work.bytes_up, visit.work.flops, float(spent))
            for visit, spent in zip(visits, joules, strict=True)
        ]

    def _timed(self, visits: Sequence[Visit], bounded: bool = True) -> tuple[Conditions, Timeline]:
        run = self.run
        conditions = run.clock.fleet.conditions([visit.client for visit in visits], run.jitter(self.number))
        until = run.budget.limits.virtual_seconds if bounded else float("inf")
        starts = np.full(len(visits), self.start)
        return conditions, run.clock.solve(starts, [visit.work for visit in visits], conditions, until)

    # --- how it ends ----------------------------------------------------------------------------------------------

    def _wait(self, visits: Sequence[Visit], timeline: Timeline) -> None:
        """Let virtual time pass until the last visit has ended."""
        for visit, end in zip(visits, timeline.up_end, strict=True):
            self.run.clock.at(float(end), visit.client, visit)
        for _ in visits:
            self.run.clock.next()

    def _step(
        self,
        visits: Sequence[Visit],
        replies: Sequence[Update],
        conditions: Conditions,
        timeline: Timeline,
        refused_by: str | None,
    ) -> float | None:
        run = self.run
        kept = run.keep_sent([visit for visit in visits if visit.kind == "listen"], self.number)
        if run.keeps:
            kept |= {visit.client: state_name(visit.client, self.number) for visit in visits if visit.kind == "train"}
        run.server.step(replies)
        run.rounds += 1
        outcomes = _outcomes(visits, replies, timeline)
        choices = run.server.feedback(self.number, outcomes)
        last = refused_by is not None or run.rounds == run.budget.limits.rounds
        scored = run.evaluate(kept) if last or run.rounds % run.eval_every == 0 else NOT_SCORED
        run.scored = scored is not NOT_SCORED
        losses = {reply.client: reply.numbers["loss"] for reply in replies}
        joules = timeline.joules_spent + timeline.waiting_joules(run.clock.now, conditions)
        rows = [self._visit_row(visit, i, timeline, joules, losses) for i, visit in enumerate(visits)]
        self._commit(rows, self._transfers(visits), choices, scored, kept)
        return scored[0]

    def _cut(self, visits: Sequence[Visit], conditions: Conditions, timeline: Timeline) -> None:
        """The clock's budget ends in mid-round: charge what was spent by then; nothing counts, nothing is trained."""
        run = self.run
        run.clock.advance(run.budget.limits.virtual_seconds)
        joules = timeline.joules_spent + timeline.waiting_joules(run.clock.now, conditions)
        rows = [self._visit_row(visit, i, timeline, joules, {}, cut=True) for i, visit in enumerate(visits)]
        transfers = [
            TransferRow(self.number, row.client, direction, "", "cut", nbytes)
            for row in rows
            for direction, nbytes in (("down", row.bytes_down), ("up", row.bytes_up))
        ]
        self._commit(rows, transfers, [], self._late_score(), {})

    def _closed(self, stopped_by: str | None) -> str | None:
        """No further round starts: the last model is scored if it was not, in a row without visits."""
        if not self.run.scored:
            self._commit([], [], [], self._late_score(), {})
        return stopped_by

    def _late_score(self) -> Scored:
        run = self.run
        late = NOT_SCORED if run.scored else run.evaluate({})
        run.scored = True
        return late

    def _commit(
        self,
        rows: list[VisitRow],
        transfers: list[TransferRow],
        choices: list[ChoiceRow],
        scored: Scored,
        kept: dict[int, str],
    ) -> None:
        run = self.run
        losses = [row.loss for row in rows if row.loss is not None]
        down, up = sum(row.bytes_down for row in rows), sum(row.bytes_up for row in rows)
        wasted = sum(row.bytes_down + row.bytes_up for row in rows if row.kind == "cut")
        flops, joules = sum(row.flops for row in rows), sum(row.joules for row in rows)
        run.budget.settle(down + up, flops, joules)
        row = RoundRow(
            round=self.number,
            start_s=self.start,
            end_s=run.clock.now,
            participants=sum(row.kind == "train" for row in rows),
            accuracy=scored[0],
            test_loss=scored[1] if scored[1] is not None and math.isfinite(scored[1]) else None,
            train_loss=float(np.mean(losses)) if losses else None,
            bytes_down=down,
            bytes_up=up,
            nominal_bytes=sum(row.nominal_bytes for row in rows),
            flops=flops,
            nominal_flops=sum(row.nominal_flops for row in rows),
            joules=joules,
            wasted_bytes=wasted,
            model_sha256=run.model_sha256(),
        )
        run.commit(row, rows, transfers, choices, kept, self.wall_started)

    def _visit_row(
        self,
        visit: Visit,
        index: int,
        timeline: Timeline,
        joules: np.ndarray[tuple[int], np.dtype[np.float64]],
        losses: dict[int, float],
        cut: bool = False,
    ) -> VisitRow:
        fleet, now = self.run.clock.fleet, self.run.clock.now
        ends = [min(float(t[index]), now) for t in (timeline.down_end, timeline.compute_end, timeline.up_end)]
        return VisitRow(
            round=self.number,
            client=visit.client,
            device=fleet.device_name(visit.client),
            network=fleet.network_name(visit.client),
            kind="cut" if cut else visit.kind,
            start_s=float(timeline.start[index]),
            down_end_s=ends[0],
            compute_end_s=ends[1],
            up_end_s=ends[2],
            bytes_down=int(timeline.bytes_down[index]),
            bytes_up=int(timeline.bytes_up[index]),
            nominal_bytes=0.0 if cut else visit.nominal_bytes,
            flops=float(timeline.flops[index]),
            nominal_flops=0.0 if cut else visit.nominal_flops,
            joules=float(joules[index]),
            samples=0 if cut else visit.plan.samples,
            steps=0 if cut else visit.plan.steps,
            loss=losses.get(visit.client),
        )

    def _transfers(self, visits: Sequence[Visit]) -> list[TransferRow]:
        rows: list[TransferRow] = []
        for visit in visits:
            down = shapes(visit.dispatch.payload)
            rows += _transfer_rows(self.number, visit.client, "down", down, visit.work.bytes_down)
            if visit.work.bytes_up:
                rows += _transfer_rows(self.number, visit.client, "up", self.run.up_shapes, visit.work.bytes_up)
        return rows


def _outcomes(visits: Sequence[Visit], replies: Sequence[Update], timeline: Timeline) -> list[Outcome]:
    by_client = {reply.client: reply for reply in replies}
    outcomes = []
    for i, visit in enumerate(visits):
        if visit.client in by_client:
            start, down, compute, up = (
                float(t[i]) for t in (timeline.start, timeline.down_end, timeline.compute_end, timeline.up_end)
            )
            reply = by_client[visit.client]
            outcomes.append(Outcome(visit.dispatch, reply, compute - down, (down - start) + (up - compute)))
    return outcomes


def _transfer_rows(round: int, client: int, direction: str, sizes: Shapes, nbytes: int) -> list[TransferRow]:
    rows = [
        TransferRow(round, client, direction, slot, key, ITEM_NBYTES * size)
        for slot, named in sizes.items()
        for key, size in named.items()
    ]
    header = nbytes - sum(row.nbytes for row in rows)
    return [TransferRow(round, client, direction, "", "header", header), *rows]
