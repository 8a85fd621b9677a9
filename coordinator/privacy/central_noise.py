"""Clipped updates, and noise on their sums, at the server or at an aggregator.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963:
the sum of clipped changes is divided by the weight that a cohort is *expected* to have, whoever has answered, since a
number of answers would tell who took part. Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with
Adaptive Clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871: the clip follows a quantile of norms, of which each
step learns a noisy share.

The noise is from a generator with the run's seed, so that a run can be repeated; it is no secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from edge.protocol.config import PrivacyConfig
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Floats, Vector
from edge.protocol.privacy import clipped, gaussian
from edge.protocol.rng import keyed_generator

QUANTILE, CLIP_RATE = 0.5, 0.2
"""Share of updates that are to be below the clip, and the step towards it (Andrew et al., section 3.1)"""
COUNT_NOISE = 20
"""The noise on the number of updates below the clip is this part of the expected cohort (Andrew et al., section 3.2)"""


class CentralNoise:
    """The mechanism of one server side, whose steps are noisy."""

    def __init__(self, config: PrivacyConfig, seed: int, cohort: float, weight: float, station: int = 0) -> None:
        """``cohort``, ``weight``: expected number of updates of a step, and their weight. ``station``: 0 for the
        server, 1, 2, .. for aggregators, each with noise of its own."""
        self.config, self._seed, self.cohort, self.weight, self._station = config, seed, cohort, weight, station
        self.clip = config.clip
        """The current S"""
        self.changes: dict[str, NDArray[np.float64]] = {}
        """Key -> the noisy mean change of the step that is being made, for corrections"""
        self.steps = 0
        """Steps until now"""
        self._received = 0.0
        self._below = 0

    def at_station(self, station: int, share: float) -> CentralNoise:
        """That of an aggregator with a share of the clients."""
        return CentralNoise(self.config, self._seed, self.cohort * share, self.weight * share, station)

    @property
    def multiplier(self) -> float:
        """Noise on the sum in units of the clip; with an adaptive one more, since the share below it is learned too."""
        noise = self.config.noise
        if not self.config.adaptive_clip or not noise:
            return noise
        return 1 / math.sqrt(noise**-2 - (2 * self._count_noise) ** -2)

    @property
    def _count_noise(self) -> float:
        return self.cohort / COUNT_NOISE

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each weight of the mean."""
        return self.multiplier * self.clip / self.weight

    def clipped(self, update: Update, start: Mapping[str, Vector]) -> Update:
        """An update whose change from ``start``, the vectors of its visit's model, is clipped."""
        model, norm = clipped(update.payload[MODEL], start, self.clip)
        self._below += norm <= self.clip
        return structs.replace(update, payload={**update.payload, MODEL: model})

    def receive(self, weight: float) -> None:
        """Updates of this weight are in the sum of this step."""
        self._received += weight

    def mean(self, key: str, current: Floats, mean: Floats | None) -> Floats:
        """A block's noisy next vector. ``mean``: of the updates that were received; None: there were none."""
        change = np.zeros(current.size)
        if mean is not None:
            np.subtract(mean, current, out=change, dtype=np.float64)
            change *= self._received / self.weight
        if self.deviation:
            rng = keyed_generator(self._seed, f"privacy noise {key}", self.steps, self._station)
            change += self.deviation * gaussian(current.size, rng)
        self.changes[key] = change
        return (current + change).astype(np.float32)

    def end_step(self) -> None:
        """The step is made: the clip moves, and the next step begins with nothing."""
        if self.config.adaptive_clip:
            rng = keyed_generator(self._seed, "privacy clip", self.steps, self._station)
            below = self._below + (self._count_noise * rng.standard_normal() if self.config.noise else 0.0)
            self.clip *= math.exp(-CLIP_RATE * (below / self.cohort - QUANTILE))
        self.steps += 1
        self._received, self._below = 0.0, 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The state that later steps depend on."""
        return {"privacy": np.array([self.clip, self.steps])}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""
        clip, steps = np.asarray(state["privacy"], np.float64).tolist()
        self.clip, self.steps = clip, int(steps)
