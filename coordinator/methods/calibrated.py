"""Class-share calibration: the logits of training losses are shifted by the client's class shares. tau = 0 is off.

Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021, https://arxiv.org/abs/2007.07314; Zhang et al.,
Federated Learning with Label Distribution Skew via Logits Calibration (FedLC), ICML 2022,
https://arxiv.org/abs/2209.00189
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.methods.spec import CorrectionSpec, Options


class CalibratedOptions(Options):
    """tau * log(client's share of c) is added to the logit of class c, on every path of a training loss."""

    tau: float = Field(default=1.0, ge=0, le=1e6, title="τ")
    """Weight of the shift. Menon et al. use 1; 0 is the objective alone."""
    form: Literal["shares", "margin"] = "shares"
    """shares: log of the class shares; margin: FedLC's, minus the number of the class's examples to the power -1/4."""


SPEC = CorrectionSpec(
    name="calibrated",
    title="logits shifted by class shares",
    source="Menon et al., ICLR 2021; Zhang et al., ICML 2022",
    options=CalibratedOptions,
    neutral="tau = 0",
    client="edge.methods.calibrated:CalibratedCorrection",
)
