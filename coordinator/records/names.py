"""Names of the files in a run's ``state`` and ``checkpoints``: made here, and known again here.

Only files of these names are ever removed, and a ledger that names others was not written by a run.
"""

from __future__ import annotations

import re

STATE, CHECKPOINTS = PLACES = ("state", "checkpoints")
"""Folders of a run whose files the ledger names, as its tables ``states`` and ``checkpoints`` do."""
_NUMBER = "(?:0|[1-9][0-9]*)"
_GIVEN = {
    STATE: rf"(?:{_NUMBER}|global)-{_NUMBER}\.safetensors",
    CHECKPOINTS: r"round-(?:[0-9]{6}|[1-9][0-9]{6,})\.safetensors",
}


def of_visit(client: int, turn: int) -> str:
    """What a client keeps after a visit."""
    return f"{client}-{turn}.safetensors"


def of_listeners(turn: int) -> str:
    """What all clients keep that only listened."""
    return f"global-{turn}.safetensors"


def of_checkpoint(round: int) -> str:
    """What a run is at the end of a round."""
    return f"round-{round:06d}.safetensors"


def is_given(place: str, name: object) -> bool:
    """Whether a run names a file of this place so."""
    return isinstance(name, str) and re.fullmatch(_GIVEN[place], name) is not None


def is_ours(place: str, name: str) -> bool:
    """Whether a run has written it: a file that it names so, or the beginning of one (`edge.protocol.files`)."""
    return is_given(place, re.sub(r"(\.[0-9]+)?\.part\Z", "", name))
