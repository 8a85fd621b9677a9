"""The options of Class-share calibration, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


class CalibratedOptions(Options):
    """tau * log(client's share of c) is added to the logit of class c, on every path of a training loss."""

    tau: float = Field(default=1.0, ge=0, le=1e6, title="τ")
    """Weight of the shift. Menon et al. use 1; 0 is the objective alone."""
    form: Literal["shares", "margin"] = "shares"
    """shares: log of the class shares; margin: FedLC's, minus the number of the class's examples to the power -1/4."""
