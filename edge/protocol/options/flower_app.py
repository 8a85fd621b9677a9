"""The options of a method that is a Flower app."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class FlowerAppOptions(Options):
    """How an app of Flower is run."""

    run_config: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Values in place of those in the app's ``pyproject.toml``, as ``flwr run --run-config`` takes them."""
    metric: str = ""
    """The metric of the app's that is the run's accuracy; by default the first whose name has "acc" in it."""
    overhead: float = Field(default=0.0, ge=0)
    """Seconds that Flower itself adds to a visit, before its download: a deployment of 1.41 asks for messages, tasks
    and replies at intervals, and starts a process for each (docs/from-a-scenario-to-devices.md has what was
    measured)."""
    heartbeat: float = Field(default=60.0, gt=0)
    """Seconds after which a node that was lost is known to be: the app then gets an error in place of its reply.
    Flower's SuperNodes send a heartbeat every 30 s, and two may fail."""
