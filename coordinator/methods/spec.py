"""What a method's row says. Torch-free: the client half is named by a dotted string.

A row names its two halves, its options, what travels, how often each block runs each kind of pass, and how it is
evaluated. `Objective` rows stand alone; `Correction` rows join any objective (``fedmlb+fedprox``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from coordinator.aggregation import block_exchange
from coordinator.aggregation.server import Part, Server
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, KINDS, Layout

Passes = NDArray[np.float64]
"""(blocks, 4): how often each block runs each kind of pass (`edge.protocol.payload`)."""
Chosen = Mapping[str, int]


class Options(BaseModel):
    """Hyperparameters of a method; subclasses add fields, each with its range and meaning of 0.

    ``title`` of a field is the paper's symbol.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def check(self, blocks: int) -> None:
        """Raise ValueError, naming the key, for values that a model of so many blocks does not allow."""

    def check_asynchronous(self) -> None:
        """Raise ValueError, naming the key, for values that mean nothing where visits begin and end one by one."""


def plain_passes(blocks: int) -> Passes:
    """One ordinary training step: every pass once, but no gradient for the images themselves."""
    passes = np.ones((blocks, KINDS))
    passes[0, INPUT_GRADIENT] = 0
    return passes


def add_frozen_suffix(passes: Passes, pathway: int, gradient: bool = True) -> None:
    """Count a pathway through frozen blocks after block ``pathway``: forward and input gradient, no weight gradient."""
    passes[pathway:, FORWARD] += 1
    if gradient:
        passes[pathway:, [INNER_GRADIENT, INPUT_GRADIENT]] += 1


def taught_passes(blocks: int, through: int) -> Passes:
    """An ordinary training step, and a frozen teacher that runs forward, without gradient, through the first blocks."""
    total = plain_passes(blocks)
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
class Objective:
    """A method by its local objective and server half. Defaults are FedAvg's."""

    name: str
    title: str
    source: str
    """Authors, venue, year."""
    options: type[Options]
    neutral: str
    """Which options give FedAvg."""
    client: str = "edge.training.client_update:Local"
    """Client half, ``module:Class``."""
    server: type[Server] = Server
    down: str | None = block_exchange.EVERYTHING
    """What goes down; None where the server half chooses per visit, so that a scenario cannot override it."""
    up: str = block_exchange.EVERYTHING
    keep: Callable[[Layout, tuple[str, ...]], tuple[str, ...]] = keeps_what_does_not_arrive
    """Keys of the model that a client keeps, from the layout and what goes down."""
    keeps: bool = False
    """Whether the client half keeps vectors in slots of its own."""
    choices: tuple[str, ...] = ()
    """Names of the numbers that ride down in a dispatch."""
    reports: tuple[str, ...] = ()
    """Names of the numbers that ride up, beside those of every method."""
    reads: tuple[str, ...] = ()
    """Names of options that both halves are told too, where a correction that joins has them."""
    passes: Callable[[int, Any, Chosen], Passes] = lambda blocks, options, choice: plain_passes(blocks)
    """Passes per trained example, from (blocks, options, choice)."""
    whole_passes: Callable[[int, Any, Chosen], Passes] = lambda blocks, options, choice: np.zeros((blocks, KINDS))
    """Passes per local example once a visit, beside training."""
    nominal_alpha: Callable[[int, Any, Chosen], int] = lambda blocks, options, choice: 0
    """The alpha that FedBR's Eq. 2 would charge; 0 where there are no pathways."""
    nominal_period: Callable[[Any], int | None] = lambda options: None
    """tau of FedBR's Eq. 3; None where the whole model goes down in every round."""
    weights: Literal["size", "uniform"] = "size"
    """How replies are weighted unless the scenario says otherwise."""
    single_replies: Callable[[Any], bool] = lambda options: False
    """Whether the server half looks into single updates, beyond their weighted mean."""
    optimisers: tuple[str, ...] | None = None
    """Server optimisers that it admits, where it makes a server step of its own; None for all."""
    evaluated: Literal["global", "clients"] = "global"
    """Scored as one global model, or as the mean over clients of each one's own."""


@dataclass(frozen=True)
class Correction:
    """What joins an objective: a client half that corrects gradients, and perhaps a server part."""

    name: str
    title: str
    source: str
    options: type[Options]
    neutral: str
    """Which options give the objective alone."""
    client: str
    """Client half, ``module:Class``."""
    server: type[Part] | None = None
    keeps: bool = False
    """Whether the client half keeps vectors between visits."""
    reports: tuple[str, ...] = ()
    single_replies: bool = False
    """Whether the server part looks into single updates, beyond their weighted mean."""
    optimisers: tuple[str, ...] | None = None
    """Server optimisers that it admits, where it makes a server step of its own; None for all."""
    whole: Callable[[Any], str | None] = lambda options: None
    """Why the whole model must go down and up in every visit, as a sentence; None where it need not."""
    never_with: Mapping[str, str] = field(default_factory=dict)
    """Corrections that it cannot be joined with -> why, as a sentence."""
