"""Mixup in local training: each batch is trained on convex combinations of its examples.

Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical Risk Minimization, ICLR 2018,
https://arxiv.org/abs/1710.09412; in federated learning as in FedAlign (Mendieta et al., CVPR 2022,
https://arxiv.org/abs/2111.14213). The client side is `edge.methods.mixup`, the server FedAvg's.
"""

from __future__ import annotations

from coordinator.methods.spec import ObjectiveSpec, Refusals
from edge.protocol.options.mixup import MixupOptions

SPEC = ObjectiveSpec(
    name="mixup",
    title="training on mixtures of examples",
    source="Zhang et al., ICLR 2018; federated as in Mendieta et al., CVPR 2022",
    options=MixupOptions,
    neutral="gamma = 0",
    client="edge.methods.mixup:MixupUpdate",
    refusals=Refusals(kinds=("image", "features", "series")),
)
