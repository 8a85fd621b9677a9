"""``fedbr decide``: which candidate reaches a target for the least, or is the best within budgets.

Candidates are halved as evidence comes in (`halving`). Those that differ in time alone share one training, and are
replayed; those that cannot keep a budget are refused by forecast. A run goes on where the rung before has left it, so
that no round is trained twice. All choices rest on clients' validation examples; the chosen candidate is scored on test
examples once. Every choice follows from what is in the folder: the same call goes on after an interruption, and gives
the same answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from coordinator.rounds.amounts import (
    BY_NAME,
    BYTES,
    CO2E,
    ENERGY,
    EPSILON,
    PRICE,
    ROUNDS,
    VIRTUAL_SECONDS,
    WAN_BYTES,
    of,
)
from coordinator.rounds.budget import EARLY
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.better import HIGHER, LOWER
from edge.protocol.files import write_text
from scenarios.config import fleet_files
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.config.load import Loaded
from scenarios.config.overrides import KeyValues, shown, words
from scenarios.config.quantities import scenario_text
from scenarios.config.tables import TomlValue, set_value
from scenarios.experiment import at_amounts, statistics
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result, Stopped
from scenarios.experiment.grid import Grid, cell_name, folder_name, label
from scenarios.experiment.judged import on_validation
from scenarios.experiment.run_set import BUDGETS, PlannedRun, RunSet, folder_of
from scenarios.run.host import Host
from scenarios.run.progress import TARGET, Mean, ProgressPoint, Trail
from scenarios.run.run_folder import RunFolder
from scenarios.run.score import OF_ACCURACY
from scenarios.run.setup import RunInputs, on_device
from scenarios.studies.decide import analysis, analysis_file, evidence, halving, pages, variations
from scenarios.studies.decide.analysis import Finalist
from scenarios.studies.decide.answer import (
    CandidateRow,
    Change,
    DecisionAnswer,
    Effort,
    FinalistComparison,
    FinalistDifference,
    Nearest,
    Sought,
)
from scenarios.studies.decide.candidates import Candidate, forecasts, overrides_of, share_training
from scenarios.studies.decide.halving import Rung
from scenarios.studies.decide.objective import AMOUNTS, Objective
from scenarios.studies.measure import stored_rounds
from scenarios.studies.replay import prepared

KIND = "decide"
RECOMMENDED, ANALYSIS = "recommended.toml", "analysis.json"
SEEDS, FINALISTS, DRAWS = 3, 3, 50
VALIDATION = "data.validation"
HELD_OUT = 0.2
"""Share of each client's examples to decide by, where the scenario holds out none"""
SPENT = tuple(amount.name for amount in (VIRTUAL_SECONDS, BYTES, ENERGY, *of("devices")))
"""Names of the amounts that every candidate's row has, beside those of the budgets"""
COMMON = ("data", "stop")
"""Tables of a scenario in which candidates do not differ, but for ``data.augment``"""
LEVEL = 0.05
"""The significance level of the tests that tell two finalists apart"""

FINALIST, HALVED, HOPELESS, REFUSED, FAILED, OPEN = "finalist", "halved", "hopeless", "refused", "failed", "open"
"""States of a candidate: in the last rung; behind in one before; without a chance against one that has reached the
target; refused by forecast; a run of it failed; not yet judged"""


class Standing(NamedTuple):
    """A candidate's state, and the evidence for it."""

    candidate: Candidate
    state: str
    why: str
    rung: int
    """The last one that it was judged in, from 0; -1: none"""
    trails: Mapping[int, Trail]
    """Seed -> the rounds that it was judged by"""


class Walk(NamedTuple):
    """The rungs, as far as the runs go."""

    standings: Mapping[str, Standing]
    """By name, in the order of the candidates"""
    needed: Mapping[str, PlannedRun]
    """By name, the runs without which the next rung cannot be judged; none after the last"""
    apart: frozenset[str]
    """Candidates that no replay can judge"""


