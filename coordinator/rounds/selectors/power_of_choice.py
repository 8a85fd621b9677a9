"""Power-of-choice: of d clients drawn by size, the m with the largest loss.

Cho, Wang and Joshi, Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022,
https://arxiv.org/abs/2010.01243, section 4. d is ``candidates``, m the participants. This is their variant π_rpow-d,
which needs no messages of its own: a client's loss is the one that it last reported, infinite before its first report.

The authors draw by size, and so average the chosen clients' models without weights (``aggregate.weights = "uniform"``);
by default they are weighted by size here, so that size counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from coordinator.rounds.selection import ClientSelector, SelectionContext, weighted_order
from edge.protocol.plugins import PluginOptions


class PowerOfChoiceOptions(PluginOptions):
    """How many clients are compared."""

    candidates: int | None = Field(default=None, ge=1, title="d")
    """Clients drawn with probabilities proportional to their examples; by default twice the participants. As many as
    the participants is a draw by size without regard to losses."""


class PowerOfChoice(ClientSelector):
    """The participants with the largest last loss among the drawn; equal ones in random order."""

    def __init__(self, options: PowerOfChoiceOptions) -> None:
        self.options = options

    def check(self, participants: int) -> None:
        """Fewer candidates than participants cannot be."""
        drawn = self.options.candidates
        if drawn is not None and drawn < participants:
            raise ValueError(f"candidates = {drawn}: must be at least the clients that a round starts, {participants}")

    def select(self, context: SelectionContext) -> Sequence[int]:
        """The d drawn by size; of these, the largest losses."""
        clients, size = np.array(context.candidates, np.intp), self.options.candidates or 2 * context.participants
        drawn = clients[weighted_order(context.samples[clients].astype(float), context.rng)[:size]]
        loss = context.history.loss[drawn]
        loss[np.isnan(loss)] = np.inf
        order = np.lexsort((context.rng.permutation(len(drawn)), -loss))
        return [int(client) for client in drawn[order[: context.count]]]
