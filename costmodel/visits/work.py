"""The bytes and FLOPs of a visit, and its nominal cost: the charge of the FedBR paper for the same visit.

`Work` counts the real computing and the real messages; it drives the clock. The nominal cost is only shown beside it in
the report, since it counts blocks as if all had equal bytes and hybrid paths as if they ran from the first block on.

Source: Q. Zeng, J. Liu, H. Xu, Z. Wang, Y. Xu, Y. Zhao, Enhanced Federated Learning with Adaptive Block-wise
Regularization and Knowledge Distillation, Eq. 2 and 3. There M is ``blocks``, b ``model_nbytes``, c the cost of one
batch (here: of one example), α the number of last blocks that a client receives, τ the consecutive partial rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StepExchange:
    """What goes back and forth while a visit computes, as activations and gradients do in split learning."""

    trips: int
    """Round trips, one after another"""
    bytes_down: int
    """Of all messages to the client, among those of the visit's `Work`"""
    bytes_up: int
    server_seconds: float
    """Seconds of the server's device for all of them, if it has no other client"""


@dataclass(frozen=True)
class Work:
    """The work of one visit."""

    bytes_down: int
    """Bytes to the client: of the message with which it begins, 0 if there is none, and of its exchange."""
    bytes_up: int
    """Bytes from the client: of its answer, 0 if there is none, and of its exchange."""
    flops: float
    """FLOPs that the device executes; 1 multiply-add = 2 FLOPs."""
    steps: int = 0
    """Local SGD steps, each with an overhead on the device."""
    codec_seconds: float = 0.0
    """Decoding of the download and encoding of the upload, seconds on the reference host
    (`costmodel.fleet.codec_costs`); the device computes meanwhile."""
    exchange: StepExchange | None = None
    """None: the device computes alone"""

    def if_served(self, faster: float) -> Work:
        """The same with a server's device that is so many times as fast."""
        if self.exchange is None:
            return self
        seconds = self.exchange.server_seconds / faster
        return replace(self, exchange=replace(self.exchange, server_seconds=seconds))

    @property
    def answer_nbytes(self) -> int:
        """Length of the client's answer."""
        return self.bytes_up - (0 if self.exchange is None else self.exchange.bytes_up)


@dataclass(frozen=True)
class StepExchanges:
    """`StepExchange` of many visits; arrays of shape (visits,), 0 for those that compute alone."""

    trips: NDArray[np.int64]
    bytes_down: NDArray[np.int64]
    bytes_up: NDArray[np.int64]
    server_seconds: NDArray[np.float64]

    @classmethod
    def of(cls, visits: Sequence[Work]) -> StepExchanges | None:
        """The columns of these visits; None if all compute alone."""
        if all(visit.exchange is None for visit in visits):
            return None
        each = [visit.exchange or StepExchange(0, 0, 0, 0.0) for visit in visits]
        return cls(
            np.array([one.trips for one in each], np.int64),
            np.array([one.bytes_down for one in each], np.int64),
            np.array([one.bytes_up for one in each], np.int64),
            np.array([one.server_seconds for one in each], np.float64),
        )


@dataclass(frozen=True)
class Works:
    """The work of many visits; arrays of shape (visits,)."""

    bytes_down: NDArray[np.int64]
    bytes_up: NDArray[np.int64]
    flops: NDArray[np.float64]
    steps: NDArray[np.int64]
    codec_seconds: NDArray[np.float64]
    exchanges: StepExchanges | None = None
    """None: all visits compute alone"""

    @classmethod
    def of(cls, visits: Sequence[Work]) -> Works:
        """The columns of these visits."""
        return cls(
            np.array([visit.bytes_down for visit in visits], np.int64),
            np.array([visit.bytes_up for visit in visits], np.int64),
            np.array([visit.flops for visit in visits], np.float64),
            np.array([visit.steps for visit in visits], np.int64),
            np.array([visit.codec_seconds for visit in visits], np.float64),
            StepExchanges.of(visits),
        )

    def __len__(self) -> int:
        return self.flops.size

    @property
    def message_down(self) -> NDArray[np.int64]:
        """Length of the message with which each visit begins."""
        return self.bytes_down if self.exchanges is None else self.bytes_down - self.exchanges.bytes_down

    @property
    def message_up(self) -> NDArray[np.int64]:
        """Length of each client's answer."""
        return self.bytes_up if self.exchanges is None else self.bytes_up - self.exchanges.bytes_up

    @property
    def columns(self) -> dict[str, Any]:
        """Those of visits that compute alone, as all must whose rests may go on beside others."""
        assert self.exchanges is None, "an exchange that goes on"
        return {name: column for name, column in vars(self).items() if column is not None}

    def followed_by(self, others: Works) -> Works:
        """These visits, then the others."""
        columns: dict[str, Any] = {
            name: np.concatenate((column, others.columns[name])) for name, column in self.columns.items()
        }
        return Works(**columns)


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
