"""The options of HeteroFL, which FedRolex has without the scaler, one object for both sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


class MaskedOptions(Options):
    """Of methods whose clients may leave classes out that they have no example of."""

    mask: bool = Field(default=False)
    """Masked cross-entropy: logits of classes that a client has no example of are 0 in training, and rows of the last
    layer count for clients that have some alone. The paper has it for non-IID clients."""


class HeteroFLOptions(MaskedOptions):
    """Local training of a part of the model."""

    statistics: Literal["static", "running"] = Field(default="static")
    """Of BatchNorm. static: running statistics do not travel; each evaluation computes them for every rate by a pass
    over the clients' training examples, which is charged where ``eval.charged`` is true. running: they are averaged as
    parameters are, those of all widths together; neutral at rate 1."""
    scaler: bool | None = Field(default=None)
    """A part of rate r divides the outputs of its hidden layers by r in training, so that the next layer gets numbers
    as large as in the whole model. By default in models with normalisation, which the paper's have: without any, the
    factors of all layers multiply, and training diverges."""
