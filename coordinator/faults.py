"""What becomes of updates that cannot be used, and of visits that no worker can train.

By default either ends the run. Otherwise such a visit is in vain, or counts as one that changed nothing; the ledger has
it under a kind of its own, so nothing is passed over in silence.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coordinator.ledger import FAILED, REFUSED, TRAIN, ZEROED
from coordinator.server import Model, Server, check_reply
from coordinator.visits import Visit
from edge.messages import Update
from edge.payload import MODEL, Payload, Vector

_log = logging.getLogger("fedbr.faults")


class BadUpdate(Exception):  # noqa: N818 - what it is, wherever it comes from
    """An update that ends the run; the text names client, round and reason."""


@dataclass(frozen=True)
class Faults:
    """What a run does about them."""

    on_bad_update: Literal["stop", "reject", "zero"] = "stop"
    max_norm: float = math.inf
    """How far an update may be from the model that it began with, as an L2 norm over what came up."""
    on_bad_client: Literal["stop", "skip"] = "stop"

    @property
    def stops(self) -> bool:
        """Whether each of them ends the run."""
        return self.on_bad_update == "stop" and self.on_bad_client == "stop"


def judge(faults: Faults, server: Server, reply: Update, visit: Visit, base: Model) -> tuple[str, Update]:
    """(kind of the visit, what counts of its reply); only of the kinds `TRAIN` and `ZEROED` does anything count.

    ``base``: the global model at the visit's beginning. Raises `BadUpdate` where faults end the run.
    """
    if not reply.numbers:  # no worker could train it
        whose = f"client {visit.client}, {server.setup.turns} {visit.turn}"
        if faults.on_bad_client == "stop":
            raise BadUpdate(f"{whose}: it reports no numbers")
        _log.warning("%s: skipped", whose)
        return FAILED, reply
    problem = check_reply(server, reply) or _too_far(faults, server, reply, base)
    if problem is None:
        return TRAIN, reply
    if faults.on_bad_update == "stop":
        raise BadUpdate(problem)
    _log.warning("%s: %s", "counts as no change" if faults.on_bad_update == "zero" else "refused", problem)
    return (ZEROED, unchanged(server, reply, base)) if faults.on_bad_update == "zero" else (REFUSED, reply)


def _too_far(faults: Faults, server: Server, reply: Update, base: Model) -> str | None:
    if faults.max_norm == math.inf:
        return None
    named = reply.payload.get(MODEL, {})
    norm = math.sqrt(sum(_squares(vector, base[key]) for key, vector in named.items()))
    if norm <= faults.max_norm:
        return None
    whose = f"client {reply.client}, {server.setup.turns} {reply.round}"
    return f"{whose}: changes the model by a norm of {norm:.6g}, more than faults.max_norm = {faults.max_norm:g}"


def _squares(one: Vector, other: Vector) -> float:
    return float(np.square(one.data.astype(np.float64) - other.data).sum())


def unchanged(server: Server, reply: Update, base: Model) -> Update:
    """The reply of a client that has learned nothing: the model as it was, and zeros for all else."""
    payload: Payload = {
        slot: {key: base[key] if slot == MODEL else Vector(np.zeros(size, np.float32)) for key, size in named.items()}
        for slot, named in server.up_shapes().items()
    }
    numbers = {name: number if math.isfinite(number) else 0.0 for name, number in reply.numbers.items()}
    return Update(reply.client, reply.round, numbers, payload)
