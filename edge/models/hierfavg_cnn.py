"""HierFAVG's convolutional network for CIFAR-10, six blocks, by default with BatchNorm.

Liu, Zhang, Song and Letaief, Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641, with the layers of the authors' code (https://github.com/LuminLiu/HierFL): three pairs
of 3x3 convolutions (32 and 64, 128 and 128, 256 and 256 channels), each with ReLU, with a normalisation in the first of
a pair and a 2x2 max-pool after the second; then linear layers of 1024, 512 and C. Three channels and 10 classes give
the paper's 5,852,170 parameters, and 137,729,024 MACs. The code has dropout of 0.05 after the second pair and of 0.1
before the first and the last linear layer, which is left out.

The max-pool comes before the second ReLU of a pair, for the reason that `edge.models.cnn` gives.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import conv_norm

PAIRS = ((32, 64), (128, 128), (256, 256))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Six stages of one unit each: (batch, channels, 32, 32) -> (batch, classes)."""
    assert width is None, "this network has no width"
    built: list[tuple[str, list[nn.Module]]] = []
    inputs = channels
    for pair, (first, second) in enumerate(PAIRS, start=1):
        layers = [*conv_norm(norm, inputs, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3, padding=1)]
        after = [nn.Flatten()] if pair == len(PAIRS) else []
        built.append((f"pair{pair}", [nn.Sequential(*layers, nn.MaxPool2d(2), nn.ReLU(), *after)]))
        inputs = second
    return [
        *built,  # (256, 4, 4), as 4096 numbers
        ("fc1", [nn.Sequential(nn.Linear(16 * inputs, 1024), nn.ReLU())]),
        ("fc2", [nn.Sequential(nn.Linear(1024, 512), nn.ReLU())]),
        ("head", [nn.Linear(512, classes)]),
    ]
