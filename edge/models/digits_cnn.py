"""A small CNN for 8x8 images, four blocks, by default without normalisation.

Three 3x3 convolutions with padding (w, 2w, 2w channels; 2x2 max-pool after the second and third) and a linear layer;
w = 16 and 10 classes give 15,338 parameters. Each max-pool comes before its ReLU, for the reason that `edge.models.cnn`
gives.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import conv_norm


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, channels, 8, 8) -> (batch, classes)."""
    assert width is not None
    return [
        ("conv1", [nn.Sequential(*conv_norm(norm, channels, width, 3), nn.ReLU())]),  # (w, 8, 8)
        ("conv2", [nn.Sequential(*conv_norm(norm, width, 2 * width, 3), nn.MaxPool2d(2), nn.ReLU())]),
        (
            "conv3",
            [nn.Sequential(*conv_norm(norm, 2 * width, 2 * width, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())],
        ),
        ("head", [nn.Linear(8 * width, classes)]),  # 2w channels of 2x2
    ]
