"""How sure an answer is, and where it flips: by replay of the finalists' runs, without training.

Three questions: in how many seeds and draws of the uncertain figures is the chosen candidate better than the next
(`scenarios.studies.uncertainty` has the draws); on which other links, devices, losses and budgets would another one be
chosen; and how much of the answer rests on figures that nobody has measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from costmodel.fleet.devices import Device, Network, basis
from costmodel.fleet.fleet import DEVICE_FIGURES, Fleet
from costmodel.fleet.model_demand import figures_of_speed
from edge.protocol.files import write_text
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.config.load import Loaded
from scenarios.report import drawn_times
from scenarios.run.host import Host
from scenarios.run.progress import Trail, with_interval
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import read_json
from scenarios.studies import measure, uncertainty
from scenarios.studies.decide import evidence, halving, variations
from scenarios.studies.decide.objective import Objective
from scenarios.studies.replay import Prepared, prepared
from scenarios.studies.replayed_run import OtherVisits
from scenarios.studies.uncertainty import Draws

TIMED = ("seconds", "joules", "joules_per_device")
"""Amounts that depend on figures of devices and links; bytes and rounds do not"""
MAPPED = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on links and devices of the map"""
BUDGET = "budget"
"""The axis of budgets, all of them at so many times their limits; nothing is replayed for it"""
ACCURACY = "accuracy"
FIGURES = {
    "flops_per_second": "flops_per_second",
    "step_seconds": "step_seconds",
    "codec_slowdown": "codec_slowdown",
    "down": "down_bits_per_second",
    "up": "up_bits_per_second",
    "rtt": "rtt_seconds",
}
"""Figure of `RowFactors` -> the key of a device's or network's row"""
MOST_NAMED = 5
ROUNDING = 1e-9
FORMAT = 3
"""Of the file of an analysis; another one is made anew"""


@dataclass(frozen=True)
class Finalist:
    """A finalist with the runs that say what it does."""

    name: str
    loaded: Loaded
    folders: Mapping[int, Path]
    """Seed -> the run that was trained"""
    overrides: Mapping[str, Any]
    """With which it is replayed; none for its own run"""
    trails: Mapping[int, Trail]
    """Seed -> the rounds that it was judged by"""

    @cached_property
    def _prepared(self) -> tuple[dict[int, Prepared], str]:
        try:
            return {seed: prepared(folder, self.overrides) for seed, folder in self.folders.items()}, ""
        except ScenarioError as error:
            return {}, one_paragraph(str(error))

    @property
    def ready(self) -> dict[int, Prepared]:
        """Seed -> its run, read; empty where it cannot be replayed."""
        return self._prepared[0]

    @property
    def refusal(self) -> str:
        """Why it cannot be replayed."""
        return self._prepared[1]

    def on(self, change: Callable[[Prepared], Fleet]) -> dict[int, Trail] | None:
        """Seed -> its progress on other fleets, as far as it was judged; None if other visits would be trained, or it
        cannot be replayed."""
        if self.refusal:
            return None
        try:
            return {
                seed: tuple(evidence.played(ready, change(ready)))[: len(self.trails[seed])]
                for seed, ready in self.ready.items()
            }
        except OtherVisits:
            return None


