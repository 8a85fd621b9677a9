"""Aggregators that meet the server one by one, and intervals in virtual seconds: times, models, budgets and resumes.

Clients and messages are those of `tests.coordinator.rounds.tier_clockwork`: aggregator 0 takes 1 s down, 8 s for a step
and 2 s up, aggregator 1 takes 2, 16 and 4 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.aggregation.tiers import TieredServer
from coordinator.rounds.budget import ROUNDS, SECONDS, RunLimits
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from tests.coordinator.rounds.tier_clockwork import SMALL, chain, ran, rounds
from tests.crossed import crossed, every
from tests.methods.cases import CASES, Case
from tests.toy import Run, broken_off, play, resumed

ONE_BY_ONE: dict[str, Any] = {"upwards": "asynchronous"}
PLAIN_MIX = {**ONE_BY_ONE, "mixing": 1.0, "staleness_power": 0.0}
TWO = ["fleet.tiers.count=2"]
OPEN = math.inf
"""Rate of the server's link, which aggregators do not share"""


def one_by_one(folder: Path, wan: Mapping[str, Any] | None = None, **how: Any) -> Run:
    schedule = {**ONE_BY_ONE, **how.pop("schedule", {})}
    return ran(folder, wan, **{"rounds": 5, "server_link": OPEN, **how, "schedule": schedule})


def messages(run: Run) -> list[tuple[Any, ...]]:
    return run.rows("SELECT round, aggregator, direction, start_s, end_s FROM aggregators ORDER BY start_s, rowid")


# --- times ------------------------------------------------------------------------------------------------------------


def test_each_model_is_mixed_in_when_it_arrives_and_its_aggregator_goes_on_alone(tmp_path: Path) -> None:
    run = one_by_one(tmp_path)

    assert messages(run) == [
        *((0, 0, "down", 0, 1), (0, 1, "down", 0, 2)),
        (0, 0, "up", 9, 11),
        (1, 0, "down", 11, 12),
        *((1, 1, "up", 18, 22), (2, 0, "up", 20, 22)),
        *((2, 0, "down", 22, 23), (2, 1, "down", 22, 24)),
        (3, 0, "up", 31, 33),
        (4, 0, "down", 33, 34),
        (4, 1, "up", 40, 44),
    ]
    # Rounds end when the last model by then is mixed in; the first and the fourth when the next step begins.
    assert rounds(run) == [(0, 2), (2, 11), (11, 22), (22, 24), (24, 33)]
    visited = run.rows("SELECT round, client, start_s FROM visits ORDER BY round, client")
    assert [each for each in visited if each[0] < 3] == [
        (0, 0, 1),
        (0, 2, 1),
        (1, 1, 2),
        (1, 3, 2),
        (2, 0, 12),
        (2, 2, 12),
    ]
    # Only rounds with a new model are evaluated, and the last one.
    assert run.rows("SELECT accuracy IS NULL FROM rounds") == [(1,), (0,), (0,), (1,), (0,)]
    assert run.stopped_by == ROUNDS


@pytest.mark.parametrize(
    ("interval", "sent_at"), [(2, [17, 36]), ("10 s", [17, 36]), ("8 s", [9, 20]), ("8.5 s", [17, 36])]
)
def test_an_aggregator_sends_its_model_after_its_own_rounds_or_seconds(
    interval: int | str, sent_at: list[float], tmp_path: Path
) -> None:
    run = one_by_one(tmp_path, rounds=8, schedule={"interval": interval})

    # Steps of 8 s from 1 s on, then from 20 s on, or from 12 s on.
    sent = run.rows("SELECT start_s FROM aggregators WHERE direction = 'up' AND aggregator = 0 ORDER BY start_s")
    assert [start for (start,) in sent[:2]] == sent_at


# --- what a budget ends -----------------------------------------------------------------------------------------------


