"""The options of the decoder `edge.models.llama`. No torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from edge.protocol.plugins import PluginOptions


class LlamaOptions(PluginOptions):
    """The shape of the decoder beside its width."""

    layers: int = Field(default=2, ge=2, le=256)
    """Layers of attention and of the gated hidden units; half of them are the block ``lower``, the others ``upper``."""
    heads: int = Field(default=4, ge=1, le=256)
    """Heads of queries."""
    kv_heads: int = Field(default=2, ge=1, le=256)
    """Heads of keys and values, each of which some heads of queries share."""
    head_width: int | None = Field(default=None, ge=2, le=1024)
    """Numbers of a head, an even number; by default the width over the heads."""
    hidden: int | None = Field(default=None, ge=1, le=65_536)
    """Gated hidden units; by default 8/3 of the width, rounded up to a multiple of 8."""
    theta: float = Field(default=10_000.0, gt=0)
    """Base of the periods of rotary positions."""
    epsilon: float = Field(default=1e-5, gt=0, lt=1)
    """Added to the mean square that RMSNorm divides by."""
    tied: bool = False
    """Whether the head's products are those with the vectors of the embedding; for tokens that are foreseen."""

    @model_validator(mode="after")
    def _heads_share(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads}: must be a multiple of kv_heads = {self.kv_heads}")
        if self.head_width is not None and self.head_width % 2:
            raise ValueError(f"head_width = {self.head_width}: must be even, for pairs that rotate")
        return self
