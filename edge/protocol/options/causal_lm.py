"""The options of a causal model of the library transformers. No torch."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.plugins import PluginOptions


class CausalLmOptions(PluginOptions):
    """Where the model is."""

    folder: str | None = Field(default=None)
    """Its folder; that of ``model.weights``."""
