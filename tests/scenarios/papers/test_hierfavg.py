"""HierFAVG's table: the constants of its cost model, and the clock that takes as long."""

from __future__ import annotations

import pytest

from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.visits.timeline import solve
from costmodel.visits.work import Work, Works
from scenarios.config.load import load
from scenarios.papers import hierfavg
from scenarios.papers.published import INTERVAL_JOULES, INTERVAL_SECONDS
from tests.costmodel.worlds import ends, streams

FIGURE = hierfavg.FIGURES["hierfavg:2"]


def test_the_cost_model_has_the_constants_of_the_paper() -> None:
    assert pytest.approx(5.672e6, abs=500) == hierfavg.UPLINK_BITS_PER_SECOND  # 1e6 log2(51)
    assert hierfavg.message(21_840) == pytest.approx((0.1232, 0.0616), abs=5e-5)
    assert hierfavg.message(5_852_170) == pytest.approx((33.01, 16.51), abs=5e-3)
    # A step on 20 images of 784 bytes is 125,440 bits, 2,508,800 cycles: 2.5088 ms, and 0.1 W of them.
    assert hierfavg.computing(1, 20, 784) == pytest.approx((2.5088e-3, 2.5088e-4))
    assert hierfavg.computing(60, 20, 784) == pytest.approx((0.150528, 0.0150528))
    assert hierfavg.computing(1, 20, 3072)[0] == pytest.approx(9.8304e-3)


def test_averages_at_the_edge_cost_messages_there_and_spare_none_to_the_cloud() -> None:
    # 60 steps of 2.5088 ms, kappa_2 messages of 0.12321 s to the edge, and one to the cloud of ten times as long; a
    # client pays for its steps and its own messages.
    panels = {panel.name: panel for panel in FIGURE.panels}
    assert [list(panel.published) for panel in FIGURE.panels] == [[]] * 8, "nothing of the paper's table was read"
    found = {}
    for row, paper_row in FIGURE.rows.items():
        counts = [panels[f"edge-iid@{column}"].counts for column in ("s a cloud step", "J a client and cloud step")]
        found[row] = [round(count(paper_row), 4) for count in counts if count is not None]
    assert found == {
        "60/1": [1.5058, 0.0767],
        "30/2": [1.6290, 0.1383],
        "15/4": [1.8754, 0.2615],
        "6/10": [2.6147, 0.6311],
    }
    assert hierfavg.interval(60, 1) == {
        INTERVAL_SECONDS: pytest.approx(0.150528 + 11 * 0.1232066),
        INTERVAL_JOULES: pytest.approx(0.0150528 + 0.0616033),
    }


def test_a_visit_takes_as_long_on_the_clock_as_by_the_cost_model() -> None:
    # 60 steps of 20 images at 2,595,000 FLOPs; both messages have 21,840 float32, and the link's rates are goodput.
    config = load("hierfavg-mnist").scenario.fleet
    families = ("hierfavg-lenet", "conv")
    fleet = Fleet.build(50, config, streams=streams, families=families, inputs=FleetInputs())
    visits = Works.of([Work(87_360, 87_360, 60 * 20 * 2_595_000.0, 60)] * 50)
    timeline = solve([0.0] * 50, visits, fleet.conditions(range(50), 0), fleet.links)
    steps, upload = hierfavg.computing(60, 20, 784), hierfavg.message(21_840)
    for visit in (0, 49):  # they share nothing
        down, computed, up = ends(timeline, visit)
        assert down == pytest.approx(0.0, abs=1e-6)
        assert computed - down == pytest.approx(steps[0], rel=1e-6)
        assert up - computed == pytest.approx(upload[0], rel=6e-4)  # the last of 61 frames is not full
        assert timeline.joules_spent[visit] == pytest.approx(steps[1] + upload[1], rel=6e-4)
