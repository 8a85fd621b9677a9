"""Client selection: the cohort of a round, or one client at a time. Base of all selectors, and the uniform one.

A selector sees what a server may know: who is there now, numbers of examples, and the reports and durations of visits
that have ended. Neither future availability nor devices nor links are known. Nothing here trains, or prices visits.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import NEVER
from coordinator.records.schema import DOWNLOAD_ONLY, NO_TRAINING, TRAINED
from coordinator.records.visit_columns import VisitColumns
from edge.protocol.plugins import is_own
from edge.protocol.rng import keyed_generator


def sample_cohort(
    seed: int,
    round: int,
    candidates: Sequence[int],
    participants: int,
    is_available: Callable[[int], bool] | None = None,
) -> list[int]:
    """``participants`` of the candidates, uniformly without replacement, in ascending order; all if there are fewer.

    With ``is_available``, only of the available ones; it is called for no more clients than needed.
    """
    rng = keyed_generator(seed, "cohort", round)
    if is_available is None:
        if participants >= len(candidates):
            return sorted(candidates)
        chosen = rng.choice(len(candidates), size=participants, replace=False)
        return sorted(candidates[int(i)] for i in chosen)
    cohort: list[int] = []
    for i in rng.permutation(len(candidates)).tolist():
        if len(cohort) == participants:
            break
        if is_available(candidates[i]):
            cohort.append(candidates[i])
    return sorted(cohort)


class ClientHistory:
    """The server's knowledge of each client, from its training visits that have ended; arrays of shape (clients,).

    It follows from the ledger's rows alone, so that a resumed run has the same.
    """

    def __init__(self, clients: int) -> None:
        self.loss = np.full(clients, math.nan)
        """Mean local cross-entropy that its last update reported; NaN: none yet"""
        self.loss_round = np.full(clients, -1)
        """The round of that update"""
        self.seconds = np.full(clients, math.nan)
        """Virtual seconds of its last visit whose update counted; NaN: none yet"""
        self.visits = np.zeros(clients, np.int64)
        """Training visits that have ended, also those that did not count"""
        self.counted = np.zeros(clients, np.int64)
        """Training visits that counted"""
        self.steps = np.zeros(clients, np.int64)
        """Local steps of those"""
        self.downloaded = np.full(clients, NEVER)
        """Server steps before the last whole download of a training visit that has ended, counted or not"""

    def record(self, visits: VisitColumns) -> None:
        """Learn from visits that have ended."""
        columns = (visits[name] for name in ("client", "kind", "round", "loss", "steps"))
        # Of a visit that ends in its download both are its end.
        has_computed = np.asarray(visits["compute_end_s"]) > np.asarray(visits["down_end_s"])
        rows = zip(*columns, visits.seconds, has_computed.tolist(), strict=True)
        for client, kind, round, loss, steps, seconds, computed in rows:
            if kind in (DOWNLOAD_ONLY, *NO_TRAINING):
                continue
            self.visits[client] += 1
            if computed or kind in TRAINED:
                self.downloaded[client] = max(self.downloaded[client], round)
            if kind in TRAINED:
                self.counted[client] += 1
                self.steps[client] += steps
                self.seconds[client] = seconds
                if loss is not None:
                    self.loss[client], self.loss_round[client] = loss, round


@dataclass(frozen=True)
class SelectionContext:
    """All that a selector may use for one selection."""

    seed: int
    index: int
    """Key of this selection's random stream: the round; in asynchronous policies, the visits begun so far"""
    round: int
    """Rounds that have ended"""
    participants: int
    """Clients to take; 1 in asynchronous policies"""
    eligible: Sequence[int]
    """Clients that can pay for a visit, in ascending order; not all need be available"""
    is_available: Callable[[int], bool] | None
    """Whether a client is there now; None: all are"""
    now: float
    """Virtual seconds"""
    samples: NDArray[np.int64]
    """Training examples, by client"""
    history: ClientHistory

    @cached_property
    def candidates(self) -> list[int]:
        """The eligible clients that are available now, in ascending order."""
        return [client for client in self.eligible if self.is_available is None or self.is_available(client)]

    @cached_property
    def count(self) -> int:
        """Clients that must be chosen: ``participants``, or all candidates if there are fewer."""
        return min(self.participants, len(self.candidates))

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator of this selection's own."""
        return keyed_generator(self.seed, "selection", self.index)


class ClientSelector:
    """Uniform selection. Base of all selectors.

    Subclasses can customise by overriding

    - ``select``: the choice;
    - ``varies``, if cohorts differ in size;
    - ``state`` and ``restore``, if the choice depends on more than the context;
    - ``check``: refuses numbers of participants that the options contradict.
    """

    varies = False
    """Whether a cohort may have any number of clients, none too, in place of ``context.count``"""

    def select(self, context: SelectionContext) -> Sequence[int]:
        """``context.count`` distinct clients of ``context.candidates``, in any order."""
        return sample_cohort(context.seed, context.index, context.eligible, context.participants, context.is_available)

    def check(self, participants: int) -> None:
        """ValueError if the options do not fit selections of ``participants`` clients."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Arrays that the selector keeps between rounds, by name; part of every checkpoint."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""


def weighted_order(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Places in the order of drawing without replacement, with probabilities proportional to the weights (n,) >= 0.

    Weights of 0 are drawn last, in random order. Efraimidis and Spirakis, Weighted random sampling with a reservoir,
    2006.
    """
    drawn = rng.exponential(size=len(weights))
    arrival = np.full(len(weights), math.inf)
    np.divide(drawn, weights, out=arrival, where=weights > 0)
    return np.lexsort((drawn, arrival))


