"""Checks of updates: those that cannot be used, and visits that no worker can train.

By default either ends the run. Otherwise such a visit does not count, or counts as a no-op update; the ledger marks it
with a kind of its own, so that no failure is silent.

A finite update can be as harmful: numbers of 1e38 make the next rounds, and checkpoints, worthless. So every update has
a bound on its norm that no honest training comes near to (`Reach`), even if the scenario sets none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import structs
from pydantic import Field

from coordinator.aggregation.server import GLOBAL, Model, Models, ServerStrategy
from coordinator.records.schema import FAILED, NO_OP, TRAIN, UPDATE_REJECTED
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.bounds import is_bounded
from edge.protocol.config import Section
from edge.protocol.fixed_point import DIVERGED, LIMIT, not_summable, sum_vector
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import MODEL, Floats, Payload, Vector, shapes, vectors

LARGEST_NUMBER = 1e45
"""Bound on the numbers that a visit reports: losses are means of float32 numbers, at most 3.4e38."""

_log = logging.getLogger("fedbr.faults")


class InvalidUpdate(Exception):  # noqa: N818 - named by what is invalid
    """An update that ends the run; the text names client, round and reason."""


@dataclass(frozen=True)
class UpdateChecks(Section):
    """How a run treats updates that cannot be used, and clients that no worker can train."""

    on_bad_update: Literal["stop", "reject", "zero"] = "stop"
    """An update of wrong shape, with NaN or Inf, or beyond ``max_norm``: ends the run, does not count, or counts as no
    change."""
    max_norm: Annotated[float | None, Field(gt=0)] = None
    """Largest L2 distance of an update from the model that its visit started from; by default unlimited."""
    max_growth: Annotated[float, Field(gt=0)] = 1000.0
    """Largest distance in any case, as a multiple of `Reach.scale`: far beyond honest training."""
    on_bad_client: Literal["stop", "skip"] = "stop"
    """A visit that ended three workers in a row: ends the run, or does not count."""


@dataclass(frozen=True)
class Reach:
    """How far a visit can move the model: the norm that it starts from, and the length of its steps."""

    initial_norm: float
    """L2 norm of the model before round 0; the current one may have grown already by the fault to be detected"""
    parameters: int
    """Number of parameters of the model"""
    moved: float
    """Steps of a visit times their step size: how far a constant gradient of 1 moves one parameter"""

    @property
    def scale(self) -> float:
        """The unit of ``max_growth``: the initial norm plus steps along a gradient whose every entry is 1."""
        return self.initial_norm + self.moved * math.sqrt(self.parameters)


def bases(server: ServerStrategy, update: Update, start: Models) -> dict[str, Model]:
    """Slot of an update -> the model that it is a new version of. ValueError if it names no model of its visit.

    ``start``: the models that the visit started from (`ServerStrategy.start_model`).
    """
    targets = server.targets(update)
    for slot, name in targets.items():
        if name not in start:
            raise ValueError(f"{slot} is a new version of {name!r}, but the visit has {', '.join(start)}")
    return {slot: start[name] for slot, name in targets.items()}


def validate(
    checks: UpdateChecks, server: ServerStrategy, reply: Update, visit: PlannedVisit, start: Models, reach: Reach
) -> tuple[str, Update]:
    """(kind of the visit, its update as it counts); updates of other kinds than `TRAIN` and `NO_OP` do not count.

    ``start``: the models that the visit started from. Raises `InvalidUpdate` if the checks end the run.
    """
    by = f" (trained by {reply.by})" if reply.by else ""
    if not reply.numbers:  # no worker could train it
        whose = server.setup.visit_name(visit.client, visit.rng_round)
        if checks.on_bad_client == "stop":
            raise InvalidUpdate(f"{whose}: it reports no numbers{by}")
        _log.warning("%s: skipped", whose)
        return FAILED, reply
    problem = unusable(checks, server, reply, start, reach) if reply.problem is None else reply.problem
    if not problem:
        return TRAIN, reply
    if checks.on_bad_update == "stop":
        raise InvalidUpdate(problem + by)
    _log.warning("%s: %s%s", "counts as no change" if checks.on_bad_update == "zero" else "rejected", problem, by)
    zeroed = no_op_update(server, reply, start) if checks.on_bad_update == "zero" else None
    return (UPDATE_REJECTED, reply) if zeroed is None else (NO_OP, zeroed)


def unusable(checks: UpdateChecks, server: ServerStrategy, reply: Update, start: Models, reach: Reach) -> str | None:
    """Why an update cannot be used, or None: checks shapes, finite numbers, and the distance from ``start``."""
    problem = check_reply(server, reply)
    if problem is not None:
        return problem
    whose = server.setup.visit_name(reply.client, reply.round)
    for name, number in reply.numbers.items():
        if abs(number) > LARGEST_NUMBER:
            return f"{whose}: {name} = {number:g} is more than any training reports"
    try:
        return too_far(checks, whose, reply.payload, bases(server, reply, start), reach)
    except ValueError as error:
        return f"{whose}: {error}"


def check_reply(server: ServerStrategy, reply: Update) -> str | None:
    """Why an update cannot be used, or None: its shapes must be the expected ones, and all numbers finite.

    In a run with partial sums an update may have no vectors; its worker has checked them.
    """
    whose = server.setup.visit_name(reply.client, reply.round)
    in_workers = server.setup.sum == "fixed_point"
    expected, got = server.part_up_shapes(reply.variant), shapes(reply.payload)
    if got != expected and (got or not in_workers):
        return f"{whose}: shapes {got} instead of {expected}"
    for name, number in reply.numbers.items():
        if not math.isfinite(number):
            return f"{whose}: {name} = {number} ({DIVERGED})"
        if not is_bounded(number):
            return f"{whose}: {name} = {number:g} is more than any training reports"
    secure = server.setup.secure
    limit = secure.limit if secure is not None else LIMIT if in_workers else math.inf
    for slot, key, vector in vectors(reply.payload):
        problem = not_summable(vector.data, limit)
        if problem is not None:
            return f"{whose}: {slot}/{key} {problem}"
    return None


def state_bases(start: Models) -> dict[str, Model]:
    """The models that the slots of a client state are versions of, among those that its visit started from."""
    return {MODEL: start[GLOBAL]} if GLOBAL in start else {}


def too_far(checks: UpdateChecks, whose: str, payload: Payload, bases: Mapping[str, Model], reach: Reach) -> str | None:
    """Why these vectors are too far from the models ``bases``, by slot, or from zero in other slots; or None."""
    bound = checks.max_growth * reach.scale
    limit = f"faults.max_growth = {checks.max_growth:g} times {reach.scale:.6g}; {DIVERGED}"
    for slot, model in payload.items():
        base = bases.get(slot)
        if base is None:  # such as gradients: changes divided by Reach.moved
            slot_bound = bound / min(1.0, reach.moved) if reach.moved > 0 else bound
            norm = _norm([vector.data for vector in model.values()])
            if not norm <= slot_bound:
                return f"{whose}: the norm of {slot} is {norm:.6g}, more than {slot_bound:.6g} ({limit})"
            continue
        for key, vector in model.items():  # shapes of client state may be unknown
            if key not in base or vector.data.size != base[key].data.size:
                return f"{whose}: {slot}/{key} of {vector.data.size} numbers is no vector of the model"
        with np.errstate(over="ignore", invalid="ignore"):  # inf and NaN are beyond any bound
            norm = _norm([vector.data - base[key].data for key, vector in model.items()])
        max_norm = checks.max_norm
        if max_norm is not None and not norm <= max_norm:
            return f"{whose}: changes the model by a norm of {norm:.6g}, more than faults.max_norm = {max_norm:g}"
        if not norm <= bound:
            return f"{whose}: changes the model by a norm of {norm:.6g}, more than {bound:.6g} ({limit})"
    return None


def sums_too_far(checks: UpdateChecks, totals: Totals, weight: float, start: Models, reach: Reach) -> str | None:
    """Why a partial sum cannot come from honest training, or None. ``weight``: of its clients, in the mean."""
    summed = {
        slot: {key: Vector(sum_vector(total)) for key, total in by_key.items()} for slot, by_key in totals.items()
    }
    weighted = {
        slot: {key: Vector(vector.data * np.float32(weight)) for key, vector in base.items()}
        for slot, base in state_bases(start).items()
    }
    limit = replace(reach, initial_norm=reach.initial_norm * weight, moved=reach.moved * weight)
    scaled = replace(checks, max_norm=None if checks.max_norm is None else checks.max_norm * weight)
    return too_far(scaled, f"sums of clients with {weight:.6g} of the mean", summed, weighted, limit)


def _norm(vectors: Sequence[Floats]) -> float:
    """The L2 norm of all numbers together."""
    with np.errstate(over="ignore"):
        squares = sum(float(np.dot(numbers, numbers)) for numbers in vectors)
    if math.isinf(squares):  # float32 overflows at the square of 1.8e19
        squares = sum(float(np.square(numbers, dtype=np.float64).sum()) for numbers in vectors)
    return math.sqrt(squares)


def no_op_update(server: ServerStrategy, reply: Update, start: Models) -> Update | None:
    """The update of a client that learned nothing: each model as it was, and zeros in all other slots.

    None if the reply does not say which model it is a new version of.
    """
    numbers = {name: number if is_bounded(number) else 0.0 for name, number in reply.numbers.items()}
    nothing = Update(reply.client, reply.round, numbers, {})
    try:
        unchanged = bases(server, nothing, start)
    except ValueError:
        return None
    payload: Payload = {
        slot: {
            key: unchanged[slot][key] if slot in unchanged else Vector(np.zeros(size, np.float32))
            for key, size in sizes.items()
        }
        for slot, sizes in server.part_up_shapes(reply.variant).items()
    }
    return structs.replace(nothing, payload=payload)
