"""IFCA, client side: the client trains that of the downloaded models which has the smallest training loss.

Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
https://arxiv.org/abs/2006.04088

The loss is the mean cross-entropy over all local training examples, in evaluation mode; ties go to the lowest number. A
model that is evaluated is chosen in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edge.protocol.options.ifca import CLUSTER, SHARED, IFCAOptions
from edge.protocol.payload import MODEL, Payload, Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, Clients, ClientUpdate, VisitContext, mean_loss

MOST_DRAWS = 50


class IFCAUpdate(ClientUpdate):
    """One visit under IFCA, without client state."""

    options: IFCAOptions

    capturable = True

    def choose_initial(self, net: BlockModel, draws: Callable[[int], Payload], clients: Clients) -> Payload:
        """The first draw in which each model is the best for ``balanced_init`` of the clients.

        If there is none within `MOST_DRAWS`, the draw whose smallest cluster is the largest.
        """
        if not self.options.balanced_init:
            return draws(0)
        best: Payload = {}
        largest = -1
        for models in map(draws, range(MOST_DRAWS)):
            chosen = [self._best(net, list(models.values()), local) for local in clients()]
            smallest = int(np.bincount(chosen, minlength=len(models)).min())
            if smallest > largest:
                best, largest = models, smallest
            if smallest >= self.options.balanced_init * len(chosen):
                break
        return best

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the chosen model; blocks that are not downloaded are the same for all."""
        models = [down.get(f"{CLUSTER}{index}", {}) for index in range(self.options.models)]
        super().begin(net, {MODEL: {**down.get(SHARED, {}), **models[0]}}, state, visit)
        self.cluster = self._best(net, models, visit.local) if len(models) > 1 else 0
        net.load(models[self.cluster])

    @property
    def reference_slots(self) -> Mapping[str, str]:
        """The chosen model, and the shared blocks."""
        return {MODEL: f"{CLUSTER}{self.cluster}", SHARED: SHARED}

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The update of the model, with shared blocks in their slot, and its number."""
        up, state, numbers = super().end(net, visit)
        shared = net.layout.keys(net.layout.names[: self.options.shared])
        parts = {
            SHARED: {key: vector for key, vector in up[MODEL].items() if key in shared},
            MODEL: {key: vector for key, vector in up[MODEL].items() if key not in shared},
        }
        return {slot: named for slot, named in parts.items() if named}, state, numbers | {CLUSTER: float(self.cluster)}

    @staticmethod
    def _best(net: BlockModel, models: Sequence[Mapping[str, Vector]], local: Batches) -> int:
        losses = np.full(len(models), np.nan)
        for index, model in enumerate(models):
            net.load(model)
            losses[index] = mean_loss(net, local)
        return int(np.argmin(np.where(np.isnan(losses), np.inf, losses)))
