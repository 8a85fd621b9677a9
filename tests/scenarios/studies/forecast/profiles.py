"""A small model and its clients, as a worker would describe them."""

from __future__ import annotations

import numpy as np

from edge.protocol.config import ModelProfile
from edge.protocol.payload import BlockShape, Layout


def profile(samples: int = 0) -> ModelProfile:
    """A model of two blocks of 100 and 300 parameters; ten clients with ``samples`` each, or no data at all."""
    empty = np.zeros(0, dtype=np.int64)
    return ModelProfile(
        layout=Layout((BlockShape("body", 100), BlockShape("head", 300))),
        family="conv",
        flops=np.array([[1000.0, 1000.0, 0.0, 1000.0], [200.0, 200.0, 0.0, 200.0]]),
        activations=np.array([10.0, 20.0]),
        data_sha256="",
        data_source="",
        classes=10,
        test_count=0,
        samples=np.full(10, samples) if samples else empty,
        histogram=np.ones((10 if samples else 0, 10), dtype=np.int64),
        test_samples=empty,
    )
