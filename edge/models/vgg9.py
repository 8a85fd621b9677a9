"""VGG-9, by default with GroupNorm, one of FedMLB's backbones: six convolutions, three linear layers.

Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
https://arxiv.org/abs/1409.1556; the nine layers, the normalisation and the split into blocks are those of the published
code of FedACG, by FedMLB's authors. That these are the networks of FedMLB's Table 9 is inferred. Seven stages: one per
convolution, and the linear layers as the head. Width 32 and 100 classes at 32x32 give 3,539,428 parameters and
135,415,808 MACs.

Each max-pool comes before its ReLU, for the reason that `edge.models.cnn` gives.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from edge.models.layers import conv_norm

SIDE = 4
"""Height and width before the linear layers, for images of any size."""
CONVOLUTIONS = ((1, False), (2, True), (4, False), (4, True), (8, False), (8, True))
"""Channels, in widths, and whether a 2x2 max-pool follows."""
HIDDEN = 16
"""Outputs of the linear layers before the last, in widths."""


class PoolToSide(nn.Module):
    """Average-pool to SIDE x SIDE; 32x32 images have that size here, and stay unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, channels, SIDE, SIDE)."""
        height, width = x.shape[-2:]
        if height % SIDE or width % SIDE:
            return F.adaptive_avg_pool2d(x, SIDE)
        # The same numbers; on a GPU, torch sums only the gradients of this pooling in a fixed order.
        return F.avg_pool2d(x, (height // SIDE, width // SIDE))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Seven stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = []
    inputs = channels
    for number, (widths, pools) in enumerate(CONVOLUTIONS, start=1):
        outputs = widths * width
        layers = [*conv_norm(norm, inputs, outputs, 3), *([nn.MaxPool2d(2)] if pools else []), nn.ReLU()]
        built.append((f"conv{number}", [nn.Sequential(*layers)]))
        inputs = outputs
    last = built[-1][1]
    last[-1] = nn.Sequential(last[-1], PoolToSide(), nn.Flatten())
    features, hidden = inputs * SIDE**2, HIDDEN * width
    head: list[nn.Module] = [
        nn.Sequential(nn.Linear(features, hidden), nn.ReLU()),
        nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, classes),
    ]
    return [*built, ("head", head)]
