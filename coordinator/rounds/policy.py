"""Round policies: which visits count, when a round ends, and how stale updates are used; and the table ``rounds``.

A policy is a row; its object decides, and the loops in `coordinator.rounds.synchronous` and
`coordinator.rounds.asynchronous` do the rest. A policy of your own needs no entry here: a scenario names its row as
``my_package.my_policy:ROW``. Nothing here trains, or reads the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from coordinator.rounds.visit import PlannedVisit
from costmodel.config import Seconds
from edge.protocol.config import Also, Section
from edge.protocol.plugins import OptionsRow, PluginOptions, find, is_own
from edge.protocol.spelling import closest

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from coordinator.rounds.selection import ClientHistory
    from costmodel.visits.timeline import Timeline

Mask = NDArray[np.bool_]


# --- what a policy decides --------------------------------------------------------------------------------------------


class SynchronousPolicy:
    """``sync``: a round waits for all of its visits. Base of all policies whose rounds end for all visits at once.

    Subclasses can customise by overriding

    - ``cohort``: how many visits start;
    - ``look_back``: what the round takes from earlier ones;
    - ``accepted``: which visits count, and when the round ends;
    - ``interrupts``, if visits are interrupted at the end of the round, and so cannot cost more;
    - ``leaves_late``, if visits may still be under way when the round ends;
    - ``waits_for_all``, if other visits than those that count can have delayed the round.

    A user's own policy is made anew whenever it is asked, so that a run that is resumed has the same rounds: what it
    remembers is what ``look_back`` gives it.
    """

    interrupts = False
    """Whether no visit goes on after the end of the round, so that its price is that until then"""
    leaves_late = False
    """Whether visits may be late, so that ``rounds.on_late`` decides about their rests"""

    def cohort(self, rules: RoundPolicy) -> int:
        """Training visits that a round starts."""
        return rules.participants

    def look_back(self, history: ClientHistory) -> None:
        """Learn from the visits that have ended in earlier rounds; before ``accepted``, which may be asked again."""

    def accepted(
        self, rules: RoundPolicy, visits: Sequence[PlannedVisit], timeline: Timeline, start: float
    ) -> tuple[Mask, float]:
        """(mask of the visits that count, virtual seconds of the round's end); a visit that ends exactly then counts.

        ``timeline``: the visits if none is interrupted; ``up_end`` is inf for those that are lost. ``start``: virtual
        seconds at which they start. Visits of another kind than ``train`` only download.
        """
        return np.isfinite(timeline.up_end), float(timeline.end.max())

    def waits_for_all(self, rules: RoundPolicy, counted: int) -> bool:
        """Whether a round with so many training visits that count has waited for the others, too."""
        return True


class AsynchronousPolicy:
    """Each update is mixed into the current model when it arrives. Base of all policies without rounds' barriers.

    Subclasses can customise by overriding all that is here.
    """

    adds_changes = False
    """Whether the discounted change of a client's model is added to the current model, instead of moving the current
    model towards the client's"""

    def updates_per_step(self, rules: RoundPolicy) -> int:
        """Updates per server step."""
        return 1

    def steps_per_round(self, rules: RoundPolicy) -> int:
        """Server steps per round of the ledger."""
        return rules.participants

    def mixing(self, rules: RoundPolicy, staleness: int) -> float:
        """Factor on an update that is so many server steps old."""
        return 1.0


class OverSelect(SynchronousPolicy):
    """More visits start than are needed, and those that end first count."""

    leaves_late = True

    def cohort(self, rules: RoundPolicy) -> int:
        return math.ceil(round(rules.over_select * rules.participants, 9))

    def accepted(
        self, rules: RoundPolicy, visits: Sequence[PlannedVisit], timeline: Timeline, start: float
    ) -> tuple[Mask, float]:
        """Once there are enough training visits, the round does not wait for download-only ones."""
        arrived = np.isfinite(timeline.up_end)
        trains = _trains(visits)
        if (arrived & trains).sum() < rules.participants:
            return arrived, float(timeline.end.max())
        first = sorted(
            (float(timeline.up_end[i]), visits[i].client, i) for i in np.flatnonzero(arrived & trains).tolist()
        )
        chosen = [i for _, _, i in first[: rules.participants]]
        counts = np.zeros(len(visits), bool)
        counts[chosen] = True
        end = float(timeline.up_end[chosen].max())
        return counts | (~trains & (timeline.up_end <= end)), end

    def waits_for_all(self, rules: RoundPolicy, counted: int) -> bool:
        return counted != rules.participants


class Deadline(SynchronousPolicy):
    """Visits that end in time count, and the others are interrupted."""

    interrupts = True
    leaves_late = True

    def accepted(
        self, rules: RoundPolicy, visits: Sequence[PlannedVisit], timeline: Timeline, start: float
    ) -> tuple[Mask, float]:
        """No training visit counts if too few are in time."""
        end = min(float(timeline.end.max()), start + rules.deadline)
        counts, trains = timeline.up_end <= end, _trains(visits)
        # A quotient, since 0.55 * 100 > 55 in floating point.
        if trains.any() and (counts & trains).sum() / trains.sum() < (rules.min_fraction or 0.0):
            counts &= ~trains
        return counts, end


def _trains(visits: Sequence[PlannedVisit]) -> Mask:
    return np.array([visit.kind == "train" for visit in visits])


class FedAsync(AsynchronousPolicy):
    """Each update is mixed in, less the staler it is."""

    def mixing(self, rules: RoundPolicy, staleness: int) -> float:
        return rules.mixing * rules.discount(staleness)


class FedBuff(AsynchronousPolicy):
    """The server steps whenever ``buffer`` discounted changes have arrived."""

    adds_changes = True

    def updates_per_step(self, rules: RoundPolicy) -> int:
        return rules.buffer

    def steps_per_round(self, rules: RoundPolicy) -> int:
        return 1

    def mixing(self, rules: RoundPolicy, staleness: int) -> float:
        return rules.server_lr * rules.discount(staleness)


# --- the rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyRow(OptionsRow):
    """One round policy. The options of the shipped ones are keys of the table ``rounds`` itself."""

    make: Callable[[Any], SynchronousPolicy | AsynchronousPolicy]
    """options -> policy; without state, since it may be made more than once"""


POLICIES: dict[str, PolicyRow] = {
    row.name: row
    for row in (
        PolicyRow(
            "sync",
            "rounds wait for all of their visits",
            "McMahan et al., AISTATS 2017",
            PluginOptions,
            lambda options: SynchronousPolicy(),
        ),
        PolicyRow(
            "over_select",
            "the first rounds.participants of rounds.over_select times as many",
            "Bonawitz et al., MLSys 2019",
            PluginOptions,
            lambda options: OverSelect(),
        ),
        PolicyRow(
            "deadline",
            "visits within rounds.deadline, if at least rounds.min_fraction",
            "Bonawitz et al., MLSys 2019",
            PluginOptions,
            lambda options: Deadline(),
        ),
        PolicyRow(
            "fedasync",
            "each update is mixed in with rounds.mixing, less the staler it is",
            "Xie, Koyejo and Gupta, 2019",
            PluginOptions,
            lambda options: FedAsync(),
        ),
        PolicyRow(
            "fedbuff",
            "a server step for every rounds.buffer discounted changes",
            "Nguyen et al., AISTATS 2022",
            PluginOptions,
            lambda options: FedBuff(),
        ),
    )
}


def policy_row(name: str) -> PolicyRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, POLICIES, PolicyRow, "round policy")


