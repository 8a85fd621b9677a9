"""One aggregator behind a WAN that takes no time, which meets the server in every round: the plain round to the bit.

Both runs have the same clients. The station of the one is the server, of the other the aggregator, with links that are
never a bottleneck; so everything that a round does at a station is the same, and both ledgers say the same of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.budget import RunLimits
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.synchronous import run_rounds
from edge.protocol.config import ModelConfig
from tests.coordinator.rounds.clockwork import BRIEF, FOUR, IID, windows
from tests.coordinator.rounds.tier_clockwork import Wan
from tests.crossed import every
from tests.toy import Run, federation, model_sha256, store, unsteady_world

ONE = {"count": 1, "down": math.inf, "up": math.inf, "aggregate": math.inf}
SMALL: dict[str, Any] = {"train": BRIEF, "partition": IID, "model": ModelConfig("digits-cnn", width=2), "clients": 4}
SIX = [*FOUR, (1.0, 1.0, 1.0), (2.0, 3.0, 4.0)]
AWAY = windows([(0.0, 7.0), (40.0, 1e6)], [(0.0, 7.0), (40.0, 1e6)], [(30.0, 1e6)], [(0.0, 9.0), (20.0, 1e6)])
ENTROPY = {"up": [{"kind": "quantize", "bits": 4}, {"kind": "elias"}]}
CHARGED = {"on": "clients", "charged": True}

CASES: Mapping[str, dict[str, Any]] = {
    "sync": {},
    "over_select": {
        "rules": RoundPolicy("over_select", over_select=1.5),
        "participants": 4,
        "clients": 6,
        "seconds": SIX,
    },
    "finish": {"rules": RoundPolicy("deadline", deadline=6.0, on_late="finish"), "rounds": 4},
    "complete": {"rules": RoundPolicy("deadline", deadline=6.0, on_late="complete"), "rounds": 4},
    "waits for clients": {"behaviour": AWAY, "rounds": 4},
    "charged": {"evaluation": CHARGED},
    "charged within budgets": {"evaluation": CHARGED, "limits": RunLimits(bytes=60_000, joules=500.0), "rounds": 9},
    "entropy coder": {"codec": ENTROPY, "seconds": ()},
    "levels": {
        "codec": {
            "up": [{"kind": "quantize", "levels": 8, "bucket": 1 << 20}],
            "levels": {"by_round": True, "by_client": True},
        },
        "rounds": 4,
    },
    "fedbr, who downloads only": {"method": "fedbr", "participants": 2, "rounds": 4},
    "partial sums": {"sum": "fixed_point"},
    "joules run out": {"limits": RunLimits(joules=300.0), "rules": RoundPolicy("over_select"), "rounds": 9},
    "unsteady, deadline": unsteady_world("deadline") | {"seconds": ()},
    "unsteady, charged": unsteady_world("sync") | {"seconds": (), "evaluation": CHARGED},
}


@pytest.mark.parametrize("name", every(2, CASES))
def test_one_aggregator_is_the_server_to_the_bit(name: str, tmp_path: Path) -> None:
    how = {"rounds": 3, "seconds": FOUR, **SMALL, **CASES[name]}
    plain, below = (_ran(tmp_path / folder, tiers, **how) for folder, tiers in (("plain", {}), ("below", ONE)))

    assert plain.rows("SELECT COUNT(*) FROM visits") > [(0,)]
    for table in ("rounds", "visits", "conditions", "payload_shapes"):
        assert _columns(below, table) == _columns(plain, table), table
    assert below.stopped_by == plain.stopped_by
    assert model_sha256(below.federation) == model_sha256(plain.federation)


def _ran(folder: Path, tiers: Mapping[str, Any], **how: Any) -> Run:
    run = federation(folder, how.pop("method", "fedavg"), server_link=math.inf, aggregators=tiers, **how)
    if run.tiers is not None:
        run.tiers.clock.__class__ = Wan
        vars(run.tiers.clock).update(down_seconds=np.zeros(1), up_seconds=np.zeros(1))
    try:
        return Run(run, run_rounds(run))
    finally:
        store(run).ledger.close()


def _columns(run: Run, table: str) -> dict[str, list[Any]]:
    """The columns of a table, but those of hashes and of the aggregator itself."""
    names = [name for _, name, *_ in run.rows(f"PRAGMA table_info({table})")]
    skipped = {"chain", "model_sha256", "files", "wan_bytes", "price", "wall_s"}
    return {name: run.rows(f"SELECT {name} FROM {table} ORDER BY rowid") for name in names if name not in skipped}
