"""The variant of a visit: how it differs from others of its run beside its method's own choices. Torch-free.

A further axis is a field of `Variant`, and nothing else in messages: where bytes enter, `split` finds its fields among
the choices of a visit, and where they leave, `Variant.named` has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field, structs

from edge.protocol.wire import Count, convert


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """The part of the model and the codec that a visit has. None: visits of the run do not differ in it.

    An evaluation on the global test set has the window of its parts alone.
    """

    rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the model's channels or depths (`edge.protocol.submodels`)"""
    window: Count | None = None
    """The first channel of its part, modulo their number"""
    levels: Annotated[int, Meta(ge=1)] | None = field(default=None, name="codec levels")
    """Levels that its ``quantize`` has upwards (`edge.protocol.config.LevelsConfig`)"""

    @property
    def share(self) -> float:
        """The share of the model that it has; 1.0: all of it."""
        return 1.0 if self.rate is None else self.rate

    @property
    def shape(self) -> Variant:
        """The same without the fields on which no shape and no length depends, for tables of these."""
        return structs.replace(self, window=None)

    def named(self) -> dict[str, int | float]:
        """name -> number, of the fields that are not None: those that travel beside the method's choices."""
        if self == PLAIN:
            return {}
        return {name: getattr(self, key) for name, key in KEYS.items() if getattr(self, key) is not None}


KEYS = {each.encode_name: each.name for each in structs.fields(Variant)}
"""Name of a number of a message -> field"""
PLAIN = Variant()
"""That of visits that do not differ"""


def split(numbers: Mapping[str, Any]) -> tuple[dict[str, Any], Variant]:
    """(the method's own choices, the variant), of numbers of a message. WireError for one that no variant has."""
    choice = {name: number for name, number in numbers.items() if name not in KEYS}
    if len(choice) == len(numbers):
        return choice, PLAIN
    return choice, convert({name: numbers[name] for name in KEYS if name in numbers}, Variant, "choice")


def expect_other_names(choices: Iterable[str]) -> None:
    """ValueError for a method's choice with the name of a field."""
    for name in choices:
        if name in KEYS:
            raise ValueError(f"choice: {name}: is the name of what the run chooses for a visit; rename it")