def _is_named(name: str) -> str:
    """ValueError for a name that is neither shipped nor ``module:ROW``."""
    if name not in POLICIES and not is_own(name):
        near = closest(name, POLICIES)
        raise ValueError(
            f"must be one of {', '.join(POLICIES)}" + ("" if near is None else f"; did you mean {near!r}?")
        )
    return name


PolicyName = Annotated[str, AfterValidator(_is_named)]


@dataclass(frozen=True)
class RoundPolicy(Section):
    """A round policy. Fields whose text begins with names of policies are used by these alone."""

    policy: PolicyName = "sync"
    """Visits that a round waits for (``fedbr list policies``): all; the first ``participants`` of more; those in time;
    or none (asynchronous). Or ``module:ROW``."""
    participants: Annotated[int, Field(ge=1), Also("cohort", "clients_per_round")] = 10
    """Clients per round; in asynchronous policies, visits in flight."""
    max: Annotated[int, Field(ge=1), Also("num_rounds", "n_rounds", "rounds")] = 100
    """The run ends after this many rounds; in fedasync a round is ``participants`` updates."""
    over_select: Annotated[float, Field(ge=1, le=1e6), Also("overcommit", "over_commit")] = 1.3
    """over_select: factor on ``participants``; this many visits start, and the first ``participants`` count."""
    deadline: Annotated[Seconds, Also("timeout")] = 270.0
    """deadline: from the start of the visits until they are interrupted."""
    min_fraction: Annotated[float | None, Field(ge=0, le=1)] = None
    """Smallest share of a round's training visits with which the server makes a step. Of those that started
    (``deadline``): a smaller round changes nothing; 0 by default, since stragglers are meant to be left out. Of those
    that would have counted without a budget (all policies): a smaller round does not start, and the run ends; 1 by
    default, since the average of those that still fit is no round."""
    on_late: Literal["stop", "finish", "complete"] = "stop"
    """over_select, deadline: behaviour of late clients when the round ends. stop: they stop. finish: a message that is
    being sent or received goes on beside those of the next rounds, until it ends or its client is selected again; the
    client stops computing, and begins nothing new. complete: the visit goes on to its end beside the next rounds, and
    its client may be selected again after that, as where a server only rejects late updates (22 % of the sessions in
    Bonawitz et al., MLSys 2019, Table 1). No update of theirs is used, and all costs are charged as waste."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """fedasync: mixing factor of an update without staleness."""
    buffer: Annotated[int, Field(ge=1, le=1_000_000), Also("buffer_size")] = 10
    """fedbuff: updates per server step."""
    server_lr: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """fedbuff: factor on the weighted mean of the buffered changes."""
    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    """fedasync, fedbuff: discount of an update with a staleness of s server steps."""
    staleness_power: Annotated[float, Field(ge=0, le=1e6)] = 0.5
    """a of (s + 1)^-a (polynomial) and 1 / (a (s - b) + 1) (hinge, for which FedAsync's authors take 10)."""
    staleness_from: Annotated[int, Field(ge=0)] = 4
    """b of the hinge: updates up to this staleness are not discounted."""
    selection: Annotated[str, Also("sampler", "selector", "client_selection")] = "uniform"
    """Client selector (``fedbr list selections``), or ``module:ROW``."""
    selection_options: dict[str, Any] = field(default_factory=dict)
    """The client selector's options."""
    policy_options: dict[str, Any] = field(default_factory=dict)
    """Options of a round policy of your own; the shipped ones have the keys above."""

    @property
    def rule(self) -> SynchronousPolicy | AsynchronousPolicy:
        """The policy; a user's own is made anew. ValueError if it cannot be loaded, or for invalid options."""
        return self._made() if is_own(self.policy) else self._shipped

    @cached_property
    def _shipped(self) -> SynchronousPolicy | AsynchronousPolicy:
        return self._made()

    def _made(self) -> SynchronousPolicy | AsynchronousPolicy:
        row = policy_row(self.policy)
        return row.make(row.options.model_validate(self.policy_options))

    @property
    def synchronous(self) -> SynchronousPolicy:
        """The policy of a run with rounds."""
        assert isinstance(self.rule, SynchronousPolicy), self.policy
        return self.rule

    @property
    def asynchronous(self) -> AsynchronousPolicy:
        """The policy of a run whose visits begin and end one by one."""
        assert isinstance(self.rule, AsynchronousPolicy), self.policy
        return self.rule

    @property
    def is_asynchronous(self) -> bool:
        """Whether visits begin and end one by one."""
        return isinstance(self.rule, AsynchronousPolicy)

    def is_cut_short(self, counted: int, foreseen: int) -> bool:
        """Whether a budget leaves too few of the updates that a server step was to have (``min_fraction``)."""
        least = 1.0 if self.min_fraction is None else self.min_fraction
        return counted == 0 or counted / foreseen < least

    @property
    def updates_per_step(self) -> int:
        """Updates per server step in an asynchronous policy."""
        return self.asynchronous.updates_per_step(self)

    @property
    def steps_per_round(self) -> int:
        """Server steps per round of the ledger in an asynchronous policy."""
        return self.asynchronous.steps_per_round(self)

    @property
    def cohort(self) -> int:
        """Training visits that a synchronous round starts; in asynchronous policies, visits in flight."""
        return self.participants if self.is_asynchronous else self.synchronous.cohort(self)

    @property
    def visits_per_round(self) -> int:
        """Training visits per round of the ledger if none is lost."""
        return self.updates_per_step * self.steps_per_round if self.is_asynchronous else self.cohort

    def discount(self, staleness: int) -> float:
        """s(t - tau) of FedAsync (Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019, section 5.2)."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return polynomial_discount(staleness, self.staleness_power)
        excess = staleness - self.staleness_from
        return 1.0 if excess <= 0 else 1.0 / (self.staleness_power * excess + 1.0)


def polynomial_discount(staleness: int, power: float) -> float:
    """(s + 1)^-a of FedAsync."""
    return float((staleness + 1) ** -power)