@dataclass(frozen=True)
class Analysis:
    objective: Objective
    finalists: Sequence[Finalist]
    """The best first"""

    def found(self, draws: int, stopped: Callable[[], bool]) -> dict[str, Any]:
        """The keys that an answer gets: ``probability``, ``rests_on``, ``flips``, ``map`` and ``robust``."""
        asks_time = any(name in TIMED for name in (self.objective.cost, *self.objective.budgets))
        without = {each.name: each.refusal for each in self.finalists if each.refusal}
        found: dict[str, Any] = {"not_replayed": without}
        if len(self.finalists) > 1:
            pair = Analysis(self.objective, self.finalists[:2])
            is_drawn = asks_time and draws and not any(each.name in without for each in pair.finalists)
            drawn = pair.drawn(draws, stopped) if is_drawn else None
            found |= drawn or {"probability": pair.over_seeds(), "rests_on": []}
        if len(self.finalists) > 1 and self.objective.budgets:
            found["flips"] = {BUDGET: self.budget_flip()}
        if asks_time and draws and len(self.finalists) > 1 and len(without) < len(self.finalists):
            flips = self.flips(stopped)
            found["flips"] = flips | found.get("flips", {})
            found["map"] = self.map(stopped)
            points = {(axis, point["at"]): point for axis, each in flips.items() for point in each["points"]}
            found["robust"] = [
                {"change": name, "how": "replayed", **points[place]} for name, place in variations.REPLAYED.items()
            ]
        return found

    # --- the probability ----------------------------------------------------------------------------------------------

    def over_seeds(self) -> dict[str, Any]:
        """The probability that the first finalist is better than the second, over seeds alone."""
        one, other = self.finalists
        values = [{seed: [self.objective.value(trail)] for seed, trail in each.trails.items()} for each in (one, other)]
        return self._chance(*values)

    def drawn(self, draws: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The same over seeds and draws of the uncertain figures, and the figures that it rests on.

        None if a finalist would train other visits in more draws than `uncertainty.MOST_LEFT_OUT_PERCENT` of them.
        """
        settings, most = Draws(draws), draws * uncertainty.MOST_LEFT_OUT_PERCENT / 100
        values: list[dict[int, list[float | None]]] = []
        for each in self.finalists:
            values.append({seed: [] for seed in each.folders})
            left_out = 0
            for draw in range(draws):
                if stopped():
                    raise Stopped
                trails = each.on(lambda ready, draw=draw: uncertainty.uncertain(ready, settings, draw))  # type: ignore[misc]
                left_out += trails is None
                if left_out > most:
                    return None
                for seed in each.folders:
                    values[-1][seed].append(math.nan if trails is None else self.objective.value(trails[seed]))
        return {"probability": self._chance(*values), "rests_on": self._rests_on(values, settings)}

    def _chance(
        self, one: Mapping[int, Sequence[float | None]], other: Mapping[int, Sequence[float | None]]
    ) -> dict[str, Any]:
        """Values by seed and draw; NaN: other visits would be trained in this draw, which is left out."""
        by_seed: dict[int, float] = {}
        count = 0
        for seed in sorted(one.keys() & other.keys()):
            both = zip(one[seed], other[seed], strict=True)
            pairs = [pair for pair in both if not any(value is not None and math.isnan(value) for value in pair)]
            if pairs:
                better = [self.objective.is_better(a, b) for a, b in pairs]
                worse = [self.objective.is_better(b, a) for a, b in pairs]
                by_seed[seed] = (sum(better) + len(pairs) - sum(worse)) / 2 / len(pairs)
                count += len(pairs)
        chance = drawn_times.over_seeds(by_seed, count)
        draws = max((len(each) for each in one.values()), default=0)
        return {
            "than": self.finalists[1].name,
            "probability": chance.probability,
            "low": chance.low,
            "high": chance.high,
            "by_seed": list(by_seed.values()),
            "draws": draws if draws > 1 else 0,
        }

    def _rests_on(
        self, values: Sequence[Mapping[int, Sequence[float | None]]], settings: Draws
    ) -> list[dict[str, Any]]:
        """The figures whose factors go with the lead of the first finalist over the second, the largest share first.

        A figure's share is the squared correlation of its logarithm with that of the ratio of the two values (without a
        target, with their difference), over draws, as a mean over seeds.
        """
        one, other = values
        ready = next(iter(self.finalists[0].ready.values()))
        fleet, families = ready.fleet, (ready.loaded.model.name, ready.loaded.model.family)
        factors = [
            uncertainty.row_factors(fleet.devices, fleet.networks, families, settings, draw)
            for draw in range(settings.count)
        ]
        rows: list[tuple[str, Device | Network]] = [
            *((figure, row) for figure in factors[0].devices for row in fleet.devices),
            *((figure, row) for figure in factors[0].networks for row in fleet.networks),
        ]
        found: list[dict[str, Any]] = []
        for figure, row in rows:
            shares = []
            for seed in one.keys() & other.keys():
                points = [
                    (math.log((each.devices if figure in DEVICE_FIGURES else each.networks)[figure][row.name]), a, b)
                    for each, a, b in zip(factors, one[seed], other[seed], strict=True)
                    if a is not None and b is not None and not math.isnan(a + b)
                ]
                shares.append(self._share(points))
            if shares and (share := sum(shares) / len(shares)) > 0:
                key, known = _weakest(row, FIGURES[figure], families)
                found.append({"row": row.name, "figure": key, "basis": known, "share": share})
        return sorted(found, key=lambda each: -float(each["share"]))[:MOST_NAMED]

    def _share(self, points: Sequence[tuple[float, float, float]]) -> float:
        if len(points) < 3:
            return 0.0
        logarithms, a, b = np.array(points).T
        lead = b - a if self.objective.target is None else np.log(b) - np.log(a)
        if not logarithms.std() or np.ptp(lead) < ROUNDING:  # such as of bytes, which do not depend on figures
            return 0.0
        return float(np.corrcoef(logarithms, lead)[0, 1] ** 2)

    # --- where it flips -----------------------------------------------------------------------------------------------

    def best_on(self, change: Callable[[Fleet], Fleet], is_own: bool = False) -> dict[str, Any]:
        """The finalist that would be chosen on other fleets, and the mean of each one's value; ``is_own``: these are
        their own.

        ``unknown``: finalists that would train other visits there, or cannot be replayed; if there are any, nobody
        knows who is chosen.
        """
        trails = {
            each.name: each.trails if is_own else each.on(lambda ready: change(ready.fleet)) for each in self.finalists
        }
        known = {name: found for name, found in trails.items() if found is not None}
        values = {name: None if found is None else _mean(self.objective, found) for name, found in trails.items()}
        unknown = [name for name, found in trails.items() if found is None]
        return {"chosen": None, "values": values, "unknown": unknown} if unknown else best_of(self.objective, known)

    def flips(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Name of an axis -> its values, each with the finalist that would be chosen there."""
        found = {}
        for name, (change, values, words) in variations.AXES.items():
            points = []
            for value in values:
                if stopped():
                    raise Stopped
                is_own = value == variations.OWN.get(name)
                points.append({"at": value, **self.best_on(partial(_changed, change, value), is_own)})
            found[name] = {"words": words, "points": points}
        return found

    def budget_flip(self) -> dict[str, Any]:
        """The same for all budgets together, from the runs as they are."""
        points: list[dict[str, Any]] = []
        trails = {each.name: each.trails for each in self.finalists}
        for factor in variations.FACTORS:
            own = replace(
                self.objective, budgets={key: factor * limit for key, limit in self.objective.budgets.items()}
            )
            points.append({"at": factor, **best_of(own, trails)})
        return {"words": "all budgets ×", "points": points}

    def map(self, stopped: Callable[[], bool]) -> list[dict[str, Any]]:
        """The finalist that would be chosen, over rates of links and speeds of devices."""
        found = []
        for links, devices in product(MAPPED, repeat=2):
            if stopped():
                raise Stopped

            def both(fleet: Fleet, links: float = links, devices: float = devices) -> Fleet:
                return variations.with_devices(variations.with_links(fleet, links), devices)

            best = self.best_on(both, links == devices == 1)
            found.append({"links": links, "devices": devices, "chosen": best["chosen"], "unknown": best["unknown"]})
        return found


