"""The options of FedProx, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class FedProxOptions(Options):
    """(mu/2)·‖θ_i − θ‖² is added to the local objective."""

    mu: float = Field(default=0.001, ge=0, title="μ")
    """Weight of the term. FedMLB's authors search {0.1, 0.01, 0.001}; FedAlign uses 1e-4. 0 is the objective alone."""
    half: bool = True
    """Whether the term has the factor ½."""
