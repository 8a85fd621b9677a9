"""A loss of a user's own: squared errors that weigh three times as much where too little was foreseen."""

from __future__ import annotations

from edge.protocol.losses import LossRow
from edge.protocol.plugins import PluginOptions


class ExpectileOptions(PluginOptions):
    above: float = 3.0
    """Weight of errors above the forecast"""


ROW = LossRow(
    "expectile", "asymmetric squares", "test", ExpectileOptions, "tests.plugins.expectile_loss:each", "numbers", "r2"
)
