"""An observer of runs that is made of functions."""

from __future__ import annotations

from collections.abc import Callable

from scenarios.run.observer import RunObserver


class Listener(RunObserver):
    """Calls these functions in place of its methods."""

    def __init__(self, **hooks: Callable[..., object]) -> None:
        vars(self).update(hooks)
