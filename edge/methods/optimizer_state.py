"""The optimizer's vectors between visits (``train.optimizer_state``), client side.

``keep``: the client stores the vectors, the steps behind them and the round of the visit, and goes on from them. An old
state is stale; its age is logged. ``send``: vectors and steps of uploaded blocks come with the download, as means over
the last cohort's, and go up; a block that stays at home keeps its state there. ``mean``: as ``send``, but of the
squares of gradients alone, and of these one mean per uploaded vector; the others are as before the first step, while
steps are counted on, so that squares are not taken for those of a first step.

Steps are counted per block, since a method may move some blocks in a step.
"""

from __future__ import annotations

import numpy as np

from edge.protocol.options.base import Options
from edge.protocol.payload import BUFFERS, STEPS, Payload, Vector, block_of
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext
from edge.training.sgd import optimizer_scratch

COUNTS, ROUND = "counts", "round"
AGE = "optimizer_state_age"


class OptimizerState(GradientCorrection):
    """Loads the optimizer's vectors before the first step, and keeps or sends them after the last."""

    options: Options
    capturable = True
    """It changes no gradient."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load what the client has kept, then what has come down."""
        config = visit.train
        self.vectors, self.second = optimizer_scratch(net, config), config.optimizer_row[0].second
        self.is_mean = config.optimizer_state == "mean"
        trained = [key for key in net.layout.sizes if not key.endswith(BUFFERS)]
        self.sent = [key for key in trained if key in visit.up] if config.optimizer_state != "keep" else []
        self.kept = [key for key in trained if key not in self.sent]
        for name, vector in self.vectors.items():
            net.load({key: each for key, each in state.get(name, {}).items() if key in self.kept}, into=vector)
            if not self.is_mean:
                net.load(down.get(name, {}), into=vector)
        if self.is_mean and self.second is not None:
            for key, mean in down.get(self.second, {}).items():
                self.vectors[self.second][net.slices[key]] = float(mean.data[0])
        own, common = (counts.get(COUNTS) for counts in (state.get(STEPS, {}), down.get(STEPS, {})))
        sent_blocks = {block_of(key) for key in self.sent}
        sources = [common if name in sent_blocks else own for name in net.layout.names]
        self.optimizer_steps = [
            0 if counts is None else round(float(counts.data[block])) for block, counts in enumerate(sources)
        ]
        if (last := state.get(STEPS, {}).get(ROUND)) is not None:
            self.log(AGE, visit.round - float(last.data[0]))

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Vectors and steps, up or kept."""
        counts = Vector(np.array(self.optimizer_steps, np.float32))
        up: Payload = {}
        keep: Payload = {}
        if self.sent:
            up[STEPS] = {COUNTS: counts}
        if self.sent and self.is_mean:
            assert self.second is not None
            numbers = self.vectors[self.second]
            means = {key: float(numbers[net.slices[key]].double().mean()) for key in self.sent}
            up[self.second] = {key: Vector(np.array([mean], np.float32)) for key, mean in means.items()}
        elif self.sent:
            up |= {name: net.views(self.sent, of=vector) for name, vector in self.vectors.items()}
        if self.kept:
            last = Vector(np.array([visit.round], np.float32))
            keep = {name: net.views(self.kept, of=vector) for name, vector in self.vectors.items()}
            keep[STEPS] = {COUNTS: counts, ROUND: last}
        return up, keep, {}
