"""What becomes of updates that cannot be used, and of visits that no worker can train.

By default either ends the run. Otherwise such a visit is in vain, or counts as one that changed nothing; the ledger has
it under a kind of its own, so nothing is passed over in silence.

An update can be finite and still be no use: numbers of 1e38 make the next rounds, and checkpoints, worthless. So there
is a distance that no honest training comes near to (`Reach`), whatever else a scenario says.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from coordinator.aggregation.server import Model, ServerStrategy, check_reply
from coordinator.records.schema import FAILED, NO_OP, TRAIN, UPDATE_REJECTED
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.config import Section
from edge.protocol.fixed_point import FixedPointSum
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import MODEL, Floats, Payload, Vector

LARGEST_NUMBER = 1e45
"""Of what a visit reports: losses are means of float32 numbers, which end at 3.4e38."""

_log = logging.getLogger("fedbr.faults")


class InvalidUpdate(Exception):  # noqa: N818 - what it is, wherever it comes from
    """An update that ends the run; the text names client, round and reason."""


@dataclass(frozen=True)
class UpdateChecks(Section):
    """What becomes of updates that cannot be used, and of clients that no worker can train."""

    on_bad_update: Literal["stop", "reject", "zero"] = "stop"
    """An update of wrong shape, with NaN or Inf, or beyond ``max_norm``: ends the run; does not count; or counts as one
    that changed nothing."""
    max_norm: Annotated[float | None, Field(gt=0)] = None
    """How far an update may be from the model that the visit began with (L2); by default any distance."""
    max_growth: Annotated[float, Field(gt=0)] = 1000.0
    """And how far in any case, as a multiple of `Reach.scale`: no honest training comes near to it, but finite rubbish
    does."""
    on_bad_client: Literal["stop", "skip"] = "stop"
    """A visit that ended three workers in a row: ends the run; or does not count."""

    @property
    def stops(self) -> bool:
        """Whether each of them ends the run."""
        return self.on_bad_update == "stop" and self.on_bad_client == "stop"


@dataclass(frozen=True)
class Reach:
    """How far a visit can lead: sizes of what it starts from, and of what it can change in its steps."""

    initial_norm: float
    """L2 norm of the model before round 0: the present one may have grown by what is to be found here."""
    parameters: int
    """Numbers in the model."""
    moved: float
    """Times that a visit moves along a gradient that stays the same, times the step size."""

    @property
    def scale(self) -> float:
        """What an update is measured by: the initial model, and steps along gradients of which each number is 1."""
        return self.initial_norm + self.moved * math.sqrt(self.parameters)


def validate(
    faults: UpdateChecks, server: ServerStrategy, reply: Update, visit: PlannedVisit, base: Model, reach: Reach
) -> tuple[str, Update]:
    """(kind of the visit, what counts of its reply); only of the kinds `TRAIN` and `NO_OP` does anything count.

    ``base``: the global model at the visit's beginning. Raises `InvalidUpdate` where faults end the run.
    """
    by = f" (trained by {reply.by})" if reply.by else ""
    if not reply.numbers:  # no worker could train it
        whose = f"client {visit.client}, {server.setup.numbering} {visit.rng_round}"
        if faults.on_bad_client == "stop":
            raise InvalidUpdate(f"{whose}: it reports no numbers{by}")
        _log.warning("%s: skipped", whose)
        return FAILED, reply
    problem = unusable(faults, server, reply, base, reach)
    if problem is None:
        return TRAIN, reply
    if faults.on_bad_update == "stop":
        raise InvalidUpdate(problem + by)
    _log.warning("%s: %s%s", "counts as no change" if faults.on_bad_update == "zero" else "refused", problem, by)
    return (NO_OP, no_op_update(server, reply, base)) if faults.on_bad_update == "zero" else (UPDATE_REJECTED, reply)


def unusable(faults: UpdateChecks, server: ServerStrategy, reply: Update, base: Model, reach: Reach) -> str | None:
    """Why an update cannot be used, or None: its shapes, what is not finite, and how far it is from its beginning."""
    problem = check_reply(server, reply)
    if problem is not None:
        return problem
    whose = f"client {reply.client}, {server.setup.numbering} {reply.round}"
    for name, number in reply.numbers.items():
        if abs(number) > LARGEST_NUMBER:
            return f"{whose}: {name} = {number:g} is more than any training reports"
    return too_far(faults, whose, reply.payload, base, reach)


def too_far(faults: UpdateChecks, whose: str, payload: Payload, base: Model, reach: Reach) -> str | None:
    """Why these vectors are further from the model, or from zero in other slots, than any training leads; or None."""
    bound = faults.max_growth * reach.scale
    for slot, named in payload.items():
        if slot != MODEL:  # such as gradients, which are changes over what was moved
            other = bound / min(1.0, reach.moved) if reach.moved > 0 else bound
            norm = _norm([vector.data for vector in named.values()])
            if not norm <= other:
                return f"{whose}: the norm of {slot} is {norm:.6g}, more than {other:.6g} ({_why(faults, reach)})"
            continue
        for key, vector in named.items():  # what a client keeps, no shapes may be known of
            if key not in base or vector.data.size != base[key].data.size:
                return f"{whose}: {slot}/{key} of {vector.data.size} numbers is no vector of the model"
        norm = _distance(named, base)
        most = faults.max_norm
        if most is not None and not norm <= most:
            return f"{whose}: changes the model by a norm of {norm:.6g}, more than faults.max_norm = {most:g}"
        if not norm <= bound:
            return f"{whose}: changes the model by a norm of {norm:.6g}, more than {bound:.6g} ({_why(faults, reach)})"
    return None


def _why(faults: UpdateChecks, reach: Reach) -> str:
    return f"faults.max_growth = {faults.max_growth:g} times {reach.scale:.6g}; training diverged?"


def sums_too_far(faults: UpdateChecks, totals: Totals, share: float, base: Model, reach: Reach) -> str | None:
    """Why sums of updates of clients with this part of the mean cannot be those of honest training, or None."""
    summed = {
        slot: {key: Vector(FixedPointSum(total).vector()) for key, total in named.items()}
        for slot, named in totals.items()
    }
    part = {key: Vector(vector.data * np.float32(share)) for key, vector in base.items()}
    whole = replace(reach, initial_norm=reach.initial_norm * share, moved=reach.moved * share)
    limit = replace(faults, max_norm=None if faults.max_norm is None else faults.max_norm * share)
    return too_far(limit, f"sums of clients with {share:.6g} of the mean", summed, part, whole)


def _distance(named: Mapping[str, Vector], base: Model) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # then it is inf or NaN, and so beyond any bound
        return _norm([vector.data - base[key].data for key, vector in named.items()])


def _norm(vectors: Sequence[Floats]) -> float:
    """The L2 norm of all numbers together."""
    with np.errstate(over="ignore"):
        squares = sum(float(np.dot(numbers, numbers)) for numbers in vectors)
    if math.isinf(squares):  # in float32, which ends at the square of 1.8e19
        squares = sum(float(np.square(numbers, dtype=np.float64).sum()) for numbers in vectors)
    return math.sqrt(squares)


def no_op_update(server: ServerStrategy, reply: Update, base: Model) -> Update:
    """The reply of a client that has learned nothing: the model as it was, and zeros for all else."""
    payload: Payload = {
        slot: {key: base[key] if slot == MODEL else Vector(np.zeros(size, np.float32)) for key, size in named.items()}
        for slot, named in server.up_shapes().items()
    }
    numbers = {name: number if math.isfinite(number) else 0.0 for name, number in reply.numbers.items()}
    return Update(reply.client, reply.round, numbers, payload)
