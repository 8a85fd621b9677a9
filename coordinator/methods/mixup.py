"""Mixup in local training: each batch is trained on convex combinations of its examples.

Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical Risk Minimization, ICLR 2018,
https://arxiv.org/abs/1710.09412; in federated learning as in FedAlign (Mendieta et al., CVPR 2022,
https://arxiv.org/abs/2111.14213). The client side is `edge.methods.mixup`, the server FedAvg's.
"""

from __future__ import annotations

from pydantic import Field

from coordinator.methods.spec import ObjectiveSpec, Options


class MixupOptions(Options):
    """λ·CE(z, y) + (1 − λ)·CE(z, y_π), z being the logits of λ·x + (1 − λ)·x_π, with λ ~ Beta(γ, γ)."""

    gamma: float = Field(default=0.1, ge=0, title="γ")
    """Both parameters of the Beta distribution of λ, which is drawn once per batch; 0 is FedAvg. FedAlign has 0.1, and
    its code 0 unless told."""


SPEC = ObjectiveSpec(
    name="mixup",
    title="training on mixtures of examples",
    source="Zhang et al., ICLR 2018; federated as in Mendieta et al., CVPR 2022",
    options=MixupOptions,
    neutral="gamma = 0",
    client="edge.methods.mixup:MixupUpdate",
    kinds=("image", "features"),
)
