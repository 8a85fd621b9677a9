"""Learning-rate schedules: step sizes by hand, and those of a user's own that are refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from edge.protocol.config import TrainConfig
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parsed
from tests.toy import federation


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"lr_decay": 0.5}, [8, 4, 2, 1, 0.5]),
        ({"lr_schedule": "constant"}, [8, 8, 8, 8, 8]),
        ({"lr_schedule": "step", "lr_schedule_options": {"every": 2, "factor": 0.25}}, [8, 8, 2, 2, 0.5]),
        # cos of 0, 60, 90, 120 and 180 degrees, at rounds 0, 2, 3, 4 and 6 of 6
        ({"lr_schedule": "cosine"}, [8, None, 6, 4, 2, None, 0, 0]),
        ({"lr_schedule": "cosine", "lr_schedule_options": {"final": 0.5}}, [8, None, 7, 6, 5, None, 4, 4]),
    ],
)
def test_a_schedule_gives_the_step_size_of_a_round(schedule: dict[str, Any], rates: list[float | None]) -> None:
    train = TrainConfig(lr=8, lr_rounds=6, **schedule)
    for round, expected in enumerate(rates):
        if expected is not None:
            assert train.lr_in(round) == pytest.approx(expected, abs=1e-12)


OWN = """
from edge.protocol.lr_schedules import LrSchedule
from edge.protocol.plugins import PluginOptions

def row(rate):
    return LrSchedule("own", "own", "a test", PluginOptions, lambda at, options: rate(at))

NAN = row(lambda at: at.lr if at.round < 3 else float("nan"))
NEGATIVE = row(lambda at: 0.5 - 0.25 * at.round)
RAISES = row(lambda at: 1 / (2 - at.round))
FALLS = row(lambda at: at.lr * (1 - at.round / at.rounds))
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_schedules.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NAN", "gives nan in round 4"),
        ("NEGATIVE", "gives -0.25 in round 4"),
        ("RAISES", "round 3: ZeroDivisionError: division by zero"),
    ],
)
def test_an_invalid_step_size_names_the_schedule(name: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("digits", parsed([f"train.lr_schedule=own_schedules:{name}", "rounds.max=5"]))
    assert str(refused.value) == f"command line: train.lr_schedule = 'own_schedules:{name}': {problem}"


def test_visits_begin_with_the_step_size_of_their_round(tmp_path: Path) -> None:
    run = federation(tmp_path, train=TrainConfig(lr=0.5, lr_schedule="own_schedules:FALLS", lr_rounds=4))
    run.rounds = 1
    assert run.prepare(0, 1).lr == 0.375
    assert asdict(run.job.train)["lr_schedule"] == "own_schedules:FALLS"
