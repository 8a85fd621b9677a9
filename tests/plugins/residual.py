"""A user's row of a small model with two residual units, for methods that act on these."""

from __future__ import annotations

from edge.models.registry import ModelRow

BLOCKS = ("stem", "stage1", "stage2", "head")
ROW = ModelRow(
    "residual", "two residual units", "conv", "tests.plugins.residual_net:stages", (8, 8), 4, False, BLOCKS, 4
)
