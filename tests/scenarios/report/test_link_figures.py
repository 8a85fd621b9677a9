"""The figure of a recorded link: its rates, those of messages, and when it is left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import StepPatch

from scenarios.config.fleet_files import read_inputs
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.report.plot_style import ShownRuns
from scenarios.report.round_figures import recorded_link
from scenarios.report.run_reader import RunGroup
from scenarios.run.environment import Environment

# Of 40 s: down 4 Mbit/s, but for an outage from 10 s to 20 s; up 1 Mbit/s.
DAYS = "client,seconds,down_bits_per_second,up_bits_per_second\na,0,4e6,1e6\na,10,0,1e6\na,20,4e6,1e6\na,30,4e6,1e6\n"
VISIT = {"start_s": 1.0, "down_end_s": 3.0, "compute_end_s": 4.0, "up_end_s": 8.0, "bytes_down": 1e6, "bytes_up": 25e4}
LOST = {"start_s": 9.0, "down_end_s": None, "compute_end_s": None, "up_end_s": None, "bytes_down": 7, "bytes_up": 0}


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShownRuns:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "days.csv").write_text(DAYS)
    scenario = load("digits", parsed(["fleet.trace=days.csv"])).scenario
    run: Any = SimpleNamespace(
        scenario=scenario.model_dump(exclude_none=True),
        environment=Environment(files=read_inputs(scenario).sha256),
        rounds=[SimpleNamespace(end_s=25.0)],
        query=lambda sql, arguments=(): [VISIT, LOST] if arguments == [3] else [{"client": 3}],
    )
    return ShownRuns([RunGroup("fedavg", [run])])


def test_a_recorded_link_is_drawn_beside_the_rates_of_messages(shown: ShownRuns) -> None:
    figure = recorded_link(shown)
    assert figure is not None
    down, up = figure.axes
    assert down.get_title() == "Client 3, down"
    line = down.patches[0]
    assert isinstance(line, StepPatch)
    rates, edges, _ = line.get_data()
    assert (edges.tolist(), rates.tolist()) == ([0, 10, 20, 25], pytest.approx([4, 0, 4]))
    # 8 Mbit in 2 s, and 2 Mbit in 4 s.
    messages = [axes.collections[0] for axes in (down, up)]
    segments = [np.array(each.get_segments()).tolist() for each in messages if isinstance(each, LineCollection)]
    assert segments == [[[[1, 4], [3, 4]]], [[[4, 0.5], [8, 0.5]]]]


def test_a_recording_that_has_changed_or_is_gone_is_not_drawn(shown: ShownRuns, tmp_path: Path) -> None:
    (tmp_path / "days.csv").write_text(DAYS.replace("4e6", "5e6"))
    assert recorded_link(shown) is None
    (tmp_path / "days.csv").unlink()
    assert recorded_link(shown) is None
    shown.runs[0].scenario["fleet"].pop("trace")
    assert recorded_link(shown) is None
