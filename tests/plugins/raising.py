"""Rows whose hooks raise errors, or give what nothing can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.aggregation.optimizers import ServerOptimizer, ServerOptimizerRow
from coordinator.aggregation.server import ServerStrategy
from coordinator.methods.spec import ModelChange, ObjectiveSpec, Traffic
from edge.data.partition_registry import PartitionRow
from edge.data.registry import DataSet
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions


def spec(server: Any = ServerStrategy, **fields: Any) -> ObjectiveSpec:
    """A method with this server side."""
    return replace(ObjectiveSpec("raising", "raises", "a test", Options, "none", server=server), **fields)


class NoChoice(ServerStrategy):
    """Raises for client 3."""

    def choose(self, client: int, round: int) -> Mapping[str, int]:
        """KeyError for client 3."""
        if client == 3:
            raise KeyError("three")
        return {}


class NoSum(ServerStrategy):
    """Raises at the first update."""

    def accumulate(self, reply: Update) -> None:
        """ZeroDivisionError."""
        reply.numbers["loss"] / 0


class Negative(ServerStrategy):
    """Takes updates away from the mean."""

    def weight(self, reply: Update, model: str, key: str) -> float:
        """Of client 0."""
        return -1.0 if reply.client == 0 else 1.0


class NoServer(ServerStrategy):
    """Cannot be made."""

    def __init__(self, *arguments: Any) -> None:
        raise RuntimeError("not today")


class Short(ServerOptimizer):
    """Forgets the last number."""

    def __init__(self, options: PluginOptions) -> None:
        pass

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """One number less."""
        return mean[:-1]


class InPlace(Short):
    """Changes the model that others still read."""

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """The mean, in the current vector."""
        current[:] = mean
        return current


def split(*_: Any) -> Any:
    """KeyError, in another function."""
    return deeper({})


def deeper(table: Mapping[str, int]) -> int:
    """KeyError."""
    return table["absent"]


def files(places: Any) -> tuple[Path, ...]:
    """This module is its own data set's reader."""
    return (Path(__file__),)


def read(row: DataSet, paths: Any) -> Any:
    """ZeroDivisionError."""
    return 1 / row.pad


def no_blocks(options: Any) -> str:
    """OSError."""
    raise FileNotFoundError("no list of blocks")


CHOICE = spec(NoChoice)
SUM = spec(NoSum, individual_updates=lambda options: True)
SERVER = spec(NoServer)
NUMBER = spec(3)
BLOCKS = spec(traffic=Traffic(down=no_blocks))
NO_CLIENT = spec(client="tests.plugins.no_such_module:Client")
WEIGHT = spec(Negative, individual_updates=lambda options: True)
FORGETS = spec(client="tests.plugins.leaking_client:Forgets")
UNDECLARED = spec(client="tests.plugins.raising_client:Undeclared")
UNGIVEN = spec(reports=("margin",))
COUNTED = spec(client="tests.plugins.raising_client:Counted")
NO_CLIENT_SIDE = spec(client="tests.plugins.raising:NoSum")
UNTRAINED = spec(client="tests.plugins.raising_client:Untrained")
UNSPLIT = PartitionRow("unsplit", "no split", split)
UNREAD = DataSet(
    *("unread", "no examples", 4, (6,), (6,), "plain", "a test"), reader="tests.plugins.raising", kind="features"
)
NO_WRAPPER = spec(model=ModelChange(wrap_model=lambda options: "tests.plugins.no_such_module:wrap"))
SHORT = ServerOptimizerRow("short", "one number less", "a test", PluginOptions, "none", Short)
IN_PLACE = ServerOptimizerRow("in-place", "no copy", "a test", PluginOptions, "none", InPlace)
