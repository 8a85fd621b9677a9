"""The method that a scenario names, and hints at the key that a name belongs to if it is no method's.

Papers call a server optimizer or a round policy a method, too (FedAdam, FedAsync), which here have keys of their own.
"""

from __future__ import annotations

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, Method, resolve
from edge.protocol.plugins import is_own
from edge.protocol.spelling import closest
from scenarios.config.plugin_points import BY_KEY

METHODS_ELSEWHERE = ("server", "rounds.policy")
"""Keys whose rows papers call methods"""


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
    elsewhere = {name: BY_KEY[key] for key in METHODS_ELSEWHERE for name in BY_KEY[key].shipped}
    near = closest(part, [*methods, *elsewhere])
    if not part or part in methods or is_own(part) or near not in elsewhere:
        return None
    return f"{near} is a {elsewhere[near].noun}: {elsewhere[near].key} = {near!r}"
