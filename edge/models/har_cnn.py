"""A small convolutional model for series of any length, four blocks, no normalisation layer.

After the networks of one dimension that are usual for accelerometers, such as J. Yang et al., Deep Convolutional Neural
Networks on Multichannel Time Series for Human Activity Recognition, IJCAI 2015, with fewer channels. Three convolutions
of five samples (w, 2w and 4w channels; the maximum of pairs after the first two), the mean over time, and a linear
layer; w = 32, 6 channels and 6 classes give 53,158 parameters.
"""

from __future__ import annotations

from torch import nn


def stages(classes: int, channels: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, channels, length) -> (batch, classes)."""
    assert width is not None
    first = [nn.Conv1d(channels, width, 5, padding=2), nn.MaxPool1d(2), nn.ReLU()]
    second = [nn.Conv1d(width, 2 * width, 5, padding=2), nn.MaxPool1d(2), nn.ReLU()]
    third = [nn.Conv1d(2 * width, 4 * width, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return [
        ("conv1", [nn.Sequential(*first)]),  # (w, length/2)
        ("conv2", [nn.Sequential(*second)]),  # (2w, length/4)
        ("conv3", [nn.Sequential(*third)]),  # (4w,)
        ("head", [nn.Linear(4 * width, classes)]),
    ]
