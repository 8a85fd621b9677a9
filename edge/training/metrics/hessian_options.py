"""The options of the metric ``hessian``. No torch in this file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.plugins import PluginOptions
from edge.training.metrics.diagonals import Pairs


class HessianOptions(PluginOptions):
    """What FedAlign's Table 1 measures, with fixed examples without augmentation."""

    diag: Literal["per_tensor", "per_parameter"] = "per_tensor"
    """D of H_N and H_D: the traces of the tensors of parameters, as in FedAlign's code; or the Hessian's diagonal, as
    in the paper, with all ``probes``. The latter is a vector per client, which ``fedbr measure`` alone collects."""
    pairs: Pairs = "all"
    """Pairs of clients in H_N and H_D: the whole matrix, as in FedAlign's code, or different clients."""
    data: Literal["global", "client"] = "global"
    """Training examples on which a client's model is measured: of all clients, as in FedAlign's code, or its own."""
    examples: int = Field(default=640, ge=1)
    """Most training examples, drawn once with the seed; FedAlign's code has 10 batches of 64."""
    batch: int = Field(default=64, ge=1)
    """Examples that are differentiated together; it bounds the memory."""
    iterations: int = Field(default=100, ge=1, le=100_000)
    """Most iterations for the eigenvalue."""
    probes: int = Field(default=100, ge=1, le=100_000)
    """Most probes for trace and diagonal."""
    tolerance: float = Field(default=1e-3, ge=0, lt=1)
    """Relative change of an estimate at which it ends."""
