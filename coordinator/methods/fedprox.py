"""FedProx: a proximal term is added to the local objective. mu = 0 is the objective alone.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from pydantic import Field

from coordinator.methods.spec import CorrectionSpec, Options


class FedProxOptions(Options):
    """(mu/2)·‖θ_i − θ‖² is added to the local objective."""

    mu: float = Field(default=0.001, ge=0, title="μ")
    """Weight of the term. FedMLB's authors search {0.1, 0.01, 0.001}; FedAlign uses 1e-4. 0 is the objective alone."""
    half: bool = True
    """Whether the term has the factor ½."""


SPEC = CorrectionSpec(
    name="fedprox",
    title="proximal term towards the received model",
    source="Li et al., MLSys 2020",
    options=FedProxOptions,
    neutral="mu = 0",
    client="edge.methods.fedprox:FedProxCorrection",
)
