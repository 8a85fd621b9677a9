"""Names of the files in a run's ``state``, ``checkpoints`` and ``vectors``.

Only files of these names are ever removed, and a ledger that names others was not written by a run.
"""

from __future__ import annotations

import re

STATE, CHECKPOINTS, VECTORS = PLACES = ("state", "checkpoints", "vectors")
"""Folders of the files that a ledger names in its tables ``states``, ``checkpoints`` and ``client_vectors``."""
_NUMBER = "(?:0|[1-9][0-9]*)"
_PATTERNS = {
    STATE: rf"(?:{_NUMBER}|global)-{_NUMBER}\.safetensors",
    VECTORS: rf"{_NUMBER}-[a-z][a-z0-9_]*-{_NUMBER}\.safetensors",
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


def of_vectors(client: int, slot: str, version: int) -> str:
    """A version of the server's vectors of a client in one slot: 1, 2, .."""
    return f"{client}-{slot}-{version}.safetensors"


def version(name: str | None) -> int:
    """The version in a name of `of_vectors`; 0 for None."""
    return 0 if name is None else int(name.removesuffix(".safetensors").rpartition("-")[2])


def is_valid(folder: str, name: object) -> bool:
    """Whether a run would write a file of this name in this folder."""
    return isinstance(name, str) and re.fullmatch(_PATTERNS[folder], name) is not None


def is_ours(folder: str, name: str) -> bool:
    """Whether a run has written this file, finished or in part (`edge.protocol.files`)."""
    return is_valid(folder, re.sub(r"(\.[0-9]+)?\.part\Z", "", name))
