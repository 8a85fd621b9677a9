"""A server half without its model: it decides who takes part and what is sent, and learns nothing from vectors."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.aggregation.server import Dispatch, Outcome, Server
from coordinator.records.store import ChoiceRow
from edge.protocol.messages import Update
from edge.protocol.payload import Payload


class Bookkeeping(Server):
    """Another half's decisions, for visits that were trained before and need not be trained again."""

    def __init__(self, half: Server) -> None:
        super().__init__(half.setup, half.parts)
        self.half = half

    def dispatch(self, client: int, round: int) -> Dispatch:
        """As the half's."""
        return self.half.dispatch(client, round)

    def some(self, keys: Sequence[str]) -> Payload:
        """As the half's."""
        return self.half.some(keys)

    def started(self, round: int, dispatches: Sequence[Dispatch]) -> None:
        """As the half's."""
        self.half.started(round, dispatches)

    def received(self, round: int, dispatches: Sequence[Dispatch]) -> None:
        """As the half's."""
        self.half.received(round, dispatches)

    def listeners(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """As the half's."""
        return self.half.listeners(round, cohort)

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """As the half's."""
        return self.half.up_shapes()

    def feedback(self, round: int, outcomes: Sequence[Outcome]) -> list[ChoiceRow]:
        """As the half's."""
        return self.half.feedback(round, outcomes)

    def note(self, reply: Update) -> None:
        """There are no vectors."""

    def fold(self, reply: Update) -> None:
        """There are no vectors."""

    def step(self) -> None:
        """No updates, no step."""
