"""All data in one place: no federated method, but the bound that federated ones are measured against.

One client has the examples of all, whatever clients and partition the scenario names, and trains alone (`local`): R
rounds are R·E epochs on all examples. Nothing is sent, not even the data, and times are those of one device of the
fleet.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods import local
from coordinator.methods.spec import Records, Refusals

SPEC = replace(
    local.SPEC,
    name="central",
    title="all data in one place, no federated method",
    source="bound for federated methods",
    neutral="one client",
    gathers_data=True,
    records=Records(
        note=lambda profile, options: (
            "all data in one place, which is no federated method: nothing is sent, not even the data, and times are "
            "those of one device"
        )
    ),
    refusals=Refusals(tiers="it has one client, which sends nothing"),
)
