"""Names of the files in a run's ``state`` and ``checkpoints``.

Only files of these names are ever removed, and a ledger that names others was not written by a run.
"""

from __future__ import annotations

import re

STATE, CHECKPOINTS = PLACES = ("state", "checkpoints")
"""Folders of the files that a ledger names in its tables ``states`` and ``checkpoints``."""
_NUMBER = "(?:0|[1-9][0-9]*)"
_PATTERNS = {
    STATE: rf"(?:{_NUMBER}|global)-{_NUMBER}\.safetensors",
    CHECKPOINTS: r"round-(?:[0-9]{6}|[1-9][0-9]{6,})\.safetensors",
}


def of_visit(client: int, rng_round: int) -> str:
    """The file of a client's state after a visit."""
    return f"{client}-{rng_round}.safetensors"


def of_broadcast(round: int) -> str:
    """The shared file of clients that only downloaded."""
    return f"global-{round}.safetensors"


def of_checkpoint(round: int) -> str:
    """The checkpoint of the end of a round."""
    return f"round-{round:06d}.safetensors"


def is_valid(folder: str, name: object) -> bool:
    """Whether a run would write a file of this name in this folder."""
    return isinstance(name, str) and re.fullmatch(_PATTERNS[folder], name) is not None


def is_ours(folder: str, name: str) -> bool:
    """Whether a run has written this file, finished or in part (`edge.protocol.files`)."""
    return is_valid(folder, re.sub(r"(\.[0-9]+)?\.part\Z", "", name))
