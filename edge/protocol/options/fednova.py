"""The options of FedNova, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


class FedNovaOptions(Options):
    """θ ← θ − τ_eff Σ p_i (θ − θ_i)/a_i, with p_i the fractions of the examples and a_i the clients' normalisers."""

    effective_steps: Literal["auto", "normalisers", "steps"] = Field(default="auto", title="τ_eff")
    """The mean of the normalisers a_i, or of the clients' steps; auto: normalisers, or steps if fedprox's mu > 0."""
