"""The privacy that a run has spent: epsilon after its rounds, and whether one more fits a budget.

Amplification by sampling holds where nobody knows who takes part in a round, and each client is in it with the same
probability. Selection by losses or times, availability, batteries, budgets of clients, policies that choose among
visits, and aggregators with cohorts of their own decide otherwise; then each participation is accounted as one in a
round of all clients, by the client that has taken part most often. Nothing is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coordinator.privacy.accounting import epsilon, fixed_cohort, poisson
from coordinator.privacy.loss_distribution import epsilon_of_poisson
from edge.protocol.config import PrivacyConfig

Sampling = Literal["poisson", "fixed", "none"]
"""Clients are drawn each for itself; in cohorts of a fixed size; or in a way that hides nobody"""
DELTA_POWER = -1.1


@dataclass(frozen=True)
class VisitCounts:
    """The visits of clients so far, as the ledger's visits tell; arrays of shape (clients,)."""

    rounds: int
    """Server steps"""
    begun: NDArray[np.int64]
    """Training visits that have ended, whether they counted or not"""
    counted: NDArray[np.int64]
    """Training visits that counted"""
    steps: NDArray[np.int64]
    """Local steps of those"""


@dataclass(frozen=True)
class Accountant:
    """The accountant of one run. It is a function of the scenario and of who has taken part."""

    config: PrivacyConfig
    sampling: Sampling
    people: int
    """Clients that may take part"""
    cohort: float
    """Clients that take part in a round, or are expected to"""
    examples: NDArray[np.int64]
    """(clients,) training examples"""
    batch: int
    """Examples of a step, or expected ones"""
    visit_steps: NDArray[np.int64]
    """(clients,) local steps of a visit at most"""
    limit: float | None = None
    """``budget.epsilon``"""
    why_not_sampled: str = ""
    """The reason that gives away who takes part, where ``sampling`` is none"""

    @property
    def delta(self) -> float:
        """``privacy.delta``."""
        if self.config.delta is not None:
            return self.config.delta
        units = int(self.examples.max(initial=1)) if self.config.unit == "example" else self.people
        return math.pow(max(units, 2), DELTA_POWER)

    @property
    def rate(self) -> float:
        """Share of the clients that takes part in a round."""
        return min(self.cohort / max(self.people, 1), 1.0)

    @property
    def follows_from_rounds(self) -> bool:
        """Whether epsilon depends on the number of rounds alone, and not on who took part."""
        return self.config.is_central and self.sampling != "none"

    def spent(self, done: VisitCounts) -> float:
        """Epsilon so far; inf without noise. The largest of any client, where these differ."""
        if self.follows_from_rounds:
            return self._of_rounds(done.rounds)
        return max(self._largest(done), default=0.0)

    def by_client(self, done: VisitCounts) -> NDArray[np.float64]:
        """(clients,) Epsilon of each client."""
        if self.follows_from_rounds:
            return np.full(len(done.begun), self.spent(done))
        if self.config.unit == "example":
            pairs = zip(done.steps.tolist(), self.examples.tolist(), strict=True)
            return np.array([self._of_examples(steps, examples) for steps, examples in pairs])
        times = done.begun if self.config.is_local else done.counted
        return np.array([self._of_visits(count) for count in times.tolist()])

    def allows(self, done: VisitCounts, cohort: Sequence[int]) -> bool:
        """Whether a round of these clients keeps within ``budget.epsilon``."""
        return self.limit is None or self.after_round(done, cohort) <= self.limit

    def after_round(self, done: VisitCounts, cohort: Sequence[int]) -> float:
        """Epsilon after a round in which all visits of these clients count."""
        more = np.zeros_like(done.counted)
        more[list(cohort)] = 1
        steps = done.steps + more * self.visit_steps
        return self.spent(VisitCounts(done.rounds + 1, done.begun + more, done.counted + more, steps))

    def rounds_within(self, limit: float, most: int) -> int:
        """Rounds that keep within a limit, up to ``most``; or visits, as of `after_visits`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.after_visits(middle) <= limit else (low, middle - 1)
        return low

    def after_visits(self, visits: int) -> float:
        """Epsilon after so many rounds, or where it depends on who takes part, after so many visits of a client: of
        the one with the largest."""
        every = np.full(len(self.examples), visits)
        return self.spent(VisitCounts(visits, every, every, every * self.visit_steps))

    def _largest(self, done: VisitCounts) -> Sequence[float]:
        """Epsilons of the clients that may have the largest: none has both fewer visits or steps and a lower rate."""
        if self.config.unit != "example":
            most = int((done.begun if self.config.is_local else done.counted).max(initial=0))
            return [self._of_visits(most)]
        found, least = [], math.inf
        for steps, examples in sorted({*zip(done.steps.tolist(), self.examples.tolist(), strict=True)}, reverse=True):
            if steps and 0 < examples < least:
                least = examples
                found.append(self._of_examples(steps, examples))
        return found

    def _of_rounds(self, rounds: int) -> float:
        # A sum of clipped updates changes by the clip if a client leaves, by twice as much if one is replaced.
        noise = self.config.noise
        return self._after(rounds, noise if self.sampling == "poisson" else noise / 2, self.rate)

    def _of_visits(self, visits: int) -> float:
        # A client's own update is another's if its data are replaced.
        return self._after(visits, self.config.noise / 2 if self.config.is_local else self.config.noise, 1.0)

    def _of_examples(self, steps: int, examples: int) -> float:
        return self._after(steps if examples else 0, self.config.noise, min(self.batch / max(examples, 1), 1.0))

    def _after(self, times: int, noise: float, rate: float) -> float:
        """Epsilon after so many steps in which each unit takes part at a rate."""
        if not times:
            return 0.0
        if not noise:
            return math.inf
        if self.config.accountant == "pld":
            return epsilon_of_poisson(noise, rate, times, self.delta)
        is_fixed = self.follows_from_rounds and self.sampling == "fixed"
        return epsilon(times * (fixed_cohort if is_fixed else poisson)(noise, rate), self.delta)

    # --- in words -----------------------------------------------------------------------------------------------------

    @property
    def guarantee(self) -> str:
        """The meaning of each epsilon: unit, neighbours, sampling, delta."""
        delta = f"delta = {self.delta:.3g}"
        if self.config.unit == "example":
            return (
                f"of a training example of a client: neighbours have one more or one less; Poisson batches of "
                f"{self.batch} on average; {delta}; the largest of any client"
            )
        if self.config.is_local:
            return (
                "of a client towards the server: neighbours differ in all data of one client; no sampling, each of its "
                f"visits counts; {delta}; the largest of any client"
            )
        if self.sampling == "poisson":
            how = f"each of {self.people} clients takes part with probability {self.rate:.4g}"
            return f"of a client: neighbours have one client more or less; Poisson sampling, {how}; {delta}"
        if self.sampling == "fixed":
            how = f"cohorts of {self.cohort:g} of {self.people} clients without replacement"
            return f"of a client: neighbours have one client replaced; {how}; {delta}"
        return (
            f"of a client: neighbours have one client more or less; no amplification by sampling, since "
            f"{self.why_not_sampled}: each participation counts; {delta}; the largest of any client"
        )
