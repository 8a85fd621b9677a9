"""The LeNet-like CNN of pFedMB for 32x32 images, five blocks, by default without normalisation.

Two 5x5 convolutions (6 and 16 channels, no padding), each with ReLU and 2x2 max-pool, then linear layers of 120, 84
and C. The ReLUs after the convolutions and the last linear layer are inferred; 10 classes and 3 channels give
62,006 parameters and 651,720 MACs.

The max-pool comes before the ReLU. Values and gradients are those of the other order to the bit, because ReLU rises and
because where the largest of four numbers is not positive no gradient passes in either order; but the ReLU then works on
a quarter of the numbers.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import conv_norm


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Five stages of one unit each: (batch, channels, 32, 32) -> (batch, classes)."""
    assert width is None, "this CNN has no width"
    return [
        (
            "conv1",
            [nn.Sequential(*conv_norm(norm, channels, 6, 5, padding=0), nn.MaxPool2d(2), nn.ReLU())],
        ),  # (6, 14, 14)
        (
            "conv2",
            [nn.Sequential(*conv_norm(norm, 6, 16, 5, padding=0), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())],
        ),  # (400,)
        ("fc1", [nn.Sequential(nn.Linear(400, 120), nn.ReLU())]),
        ("fc2", [nn.Sequential(nn.Linear(120, 84), nn.ReLU())]),
        ("head", [nn.Linear(84, classes)]),
    ]
