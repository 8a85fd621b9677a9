"""The options of pFedMe, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class PFedMeOptions(Options):
    """θ ≈ argmin f_i(θ) + (λ/2)·‖θ − w‖² per minibatch, and w ← w − ηλ(w − θ). Defaults of the authors' code."""

    inner_steps: int = Field(default=5, ge=1, title="K")
    """Steps of θ on each minibatch. With 1, and lam times outer_lr = 1, it is FedAvg with uniform weights."""
    lam: float = Field(default=15.0, ge=0, title="λ")
    """Pull of the personal model towards the global one; with 0 the global model never moves."""
    outer_lr: float = Field(default=0.005, ge=0, title="η")
    """Step size of the local version of the global model; outer_lr times lam = 1 sets it to the personal model."""
    beta: float = Field(default=1.0, ge=0, title="β")
    """Server mix: the part of the way to the clients' mean that the global model moves; 0: none."""
    reset: bool = False
    """Whether θ starts from w again in each minibatch, and not in each visit alone."""
