"""The figure of one client's recorded link, beside the rates of its visits. Skipped where the recording is not found.

Only the tables ``fleet`` and ``data`` of a run's scenario are used: no code that it names is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from costmodel.arrays import Doubles
from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import DOWN, UP, Replay, Samples
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.units import SECONDS
from scenarios.config.schema import Scenario
from scenarios.report import plot_style
from scenarios.report.run_reader import RecordedRun
from scenarios.run import builder, fleet_builder

COLOURS = ("#0072b2", "#d55e00")
RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
MOST_STEPS = 1_000
"""Changes that are all drawn; of more, the means over so many equal parts of the run"""
MOST_CHANGES = 1_000_000
"""Changes within a run that are looked at"""
BUSIEST = "SELECT client FROM visits WHERE bytes_down > 0 GROUP BY client ORDER BY COUNT(*) DESC, client LIMIT 1"
VISITS = "SELECT start_s, down_end_s, compute_end_s, up_end_s, bytes_down, bytes_up FROM visits WHERE client = ?"


def recorded_link(runs: Sequence[RecordedRun]) -> Figure | None:
    """Down and up: the recorded rate of the client with most visits, and bytes over seconds of each of its messages."""
    for run in runs:
        fleet, busiest = _fleet(run), run.query(BUSIEST)
        if fleet is not None and busiest:
            return _draw(run, fleet, int(busiest[0]["client"]))
    return None


def _fleet(run: RecordedRun) -> Fleet | None:
    """The fleet of a run with recorded links; None without them, or if their files are not those of the run."""
    fleet, data = run.scenario.get("fleet") or {}, run.scenario.get("data") or {}
    if fleet.get("trace") is None and (fleet.get("bandwidth") or {}).get("kind") != "trace":
        return None
    kept = {key: data[key] for key in ("clients", "root") if key in data}
    try:
        scenario = Scenario.model_validate({"seed": run.scenario.get("seed", 0), "data": kept, "fleet": fleet})
        if builder.file_hashes(scenario) != run.environment.files:
            return None
        drawn = fleet_builder.fleet(scenario, ("conv",))
    except (ValueError, OSError):  # whatever is wrong with the scenario or its files
        return None
    return drawn if isinstance(drawn.behaviour.variation, Replay | Samples) else None


def _draw(run: RecordedRun, fleet: Fleet, client: int) -> Figure | None:
    end = max(row.end_s for row in run.rounds)
    recorded = [each for direction in (DOWN, UP) if (each := _rates(fleet, client, direction, end)) is not None]
    if len(recorded) < 2:
        return None
    seconds, second_unit = plot_style.unit([np.array([end])], SECONDS)
    scale, rate_unit = plot_style.unit((rates for _, rates in recorded), RATES)
    figure, panels = plot_style.panels(2, 2, 260, sharex=True)
    visits = run.query(VISITS, [client])
    for direction, (axes, (edges, rates)) in enumerate(zip(panels, recorded, strict=True)):
        axes.stairs(rates / scale, edges / seconds, baseline=None, color=COLOURS[direction], label="recorded")
        begin, arrival, got = _messages(visits, direction).T
        axes.hlines(
            got / scale, begin / seconds, arrival / seconds, color=plot_style.INK, lw=2.6, label="got by a message"
        )
        axes.set(title=f"Client {client}, {('down', 'up')[direction]}", xlabel=f"virtual time ({second_unit})")
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    panels[0].set_ylabel(f"rate ({rate_unit})")
    plot_style.legend(figure, panels[0])
    return figure


def _messages(visits: Sequence[Any], direction: int) -> Doubles:
    """(messages, 3): begin and end in seconds, bit/s, of the messages of one direction that arrived."""
    begin, end, nbytes = (("start_s", "down_end_s", "bytes_down"), ("compute_end_s", "up_end_s", "bytes_up"))[direction]
    rows = [
        (row[begin], row[end], 8 * row[nbytes] / (row[end] - row[begin]))
        for row in visits
        if row[begin] is not None and row[end] is not None and row[begin] < row[end] < np.inf and row[nbytes]
    ]
    return np.array(rows, float).reshape(-1, 3)


def _rates(fleet: Fleet, client: int, direction: int, end: float) -> tuple[Doubles, Doubles] | None:
    """(edges in seconds, bit/s between them) of the client's recorded link, without headers, from 0 to ``end``."""
    nominal = float((fleet.down, fleet.up)[direction][client]) / WIRE_FACTOR
    edges, rates = [0.0], list[float]()
    while edges[-1] < end:
        if len(rates) == MOST_CHANGES:
            return None
        factor, until = fleet.behaviour.variation.factor(client, direction, edges[-1])
        rates.append(nominal * factor)
        edges.append(min(until, end))
    return _thinned(np.array(edges), np.array(rates)) if rates else None


def _thinned(edges: Doubles, rates: Doubles) -> tuple[Doubles, Doubles]:
    if rates.size <= MOST_STEPS:
        return edges, rates
    bits = np.concatenate(([0.0], np.cumsum(rates * np.diff(edges))))
    fewer = np.linspace(edges[0], edges[-1], MOST_STEPS + 1)
    return fewer, np.diff(np.interp(fewer, edges, bits)) / np.diff(fewer)
