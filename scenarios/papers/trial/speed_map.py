"""When FedBR pays: its time to a target over FedAvg's, on a grid of link and device speeds.

Runs of a fixed alpha are re-timed (`scenarios.studies.replay`); nothing is trained for the grid. GMBS's choices depend
on times, so that its runs are trained anew, at a few bandwidths of the server only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.config import Scale
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.run_set import is_interrupted
from scenarios.experiment.statistics import Trails
from scenarios.papers.trial.trial import Figure, PartAnalysis, Say, Trial, TrialRow, percent_of
from scenarios.papers.trial.variants import SERVER_FACTORS, of, server_at
from scenarios.report.tables import Table, csv_text, of_texts
from scenarios.run.progress import to_target, with_interval
from scenarios.studies.replay import Prepared, prepared, time_to
from scenarios.studies.replayed_run import OtherVisits

LINKS = tuple(2.0**power for power in range(-4, 3))
DEVICES = tuple(2.0**power for power in range(-3, 4))
FEDAVG, GMBS = "fedavg", "fedbr"


@dataclass(frozen=True)
class MapAxes:
    """The two factors that a map varies."""

    name: str
    title: str
    x: str
    y: str
    columns: Sequence[float]
    rows: Sequence[float]
    factors: Callable[[float, float], Scale]
    """(x, y) -> the factors of a cell."""


AXES = (
    MapAxes(
        name="links-devices",
        title="All links, and devices",
        x="bandwidth of server and clients",
        y="speed of devices",
        columns=LINKS,
        rows=DEVICES,
        factors=lambda x, y: Scale(x, x, y),
    ),
    MapAxes(
        name="server-clients",
        title="The server's link, and the clients'",
        x="bandwidth of clients",
        y="bandwidth of the server",
        columns=LINKS,
        rows=LINKS,
        factors=lambda x, y: Scale(server=y, links=x),
    ),
)
Times = Mapping[float, float | None]
"""Target -> virtual seconds until it"""


@dataclass
class RetimedTimes:
    """One run's times to targets on fleets of other speeds, each replayed once."""

    ready: Prepared
    targets: Sequence[float]
    known: dict[Scale, Times] = field(default_factory=dict)
    refused: str = ""
    """Why the first fleet on which other visits would have been trained has no time."""

    def at(self, factors: Scale) -> Times:
        """The times; empty where other visits would have been trained."""
        if factors not in self.known:
            try:
                rows = self.ready.play(self.ready.fleet.at_scale(factors)).rounds_done
                self.known[factors] = {target: time_to(target, rows) for target in self.targets}
            except OtherVisits as other:
                self.refused = self.refused or other.reason
                self.known[factors] = {}
        return self.known[factors]