def best_of(objective: Objective, trails: Mapping[str, Mapping[int, Trail]]) -> dict[str, Any]:
    """The candidate that is ``chosen`` by these runs, None if none reaches the target, and the mean of each value."""
    values = {name: _mean(objective, own) for name, own in trails.items()}
    best = halving.final_order(objective, trails)[0]
    reached = any(objective.value(trail) is not None for trail in trails[best].values())
    return {"chosen": best if reached else None, "values": values, "unknown": []}


def _mean(objective: Objective, trails: Mapping[int, Trail]) -> float | None:
    """The mean value over seeds, None if one has none."""
    mean: float | None = with_interval([objective.value(trail) for trail in trails.values()])["mean"]
    return mean


def _changed(change: Callable[[Fleet, float], Fleet], value: float, fleet: Fleet) -> Fleet:
    return change(fleet, value)


def _weakest(row: Device | Network, key: str, families: Sequence[str]) -> tuple[str, str]:
    """(key, basis) of the least certain figure behind a figure of `RowFactors`."""
    keys = figures_of_speed(row, families) if isinstance(row, Device) and key == "flops_per_second" else [key]
    found = [(each, basis(row, each)) for each in keys]
    return max(found, key=lambda each: uncertainty.SIGMAS[each[1]])


# --- the file ---------------------------------------------------------------------------------------------------------


def complete(
    objective: Objective,
    finalists: Sequence[Finalist],
    file: Path,
    draws: int,
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
) -> None:
    """Write the analysis of an answer, and the score of the chosen finalist on test examples, unless it is there."""
    models = {
        each.name: [RunFolder(each.folders[s]).rounds[-1].model_sha256 for s in each.folders] for each in finalists
    }
    asked = json.loads(json.dumps({"format": FORMAT, "objective": objective.plain, "draws": draws, "models": models}))
    with suppress(ValueError, KeyError):  # a file that somebody has changed is made anew
        if file.is_file() and read_json(file)["of"] == asked:
            return
    found = Analysis(objective, finalists).found(draws, stopped)
    found["test"] = on_test(finalists[0], host, launcher, stopped)
    write_text(file, json.dumps({"of": asked, "found": found}, indent=1))


def on_test(chosen: Finalist, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
    """The mean accuracy over clients on their own test examples, by seed, of the models that the runs ended with."""
    scores = []
    for folder in chosen.folders.values():
        with RunFolder(folder).open_scenario(host.device) as (loaded, _):
            asked = measure.plan(loaded, folder, ACCURACY, {}, None, "evaluated")
            plan = replace(asked, evaluation=replace(asked.evaluation, split="test"))
            measured = measure.measure(plan, folder, host, launcher, stopped, lambda done, tasks: None)
        values = [each[ACCURACY] for each in measured["by_client"].values() if each.get(ACCURACY) is not None]
        scores.append(float(np.mean(values)) if values else None)
    return {"seeds": list(chosen.folders), **with_interval(scores)}
