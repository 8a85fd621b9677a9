"""FedPer: the last layers of the model are private; the others, its base, are averaged. layers = 0 is FedAvg.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818

Both sides are FedAvg's: a client trains base and head together, sends the base, and keeps the head, which is the
initial one before its first visit. The layers are blocks of the model; the last block of shipped models, cut into
stages, is their classifier. With all blocks private, clients train alone, as under ``local``, but messages without
vectors are still sent.
"""

from __future__ import annotations

from coordinator.methods.spec import ModelEvaluation, ObjectiveSpec, Traffic
from edge.protocol.options.fedper import FedPerOptions


def base(options: FedPerOptions) -> str:
    """All but the private blocks."""
    return f"without-last:{options.layers}"


SPEC = ObjectiveSpec(
    name="fedper",
    title="private last layers",
    source="Arivazhagan, Aggarwal, Singh and Choudhary, 2019",
    options=FedPerOptions,
    takes_losses=lambda options: True,
    neutral="layers = 0",
    traffic=Traffic(down=base, up=base),
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
)
