"""Poisson sampling: each client takes part for itself, with the same probability.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963.
The probability is ``rounds.participants`` over the clients that can take part, so that cohorts have that size on
average; a cohort may be empty. Sampling amplifies differential privacy most so, since nobody's part tells of another's.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.rounds.selection import ClientSelector, SelectionContext


class Poisson(ClientSelector):
    """Clients drawn each for itself."""

    varies = True

    def check(self, participants: int) -> None:
        """Any number will do."""

    def select(self, context: SelectionContext) -> Sequence[int]:
        """The eligible clients that are drawn and available."""
        rate = min(context.participants / len(context.eligible), 1.0)
        drawn = context.rng.random(len(context.eligible)) < rate
        there = context.is_available
        chosen = (client for client, takes_part in zip(context.eligible, drawn.tolist(), strict=True) if takes_part)
        return [client for client in chosen if there is None or there(client)]
