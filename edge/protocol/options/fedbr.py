"""The options of FedBR, one object for both of its sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from edge.protocol.options.base import Options

Bonus = Literal["printed", "root"]
Normalise = Literal["max", "min-max", "mean", "z-score"]

TUNED: Mapping[str, Any] = {"alpha": 2, "period": 1, "lambda2": 0.0}
"""Options of `FedBROptions.preset` = "tuned", for calibrated logits and BatchNorm (docs/evidence/fedbr-on-trial.md)."""


class FedBROptions(Options):
    """FedBR's hyperparameters and the details its paper leaves open."""

    preset: Literal["paper", "tuned"] = "paper"
    """Defaults of the other options: as the paper has them; or as found to save bytes and time on skewed data
    (docs/evidence/fedbr-on-trial.md), which must not be given with other values."""
    alpha: Literal["gmbs", "random"] | int = Field(default="gmbs", title="α")
    """Number of downloaded global blocks: chosen by GMBS, drawn at random, or fixed in 1..M-1."""
    period: int = Field(default=3, ge=0, title="τ")
    """The whole model is downloaded every period + 1 rounds; 0: in every round."""
    schedule: Literal["text", "equation"] = "text"
    """Whole model every tau + 1 rounds (text) or every tau rounds (as Eq. 3 charges)."""
    broadcast: Literal["participants", "everyone"] = "participants"
    """Clients that download the whole model when it is due; everyone: download-only visits outside the cohort."""
    stale_after: int | None = Field(default=None, ge=0)
    """Send the whole model to a client that was absent for more rounds than this; by default never."""
    full_rounds: Literal["gmbs", "all", "silent"] = "gmbs"
    """After a full download: alpha still sets the pathways; all M-1 pathways; or GMBS gets no feedback."""
    lambda1: float = Field(default=1.0, ge=0, title="λ1")
    """Weight of the pathways' cross-entropy."""
    lambda2: float = Field(default=1.0, ge=0, title="λ2")
    """Weight of the divergence between pathways and main path."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Temperature of both sides of the divergence."""
    hybrid_ce: bool = True
    """Whether pathways have cross-entropy terms."""
    norm: Literal["used", "all", "none"] = "used"
    """Divisor of both sums: alpha, M-1, or 1."""
    kl: Literal["hybrid-local", "local-hybrid", "symmetric"] = "hybrid-local"
    """Direction of the divergence, reference first."""
    detach: bool = False
    """Whether the divergence's pathway side is a constant."""
    kl_t2: bool = False
    """Whether the divergence is multiplied by T²."""
    memory: float = Field(default=0.5, ge=0, le=1, title="λ")
    """Weight of a new reward in Eq. 6: 1 keeps only the latest, 0 learns nothing."""
    deviation: Literal["total-variation", "l2", "kl", "model", "constant"] = "total-variation"
    """d_k of Eq. 5: distance of label distributions, of models (relative to the participants' mean; in asynchronous
    policies to the mean of all visits so far), or 1."""
    drop: Literal["epochs", "exact", "visits", "absolute"] = "epochs"
    """Δζ_L of Eq. 5: first minus last local epoch; full-data loss before minus after; last visit minus this one;
    the absolute value of the first."""
    normalise: Normalise = "max"
    """Normalisation of times within a round; in asynchronous policies by the longest so far."""
    first_round: Literal[0, 1] = 0
    """First value of t in Eq. 7."""
    bonus: Bonus = "printed"
    """√(ln(t+1))/(n+1) as printed, or √(ln(t+1)/(n+1))."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, given: Any) -> Any:
        """Write out the options of the preset; ValueError for one that is given with another value."""
        if not isinstance(given, Mapping) or given.get("preset") != "tuned":
            return given
        other = next((key for key in TUNED if given.get(key, TUNED[key]) != TUNED[key]), None)
        if other is not None:
            raise ValueError(
                f'preset = "tuned" has {other} = {TUNED[other]!r}, and {given[other]!r} is given; leave one of them out'
            )
        return {**TUNED, **given}

    def check(self, blocks: int) -> None:
        """A fixed alpha must lie in 1..M-1."""
        if isinstance(self.alpha, int) and not 1 <= self.alpha < blocks:
            raise ValueError(
                f"method_options.alpha = {self.alpha}: must be in 1..{blocks - 1}, since the model has {blocks} blocks "
                f"(sending all of them is what period = 0 does)"
            )
