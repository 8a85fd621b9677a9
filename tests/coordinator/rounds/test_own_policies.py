"""Round policies of a user's own: rounds that end at half of the arrivals, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import RunFailed
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from tests.toy import play

FOUR = [(1.0, 2.0, 1.0), (1.0, 4.0, 1.0), (2.0, 4.0, 2.0), (2.0, 12.0, 2.0)]
"""Visits of 4, 6, 8 and 16 seconds"""
OWN = """
import math
import numpy as np
from coordinator.rounds.policy import AsynchronousPolicy, PolicyRow, SynchronousPolicy
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    fraction: float = 0.5


class Half(SynchronousPolicy):
    def __init__(self, options):
        self.fraction = options.fraction

    def accepted(self, rules, visits, timeline, start):
        enough = max(1, round(self.fraction * len(visits)))
        end = float(np.sort(timeline.end)[enough - 1])
        return timeline.up_end <= end, end

    def waits_for_all(self, rules, counted):
        return False


class TooEarly(SynchronousPolicy):
    def accepted(self, rules, visits, timeline, start):
        return np.isfinite(timeline.up_end), start + 5


class Counting(SynchronousPolicy):
    def __init__(self, options):
        self.asked = 0

    def accepted(self, rules, visits, timeline, start):
        self.asked += 1
        end = start + 5 * self.asked
        return timeline.up_end <= end, max(end, start)


class AsSeen(SynchronousPolicy):
    def __init__(self, options):
        self.seen = math.inf

    def look_back(self, history):
        seconds = history.seconds[~np.isnan(history.seconds)]
        self.seen = float(np.median(seconds)) if len(seconds) else math.inf

    def accepted(self, rules, visits, timeline, start):
        end = min(float(timeline.end.max()), start + self.seen)
        return timeline.up_end <= end, end


class Nothing(AsynchronousPolicy):
    def updates_per_step(self, rules):
        return 0


def row(make):
    return PolicyRow("own", "own", "a test", Options, make)


HALF = row(Half)
EARLY = row(lambda options: TooEarly())
COUNTING = row(Counting)
AS_SEEN = row(AsSeen)
NOTHING = row(lambda options: Nothing())
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("fraction", "end_s", "counted"), [(0.5, 6.0, [0, 1]), (0.75, 8.0, [0, 1, 2])])
def test_a_round_ends_when_that_share_of_its_visits_has_arrived(
    fraction: float, end_s: float, counted: list[int], tmp_path: Path
) -> None:
    rules = RoundPolicy("own_policies:HALF", policy_options={"fraction": fraction})
    run = play(tmp_path / "run", seconds=FOUR, rounds=1, rules=rules)
    assert run.rows("SELECT end_s, participants, critical FROM rounds") == [(end_s, len(counted), counted[-1])]
    assert run.rows("SELECT client FROM visits WHERE kind = 'train' ORDER BY client") == [(k,) for k in counted]
    assert run.rows("SELECT client FROM visits WHERE kind = 'late' ORDER BY client") == [
        (client,) for client in range(4) if client not in counted
    ]


def test_a_policy_remembers_nothing_but_takes_what_it_needs_from_earlier_visits(tmp_path: Path) -> None:
    counting = play(tmp_path / "counting", seconds=FOUR, rounds=3, rules=RoundPolicy("own_policies:COUNTING"))
    # However often it is asked: 5 s each.
    assert [row[0] for row in counting.rows("SELECT end_s - start_s FROM rounds")] == [5.0, 5.0, 5.0]
    seen = play(tmp_path / "seen", seconds=FOUR, rounds=3, rules=RoundPolicy("own_policies:AS_SEEN"))
    # The first round has no end of its own; then the median of the last visits that counted: of 4, 6, 8 and 16 s.
    assert [row[0] for row in seen.rows("SELECT end_s - start_s FROM rounds")] == [16.0, 7.0, 7.0]


def test_a_round_cannot_end_before_a_visit_that_counts(tmp_path: Path) -> None:
    problem = "^rounds.policy = 'own_policies:EARLY': counts a visit that has not ended when the round ends"
    with pytest.raises(RunFailed, match=problem):
        play(tmp_path / "run", seconds=FOUR, rules=RoundPolicy("own_policies:EARLY"))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["rounds.policy=own_policies:NOTHING"], "rounds.policy = 'own_policies:NOTHING': visits_per_round is 0"),
        (
            ["rounds.policy=own_policies:HALF", "rounds.policy_options.fractions=1"],
            "unknown key rounds.policy_options.fractions, did you mean 'rounds.policy_options.fraction'?",
        ),
        (["rounds.policy=own_policies:HALVE"], "rounds.policy: cannot load 'own_policies:HALVE': AttributeError: "),
        (
            ["rounds.policy=fedasnyc"],
            "rounds.policy = 'fedasnyc': must be one of sync, over_select, deadline, fedasync, fedbuff; did you mean "
            "'fedasync'?",
        ),
    ],
)
def test_an_invalid_policy_is_refused_by_key(overrides: list[str], problem: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("digits", parse_all(overrides))
    assert str(refused.value).startswith(f"command line: {problem}")
