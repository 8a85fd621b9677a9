"""Whether code that a scenario or a run names may be imported: checks that whoever reads one puts around that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[str], None] | None] = ContextVar("check", default=None)


@contextmanager
def checked(check: Callable[[str], None]) -> Iterator[None]:
    """Within it, `expect_allowed`, which `edge.protocol.plugins.load` calls first, calls ``check`` with a name; that
    may raise ValueError.

    The checks of blocks around this one come before it.
    """
    outer = _check.get()

    def both(name: str) -> None:
        if outer is not None:
            outer(name)
        check(name)

    before = _check.set(both)
    try:
        yield
    finally:
        _check.reset(before)


def expect_allowed(name: str) -> None:
    """ValueError for code of this name, a module or a Flower app, that `checked` does not allow."""
    if (check := _check.get()) is not None:
        check(name)
