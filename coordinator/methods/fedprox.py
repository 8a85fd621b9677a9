"""FedProx: a proximal term is added to the local objective. mu = 0 is the objective alone.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from coordinator.methods.spec import CorrectionSpec
from edge.protocol.options.fedprox import FedProxOptions

SPEC = CorrectionSpec(
    name="fedprox",
    title="proximal term towards the received model",
    source="Li et al., MLSys 2020",
    options=FedProxOptions,
    takes_losses=lambda options: True,
    neutral="mu = 0",
    client="edge.methods.fedprox:FedProxCorrection",
)
