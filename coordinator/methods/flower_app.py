"""A Flower app as a method: its own ServerApp decides what is sent to whom, and its ClientApp what is computed.

``method = "flower:FOLDER"``. Model, data and aggregation are the app's; of the scenario count the fleet, the budgets,
the number of clients and the seed. `coordinator.rounds.app_rounds` has its rounds.
"""

from __future__ import annotations

from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.flower_app import FlowerAppOptions

SPEC = ObjectiveSpec(
    name="flower",
    title="a Flower app",
    source="https://flower.ai",
    options=FlowerAppOptions,
    neutral="an app of FedAvg",
)
