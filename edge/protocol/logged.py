"""The numbers that a method logs by name, on the server's and on the clients' side. Telemetry: nothing depends on them.

They travel in the envelopes of updates, or as columns of batches, which are charged to nobody. Never torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from edge.protocol.bounds import check_numbers, is_bounded
from edge.protocol.wire import expect

MOST_NAMES = 64
"""Names of one visit, and of one round on the server's side."""
NAME = re.compile(r"[a-z0-9_.-]{1,64}")
LoggedName = Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]


class NumberLog:
    """Base of the sides of methods and corrections: `log` is theirs to call, and not to override."""

    def log(self, name: str, value: Any) -> None:
        """Log a number of this visit, on a client's side, or of this round, on the server's; the last of a name counts.

        ``value``: anything that ``float`` takes, such as a tensor of one number; if it is not finite, the ledger has
        NULL. ValueError for a name of other characters than a-z, 0-9, ``_``, ``.`` and ``-``, or of more than 64, for
        more than `MOST_NAMES` names, and for a number beyond those that a run records (`edge.protocol.bounds`).
        """
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ValueError(f"log: {name!r}: a name is 1 to 64 of the characters a-z, 0-9, _, . and -")
        logged: dict[str, float] = self.__dict__.setdefault("_logged", {})
        if name not in logged and len(logged) == MOST_NAMES:
            raise ValueError(f"log: {name!r}: at most {MOST_NAMES} names")
        number = float(value)
        try:
            check_numbers({name: number})
        except ValueError as error:
            raise ValueError(f"log: {error}") from None
        logged[name] = number if math.isfinite(number) else math.nan

    def take_logged(self) -> dict[str, float]:
        """The numbers that were logged since the last call, NaN for one that was not finite."""
        logged: dict[str, float] = self.__dict__.pop("_logged", {})
        return logged


def joined(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of a method's parts. ValueError for a name that two of them log, and for too many together."""
    together: dict[str, float] = {}
    for part in parts:
        twice = sorted(together.keys() & part.keys())
        if twice:
            raise ValueError(f"log: {twice[0]!r} is logged by two parts of the method")
        together |= part
    if len(together) > MOST_NAMES:
        raise ValueError(f"log: {len(together)} names of all parts of the method; at most {MOST_NAMES}")
    return together


def expect_recordable(what: str, numbers: Iterable[float]) -> None:
    """WireError for logged numbers beyond those that a run records: those that are not finite travel as NaN."""
    for number in numbers:
        expect(math.isnan(number) or is_bounded(number), what, number)
