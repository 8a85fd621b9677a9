"""The model of `tests.plugins.residual`."""

from __future__ import annotations

from torch import nn

from edge.models.layers import ResidualUnit


class OneConvolution(ResidualUnit):
    """ReLU(conv(x) + x)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Identity()


def stages(classes: int, channels: int, width: int) -> list[tuple[str, list[nn.Module]]]:
    """(batch, channels, 8, 8) -> (batch, classes)."""
    stem = nn.Sequential(nn.Conv2d(channels, 2 * width, 3, padding=1), nn.ReLU())
    units = [nn.Sequential(OneConvolution(2 * width), nn.MaxPool2d(2)) for _ in range(2)]
    head = nn.Sequential(nn.Flatten(), nn.Linear(8 * width, classes))
    return [("stem", [stem]), ("stage1", [units[0]]), ("stage2", [units[1]]), ("head", [head])]
