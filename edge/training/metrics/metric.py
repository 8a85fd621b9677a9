"""The base of metrics. A metric sees a model and its examples, and changes neither.

Subclasses of `Metric` override one of

* ``measure``: for metrics that add up over batches (``per_example`` in their row);
* ``measure_model``: for metrics of the whole model, which may need gradients or several passes; with ``inputs``, which
  examples these get, and ``vectors``, what they give beside numbers.

A metric whose row has options is made with them, ``Class(options)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from edge.protocol.payload import Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches

Sums = Mapping[str, tuple[float, int]]
"""Part -> (sum, number of examples or measurements in it); part "" is the metric itself. A value is sum / number."""


@dataclass(frozen=True)
class ModelInputs:
    """The examples and draws with which a metric measures a whole model."""

    of_all: bool = False
    """Whether a client's model is measured on the examples of all clients, in place of its own"""
    most: int | None = None
    """Most examples, drawn once with the seed, the same in every round; None: all"""
    batch: int | None = None
    """Examples per batch; None: ``eval.batch``"""
    shares_draws: bool = False
    """Whether the generator is the same for all models of a round"""


class Metric:
    """One metric of one worker, made once and used for every evaluation."""

    @property
    def inputs(self) -> ModelInputs:
        """What `measure_model` gets: by default all examples of the row's split."""
        return ModelInputs()

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The sums of one batch, in inference mode.

        x (batch, ...); y (batch,) int64; logits (batch, classes) float32.
        """
        return {}

    def measure_model(self, net: BlockModel, batches: Batches, rng: np.random.Generator) -> Sums:
        """The sums of one model, in evaluation mode, with gradients for all parameters enabled.

        ``batches``: each call goes over the examples once, in order. ``rng``: its own, keyed by round and client. Free
        to use ``net.grad``; every vector of the model must be left as it was.
        """
        return {}

    def vectors(self) -> Mapping[str, Vector]:
        """Vectors of the model that was measured last, by name, for ``fedbr replay --measure``; none by default."""
        return {}
