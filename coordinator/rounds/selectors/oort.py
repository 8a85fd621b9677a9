"""Oort: clients whose examples teach most per second, with a share of clients that were never visited.

Lai, Zhu, Madhyastha and Chowdhury, Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021,
https://www.usenix.org/conference/osdi21/presentation/lai, Algorithm 1. |B_i| are a client's examples, t_i the virtual
seconds of its last visit, L(i) the round of its last report, R the round, T the preferred duration, all counted from 1.

Statistical utilities are scaled to their range, about 0 to 1, before the bonus is added. Algorithm 1 does not print
this, but the authors' code does it (``thirdparty/oort/oort.py`` of https://github.com/SymbioticLab/FedScale): beside
utilities of hundreds, which |B_i| gives, a bonus below 1 would change no choice.

Differences from the paper: |B_i| sqrt(mean of squared losses) is |B_i| times the mean loss, since clients report no
squared losses; unexplored clients are drawn uniformly, since the server does not know their speed; there is no
blacklist of clients that were picked often. The number of unexplored clients is rounded up or down at random, so that
it is right on average also for one client at a time. From the code: it draws from at least ten times as many clients as
it needs, whatever the cut-off; its T is a percentile of durations, which the pacer moves up and down; and never visited
clients, whose utility is their size there, count in the range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coordinator.rounds.selection import ClientSelector, SelectionContext, weighted_order
from edge.protocol.plugins import PluginOptions

Doubles = NDArray[np.float64]

LEAST_RANGE = 1e-4
"""Of utilities, as in the authors' code; and the lowest is reduced by a thousandth, so that none becomes 0."""


class OortOptions(PluginOptions):
    """Defaults are the paper's; it gives none for the pacer's step."""

    exploration: float = Field(default=0.9, ge=0, le=1, title="ε")
    """Share of never visited clients in round 0."""
    exploration_decay: float = Field(default=0.98, gt=0, le=1)
    """Factor on that share per round."""
    least_exploration: float = Field(default=0.2, ge=0, le=1)
    """The share decays to this."""
    staleness_bonus: float = Field(default=0.1, ge=0)
    """c of the bonus sqrt(c ln R / L(i)) for clients that were not visited for long, beside utilities from 0 to 1; 0 is
    no bonus."""
    clip_percentile: float = Field(default=95.0, gt=0, le=100)
    """Utilities above this percentile of the visited clients' are reduced to it; 100 is no clipping."""
    cutoff: float = Field(default=0.95, gt=0, le=1, title="c")
    """Clients take part in the draw from this fraction of the last needed utility on; 1: only the best."""
    penalty: float = Field(default=2.0, ge=0, title="α")
    """Exponent of T / t_i for clients slower than T; 0 ignores durations."""
    pacer_step: float | None = Field(default=None, gt=0, title="Δ")
    """Virtual seconds: the first T, and its growth; by default the median duration when visited clients are first
    chosen."""
    pacer_window: int = Field(default=20, ge=1, title="W")
    """T grows in each round in which the utility of the last W rounds is below that of the W rounds before."""


class Oort(ClientSelector):
    """Exploitation by utility, exploration at random, and a pacer for the preferred duration."""

    def __init__(self, options: OortOptions) -> None:
        self.options = options
        self.step = options.pacer_step or math.nan
        self.preferred = self.step
        """T; NaN until durations are known"""
        self.achieved: list[float] = []
        """Statistical utility of the participants of each round"""

    def select(self, context: SelectionContext) -> Sequence[int]:
        """The unexplored share at random, the others by utility."""
        clients = np.array(context.candidates, np.intp)
        is_explored = ~np.isnan(context.history.loss[clients])
        explored, unexplored = clients[is_explored], clients[~is_explored]
        self._pace(context, explored)
        options, rng = self.options, context.rng
        decayed = options.exploration * options.exploration_decay**context.round
        share = context.count * max(decayed, min(options.least_exploration, options.exploration))
        exploring = min(math.floor(share + rng.random()), len(unexplored))
        exploring = max(exploring, context.count - len(explored))
        chosen = [*rng.permutation(unexplored)[:exploring]]
        exploiting = context.count - exploring
        if exploiting:  # drawn by utility from those above the cut-off
            utility = self.utility(context, explored)
            needed = np.sort(utility)[-exploiting]
            admitted = np.flatnonzero(utility >= options.cutoff * needed)
            chosen += [*explored[admitted[weighted_order(utility[admitted], rng)[:exploiting]]]]
        return [int(client) for client in chosen]

    def utility(self, context: SelectionContext, explored: NDArray[np.intp]) -> Doubles:
        """Utility of visited clients: statistical, clipped, as a share of the range before that, with the bonus, and
        reduced for those slower than T."""
        history, options = context.history, self.options
        value = context.samples[explored] * history.loss[explored]
        lowest = 0.999 * value.min()
        scale = max(value.max() - lowest, LEAST_RANGE)
        value = (np.minimum(value, np.percentile(value, options.clip_percentile)) - lowest) / scale
        bonus = np.sqrt(options.staleness_bonus * math.log(context.round + 1) / (history.loss_round[explored] + 1))
        seconds = history.seconds[explored]
        slowdown = np.maximum(seconds / self.preferred, 1.0)
        return np.asarray((value + bonus) * slowdown**-options.penalty, np.float64)

    def _pace(self, context: SelectionContext, explored: NDArray[np.intp]) -> None:
        """Once per round: note the last rounds' utility, and raise T where it falls."""
        if math.isnan(self.preferred) and len(explored):
            self.step = self.preferred = float(np.median(context.history.seconds[explored]))
        history, window = context.history, self.options.pacer_window
        for round in range(len(self.achieved), context.round):
            took_part = history.loss_round == round
            self.achieved.append(float((context.samples[took_part] * history.loss[took_part]).sum()))
            before, after = self.achieved[-2 * window : -window], self.achieved[-window:]
            if len(before) == window and math.fsum(before) > math.fsum(after):
                self.preferred += self.step

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Δ, T, and the utility of each round."""
        return {"pacer": np.array([self.step, self.preferred]), "achieved": np.array(self.achieved)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.step, self.preferred = (float(value) for value in state["pacer"])
        self.achieved = [float(value) for value in state["achieved"]]