@dataclass(frozen=True)
class Decision(Experiment):
    candidates: tuple[Candidate, ...] = ()
    objective: Objective = field(default_factory=lambda: Objective(None, ROUNDS.name, {ROUNDS.name: 1}))
    grid: Grid = field(default_factory=lambda: Grid(""))
    """The user's grid, without what deciding adds"""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Keys that deciding adds to all scenarios: a share of validation examples, if they have none"""
    is_robust: bool = False
    """Whether the two best are also trained on changed fleets"""
    draws: int = 0
    """Draws of the figures that are assumed, for the probability that the chosen candidate is the best"""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Name of a run -> why it failed"""

    # --- the rungs ----------------------------------------------------------------------------------------------------

    @property
    def rungs(self) -> list[Rung]:
        return halving.rungs(sum(not candidate.refusal for candidate in self.candidates), len(self.seeds), FINALISTS)

    def load_row(self, row: ExperimentRow, seed: int) -> Loaded:
        """The scenario of a row's run, which evaluates validation examples."""
        grid = replace(self.grid, overrides={**self.grid.overrides, **self.held_out})
        return on_validation(grid.load(row.settings, seed))

    def replayed(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """These candidates, with the overrides by which runs of others are replayed as theirs, seed by seed: a fleet is
        drawn with its run's seed."""
        rows = {candidate.row.name: candidate.row for candidate in candidates}
        for candidate in candidates:
            like, overrides = rows[candidate.like], {}
            if like is not candidate.row and not candidate.refusal:
                for seed in self.seeds:
                    overrides[seed] = overrides_of(self.load_row(candidate.row, seed), self.load_row(like, seed))
            yield replace(candidate, overrides=overrides)

    def begun(self) -> Self:
        """The decision with the runs of its first rung."""
        first = self._planned(
            self.rungs[0], [candidate for candidate in self.candidates if not candidate.refusal], frozenset()
        )
        return replace(self, run_set=replace(self.run_set, runs=list(first.values())))

    def further(self, done: Result) -> Self | None:
        lost = {**self.lost, **done.get("failed", {})}
        now = replace(self, lost=lost)
        walk = now.walk(done)
        runs = {run.name: run for run in self.run_set.runs}
        changed = now.changed(walk, folder_of(done)).items()
        scored = {} if walk.needed else self.scored(walk, folder_of(done))
        more = {**dict(changed), **scored}.items()
        needed = walk.needed or {name: run for name, run in more if name not in runs and name not in lost}
        if not needed:
            return None
        runs |= needed
        return replace(now, run_set=replace(self.run_set, runs=[run for name, run in runs.items() if name not in lost]))

    def changed(self, walk: Walk, folder: Path) -> dict[str, PlannedRun]:
        """Name -> run of the two best finalists on changed fleets, if asked for.

        One seed: such runs are trained, where other clients take part, or a replay would train other visits.
        """
        if not self.is_robust or walk.needed:
            return {}
        runs = {}
        for name in self.finalists(walk)[:2]:
            candidate, seed = walk.standings[name].candidate, self.seeds[0]
            for change, settings in self._changes(candidate, walk, folder):
                row = replace(candidate.row, settings={**candidate.row.settings, **settings})
                needs, run = {"rounds": candidate.rounds}, self._run_of(candidate, change)
                runs[run] = PlannedRun(run, self.load_row(row, seed), needs, self._enough(candidate))
        return runs

    def scored(self, walk: Walk, folder: Path) -> dict[str, PlannedRun]:
        """Name -> run of the chosen candidate up to the model that is scored on test examples, of seeds whose run has
        gone on and keeps no checkpoint of it."""
        return {
            name: PlannedRun(name, self.load_row(row, seed), {"rounds": rounds})
            for seed, (name, row, rounds) in self._to_score(walk, folder).items()
            if name == self._scored_name(row, seed)
        }

    def _to_score(self, walk: Walk, folder: Path) -> dict[int, tuple[str, ExperimentRow, int]]:
        """Seed -> (run, its row, rounds until the model) that the chosen candidate's user would have: the first that
        reached the target within the budgets, or the last one within them."""
        by_seed = {}
        for name in self.finalists(walk)[:1]:
            candidate, trails = walk.standings[name].candidate, walk.standings[name].trails
            trained = self._trained(candidate, walk.apart)
            for seed, trail in trails.items():
                run = self.run_name(trained.row, seed)
                point = self.objective.reached(trail) or next(reversed(self.objective.kept(trail)), None)
                if point is not None:
                    rounds = min(point.rounds, RunFolder(folder / run).completed)
                    trained_run = run, trained.row, rounds
                    anew = self._scored_name(candidate.row, seed), candidate.row, rounds
                    by_seed[seed] = trained_run if rounds - 1 in stored_rounds(folder / run) else anew
        return by_seed

    def _scored_name(self, row: ExperimentRow, seed: int) -> str:
        return f"{self.run_name(row, seed)}-scored"

    def _changes(self, candidate: Candidate, walk: Walk, folder: Path) -> Iterator[tuple[str, KeyValues]]:
        """(change, settings) of each that has to be trained."""
        trained, overrides = self._judged_by(candidate, walk.apart, self.seeds[0])
        path, scale = folder / self.run_name(trained.row, self.seeds[0]), candidate.loaded.scenario.fleet.scale
        for change, keys in variations.SCALED.items():
            if evidence.changed(path, overrides, change) is None:
                yield change, {f"fleet.scale.{key}": getattr(scale, key) / 2 for key in keys}
        try:
            fleet = prepared(path, overrides).fleet
        except ScenarioError:  # a run that cannot be replayed; aggregators that look at labels are not known
            fleet = RunInputs(candidate.loaded).drawn_fleet
        for change, gone in variations.absent(fleet).items():
            file = folder / f"{self._run_of(candidate, change)}.csv"
            if not file.is_file():
                write_text(file, variations.without(gone, len(fleet)))
            yield change, variations.with_availability(file)

    def _run_of(self, candidate: Candidate, change: str) -> str:
        """Name of a candidate's run on a changed fleet."""
        return f"{self.run_name(candidate.row, self.seeds[0])}-{variations.TRAINED[change]}"

    def walk(self, done: Result) -> Walk:
        """Judge the candidates rung by rung, as far as the runs of ``done`` go."""
        lost = {**self.lost, **done.get("failed", {})}
        ended = {run["name"] for run in done["runs"] if run["stopped_by"] not in EARLY}
        have = {run.name: run for run in self.run_set.runs if run.name in ended}
        standings = {
            candidate.row.name: Standing(candidate, REFUSED if candidate.refusal else OPEN, candidate.refusal, -1, {})
            for candidate in self.candidates
        }
        alive, apart = [candidate for candidate in self.candidates if not candidate.refusal], frozenset[str]()
        rungs = self.rungs
        for number, rung in enumerate(rungs):
            seeds = self.seeds[: rung.seeds]
            while True:
                for candidate in alive:
                    names = (self.run_name(self._trained(candidate, apart).row, seed) for seed in seeds)
                    reason = next((lost[name] for name in names if name in lost), None)
                    if reason is not None:
                        standings[candidate.row.name] = standings[candidate.row.name]._replace(state=FAILED, why=reason)
                alive = [candidate for candidate in alive if standings[candidate.row.name].state == OPEN]
                planned = self._planned(rung, alive, apart)
                needed = {
                    name: run
                    for name, run in planned.items()
                    if name not in have or have[name].needs["rounds"] < run.needs["rounds"]
                }
                if needed or not alive:
                    return Walk(standings, needed, apart)
                by_name, unfit = self._evidence(done, rung, alive, apart)
                if not unfit:
                    break
                apart |= unfit
            for name, trails in by_name.items():
                standings[name] = standings[name]._replace(rung=number, trails=trails)
            if number + 1 < len(rungs):
                alive = self._halved(rung, alive, by_name, standings)
        for candidate in alive:
            standings[candidate.row.name] = standings[candidate.row.name]._replace(state=FINALIST)
        return Walk(standings, {}, apart)

    def _halved(
        self,
        rung: Rung,
        alive: Sequence[Candidate],
        by_name: Mapping[str, Mapping[int, Trail]],
        standings: dict[str, Standing],
    ) -> list[Candidate]:
        """The candidates that go on to the next rung."""
        hopeless = halving.cannot_win(self.objective, by_name)
        for name, first in hopeless.items():
            reason = f"has spent more without the target than {standings[first].candidate.row.name} with it"
            standings[name] = standings[name]._replace(state=HOPELESS, why=reason)
        order = [name for name in halving.order(self.objective, by_name) if name not in hopeless]
        for name in order[rung.keep :]:
            reason = f"number {order.index(name) + 1} of {len(alive)} after {rung.share} of its rounds"
            standings[name] = standings[name]._replace(state=HALVED, why=reason)
        kept = set(order[: rung.keep])
        return [candidate for candidate in alive if candidate.row.name in kept]

    def _trained(self, candidate: Candidate, apart: frozenset[str]) -> Candidate:
        """The candidate whose runs say what this one would do."""
        if candidate.row.name in apart:
            return candidate
        return next(other for other in self.candidates if other.row.name == candidate.like)

    def _judged_by(self, candidate: Candidate, apart: frozenset[str], seed: int) -> tuple[Candidate, KeyValues]:
        """The candidate that was trained, and the overrides with which its run is replayed; none for its own."""
        trained = self._trained(candidate, apart)
        return trained, {} if trained is candidate else candidate.overrides[seed]

    def _planned(self, rung: Rung, alive: Sequence[Candidate], apart: frozenset[str]) -> dict[str, PlannedRun]:
        """Name -> run that a rung needs, seed by seed."""
        runs: dict[str, PlannedRun] = {}
        for seed in self.seeds[: rung.seeds]:
            for candidate in alive:
                trained = self._trained(candidate, apart)
                name = self.run_name(trained.row, seed)
                needs = {"rounds": rung.rounds(trained.rounds, trained.every)}
                runs[name] = PlannedRun(name, self.load_row(trained.row, seed), needs, self._enough(trained))
        return runs

    def _enough(self, trained: Candidate) -> dict[str, float]:
        """The limits that end a run before its rung does: the target, or a budget that is used up."""
        target = {} if self.objective.target is None else {TARGET: self.objective.target}
        shares = sum(candidate.like == trained.row.name for candidate in self.candidates)
        if shares > 1:  # others may spend less by the same round
            return target
        limits = self._limits(trained)
        return target | {BY_NAME[name].kind: limit for name, limit in limits.items()}

    def _limits(self, candidate: Candidate) -> dict[str, float]:
        """Name of a budget -> its limit. Without aggregators all bytes are WAN bytes."""
        limits = dict(self.objective.budgets)
        if not candidate.loaded.scenario.fleet.tiers.count and (limit := limits.pop(WAN_BYTES.name, None)):
            limits[BYTES.name] = min(limit, limits.get(BYTES.name, limit))
        return limits

    def _evidence(
        self, done: Result, rung: Rung, alive: Sequence[Candidate], apart: frozenset[str]
    ) -> tuple[dict[str, dict[int, Trail]], frozenset[str]]:
        """(name -> seed -> progress, names that no replay can judge) of the candidates of a rung."""
        by_name: dict[str, dict[int, Trail]] = {}
        unfit = set()
        for candidate in alive:
            trained, rounds = self._trained(candidate, apart), rung.rounds(candidate.rounds, candidate.every)
            trails = by_name[candidate.row.name] = {}
            for seed in self.seeds[: rung.seeds]:
                path = folder_of(done) / self.run_name(trained.row, seed)
                if trained is candidate:
                    trails[seed] = evidence.recorded(path, rounds)
                    continue
                try:
                    trails[seed] = evidence.replayed(path, candidate.overrides[seed], rounds)
                except ScenarioError:
                    unfit.add(candidate.row.name)
                    break
        return by_name, frozenset(unfit)

    # --- the answer ---------------------------------------------------------------------------------------------------

    def finalists(self, walk: Walk) -> list[str]:
        """Names of the finalists, the best first."""
        trails = {name: standing.trails for name, standing in walk.standings.items() if standing.state == FINALIST}
        return halving.final_order(self.objective, trails)

    def result(self, done: Result) -> dict[str, Any]:
        """The keys of ``decide --json``."""
        return {**msgspec.to_builtins(self.answer(done)), **done}

    def answer(self, done: Result) -> DecisionAnswer:
        """The answer of these runs."""
        walk = self.walk(done)
        order, objective = self.finalists(walk), self.objective
        answer = DecisionAnswer(
            scenario=self.scenario,
            overrides=words({**self.overrides, **self.held_out}),
            objective=Sought(
                objective.text,
                objective.target,
                objective.cost,
                dict(objective.budgets),
                **vars(objective.score),
            ),
            seeds=list(self.seeds),
            candidates=[self._row(standing) for standing in walk.standings.values()],
            runs_of={
                name: [
                    self.run_name(self._trained(standing.candidate, walk.apart).row, seed) for seed in standing.trails
                ]
                for name, standing in walk.standings.items()
            },
            effort=self._effort(done, walk),
        )
        if not order or walk.needed:
            return answer
        found = analysis_file.findings(folder_of(done) / ANALYSIS, order)
        if found is not None:
            answer = msgspec.structs.replace(answer, **msgspec.structs.asdict(found))
        robust = list(self._after_changes(order[:2], walk, done, answer.robust or ()))
        tests, best = self._tests(order, walk), walk.standings[order[0]].trails.values()
        return msgspec.structs.replace(
            answer,
            chosen=order[0],
            finalists=list(order),
            tests=tests,
            ties=[test.name for test in tests if test.is_tie],
            nearest=None if any(objective.value(trail) is not None for trail in best) else self._nearest(walk),
            seconds_by_basis=self._by_basis(order[0], walk, done),
            robust=robust or None,
        )

    def _after_changes(
        self, names: Sequence[str], walk: Walk, done: Result, replayed: Sequence[Change]
    ) -> Iterator[Change]:
        """The results of replays on changed fleets; where they leave it open, or say nothing, which of the two best is
        better with the first seed, trained there, as of `Analysis.best_on`.

        A candidate without gateways does as it did if a gateway is lost.
        """
        seed, planned = self.seeds[0], {run.name for run in self.run_set.runs} | self.lost.keys()
        ended = {run["name"] for run in done["runs"] if run["stopped_by"] not in EARLY}
        known = {each.change: each for each in replayed}
        for change in [*variations.REPLAYED, *variations.ABSENCES]:
            entry = known.get(change)
            is_asked = self.is_robust and len(names) == 2 and change in variations.TRAINED
            runs = {name: self._run_of(walk.standings[name].candidate, change) for name in names if is_asked}
            trained = {name: run for name, run in runs.items() if run in planned}
            is_open = bool(trained) if entry is None else bool(entry.unknown)
            if is_asked and is_open and ended.issuperset(trained.values()):
                trails = {}
                for name in names:
                    candidate, trail = walk.standings[name].candidate, walk.standings[name].trails[seed]
                    like, overrides = self._judged_by(candidate, walk.apart, seed)
                    if name in trained:
                        trail = evidence.recorded(folder_of(done) / trained[name], candidate.rounds)
                    elif change in variations.REPLAYED:
                        again = evidence.changed(folder_of(done) / self.run_name(like.row, seed), overrides, change)
                        assert again is not None, name
                        trail = Trail(again[: len(trail)])
                    trails[name] = {seed: trail}
                how = f"seed {seed}, {'trained' if trained else 'replayed'}"
                best = analysis.best_of(self.objective, trails)
                yield Change(change=change, how=how, chosen=best.chosen, values=best.values, unknown=best.unknown)
            elif entry is not None:
                yield entry

    def _row(self, standing: Standing) -> CandidateRow:
        """One candidate over the seeds that it was judged by."""
        candidate, objective = standing.candidate, self.objective
        trails = [objective.kept(trail) for trail in standing.trails.values()]
        last = [trail[-1] for trail in trails if trail]
        known = [next((p.score for p in reversed(trail) if p.score is not None), None) for trail in trails]
        return CandidateRow(
            name=candidate.row.name,
            method=candidate.row.method,
            settings={key: _short(value) for key, value in candidate.row.settings.items()},
            trained_as=candidate.like,
            state=standing.state,
            why=one_paragraph(standing.why),
            rung=standing.rung,
            seeds=list(standing.trails),
            rounds=[point.rounds for point in last],
            score=Mean.of(known),
            reached=sum(objective.reached(trail) is not None for trail in standing.trails.values()),
            value=Mean.of([objective.value(trail) for trail in standing.trails.values()]),
            spent={
                name: Mean.of([AMOUNTS[name].spent(point) for point in last])
                for name in dict.fromkeys([*SPENT, *objective.budgets])
            },
        )

    def _tests(self, order: Sequence[str], walk: Walk) -> list[FinalistComparison]:
        """The other finalists against the first one."""
        objective = self.objective
        by_name = {
            name: {seed: objective.value(trail) for seed, trail in walk.standings[name].trails.items()}
            for name in order
        }
        # The chosen one is the best of all finalists, so that all their pairs count as tests.
        pairs = statistics.compared(by_name, counts_reached=objective.target is not None)
        against = statistics.against(pairs, order[0])
        tests = []
        for name in order[1:]:
            pair, p = against[name], against[name].p_holm
            difference = {key: getattr(pair, key) for key in FinalistDifference.__struct_fields__}
            tests.append(
                FinalistComparison(
                    name=name,
                    difference=FinalistDifference(**difference),
                    reached=sum(value is not None for value in by_name[name].values()),
                    p=pair.p,
                    p_corrected=p,
                    is_tie=p is None or p >= LEVEL,
                )
            )
        return tests

    def _by_basis(self, name: str, walk: Walk, done: Result) -> dict[str, float]:
        """Basis of figures -> virtual seconds that rest on it, in the runs that say what a candidate does."""
        runs = {self.run_name(self._trained(walk.standings[name].candidate, walk.apart).row, s) for s in self.seeds}
        totals: dict[str, float] = {}
        for run in done["runs"]:
            for basis, seconds in (run.get("seconds_by_basis") or {}).items() if run["name"] in runs else ():
                totals[basis] = totals.get(basis, 0.0) + float(seconds)
        return totals

    def _nearest(self, walk: Walk) -> Nearest:
        """Without a candidate that reaches the target, or is evaluated, within the budgets: who gets nearest, None if
        nobody is evaluated, and what each would need."""
        best: dict[str, float] = {}
        better = self.objective.score.better
        needed: dict[str, dict[str, float]] = {}
        for name, standing in walk.standings.items():
            kept = [self.objective.kept(trail) for trail in standing.trails.values()]
            tops = [trail.best for trail in kept if trail.best is not None]
            if tops:
                best[name] = sum(tops) / (len(kept) if better is HIGHER else len(tops))
            unlimited = replace(self.objective, budgets={})
            points = [_enough_for(unlimited, trail) for trail in standing.trails.values()]
            if points and all(point is not None for point in points):
                needed[name] = {
                    budget: max(AMOUNTS[budget].spent(point) for point in points if point is not None)
                    for budget in self.objective.budgets
                }
        nearest = (max if better is HIGHER else min)(best, key=lambda name: best[name], default=None)
        return Nearest(nearest, best.get(nearest or ""), needed)

    def _effort(self, done: Result, walk: Walk) -> Effort:
        """The training of the decision, and at most that of an exhaustive grid."""
        changed = {self._run_of(candidate, change) for candidate in self.candidates for change in variations.TRAINED}
        after = [run for run in done["runs"] if run["name"] in changed]
        runs = [run for run in done["runs"] if run["name"] not in changed]
        names = {self._trained(candidate, walk.apart).row.name for candidate in self.candidates}
        return Effort(
            candidates=len(self.candidates),
            trainings=len(names),
            runs=len(runs),
            seeds=len(self.seeds),
            rounds=sum(int(run["rounds"]) for run in runs),
            flops=sum(float(run["flops"]) for run in runs),
            changed_runs=len(after),
            changed_rounds=sum(int(run["rounds"]) for run in after),
            changed_flops=sum(float(run["flops"]) for run in after),
            exhaustive_runs=len(self.candidates) * len(self.seeds),
            exhaustive_rounds=sum(candidate.rounds for candidate in self.candidates) * len(self.seeds),
        )

    def complete(self, done: Result, host: Host, launcher: WorkerLauncher, stopped: Stopped) -> None:
        """Write the recommended scenario, and what replays and the test examples say of the answer."""
        walk = self.walk(done)
        order = self.finalists(walk)
        if walk.needed or not order:
            return
        folder, finalists = folder_of(done), []
        stopped_by = {run["name"]: run["stopped_by"] for run in done["runs"]}
        for name in order:
            candidate, trails = walk.standings[name].candidate, walk.standings[name].trails
            trained = self._trained(candidate, walk.apart)
            overrides = {seed: self._judged_by(candidate, walk.apart, seed)[1] for seed in trails}
            runs = {seed: folder / self.run_name(trained.row, seed) for seed in trails}
            cut = {seed for seed, path in runs.items() if stopped_by[path.name] == BUDGETS}
            finalists.append(Finalist(name, candidate.loaded, runs, overrides, trails, candidate.rounds, cut))
        scored = {
            seed: (on_device(self.load_row(row, seed), host.device), folder / name, rounds)
            for seed, (name, row, rounds) in self._to_score(walk, folder).items()
            if rounds - 1 in stored_rounds(folder / name)  # the run up to there may have failed, or been stopped
        }
        write_text(folder / RECOMMENDED, self.recommended(walk.standings[order[0]].candidate))
        analysis.complete(self.objective, finalists, scored, folder / ANALYSIS, self.draws, host, launcher, stopped)

    def recommended(self, candidate: Candidate) -> str:
        """The scenario of a candidate as its user would run it: with the target and the budgets, on all examples."""
        limits = self._limits(candidate).items()
        budgets = {BY_NAME[name].budget: limit for name, limit in limits if BY_NAME[name].budget}
        settings = {**candidate.row.settings, **self._goal()}
        loaded = self.grid.load(settings)
        scenario = fleet_files.absolute(loaded.scenario)
        for key, limit in budgets.items():
            set_value(scenario, key, limit)
        return f"# {self.objective.text}: {label(candidate.row.settings)}\n\n{scenario_text(scenario)}"

    def _goal(self) -> dict[str, TomlValue]:
        """The keys of a scenario's target."""
        score, target = self.objective.score, self.objective.target
        if target is None:
            return {}
        if score == OF_ACCURACY:
            return {"stop.target_accuracy": target}
        way = "below" if score.better is LOWER else "above"
        return {"stop.target": {"metric": score.metric, way: target}}

    def page(self, result: Result) -> ExperimentPage:
        return pages.page(f"{self.run_set.name}: decision", pages.read(result))

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``decision.md``."""
        return {"decision.md": pages.markdown(pages.read(result))}

    def show(self, result: Result, page: Path) -> None:
        pages.show(pages.read(result), page)


def _enough_for(objective: Objective, trail: Trail) -> ProgressPoint | None:
    """The first round that reached the target, or without one that was evaluated."""
    if objective.target is not None:
        return objective.reached(trail)
    return next((point for point in trail if point.score is not None), None)


def _short(value: object) -> str:
    """A value as tables have it; stages of a codec as ``quantize(bits=4)``, several with + between them."""
    if isinstance(value, list):
        return "+".join(map(_short, value))
    if not isinstance(value, Mapping) or "kind" not in value:
        return shown(value)
    options = ", ".join(f"{key}={shown(option)}" for key, option in value.items() if key != "kind")
    return f"{value['kind']}({options})" if options else str(value["kind"])


def plan(
    grid: Grid,
    objective: Objective,
    seeds: int | None = None,
    first_seed: int | None = None,
    run_id: str | None = None,
    draws: int = 0,
    is_robust: bool = False,
) -> Decision:
    """The decision between the points of a grid, with the runs of its first rung.

    ScenarioError for what `Grid.rows` refuses, for a single candidate, and if a forecast refuses all of them.
    """
    rows, scenarios = grid.rows(first_seed, lambda method, settings: label(settings) or method, cell_name)
    if len(rows) < 2:
        raise ScenarioError("there is one candidate: name several values of a key, such as method=fedavg,fedbr")
    for key in sorted({key for row in rows for key in row.settings}):
        if key.split(".")[0] in COMMON and key != "data.augment":
            raise ScenarioError(f"{key}: all candidates have the same data and target; name one value for all")
    limited = {BY_NAME[name] for name in (objective.cost, *objective.budgets)}
    for amount in (PRICE, CO2E, EPSILON):
        for row, loaded in zip(rows, scenarios, strict=True):
            if amount in limited and not at_amounts.spends(loaded.scenario, amount):
                raise ScenarioError(f"{row.name}: has no {amount.heading}: choose {at_amounts.MADE_BY[amount]}")
    share = scenarios[0].scenario.data.validation
    held_out = {} if share else {VALIDATION: HELD_OUT}
    run_id = run_id or _run_id(grid, rows, objective)
    numbers = grid.seeds(seeds, first_seed, scenarios[0].scenario.seed, SEEDS)
    decision = Decision(
        grid.scenario_name,
        grid.overrides,
        tuple(rows),
        numbers,
        RunSet(
            KIND,
            scenarios[0].name,
            (),
            run_id or _run_id(grid, rows, objective),
            asks=_asks(rows, scenarios, objective),
        ),
        () if objective.target is None else (objective.target,),
        objective=objective,
        grid=grid,
        held_out=held_out,
        draws=draws,
        is_robust=is_robust,
    )
    candidates = share_training(rows, [decision.load_row(row, numbers[0]) for row in rows])
    if objective.budgets:
        refused = forecasts(candidates, objective)
        if len(refused) == len(candidates):
            name, reason = next(iter(refused.items()))
            raise ScenarioError(f"no candidate can keep the budgets; {name}: {reason}")
        candidates = [replace(candidate, refusal=refused.get(candidate.row.name, "")) for candidate in candidates]
    return replace(decision, candidates=tuple(decision.replayed(_led(candidates)))).begun()


def _led(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, of which none shares the training of one that is refused."""
    first: dict[str, str] = {}
    for candidate in candidates:
        if not candidate.refusal:
            first.setdefault(candidate.like, candidate.row.name)
    return [
        candidate if candidate.refusal else replace(candidate, like=first[candidate.like]) for candidate in candidates
    ]


def _asks(rows: Sequence[ExperimentRow], scenarios: Sequence[Loaded], objective: Objective) -> dict[str, str]:
    """The question of a decision; more seeds, draws and changed fleets only add to it. Files are known by their
    content: no run may be made with that of a candidate which is replayed."""
    candidates = []
    for row, loaded in zip(rows, scenarios, strict=True):
        settings = dict(row.settings)
        for key in settings.keys() & {*fleet_files.KEYS}:
            content = RunInputs(loaded).file_hashes.get(key, "")[:8]
            settings[key] = f"{Path(str(settings[key])).name} ({content})"
        candidates.append(label(settings))
    aims = {
        "target": objective.target,
        "cost": objective.cost,
        **{f"budget {k}": v for k, v in objective.budgets.items()},
    }
    text = ", ".join(f"{name} {value}" for name, value in aims.items() if value is not None)
    return {"candidates": ", ".join(sorted(candidates)), "aims": text}


def _run_id(grid: Grid, rows: Sequence[ExperimentRow], objective: Objective) -> str:
    """``decide-3fa9c1``: a hash of the candidates, of what they have in common, and of the objective."""
    names = sorted(row.name for row in rows)
    text = json.dumps([words(grid.overrides), names, msgspec.to_builtins(objective)], default=str)
    return folder_name([KIND, hashlib.sha256(text.encode()).hexdigest()[:6]])
