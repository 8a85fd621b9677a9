"""Server optimisers: from the clients' mean to the next global model. They act on parameters; buffers are averaged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge.payload import Floats


class Replace:
    """FedAvg's server step: the mean is the next model. Base of all others.

    Subclasses can customise by overriding ``step``, and ``state`` and ``restore`` for what they remember.
    """

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """The next vector of one block, from the current one and the mean of what came up."""
        return mean

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What the optimiser remembers between rounds."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""


OPTIMISERS: dict[str, type[Replace]] = {"plain": Replace}
