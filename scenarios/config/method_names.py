"""The method that a scenario names, and hints at the key that a name belongs to if it is no method's.

Papers call a server optimizer or a round policy a method, too (FedAdam, FedAsync), which here have keys of their own.
"""

from __future__ import annotations

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, Method, resolve
from coordinator.rounds.policy import POLICIES
from edge.protocol.plugins import is_own
from edge.protocol.spelling import closest

ELSEWHERE = {
    **dict.fromkeys(SERVER_OPTIMIZERS, ("server optimizer", "server")),
    **dict.fromkeys(POLICIES, ("round policy", "rounds.policy")),
}
"""Name of a row that is no method -> (its kind, the key that takes it)"""


def named_method(name: str) -> Method:
    """The method of this name; ValueError with the nearest known name, or with the key that takes such a name."""
    try:
        return resolve(name)
    except ValueError:
        for part in (part.strip() for part in name.split("+")):
            if hint := _hint(part):
                raise ValueError(f"no method {part!r}; {hint}") from None
        raise


def _hint(part: str) -> str | None:
    methods = {*OBJECTIVES, *CORRECTIONS}
    near = closest(part, [*methods, *ELSEWHERE])
    if not part or part in methods or is_own(part) or near not in ELSEWHERE:
        return None
    kind, key = ELSEWHERE[near]
    return f"{near} is a {kind}: {key} = {near!r}"
