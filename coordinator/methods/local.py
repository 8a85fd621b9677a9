"""Local training alone: each client trains the initial model on its own examples, and exchanges nothing.

The baseline of papers on personalised methods. R rounds with all clients are R·E epochs of SGD on each. Both sides are
FedAvg's: nothing is downloaded, so the whole model is client state, and nothing is aggregated.

No message is sent, so a visit takes no bytes, not even those of headers: it costs what it computes. Where evaluations
are charged (``eval.charged``), their messages are.
"""

from __future__ import annotations

from coordinator.aggregation.block_exchange import NOTHING
from coordinator.methods.spec import ModelEvaluation, ObjectiveSpec, Refusals, Traffic
from edge.protocol.options.base import Options

SPEC = ObjectiveSpec(
    name="local",
    title="local training alone",
    source="baseline of personalised methods",
    options=Options,
    takes_losses=lambda options: True,
    neutral="one client",
    traffic=Traffic(down=lambda options: NOTHING, up=lambda options: NOTHING, contacts_server=False),
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
    refusals=Refusals(tiers="its clients send nothing"),
)
