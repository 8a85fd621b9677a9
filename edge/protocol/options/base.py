"""The options of a method: one object for its server side and its client sides. Never torch.

The scenario's ``method_options`` are validated where it is loaded, and a worker rebuilds the object from the job: the
classes are named in it, by ``module:Class``, so that the module of a class must be one that both sides can import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from pydantic import create_model

from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    """Hyperparameters of a method; subclasses add fields, each with its range and meaning of 0.

    ``title`` of a field is the paper's symbol.
    """

    def check(self, blocks: int) -> None:
        """Raise ValueError, naming the key, for values that are invalid for this number of blocks."""


def joined(types: Iterable[type[Options]]) -> type[Options]:
    """One class with the options of an objective and of its corrections, of which an object is of each type."""
    distinct = tuple(dict.fromkeys(types))
    return _joined(tuple(kind for kind in distinct if not any(kind in other.__mro__[1:] for other in distinct)))


@cache
def _joined(bases: tuple[type[Options], ...]) -> type[Options]:
    return bases[0] if len(bases) == 1 else create_model("MethodOptions", __base__=bases)


def check_inner(key: str, noun: str, numbers: Sequence[int], blocks: int) -> None:
    """ValueError, naming the key, unless these are distinct numbers in 1..M-1. ``noun``: for one of them."""
    for m in numbers:
        if not 1 <= m < blocks:
            raise ValueError(f"{key}: {m} is not in 1..{blocks - 1}, the model has {blocks} blocks")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{key}: {list(numbers)} names a {noun} twice")
