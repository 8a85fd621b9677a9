"""FedRolex: clients train a window of channels that moves by one each round. All else is HeteroFL's without scaler.

Alam, Liu, Yan and Zhang, FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS
2022, https://arxiv.org/abs/2212.01548.
"""

from __future__ import annotations

from coordinator.methods.spec import ObjectiveSpec, SubmodelRules
from edge.protocol.options.heterofl import MaskedOptions

SPEC = ObjectiveSpec(
    name="fedrolex",
    title="a rolling window of channels",
    source="Alam, Liu, Yan and Zhang, NeurIPS 2022",
    options=MaskedOptions,
    takes_losses=lambda options: not options.mask,
    neutral="submodel.rate = 1 and mask = false",
    client="edge.methods.heterofl:MaskedUpdate",
    submodels=SubmodelRules(rolls=True, masks_classes=lambda options: options.mask),
)
