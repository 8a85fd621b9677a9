"""The keyword arguments that all calls take beside their own: the tables of a scenario, for editors and type checkers.

A table is given as a mapping (``train={"lr": 0.05}``) or key by key (``**{"train.lr": 0.05}``). Values may be the
things themselves (``method=MyMethod``), so that the scenario alone can check their types.
"""

from __future__ import annotations

from typing import Any, TypedDict


class _CommonKeys(TypedDict, total=False):
    """Keys and tables that every call takes, as ``fedbr list keys`` has them."""

    method: Any
    """Name or spec of a method (``fedbr list methods``), several joined with ``+``, or your own."""
    method_options: Any
    """The method's hyperparameters."""
    server: Any
    """Server optimizer (``fedbr list servers``)."""
    server_options: Any
    """The server optimizer's hyperparameters."""
    data: Any
    """Which data set, and who holds what of it."""
    model: Any
    """Which model, how wide, cut into which blocks."""
    adapter: Any
    """What of a model learns and travels, beside a frozen base that every client has."""
    split: Any
    """Which blocks clients hold, where a server trains the others with them in each local step."""
    train: Any
    """Local SGD."""
    travels: Any
    """Block exchange: which blocks are downloaded and uploaded; by default those of the method's spec."""
    codec: Any
    """How vectors of messages are compressed, in each direction."""
    submodel: Any
    """Which part of the model each client holds, for methods with sub-models."""
    aggregate: Any
    """How the server sums updates."""
    privacy: Any
    """Differential privacy of a run: whose data it hides, by how much noise, and where that is added."""
    faults: Any
    """How a run treats updates that cannot be used, and clients that no worker can train."""
    rounds: Any
    """A round policy. Fields whose text begins with names of policies are used by these alone."""
    stop: Any
    """When a run has reached its goal."""
    budget: Any
    """Budgets of all clients together, and of each client."""
    tiers: Any
    """When aggregators meet what is above them, in fleets with tiers (``fleet.tiers``)."""
    eval: Any
    """When, by which metrics and on which examples which models are evaluated."""
    checkpoints: Any
    """The checkpoints that a run keeps, for ``fedbr replay --measure``."""


class KeysButSeed(_CommonKeys, total=False):
    """Keys of calls that have a ``seed`` of their own."""

    fleet: Any
    """Devices and networks of the clients (``fedbr list devices``, ``fedbr list networks``)."""


class KeysButFleet(_CommonKeys, total=False):
    """Keys of calls that have a ``fleet`` of their own."""

    seed: Any
    """Seed of all random draws of the run."""


class Keys(KeysButSeed, KeysButFleet, total=False):
    """All of them."""