class SelectionFailed(ValueError):  # noqa: N818 - named by what happened
    """A selector made an invalid choice, or a user's raised an error; the text names it."""


class ClientSelection:
    """The selector of one run, with the history that it sees; checks its choices."""

    def __init__(self, name: str, selector: ClientSelector, seed: int, samples: NDArray[np.int64]) -> None:
        self.name, self.selector = name, selector
        self.history = ClientHistory(len(samples))
        self.cohort: list[int] = []
        """The last cohort, in ascending order"""
        self._seed, self._samples = seed, samples

    def select(
        self,
        round: int,
        eligible: Sequence[int],
        participants: int,
        now: float,
        is_available: Callable[[int], bool] | None,
    ) -> list[int]:
        """The cohort of a round, in ascending order. SelectionFailed names the selector of an invalid choice."""
        self.cohort = self._chosen(round, round, participants, eligible, is_available, now)
        return self.cohort

    def take(self, idle: IdleClients, round: int, index: int, now: float) -> int | None:
        """One of the idle clients, which is then idle no more; None if none is available. Errors as of `select`."""
        if type(self.selector) is ClientSelector:
            return idle.take(index, now)
        candidates = idle.available(now)
        if not candidates:
            return None
        (client,) = self._chosen(index, round, 1, candidates, None, now)
        idle.remove(client)
        return client

    def _chosen(
        self,
        index: int,
        round: int,
        participants: int,
        eligible: Sequence[int],
        is_available: Callable[[int], bool] | None,
        now: float,
    ) -> list[int]:
        context = SelectionContext(
            self._seed, index, round, participants, eligible, is_available, now, self._samples, self.history
        )
        try:
            chosen = [int(client) for client in self.selector.select(context)]
        except Exception as error:  # a user's selector may raise anything
            if not is_own(self.name):
                raise
            problem = f"{type(error).__name__}: {error}"
            raise SelectionFailed(f"rounds.selection = {self.name!r}: {problem}") from error
        if type(self.selector) is not ClientSelector:
            problem = ""
            if strangers := sorted(set(chosen).difference(context.candidates)):
                problem = f"chose client {strangers[0]}, which is no candidate"
            elif len(set(chosen)) < len(chosen):
                problem = f"chose client {max(chosen, key=chosen.count)} more than once"
            elif len(chosen) != context.count and not self.selector.varies:
                problem = f"chose {len(chosen)} clients instead of {context.count}"
            if problem:
                raise SelectionFailed(f"rounds.selection = {self.name!r}: {problem}")
        return sorted(chosen)


class IdleClients:
    """Clients without a visit in flight, in asynchronous policies.

    A client that was unavailable is not checked again before it returns, so that a search costs about as much among
    10,000 clients as among ten.
    """

    def __init__(
        self,
        seed: int,
        candidates: Sequence[int],
        is_eligible: Callable[[int], bool],
        available_at: Callable[[int], float],
    ) -> None:
        """``is_eligible``: whether a client can still take part; once it cannot, it is dropped.

        ``available_at``: client -> absolute seconds at which it is available, not before now; inf: never.
        """
        self._seed, self._is_eligible, self._available_at = seed, is_eligible, available_at
        self._ready = sorted(candidates)
        """Not known to be unavailable"""
        self._away: list[tuple[float, int]] = []
        """A heap of (absolute seconds of its return, client)"""

    def take(self, index: int, now: float) -> int | None:
        """A random eligible and available client, from the random stream of ``index``; None if there is none."""
        self._return(now)
        rng = keyed_generator(self._seed, "cohort", index)
        while self._ready:
            client = self._ready.pop(int(rng.integers(len(self._ready))))
            if self._is_there(client, now):
                return client
        return None

    def available(self, now: float) -> list[int]:
        """All eligible and available clients, in ascending order; checks every one that is not known to be away."""
        self._return(now)
        self._ready = [client for client in self._ready if self._is_there(client, now)]
        return list(self._ready)

    def _return(self, now: float) -> None:
        while self._away and self._away[0][0] <= now:
            self.put(heappop(self._away)[1])

    def _is_there(self, client: int, now: float) -> bool:
        """Whether a client can take part now; otherwise notes when it returns, if it can ever take part."""
        if not self._is_eligible(client):
            return False
        time = self._available_at(client)
        if now < time < math.inf:
            heappush(self._away, (time, client))
        return time <= now

    def remove(self, client: int) -> None:
        """Take one of the `available` clients."""
        self._ready.remove(client)

    def put(self, client: int) -> None:
        """Return a client whose visit has ended."""
        insort(self._ready, client)

    @property
    def next_return(self) -> float:
        """Absolute seconds at which the first unavailable client returns; inf: none will."""
        return self._away[0][0] if self._away else math.inf
