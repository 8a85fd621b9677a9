"""The options of SCAFFOLD, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class ScaffoldOptions(Options):
    """c_i − c is subtracted from every local gradient."""

    lean: bool = Field(default=False)
    """Whether the server computes Δc_i from the uploaded model; else clients send it, as in the paper, and are charged
    for it."""
