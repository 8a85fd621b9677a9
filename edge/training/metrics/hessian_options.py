"""The options of the metrics ``hessian`` and ``loss-surface``. No torch in this file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from edge.protocol.plugins import PluginOptions
from edge.training.metrics.diagonals import Pairs


class EigenvectorOptions(PluginOptions):
    """How eigenvectors of the Hessian are found, with fixed examples without augmentation."""

    data: Literal["global", "client"] = "global"
    """Training examples on which a client's model is measured: of all clients, as in FedAlign's code, or its own."""
    examples: int = Field(default=640, ge=1)
    """Most training examples, drawn once with the seed; FedAlign's code has 10 batches of 64."""
    batch: int = Field(default=64, ge=1)
    """Examples that are differentiated together; it bounds the memory."""
    iterations: int = Field(default=100, ge=1, le=100_000)
    """Most iterations for an eigenvalue."""
    tolerance: float = Field(default=1e-3, ge=0, lt=1)
    """Relative change of an estimate at which it ends; of the trace, that of the running mean, which can end early by
    chance, so that ``hessian/trace-error`` says how sure it is. 0: after all ``iterations`` and ``probes``."""


class HessianOptions(EigenvectorOptions):
    """What FedAlign's Table 1 measures."""

    diag: Literal["per_tensor", "per_parameter"] = "per_tensor"
    """D of H_N and H_D: the traces of the tensors of parameters, as in FedAlign's code; or the Hessian's diagonal, as
    in the paper, with all ``probes``. The latter is a vector per client, which ``fedbr replay --measure`` alone
    collects."""
    pairs: Pairs = "all"
    """Pairs of clients in H_N and H_D: the whole matrix, as in FedAlign's code, or different clients."""
    probes: int = Field(default=100, ge=1, le=100_000)
    """Most probes for trace and diagonal."""

    @property
    def measure_alone(self) -> str | None:
        """Why no run can measure with these options."""
        if self.diag == "per_tensor":
            return None
        why = "needs a vector per client, which fedbr replay --measure alone collects"
        return f"diag = per_parameter: {why}; choose per_tensor"


class SurfaceOptions(EigenvectorOptions):
    """What FedAlign's Figure 1 draws."""

    points: int = Field(default=11, ge=3, le=41)
    """Points in each direction, an odd number, so that the model itself is the middle one."""
    span: float = Field(default=0.5, gt=0)
    """Distance of the outermost points from the model, along eigenvectors of length 1."""

    @field_validator("points")
    @classmethod
    def _is_odd(cls, points: int) -> int:
        if points % 2 == 0:
            raise ValueError(f"must be odd; choose {points + 1}")
        return points
