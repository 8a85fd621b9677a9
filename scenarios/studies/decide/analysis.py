"""How sure an answer is, and where it flips: by replay of the finalists' runs, without training.

Three questions: in how many seeds and draws of the uncertain figures is the chosen candidate better than the next
(`scenarios.studies.uncertainty` has the draws); on which other links, devices, losses and budgets would another one be
chosen; and how much of the answer rests on figures that nobody has measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from types import MappingProxyType

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict, astuple
from msgspec.structs import replace as replace_fields

from coordinator.rounds.amounts import BY_NAME, ENERGY, VIRTUAL_SECONDS
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from costmodel.fleet.devices import Device, Network, basis
from costmodel.fleet.fleet import DEVICE_FIGURES, Fleet
from costmodel.fleet.model_demand import figures_of_speed
from edge.protocol.files import write_text
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.config.load import Loaded
from scenarios.config.overrides import KeyValues
from scenarios.report import drawn_times
from scenarios.run.host import Host
from scenarios.run.observer import Observers
from scenarios.run.progress import Mean, Trail
from scenarios.run.run_folder import RunFolder
from scenarios.studies import measure, uncertainty
from scenarios.studies.decide import analysis_file, evidence, halving, variations
from scenarios.studies.decide.analysis_file import AnalysisRecord, Asked
from scenarios.studies.decide.answer import (
    ChanceOfBetter,
    Change,
    Choice,
    Findings,
    LabelledAxis,
    Place,
    Point,
    ScoreOnTest,
    UncertainFigure,
)
from scenarios.studies.decide.objective import Objective
from scenarios.studies.replay import Prepared, prepared
from scenarios.studies.uncertainty import Draws

MAPPED = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on links and devices of the map"""
BUDGET = "budget"
"""The axis of budgets, all of them at so many times their limits; nothing is replayed for it"""
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
NONE: Mapping[str, Set[int]] = MappingProxyType({})
ROUNDING = 1e-9
FORMAT = 4
"""Of the file of an analysis; another one is made anew"""


@dataclass(frozen=True)
class Finalist:
    """A finalist with the runs that say what it does."""

    name: str
    loaded: Loaded
    folders: Mapping[int, Path]
    """Seed -> the run that was trained"""
    overrides: Mapping[int, KeyValues]
    """Seed -> with which it is replayed; none for its own run"""
    trails: Mapping[int, Trail]
    """Seed -> the rounds that it was judged by"""
    rounds: int
    """The most that a run of it may have"""
    cut: Set[int]
    """Seeds with a run that the decision has ended, since it had the target or had used up a budget"""

    def is_open(self, objective: Objective, seed: int, trail: Trail) -> bool:
        """Whether nobody knows what the run of a seed would reach, since it would have gone on: all of its rounds are
        within the budgets and without the target, and the decision, not the run, has ended them."""
        return (
            seed in self.cut
            and len(self.trails[seed]) <= len(trail)
            and trail[-1].rounds < self.rounds
            and not objective.is_spent(trail)
            and objective.reached(trail) is None
        )

    @cached_property
    def _prepared(self) -> tuple[dict[int, Prepared], str]:
        try:
            return {seed: prepared(folder, self.overrides.get(seed, {})) for seed, folder in self.folders.items()}, ""
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
                seed: Trail(evidence.played(ready, change(ready))[: len(self.trails[seed])])
                for seed, ready in self.ready.items()
            }
        except ScenarioError:
            return None


