"""The options of FedAMP, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


class FedAMPOptions(Options):
    """(λ/2α_k)·‖w − u_i‖² is added to the local objective."""

    lam: float = Field(default=0.1, ge=0, title="λ")
    """Weight of the pull to u_i, divided by α_k; 0 trains each client alone. Tune it, within {1e-3, 1e-2, 0.1, 1}."""
    attention: Literal["cosine", "distance"] = "cosine"
    """Weights of other clients: by the cosine of the models (heuristic), or by A' of their squared distance."""
    sigma: float = Field(default=25.0, gt=0, title="σ")
    """Scale of the attention. For distances, PFLlib takes 1."""
    self_weight: float | None = Field(default=None, ge=0, le=1, title="ξ_ii")
    """cosine: weight of the client's own model; by default 1 over the number of stored models."""
    alpha_k: float = Field(default=1.0, gt=0, title="α_k")
    """Step size of the attention, and divisor of λ. FLGo takes 1e4."""
    alpha_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on α_k every ``alpha_rounds`` rounds. FLGo takes 0.1."""
    alpha_rounds: int = Field(default=30, ge=1)
    """Rounds between these."""
    start: Literal["own", "cloud"] = "own"
    """Start of local training: the client's own model w_i, or u_i."""
