"""Class-share calibration: the logits of training losses are shifted by the client's class shares. tau = 0 is off.

Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021, https://arxiv.org/abs/2007.07314; Zhang et al.,
Federated Learning with Label Distribution Skew via Logits Calibration (FedLC), ICML 2022,
https://arxiv.org/abs/2209.00189
"""

from __future__ import annotations

from coordinator.methods.spec import CorrectionSpec
from edge.protocol.options.calibrated import CalibratedOptions

SPEC = CorrectionSpec(
    name="calibrated",
    title="logits shifted by class shares",
    source="Menon et al., ICLR 2021; Zhang et al., ICML 2022",
    options=CalibratedOptions,
    neutral="tau = 0",
    client="edge.methods.calibrated:CalibratedCorrection",
)