@dataclass(frozen=True)
class Analysis:
    objective: Objective
    finalists: Sequence[Finalist]
    """The best first"""

    def found(self, draws: int, stopped: Callable[[], bool]) -> Findings:
        """All but the score on test examples."""
        # Bytes and rounds do not depend on figures of devices and links.
        names = (self.objective.cost, *self.objective.budgets)
        asks_time = any(BY_NAME[name].unit in (VIRTUAL_SECONDS.unit, ENERGY.unit) for name in names)
        without = {each.name: each.refusal for each in self.finalists if each.refusal}
        found = Findings(not_replayed=without)
        if len(self.finalists) < 2:
            return found
        replayed = Analysis(self.objective, [each for each in self.finalists if not each.refusal])
        is_drawn = asks_time and draws and replayed.finalists[:2] == self.finalists[:2]
        drawn = replayed.drawn(draws, stopped) if is_drawn else None
        chance, figures = drawn or (self.over_seeds(), [])
        budget = {BUDGET: self.budget_flip()} if self.objective.budgets else {}
        found = replace_fields(found, probability=chance, rests_on=figures, flips=budget or None)
        if not (asks_time and draws and len(without) < len(self.finalists)):
            return found
        flips, places = self.flips(stopped), self.map(stopped)
        points = {(axis, point.at): point for axis, each in flips.items() for point in each.points}
        robust = [
            Change(change=change, how="replayed", **asdict(points[place]))
            for change, place in variations.REPLAYED.items()
        ]
        return replace_fields(found, flips=flips | budget, map=places, robust=robust)

    # --- the probability ----------------------------------------------------------------------------------------------

    def over_seeds(self) -> ChanceOfBetter:
        """The probability that the choice is better than what comes second, over seeds alone."""
        return self._chance(
            [{s: [self.objective.value(trail)] for s, trail in each.trails.items()} for each in self.finalists]
        )

    def drawn(self, draws: int, stopped: Callable[[], bool]) -> tuple[ChanceOfBetter, list[UncertainFigure]] | None:
        """The same over seeds and draws of the uncertain figures, and the figures that it rests on.

        None if in more draws than `uncertainty.MOST_LEFT_OUT_PERCENT` of them a finalist would train other visits, or
        go on beyond the end of its run.
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
                if trails is not None and any(each.is_open(self.objective, *item) for item in trails.items()):
                    trails = None
                left_out += trails is None
                if left_out > most:
                    return None
                for seed in each.folders:
                    values[-1][seed].append(math.nan if trails is None else self.objective.value(trails[seed]))
        return self._chance(values), self._rests_on(values[:2], settings)

    def _chance(self, values: Sequence[Mapping[int, Sequence[float | None]]]) -> ChanceOfBetter:
        """``values``: of each finalist, by seed and draw; NaN: nobody knows it in this draw, which is left out.

        The seeds that choose a finalist flatter it. So ``probability`` is that with which, of the two finalists that
        all other seeds put first, the first one is better in a seed that is left out; None for one seed. ``by_seed``:
        share of draws in which the first finalist of all seeds is better than the second.
        """
        names = [each.name for each in self.finalists]
        by_name = dict(zip(names, values, strict=True))
        own: dict[int, float] = {}
        left_out: dict[int, float] = {}
        count = 0
        for seed in sorted(set.intersection(*(set(each) for each in values))):
            others = {each.name: {s: t for s, t in each.trails.items() if s != seed} for each in self.finalists}
            share, pairs = self._better(*(by_name[name][seed] for name in names[:2]))
            if share is not None:
                own[seed] = share
                count += pairs
            first, second = halving.final_order(self.objective, others)[:2]
            share, _ = self._better(by_name[first][seed], by_name[second][seed])
            if share is not None:
                left_out[seed] = share
        chance = drawn_times.over_seeds(left_out, count) if len(left_out) > 1 else None
        draws = max((len(each) for each in values[0].values()), default=0)
        return ChanceOfBetter(
            than=names[1],
            probability=None if chance is None else chance.probability,
            low=None if chance is None else chance.low,
            high=None if chance is None else chance.high,
            by_seed=list(own.values()),
            draws=draws if draws > 1 else 0,
        )

    def _better(self, one: Sequence[float | None], other: Sequence[float | None]) -> tuple[float | None, int]:
        """(share of the draws in which the first value is better, equal ones as one half; draws in which both are
        known)."""
        both = zip(one, other, strict=True)
        pairs = [pair for pair in both if not any(value is not None and math.isnan(value) for value in pair)]
        if not pairs:
            return None, 0
        better, worse = (sum(self.objective.is_better(*pair[::step]) for pair in pairs) for step in (1, -1))
        return (better + len(pairs) - worse) / 2 / len(pairs), len(pairs)

    def _rests_on(
        self, values: Sequence[Mapping[int, Sequence[float | None]]], settings: Draws
    ) -> list[UncertainFigure]:
        """The figures whose factors go with the lead of the first finalist over the second, the largest share first.

        A figure's share is the squared correlation of its logarithm with that of the ratio of the two values (without a
        target, with their difference), over draws, as a mean over seeds.
        """
        one, other = values
        ready = next(iter(self.finalists[0].ready.values()))
        fleet, families = ready.fleet, ready.loaded.model.families
        factors = [
            uncertainty.row_factors(fleet.devices, fleet.networks, families, settings, draw)
            for draw in range(settings.count)
        ]
        rows: list[tuple[str, Device | Network]] = [
            *((figure, row) for figure in factors[0].devices for row in fleet.devices),
            *((figure, row) for figure in factors[0].networks for row in fleet.networks),
        ]
        figures: list[UncertainFigure] = []
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
                figures.append(UncertainFigure(row.name, key, known, share))
        return sorted(figures, key=lambda each: -each.share)[:MOST_NAMED]

    def _share(self, points: Sequence[tuple[float, float, float]]) -> float:
        if len(points) < 3:
            return 0.0
        logarithms, a, b = np.array(points).T
        lead = b - a if self.objective.target is None else np.log(b) - np.log(a)
        if not logarithms.std() or np.ptp(lead) < ROUNDING:  # such as of bytes, which do not depend on figures
            return 0.0
        return float(np.corrcoef(logarithms, lead)[0, 1] ** 2)

    # --- where it flips -----------------------------------------------------------------------------------------------

    def best_on(self, change: Callable[[Fleet], Fleet], is_own: bool = False) -> Choice:
        """The finalist that would be chosen on other fleets, and the mean of each one's value; ``is_own``: these are
        their own.

        ``unknown``: finalists that would train other visits there, cannot be replayed, or would go on beyond the end of
        their runs; if these may change the choice, nobody knows who is chosen.
        """
        trails = {
            each.name: each.trails if is_own else each.on(lambda ready: change(ready.fleet)) for each in self.finalists
        }
        known = {name: found for name, found in trails.items() if found is not None}
        unknown = [name for name, found in trails.items() if found is None]
        if not unknown:
            return best_of(self.objective, known, self._open(self.objective, known))
        values = {name: None if found is None else _mean(self.objective, found) for name, found in trails.items()}
        return Choice(None, values, unknown)

    def _open(self, objective: Objective, trails: Mapping[str, Mapping[int, Trail]]) -> dict[str, frozenset[int]]:
        """Name -> seeds whose runs are open."""
        return {
            each.name: frozenset(
                seed for seed, trail in trails[each.name].items() if each.is_open(objective, seed, trail)
            )
            for each in self.finalists
        }

    def flips(self, stopped: Callable[[], bool]) -> dict[str, LabelledAxis]:
        """Name of an axis -> its values, each with the finalist that would be chosen there."""
        axes = {}
        for name, (change, values, words) in variations.AXES.items():
            points = []
            for value in values:
                if stopped():
                    raise Stopped
                is_own = value == variations.OWN.get(name)
                points.append(Point(value, *astuple(self.best_on(partial(_changed, change, value), is_own))))
            axes[name] = LabelledAxis(words, points)
        return axes

    def budget_flip(self) -> LabelledAxis:
        """The same for all budgets together, from the runs as they are."""
        points = []
        trails = {each.name: each.trails for each in self.finalists}
        for factor in variations.FACTORS:
            own = replace(
                self.objective, budgets={key: factor * limit for key, limit in self.objective.budgets.items()}
            )
            points.append(Point(factor, *astuple(best_of(own, trails, self._open(own, trails)))))
        return LabelledAxis("all budgets ×", points)

    def map(self, stopped: Callable[[], bool]) -> list[Place]:
        """The finalist that would be chosen, over rates of links and speeds of devices."""
        places = []
        for links, devices in product(MAPPED, repeat=2):
            if stopped():
                raise Stopped

            def both(fleet: Fleet, links: float = links, devices: float = devices) -> Fleet:
                return variations.with_devices(variations.with_links(fleet, links), devices)

            best = self.best_on(both, links == devices == 1)
            places.append(Place(links, devices, best.chosen, best.unknown))
        return places


def best_of(
    objective: Objective, trails: Mapping[str, Mapping[int, Trail]], is_open: Mapping[str, Set[int]] = NONE
) -> Choice:
    """The candidate that is ``chosen`` by these runs, None if none reaches the target, and the mean of each value.

    ``is_open``: name -> seeds with runs that would go on; these names are ``unknown`` if one of them might be better
    than the best of the others.
    """
    unknown = [name for name in trails if is_open.get(name)]
    values = {name: None if name in unknown else _mean(objective, own) for name, own in trails.items()}
    best = halving.final_order(objective, trails)[0]
    at_worst = halving.place(objective, [objective.value(trail) for trail in trails[best].values()])
    if any(at_worst > _at_best(objective, trails[name], is_open[name]) for name in unknown if name != best):
        return Choice(None, values, unknown)
    reached = any(objective.value(trail) is not None for trail in trails[best].values())
    if best in unknown and (objective.target is None or not reached):
        return Choice(None, values, unknown)
    return Choice(best if reached else None, values, [])


def _at_best(objective: Objective, trails: Mapping[int, Trail], is_open: Set[int]) -> tuple[float, float]:
    """The `halving.place` of a finalist whose open runs went on as well as they could: with the target in the next
    round for what they have spent, or without a target with the best score that there can be."""
    values = {seed: objective.value(trail) for seed, trail in trails.items()}
    most = 1.0 if objective.score.is_share else -objective.score.better.worst
    best = {seed: most if objective.target is None else objective.spent(trails[seed][-1]) for seed in is_open}
    return halving.place(objective, list({**values, **best}.values()))


def _mean(objective: Objective, trails: Mapping[int, Trail]) -> float | None:
    """The mean value over seeds, None if one has none."""
    return Mean.of([objective.value(trail) for trail in trails.values()]).mean


def _changed(change: Callable[[Fleet, float], Fleet], value: float, fleet: Fleet) -> Fleet:
    return change(fleet, value)


def _weakest(row: Device | Network, key: str, families: Sequence[str]) -> tuple[str, str]:
    """(key, basis) of the least certain figure behind a figure of `RowFactors`."""
    keys = figures_of_speed(row, families) if isinstance(row, Device) and key == "flops_per_second" else [key]
    found = [(each, basis(row, each)) for each in keys]
    return max(found, key=lambda each: uncertainty.SIGMAS[each[1]])


# --- the file ---------------------------------------------------------------------------------------------------------


Scored = Mapping[int, tuple[Loaded, Path, int]]
"""Seed -> (scenario, run, rounds until the model that is scored)"""


def complete(
    objective: Objective,
    finalists: Sequence[Finalist],
    scored: Scored,
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
    rounds = {seed: each[2] for seed, each in scored.items()}
    asked = Asked(FORMAT, objective, draws, models, rounds)
    with suppress(ValueError, OSError):  # a file that somebody has changed is made anew
        if analysis_file.read(file, [each.name for each in finalists]).of == asked:
            return
    found = Analysis(objective, finalists).found(draws, stopped)
    found = replace_fields(found, test=on_test(scored, host, launcher, stopped))
    write_text(file, json.dumps(to_builtins(AnalysisRecord(asked, found)), indent=1))


def on_test(scored: Scored, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> ScoreOnTest:
    """The score of clients' models on their own test examples, by seed, of the models after these rounds: the mean
    accuracy over clients, or another metric over all their examples together."""
    scores = list[float | None]()
    Observers(host.observers).on_note("the answer is scored on clients' test examples, all of them")
    for loaded, folder, rounds in scored.values():
        if not any(RunFolder(folder).environment.partition.test):
            scores.append(None)  # no client has test examples
            continue
        asked = measure.plan(loaded, folder, loaded.scenario.train.score, {}, rounds, "evaluated")
        plan = replace(asked, evaluation=replace(asked.evaluation, split="test"))
        measured = measure.measure(plan, folder, host, launcher, stopped, lambda done, tasks: None)
        scores.append(measured.score)
    return ScoreOnTest(list(scored), [each[2] for each in scored.values()], **asdict(Mean.of(scores)))
