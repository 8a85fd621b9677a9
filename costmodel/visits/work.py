"""The bytes and FLOPs of a visit, and its nominal cost: the charge of the FedBR paper for the same visit.

`Work` counts the real computing and the real messages; it drives the clock. The nominal cost is only shown beside it in
the report, since it counts blocks as if all had equal bytes and hybrid paths as if they ran from the first block on.

Source: Q. Zeng, J. Liu, H. Xu, Z. Wang, Y. Xu, Y. Zhao, Enhanced Federated Learning with Adaptive Block-wise
Regularization and Knowledge Distillation, Eq. 2 and 3. There M is ``blocks``, b ``model_nbytes``, c the cost of one
batch (here: of one example), α the number of last blocks that a client receives, τ the consecutive partial rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Work:
    """The work of one visit."""

    bytes_down: int
    """Length of the message to the client; 0 if there is none."""
    bytes_up: int
    """Length of the client's answer; 0 if there is none."""
    flops: float
    """FLOPs that the device executes; 1 multiply-add = 2 FLOPs."""
    steps: int = 0
    """Local SGD steps, each with an overhead on the device."""
    codec_seconds: float = 0.0
    """Decoding of the download and encoding of the upload, seconds on the reference host
    (`costmodel.fleet.codec_costs`); the device computes meanwhile."""


@dataclass(frozen=True)
class Works:
    """The work of many visits; arrays of shape (visits,)."""

    bytes_down: NDArray[np.int64]
    bytes_up: NDArray[np.int64]
    flops: NDArray[np.float64]
    steps: NDArray[np.int64]
    codec_seconds: NDArray[np.float64]

    @classmethod
    def of(cls, visits: Sequence[Work]) -> Works:
        """The columns of these visits."""
        return cls(
            np.array([visit.bytes_down for visit in visits], np.int64),
            np.array([visit.bytes_up for visit in visits], np.int64),
            np.array([visit.flops for visit in visits], np.float64),
            np.array([visit.steps for visit in visits], np.int64),
            np.array([visit.codec_seconds for visit in visits], np.float64),
        )

    def __len__(self) -> int:
        return self.flops.size

    def followed_by(self, others: Works) -> Works:
        """These visits, then the others."""
        return Works(**{name: np.concatenate((column, getattr(others, name))) for name, column in vars(self).items()})


def nominal_flops(alpha: int, blocks: int, samples: int, flops_per_sample: float) -> float:
    """Eq. 2: (1 + α(α+1)/(2M)) · samples · flops_per_sample; alpha = 0 is plain local training.

    ``samples`` counts an example each time it passes, ``flops_per_sample`` is one example's plain training step.
    """
    assert 0 <= alpha < blocks, (alpha, blocks)
    return (1 + alpha * (alpha + 1) / (2 * blocks)) * samples * flops_per_sample


def nominal_bytes(alpha: int, blocks: int, tau: int, model_nbytes: int) -> float:
    """Eq. 3, both directions of one visit on average: (1 + 1/τ + (1 − 1/τ)·α/M) · b; tau = 0 is 2b."""
    assert 0 < alpha < blocks, (alpha, blocks)
    assert tau >= 0, tau
    if tau == 0:
        return nominal_bytes_plain(model_nbytes)
    return (1 + 1 / tau + (1 - 1 / tau) * alpha / blocks) * model_nbytes


def nominal_bytes_plain(model_nbytes: int) -> float:
    """The paper's charge for a visit under any other method: the model down and the model up."""
    return 2.0 * model_nbytes
