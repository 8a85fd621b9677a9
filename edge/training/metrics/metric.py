"""The base of metrics. A metric sees a model and its examples, and changes neither.

Subclasses of `Metric` override one of

* ``measure``: for metrics that add up over batches (``per_example`` in their row);
* ``measure_model``: for metrics of the whole model, which may need gradients or several passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.client_update import Batches

Sums = Mapping[str, tuple[float, int]]
"""Part -> (sum, number of examples or measurements in it); part "" is the metric itself. A value is sum / number."""


class Metric:
    """One metric of one worker, made once and used for every evaluation."""

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
