"""Rounds that train nothing are those of the run, to the digit: its visits, messages, times, joules and budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.budget import Limits, RunLimits
from coordinator.rounds.policy import RoundPolicy
from costmodel.clock import Clock
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from scenarios.run.setup import RunInputs, Setup
from scenarios.run.untrained import UntrainedRun
from scenarios.studies.forecast.forecast import PlayedRounds
from tests.crossed import every
from tests.toy import loaded, play, unsteady_world

COLUMNS = (
    *("visit", "round", "client", "kind", "start_s", "down_end_s", "compute_end_s", "up_end_s", "shared_s", "paused_s"),
    *("bytes_down", "bytes_up", "nominal_bytes", "flops", "nominal_flops", "joules", "samples", "steps", "rate"),
)
WORLD: dict[str, Any] = {
    "clients": 6,
    "participants": 3,
    "rounds": 4,
    "train": TrainConfig(lr=0.1, batch=32, local_epochs=1),
    "partition": PartitionConfig("dirichlet-unbalanced", alpha=0.5),
    "model": ModelConfig("digits-cnn", width=4),
    "fleet": {"jitter": 0.2},
    "target": None,
}
QUANTIZED = {"up": [{"kind": "quantize", "bits": 4}], "down": [{"kind": "quantize", "bits": 8}]}
TIERS: dict[str, Any] = {"aggregators": {"count": 2}, "schedule": {"interval": 2}}
SUBMODEL = {"rates": (1.0, 0.5, 0.25)}

# Methods whose choices and lengths do not depend on what is learned: all rounds.
WHOLE: Mapping[str, dict[str, Any]] = {
    "sync": {},
    "over_select": {"rules": RoundPolicy("over_select", over_select=1.5)},
    "deadline": {"rules": RoundPolicy("deadline", deadline=0.4)},
    "late messages": {"rules": RoundPolicy("deadline", deadline=0.2, on_late="complete")},
    "fedasync": {"rules": RoundPolicy("fedasync")},
    "fedbuff": {"rules": RoundPolicy("fedbuff", buffer=2)},
    "unsteady, sync": unsteady_world("sync"),
    "gateways": {"fleet": {"gateways": {"count": 2, "down": 2e6, "up": 1e6}}},
    "codecs": {"codec": QUANTIZED},
    "tiers one by one": {"aggregators": {"count": 2}, "schedule": {"upwards": "asynchronous"}, "server_link": math.inf},
    "tiers, late messages": {**TIERS, "rules": RoundPolicy("deadline", deadline=0.2, on_late="finish")},
    "charged evaluations": {"evaluation": {"on": "clients", "charged": True}},
    "budget of bytes": {"limits": RunLimits(bytes=100_000), "rounds": 9},
    "budget of seconds": {"limits": RunLimits(virtual_seconds=1.0), "rounds": 9},
    "budgets of clients": {"limits": RunLimits(client=Limits(bytes=40_000)), "rounds": 9},
    "scaffold": {"method": "scaffold"},
    "heterofl, drawn": {"method": "heterofl", "submodel": {"rate": "round", **SUBMODEL}},
    "heterofl, deadline": {"method": "heterofl", "submodel": {"rate": "deadline", "deadline": 0.12, **SUBMODEL}},
}
# Methods that choose by what is learned, and lengths that depend on numbers: the first round.
FIRST: Mapping[str, dict[str, Any]] = {
    "fedbr": {"method": "fedbr"},
    "fedbr with tiers": {"method": "fedbr", **TIERS},
    "ifca": {"method": "ifca"},
    "fedfomo": {"method": "fedfomo", "validation": 0.2},
    "pfedmb": {"method": "pfedmb"},
    "oort": {"rules": RoundPolicy(selection="oort")},
}


@pytest.mark.parametrize("name", every(2, WHOLE, first=1))
def test_all_rounds_are_those_of_a_run_that_trains(name: str, tmp_path: Path) -> None:
    how = WORLD | WHOLE[name]
    untrained, run = _both(tmp_path, how)
    trained = run.rows(f"SELECT {', '.join(COLUMNS)} FROM visits ORDER BY visit")
    assert sorted(_visits(untrained, math.inf)) == trained
    ends = [(round.row.end_s, round.row.participants, round.row.cut_by) for round in untrained.rounds]
    assert run.rows("SELECT end_s, participants, cut_by FROM rounds ORDER BY round") == ends
    assert untrained.stopped_by == run.stopped_by


@pytest.mark.parametrize("name", every(2, FIRST))
def test_the_first_round_is_that_of_a_run_that_learns(name: str, tmp_path: Path) -> None:
    how = WORLD | FIRST[name]
    untrained, run = _both(tmp_path, how)
    trained = run.rows(f"SELECT {', '.join(COLUMNS)} FROM visits WHERE round = 0 ORDER BY visit")
    assert sorted(_visits(untrained, 1)) == trained


def test_the_first_round_of_a_forecast_has_its_bytes_flops_seconds_and_joules(tmp_path: Path) -> None:
    how = WORLD | {"rounds": 1, "aggregators": {"count": 2, "price": 3.0}}
    _, run = _both(tmp_path, how)
    setup = Setup(RunInputs(loaded(**how), "cpu"), run.federation.description)
    columns = ("bytes_down", "bytes_up", "flops", "joules", "end_s")
    (row,) = run.rows(f"SELECT {', '.join(columns)} FROM rounds")
    first = PlayedRounds(setup).amounts[0]
    # The toy's clients have the speeds of their devices, a scenario's those for its model.
    assert [first[name] for name in ("bytes_down", "bytes_up", "flops")] == list(row[:3])
    (sent,) = run.rows("SELECT SUM(nbytes), SUM(price) FROM aggregators")
    assert first["wan_bytes"] == sent[0]
    assert first["price"] == pytest.approx(sent[1])


def _both(folder: Path, how: Mapping[str, Any]) -> tuple[UntrainedRun, Any]:
    """(rounds that train nothing, the same run)."""
    run = play(folder, **how)
    setup = Setup(RunInputs(loaded(**how), "cpu"), run.federation.description)
    fleet = setup.inputs.drawn_fleet
    if setup.scenario.fleet.tiers.count:
        fleet = fleet.below(setup.aggregator_of)
    untrained = UntrainedRun(setup, Clock(fleet))
    untrained.play(setup.scenario.rounds.max + 1)
    return untrained, run


def _visits(untrained: UntrainedRun, rounds: float) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for round in untrained.rounds:
        if round.row.round < rounds:
            columns = [list(round.record.visits[name]) for name in COLUMNS]
            rows += zip(*columns, strict=True)
    return rows
