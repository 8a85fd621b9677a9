"""How many workers a session starts: no more than its runs have visits for, and none that would choke the machine."""

from __future__ import annotations

import os
import re

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.host import check_workers
from scenarios.run.session import useful_workers


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        ([], 5),
        (["rounds.policy=over_select", "rounds.over_select=1.5"], 8),
        (["rounds.policy=fedbuff"], 5),  # in flight
        (["eval.on=clients"], None),  # all ten clients are evaluated
    ],
)
def test_workers_beyond_the_visits_of_a_round_are_of_no_use(overrides: list[str], most: int | None) -> None:
    loaded = load("digits", parse_all(["method=fedavg", "rounds.participants=5", *overrides]))
    assert useful_workers([loaded]) == most
    assert useful_workers([loaded] * 3) == (None if most is None else 3 * most)


def test_more_workers_than_the_cores_bear_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    check_workers(64)
    refused = "--workers 65: this machine has 2 cores for them; choose 64 or fewer, by default one per core"
    with pytest.raises(ScenarioError, match=f"^{re.escape(refused)}$"):
        check_workers(65)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    check_workers(512)
    with pytest.raises(ScenarioError, match="choose 512 or fewer"):
        check_workers(513)