def read(trial: Trial, result: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """``maps``: ratios per variant, target and pair of axes; ``server_axis``: those of GMBS; ``unmapped``: reasons."""
    if is_interrupted(result, trial.run_set):
        return {"maps": [], "server_axis": [], "unmapped": {"all": "the runs are re-timed when all of them have ended"}}
    curves = trial.trails(result["runs"])
    folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
    rows = {row.variant: row for row in trial.rows if row.name in curves}
    if FEDAVG not in rows:
        return {"maps": [], "server_axis": [], "unmapped": {FEDAVG: "its runs are missing"}}
    retimed: dict[str, RetimedTimes] = {}

    def times(row: TrialRow, seed: int) -> RetimedTimes:
        name = trial.run_name(row, seed)
        return retimed.setdefault(name, RetimedTimes(prepared(folders[name]), trial.targets))

    maps: list[dict[str, Any]] = []
    unmapped: dict[str, str] = {}
    others = {GMBS, *(row.name for row in _on_other_servers(trial).values())}
    for name, row in rows.items():
        fedavg = next((other for other in rows.values() if other.name == row.reference), None)
        if row is fedavg or name in others:
            continue
        if fedavg is None:
            unmapped[name] = f"the runs of {row.reference} are missing"
            continue
        seeds = sorted(curves[row.name].keys() & curves[fedavg.name].keys())
        targets = shown_targets(trial, curves, [row, fedavg], seeds)
        if not targets:
            unmapped[name] = "there is no target that it and FedAvg reach with every seed"
        pairs = [(times(row, seed), times(fedavg, seed)) for seed in seeds] if targets else []
        for axes, target in itertools.product(AXES, targets):
            what = f"{name} and {fedavg.variant} to {percent_of(target)}"
            say(f"re-timing {what}: {axes.title.lower()}, {len(seeds)} seeds")
            maps.append({"variant": name, "target": target, "seeds": seeds, **grid(axes, target, pairs)})
        reasons = [run.refused for pair in pairs for run in pair if run.refused]
        if reasons:
            unmapped[name] = f"some cells: {reasons[0]}"
    axis = _server_axis(trial, curves, rows, times)
    return {"maps": maps, "server_axis": axis, "unmapped": unmapped}


def shown_targets(trial: Trial, curves: Trails, rows: Sequence[TrialRow], seeds: Sequence[int]) -> list[float]:
    """The trial's target and the highest one, of those that all these runs reach. Replays do not change accuracies."""
    common = [
        target
        for target in trial.targets
        if seeds and all(to_target(curves[row.name][seed], target) for row in rows for seed in seeds)
    ]
    return sorted({target for target in (trial.target, *common[-1:]) if target in common})


def grid(axes: MapAxes, target: float, pairs: Sequence[tuple[RetimedTimes, RetimedTimes]]) -> dict[str, Any]:
    """Ratios of times, mean over seeds of their logarithms: (rows, columns), None where a run has no time."""

    def ratios(factors: Scale) -> dict[str, float | None]:
        times = [(own.at(factors).get(target), fedavg.at(factors).get(target)) for own, fedavg in pairs]
        return ratio_of([None if own is None or fedavg is None else own / fedavg for own, fedavg in times])

    cells = [[ratios(axes.factors(x, y)) for x in axes.columns] for y in axes.rows]
    return {
        "axes": axes.name,
        "title": axes.title,
        "x": {"name": axes.x, "factors": list(axes.columns)},
        "y": {"name": axes.y, "factors": list(axes.rows)},
        **{key: [[cell[key] for cell in row] for row in cells] for key in ("ratio", "low", "high")},
    }


def ratio_of(ratios: Sequence[float | None]) -> dict[str, float | None]:
    """The geometric mean, and the ends of its 95 % interval, by the logarithms of the seeds' ratios."""
    found = with_interval([None if ratio is None else float(np.log2(ratio)) for ratio in ratios])
    mean, half = found["mean"], found["half_width"]
    ends = (None, None) if mean is None or half is None else (2.0 ** (mean - half), 2.0 ** (mean + half))
    return {"ratio": None if mean is None else 2.0**mean, "low": ends[0], "high": ends[1]}


def _on_other_servers(trial: Trial) -> dict[float, ExperimentRow]:
    """Factor on the rates of the server's link -> GMBS trained there."""
    base = trial.run_set.runs[0].loaded
    return {factor: of(GMBS, server_at(base, factor)) for factor in SERVER_FACTORS}


def _server_axis(
    trial: Trial,
    curves: Trails,
    rows: Mapping[str, TrialRow],
    times: Callable[[TrialRow, int], RetimedTimes],
) -> list[dict[str, Any]]:
    """GMBS, trained at each bandwidth of the server, over FedAvg, re-timed at the same."""
    names = {factor: row.name for factor, row in _on_other_servers(trial).items()} | {1.0: GMBS}
    trained = {factor: rows[name] for factor, name in sorted(names.items()) if name in rows}
    fedavg = rows[FEDAVG]
    seeds = [seed for seed in trial.seeds if all(seed in curves[row.name] for row in (*trained.values(), fedavg))]
    found = []
    for target in shown_targets(trial, curves, [*trained.values(), fedavg], seeds) if trained else []:
        for factor, row in trained.items():
            ratios = []
            for seed in seeds:
                point = to_target(curves[row.name][seed], target)
                reference = times(fedavg, seed).at(Scale(server=factor)).get(target)
                ratios.append(None if point is None or reference is None else point.virtual_seconds / reference)
            found.append({"variant": GMBS, "target": target, "seeds": seeds, "server": factor, **ratio_of(ratios)})
    return found


# --- tables and figures -----------------------------------------------------------------------------------------------


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Where FedBR is faster, a row per map; and GMBS along the server's bandwidth."""
    rows = [
        [
            f"{found['variant']}, {found['axes']}, {percent_of(found['target'])}",
            f"{sum(ratio < 1 for ratio in _known(found))} of {len(_known(found))}",
            *(f"{ratio:.2f}" for ratio in (min(_known(found)), max(_known(found)))),
        ]
        for found in result["maps"]
        if _known(found)
    ]
    notes = [f"{name}: {reason}" for name, reason in result["unmapped"].items()]
    shown = [of_texts("time to a target over FedAvg's", ["", "cells below 1", "least", "most"], rows, notes)]
    if result["server_axis"]:
        header = ("server's bandwidth", "target", "time over FedAvg's", "95 % interval")
        cells = [
            [
                *(f"x {found['server']:g}", percent_of(found["target"])),
                "-" if found["ratio"] is None else f"{found['ratio']:.2f}",
                "" if found["low"] is None else f"{found['low']:.2f} to {found['high']:.2f}",
            ]
            for found in result["server_axis"]
        ]
        title = "GMBS, trained anew at each bandwidth of the server"
        shown.append(of_texts(title, header, cells))
    return shown


def _known(found: Mapping[str, Any]) -> list[float]:
    return [ratio for row in found["ratio"] for ratio in row if ratio is not None]


def figures(result: Mapping[str, Any]) -> list[Figure]:
    """A figure per variant and target: both pairs of axes beside each other."""
    from scenarios.papers.trial.figures import ratios

    drawn = []
    for variant, target in dict.fromkeys((found["variant"], found["target"]) for found in result["maps"]):
        chosen = [found for found in result["maps"] if (found["variant"], found["target"]) == (variant, target)]
        if not any(_known(found) for found in chosen):
            continue
        name = f"map-{variant}-{100 * target:g}".replace(".", "-")
        caption = (
            f"Virtual time of {variant} until {percent_of(target)} over that of FedAvg, calibrated if it is; geometric "
            f"mean over seeds {', '.join(map(str, chosen[0]['seeds']))}. Below 1 (blue) FedBR is faster; the line is "
            "at 1. Bold numbers have a 95 % interval without 1; crosses mark fleets on which other visits would have "
            "been trained. All runs are re-timed from one training each."
        )
        drawn.append((name, ratios(chosen, name), caption))
    return drawn


def files(result: Mapping[str, Any]) -> dict[str, str]:
    """``map-grid.csv``, a row per cell."""
    head = ["variant", "target", "axes", "x", "y", "ratio", "low", "high"]
    rows = (
        [found["variant"], found["target"], found["axes"], x, y, *(found[key][row][column] for key in head[5:])]
        for found in result["maps"]
        for row, y in enumerate(found["y"]["factors"])
        for column, x in enumerate(found["x"]["factors"])
    )
    return {"map-grid.csv": csv_text(head, rows)}


ANALYSIS = PartAnalysis(read, tables, figures, files, is_alone=True)
