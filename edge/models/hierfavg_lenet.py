"""HierFAVG's LeNet-like network for MNIST, four blocks, by default without normalisation.

Liu, Zhang, Song and Letaief, Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641, with the layers of the authors' code (https://github.com/LuminLiu/HierFL): two 5x5
convolutions (10 and 20 channels, no padding), each with 2x2 max-pool and ReLU, then linear layers of 50 and C. One
channel and 10 classes give the paper's 21,840 parameters, and 480,500 MACs. The code has dropout of 1/2 after the
second convolution and the first linear layer, which is left out.

MNIST comes in a border of two pixels here, which the first unit cuts off again: with it the first linear layer would
have 500 inputs in place of 320.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import conv_norm

BORDER = 2


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, channels, 32, 32) -> (batch, classes)."""
    assert width is None, "this network has no width"
    first = [nn.ZeroPad2d(-BORDER), *conv_norm(norm, channels, 10, 5, padding=0), nn.MaxPool2d(2), nn.ReLU()]
    second = [*conv_norm(norm, 10, 20, 5, padding=0), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return [
        ("conv1", [nn.Sequential(*first)]),  # (10, 12, 12)
        ("conv2", [nn.Sequential(*second)]),  # (320,)
        ("fc1", [nn.Sequential(nn.Linear(320, 50), nn.ReLU())]),
        ("head", [nn.Linear(50, classes)]),
    ]
