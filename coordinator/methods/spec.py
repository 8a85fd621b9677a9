"""What a method's row says. Torch-free: the client side is named by a dotted string.

A spec names its client side and its server side, its options, what travels, how often each block runs each kind of
pass, how it is evaluated, and what ledger, live table and report show of it beside what they show of every method.
`ObjectiveSpec` stands alone; `CorrectionSpec` joins any objective (``fedmlb+fedprox``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from coordinator.aggregation import block_exchange
from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.records.schema import MethodTable
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, PASS_TYPES, Layout

PassCounts = NDArray[np.float64]
"""(blocks, 4): how often each block runs each kind of pass (`edge.protocol.payload`)."""
ChosenBlocks = Mapping[str, int]


class Options(BaseModel):
    """Hyperparameters of a method; subclasses add fields, each with its range and meaning of 0.

    ``title`` of a field is the paper's symbol.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def check(self, blocks: int) -> None:
        """Raise ValueError, naming the key, for values that a model of so many blocks does not allow."""

    def check_asynchronous(self) -> None:
        """Raise ValueError, naming the key, for values that mean nothing where visits begin and end one by one."""


def fedavg_pass_counts(blocks: int) -> PassCounts:
    """One ordinary training step: every pass once, but no gradient for the images themselves."""
    passes = np.ones((blocks, PASS_TYPES))
    passes[0, INPUT_GRADIENT] = 0
    return passes


def add_frozen_suffix(passes: PassCounts, pathway: int, gradient: bool = True) -> None:
    """Count a pathway through frozen blocks after block ``pathway``: forward and input gradient, no weight gradient."""
    passes[pathway:, FORWARD] += 1
    if gradient:
        passes[pathway:, [INNER_GRADIENT, INPUT_GRADIENT]] += 1


def distillation_pass_counts(blocks: int, through: int) -> PassCounts:
    """An ordinary training step, and a frozen teacher that runs forward, without gradient, through the first blocks."""
    total = fedavg_pass_counts(blocks)
    total[:through, FORWARD] += 1
    return total


def check_inner(key: str, what: str, wanted: Sequence[int], blocks: int) -> None:
    """ValueError, naming the key, unless these are distinct numbers in 1..M-1; ``what`` each of them stands for."""
    for m in wanted:
        if not 1 <= m < blocks:
            raise ValueError(f"{key}: {m} is not in 1..{blocks - 1}, the model has {blocks} blocks")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"{key}: {list(wanted)} names a {what} twice")


def keeps_what_does_not_arrive(layout: Layout, down: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a client must keep because no message brings them."""
    return tuple(key for key in layout.sizes if key not in down)


@dataclass(frozen=True)
class ProgressColumn:
    """A column of the method's table that the live table shows: how many visits of a round have each value."""

    column: str
    values: Callable[[int], range]
    """Those shown, from the number of blocks."""


@dataclass(frozen=True)
class MethodFigure:
    """A figure of the report, drawn from the method's table, with two panels per run over its rounds."""

    title: str
    text: str
    """What a reader sees in it."""
    counted: str
    """Left: clients by the value of this column, stacked."""
    symbol: str
    """Of that value in the legend."""
    counted_title: str
    averaged: Mapping[str, str]
    """Right: column -> its name in the legend; means over clients."""
    averaged_title: str
    marked: tuple[str, str] | None = None
    """(column, name in the legend): rounds in which it is not 0 are marked on the left."""


@dataclass(frozen=True)
class ObjectiveSpec:
    """A method by its local objective and server side. Defaults are FedAvg's."""

    name: str
    title: str
    source: str
    """Authors, venue, year."""
    options: type[Options]
    neutral: str
    """Which options give FedAvg."""
    client: str = "edge.training.client_update:ClientUpdate"
    """Client side, ``module:Class``."""
    server: type[ServerStrategy] = ServerStrategy
    down: str | None = block_exchange.EVERYTHING
    """What goes down; None where the server side chooses per visit, so that a scenario cannot override it."""
    up: str = block_exchange.EVERYTHING
    kept_blocks: Callable[[Layout, tuple[str, ...]], tuple[str, ...]] = keeps_what_does_not_arrive
    """Keys of the model that a client keeps, from the layout and what goes down."""
    has_client_state: bool = False
    """Whether the client side keeps vectors in slots of its own."""
    choices: tuple[str, ...] = ()
    """Names of the numbers that ride down in a dispatch."""
    reports: tuple[str, ...] = ()
    """Names of the numbers that ride up, beside those of every method."""
    table: MethodTable | None = None
    """The ledger table of its own: what its server side's `feedback` returns."""
    progress: ProgressColumn | None = None
    """What the live table shows of that table."""
    figure: MethodFigure | None = None
    """What the report shows of that table."""
    reads: tuple[str, ...] = ()
    """Names of options that both sides are told too, where a correction that joins has them."""
    pass_counts: Callable[[int, Any, ChosenBlocks], PassCounts] = lambda blocks, options, choice: fedavg_pass_counts(
        blocks
    )
    """Passes per trained example, from (blocks, options, choice)."""
    once_per_visit_pass_counts: Callable[[int, Any, ChosenBlocks], PassCounts] = lambda blocks, options, choice: (
        np.zeros((blocks, PASS_TYPES))
    )
    """Passes per local example once a visit, beside training."""
    nominal_alpha: Callable[[int, Any, ChosenBlocks], int] = lambda blocks, options, choice: 0
    """The alpha that FedBR's Eq. 2 would charge; 0 where there are no pathways."""
    nominal_period: Callable[[Any], int | None] = lambda options: None
    """tau of FedBR's Eq. 3; None where the whole model goes down in every round."""
    weights: Literal["size", "uniform"] = "size"
    """How replies are weighted unless the scenario says otherwise."""
    needs_individual_updates: Callable[[Any], bool] = lambda options: False
    """Whether the server side looks into single updates, beyond their weighted mean."""
    server_optimizers: tuple[str, ...] | None = None
    """Server optimisers that it admits, where it makes a server step of its own; None for all."""
    evaluated: Literal["global", "clients"] = "global"
    """Scored as one global model, or as the mean over clients of each one's own."""


@dataclass(frozen=True)
class CorrectionSpec:
    """What joins an objective: a client side that corrects gradients, and perhaps a server part."""

    name: str
    title: str
    source: str
    options: type[Options]
    neutral: str
    """Which options give the objective alone."""
    client: str
    """Client side, ``module:Class``."""
    server: type[ServerExtension] | None = None
    has_client_state: bool = False
    """Whether the client side keeps vectors between visits."""
    reports: tuple[str, ...] = ()
    needs_individual_updates: bool = False
    """Whether the server part looks into single updates, beyond their weighted mean."""
    server_optimizers: tuple[str, ...] | None = None
    """Server optimisers that it admits, where it makes a server step of its own; None for all."""
    needs_full_model: Callable[[Any], str | None] = lambda options: None
    """Why the whole model must go down and up in every visit, as a sentence; None where it need not."""
    incompatible: Mapping[str, str] = field(default_factory=dict)
    """Corrections that it cannot be joined with -> why, as a sentence."""