def test_the_run_goes_on_with_the_others_until_its_seconds_end(tmp_path: Path) -> None:
    run = one_by_one(tmp_path, rounds=20, limits=RunLimits(virtual_seconds=38.0))

    # Aggregator 1 would make its second step at 40 s; aggregator 0 makes its third at 31 s, and its fourth at 42.
    found = run.rows("SELECT round, client % 2, kind, MAX(up_end_s) FROM visits GROUP BY round ORDER BY round")
    assert found == [
        (0, 0, "train", 9),
        (1, 1, "train", 18),
        (2, 0, "train", 20),
        (3, 0, "train", 31),
        (4, 1, "cut", 38),
        (5, 0, "cut", 38),
    ]
    assert rounds(run) == [(0, 2), (2, 11), (11, 22), (22, 24), (24, 33), (33, 38)]
    assert run.rows("SELECT cut_by FROM rounds")[4:] == [(SECONDS,), (SECONDS,)]
    assert run.stopped_by == SECONDS


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", every(2, [case for case in CASES if case.name in ("fedavg", "fedbr", "pfedmb")]), ids=str
)
def test_one_aggregator_that_is_mixed_in_whole_has_the_synchronous_models_to_the_bit(
    case: Case, tmp_path: Path
) -> None:
    waiting, alone = (
        case.play_real(
            partial(play, tmp_path / name),
            aggregators={"count": 1},
            schedule={"interval": 2, **schedule},
            server_link=OPEN,
        )
        for name, schedule in (("waiting", {}), ("alone", PLAIN_MIX))
    )
    for query in ("SELECT model_sha256, accuracy FROM rounds", "SELECT client, loss FROM visits"):
        assert alone.rows(query) == waiting.rows(query)


def test_staleness_is_the_number_of_models_mixed_in_since_its_own_came_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed, mix = [], TieredServer.mix

    def noted(server: TieredServer, index: int, mixing: float) -> None:
        mixed.append((index, mixing))
        mix(server, index, mixing)

    monkeypatch.setattr(TieredServer, "mix", noted)
    one_by_one(tmp_path, rounds=6, schedule={"mixing": 0.5, "staleness_power": 1.0})
    # At 11, 22, 22, 33 and 44 s. Aggregator 1 has missed two others at 22 s, and one at 44 s; aggregator 0 one at 33 s.
    assert mixed[:4] == [(0, 0.5), (0, 0.5), (1, 0.5 / 3), (0, 0.25)]


@pytest.mark.parametrize(
    ("how", "after"),
    crossed(
        (
            {"schedule": {"interval": 2}},
            {"sum": "fixed_point"},
            {"method": "fedbr", "schedule": {"interval": "0.2 s"}},
            {"method": "pfedmb"},
            {"method": "fedavg+scaffold", "evaluation": {"aggregators": True}},
            {"codec": {"wan": [{"kind": "fp16"}]}, "server": "fedavgm"},
            {"schedule": {"interval": "0.2 s", "upwards": "synchronous"}},
        ),
        (1, 3, 4),
    ),
)
def test_a_run_that_is_killed_while_models_are_on_their_way_goes_on_to_the_bit(
    how: dict[str, Any], after: int, tmp_path: Path
) -> None:
    how = {**SMALL, "rounds": 6, "aggregators": {"count": 3}, "server_link": OPEN, **how}
    how["schedule"] = {**ONE_BY_ONE, **how.get("schedule", {})}
    method = how.pop("method", "fedavg")
    whole = play(tmp_path / "whole", method, **how)

    broken_off(tmp_path / "killed", method, after, **how)
    assert chain(resumed(tmp_path / "killed", method, **how)) == chain(whole)


# --- who takes part, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiers.upwards=asynchronous"], "tiers.upwards: there are no aggregators; choose fleet.tiers.count"),
        ([*TWO, "tiers.mixing=0.5"], "tiers.mixing: is used with tiers.upwards = asynchronous alone"),
        (
            [*TWO, "tiers.upwards=asynchronous", "fleet.tiers.on_loss=move"],
            "fleet.tiers.on_loss = move: tiers.upwards = asynchronous: clients of one that is away would have visits "
            "at two aggregators at a time; choose wait",
        ),
        ([*TWO, "tiers.interval=0 s"], "tiers.interval = '0 s': must be more than 0 s, and finite"),
        (
            [*TWO, "fleet.tiers.above.count=1", "tiers.participants=[2,2]"],
            "tiers.participants = [2, 2]: there are only 1 aggregators (fleet.tiers.above.count)",
        ),
    ],
)
def test_what_aggregators_cannot_do_is_refused_by_its_key(words: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load("digits", parse_all(words))
    assert str(caught.value).removeprefix("command line: ") == message
