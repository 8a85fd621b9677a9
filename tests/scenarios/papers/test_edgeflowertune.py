"""EdgeFlowerTune's log: bytes by shapes, seconds by the devices' rows, and what waiting costs, by hand."""

from __future__ import annotations

import pytest

from scenarios.papers import edgeflowertune
from scenarios.papers.cells import described
from scenarios.papers.published import ADAPTER_UPLOAD, NANO_STEP, NANO_WAITS, PHONE_STEP, ROUND_SECONDS

FIGURE = edgeflowertune.FIGURES["edgeflowertune"]
PANELS = {panel.measure: panel for panel in FIGURE.panels}


def ours(measure: str, row: str) -> float:
    counts = PANELS[measure].counts
    assert counts is not None
    return counts(FIGURE.rows[row])


def logged(measure: str, row: str) -> float | None:
    return described(PANELS[measure], row, FIGURE.rows[row])["published"]


@pytest.mark.parametrize(
    ("rank", "weights", "nbytes"), [(4, 368_640, 1_486_080), (8, 737_280, 2_960_640), (16, 1_474_560, 5_909_760)]
)
def test_uploads_have_the_bytes_of_the_log(rank: int, weights: int, nbytes: int) -> None:
    # 18 layers of q 640 x 1024, k and v 640 x 256, o 1024 x 640: 5,120 a rank and layer; 144 arrays with 80 B each.
    assert edgeflowertune.trained(rank) == weights == 18 * 5_120 * rank
    assert edgeflowertune.upload(rank) == nbytes == 4 * weights + 144 * 80
    assert ours(ADAPTER_UPLOAD, f"rank {rank}") == logged(ADAPTER_UPLOAD, f"rank {rank}") == nbytes


def test_steps_and_rounds_take_as_long_as_in_the_log() -> None:
    for measure in (NANO_STEP, PHONE_STEP, NANO_WAITS):
        assert ours(measure, "rank 8") == pytest.approx(logged(measure, "rank 8"), rel=2e-3)
    # The slowest phone takes 1,743.5 s, and the mean of all, which the row has, 1,712.
    assert logged(ROUND_SECONDS, "rank 8") == 1743.5
    assert ours(ROUND_SECONDS, "rank 8") == pytest.approx(1712.1, abs=0.1)
    assert logged(NANO_WAITS, "rank 8") == 0.929


def test_what_other_rules_would_do_to_a_round() -> None:
    nano, phone = edgeflowertune.visit_seconds("jetson-nano", 8), edgeflowertune.visit_seconds("snapdragon-778g", 8)
    assert (round(nano, 1), round(phone, 1)) == (124.5, 1712.1)
    assert ours(ROUND_SECONDS, "Nanos alone") == nano
    assert ours(ROUND_SECONDS, "deadline") == 150
    assert ours(ROUND_SECONDS, "FedBuff") == pytest.approx(3 / (3 / nano + 5 / phone))
    assert ours(NANO_WAITS, "FedBuff") == 0
    # Half of the rank spares a phone 2 of 551 GFLOP a step.
    assert ours(PHONE_STEP, "ranks by speed") / ours(PHONE_STEP, "rank 8") == pytest.approx(1 - 0.94 / 551.2, rel=3e-3)
