"""A user's rows, without torch: the modules of `own_nets` as models."""

from __future__ import annotations

from edge.models.registry import ModelRow, module_row

NETS = "tests.plugins.own_nets"
PARTS = {"stem": "conv+norm+act", "deep": ["deep"], "head": "flat+fc"}


def image_row(name: str) -> ModelRow:
    """The row of one of the modules for images of 8x8."""
    return module_row(name, f"{NETS}:{name}", PARTS, shape=(8, 8), width=4)


CONV_NET = image_row("ConvNet")
