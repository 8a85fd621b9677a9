"""Visits by column: a cohort's columns give the rows, the costs and the names of payloads of its visits one by one."""

from __future__ import annotations

import numpy as np

from coordinator.aggregation.server import Download
from coordinator.records.round_record import NOT_EVALUATED, RoundRecord
from coordinator.records.schema import payload_name
from coordinator.rounds.visit import PlannedVisit, VisitPrice
from costmodel.clock import Clock
from costmodel.config import FleetConfig
from costmodel.fleet.fleet import Fleet
from costmodel.visits.work import Work
from edge.protocol.config import TrainingPlan
from tests.costmodel.worlds import streams

WHOLE, HEAD = {"model": {"head": 20, "stem": 28}}, {"model": {"head": 20}}
KINDS = ("late", "listen", "train", "train")


def planned(number: int) -> PlannedVisit:
    """The clients of visits 2, 3, 4 and 5 are 0, 1, 2 and 3; visit 3 only downloads."""
    work = Work(100, 0 if number == 3 else 80, 1e9, 4)
    price = VisitPrice(work, TrainingPlan(32, 4, 1), 400.0, 2e9, down=HEAD if number == 5 else WHOLE, up=HEAD)
    return PlannedVisit(number, 0, 0, 0.1, Download(number - 2, {}), "train", price, {})


def test_a_batch_gives_the_rows_of_its_visits_one_by_one() -> None:
    config = FleetConfig(devices={"raspberry-pi-4": 1, "phone-mid": 1}, networks={"lte": 1, "wifi-4": 1}, jitter=0.0)
    fleet = Fleet.build(4, config, streams=streams)
    clock, visits = Clock(fleet), [planned(number) for number in (2, 3, 4, 5)]
    losses = [None, None, 0.5, 0.25]
    timeline = clock.solve([0.0] * 4, [visit.work for visit in visits], clock.conditions(range(4), 0))
    until = float(np.median(timeline.up_end))  # some have ended, some are interrupted
    together, alone = RoundRecord(0, 0.0), RoundRecord(0, 0.0)
    added = together.add(visits, fleet, timeline, KINDS, until, np.arange(4.0), losses=losses)
    for i, visit in enumerate(visits):
        one = timeline.only(np.arange(4) == i)
        alone.add([visit], fleet, one, [KINDS[i]], until, float(i), losses=[losses[i]])

    assert list(added) == list(together.visits) == list(alone.visits)
    assert together.round_row(9.0, NOT_EVALUATED, "ab") == alone.round_row(9.0, NOT_EVALUATED, "ab")
    # The ledger lists shapes in this order: a chain of hashes depends on it.
    assert list(together.payloads.values()) == list(alone.payloads.values()) == [WHOLE, HEAD]
    assert added["down_payload"] == ["", payload_name(WHOLE), payload_name(WHOLE), payload_name(HEAD)]
    assert added["up_payload"] == ["", "", payload_name(HEAD), payload_name(HEAD)]
    assert added["nominal_bytes"] == [0.0, 400.0, 400.0, 400.0]
    assert added["up_end_s"] == [min(end, until) for end in timeline.up_end.tolist()]
    assert 0 < added["up_end_s"].count(until) < 4
    assert added["device"] == fleet.device_names(range(4))
