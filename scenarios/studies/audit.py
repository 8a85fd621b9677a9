"""``fedbr audit RUN..``: what a claimed saving costs, from the bytes that papers count to joules, beside a twin.

The twin of a run with codecs is the run that differs in nothing else. A run without codecs, or without its twin, is
compared with another reference: the run that is named, or the first of FedAvg on the same data. Runs are paired by
their seeds, and read where both have reached the same score: nothing is trained, and nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from edge.protocol.better import HIGHER, Better
from scenarios.config.errors import Argument, ReportError, ScenarioError
from scenarios.experiment.sweep import Target, target_of
from scenarios.report import html, labels, stages, terminal
from scenarios.report.columns import BYTES, Quantity, cells
from scenarios.report.readings import quantity_of
from scenarios.report.run_reader import RecordedRun, RunGroup, grouped, open_runs, settings_of
from scenarios.report.stages import StageTotals
from scenarios.report.tables import Cell, Number, Table, TableColumn, of_texts
from scenarios.run.plugin_sources import not_imported
from scenarios.run.progress import Mean, Trail, accumulated
from scenarios.run.run_finder import found
from scenarios.run.score import RunScore
from scenarios.studies.replay import prepared

FACTOR = Quantity({"x": 1}, 2)
REFERENCE_METHOD = "fedavg"
MOMENTS = (
    "Second moments: the paper of FedAdamW (arXiv:2510.27486) sends the mean of each block, as these runs do, and its "
    "published code the whole of them."
)
Means = Mapping[str, Mean]
"""Key of a stage -> its mean over seeds"""


class ComparedPair(Struct, frozen=True):
    """A group of runs beside its reference, as `ReferencePair` has them."""

    name: str
    """Of the reference"""
    is_twin: bool
    differing: list[str]
    seeds: list[int]
    score: float | None
    spent: Means
    """Until the score"""
    reference_spent: Means
    factors: Means
    """How many times as much the reference needs"""


class SlotMeans(Struct, frozen=True):
    """The bytes of a slot of payloads, one way."""

    slot: str
    direction: str
    raw: Mean
    encoded: Mean


class AuditRow(Struct, frozen=True):
    """A group of runs that differ in their seed alone."""

    name: str
    method: str
    seeds: list[int]
    runs: list[str]
    """Folders"""
    nominal_rule: str
    whole: Means
    """Of whole runs"""
    slots: list[SlotMeans]
    reference: ComparedPair | None
    is_private: bool = False
    """Whether runs have differential privacy"""


class AuditResult(Struct, frozen=True):
    """The output of ``audit --json``."""

    metric: str
    """By which the runs are judged"""
    better: Better
    is_share: bool
    target: float | None
    """Of it"""
    rows: list[AuditRow]

    @property
    def score(self) -> RunScore:
        """The metric by which the runs are judged."""
        return RunScore(self.metric, self.better, self.is_share)


def spent_by(run: RecordedRun, rounds: int | None = None) -> StageTotals:
    """The stages of a run until so many of its rounds have ended, by default all, with what encoding has cost.

    That is the difference of two replays, on the run's devices and on such that encode in no time. It is unknown for
    runs that cannot be replayed (`scenarios.studies.replay`), and where other visits would count.
    """
    spent = stages.totals(run, rounds)
    if not stages.codecs(run.settings):
        return spent
    try:
        real, free = (trail[:rounds][-1] for trail in _with_and_without_encoding(run))
    except ScenarioError:
        return replace(spent, encoding_seconds=None, encoding_joules=None)
    seconds, joules = real.virtual_seconds - free.virtual_seconds, real.joules - free.joules
    return replace(spent, encoding_seconds=seconds, encoding_joules=joules)


@lru_cache(maxsize=64)
def _with_and_without_encoding(run: RecordedRun) -> tuple[Trail, Trail]:
    """The progress of a run, replayed on its devices and on such that encode in no time. ScenarioError."""
    ready = prepared(run.folder)
    free = replace(ready.fleet, codec_slowdown=np.zeros_like(ready.fleet.codec_slowdown))
    real, without = (accumulated(ready.play(fleet).rounds_done) for fleet in (ready.fleet, free))
    return real, without


def means_of(spent: Sequence[StageTotals | None]) -> Means:
    """The stages of several runs; of a run without one, nothing."""
    return {stage.key: Mean.of([None if run is None else stage.value(run) for run in spent]) for stage in stages.STAGES}


def factors_of(own: Means, reference: Means) -> Means:
    """How many times as much the reference needs, seed by seed; None where either needs nothing or is missing."""
    return {
        key: Mean.of(
            [
                theirs / mine if mine and theirs else None
                for mine, theirs in zip(own[key].values, reference[key].values, strict=True)
            ]
        )
        for key in own
    }


@dataclass(frozen=True)
class ReferencePair:
    """A group of runs and the group that it is compared with, over the seeds that both have."""

    group: RunGroup
    reference: RunGroup
    is_twin: bool
    """Whether they differ in codecs alone"""
    differing: Sequence[str]
    """Keys in which they differ"""
    target: float | None
    """The score at which they are compared, if it is given"""

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.group.runs} & {run.seed for run in self.reference.runs})

    def _runs(self, group: RunGroup) -> list[RecordedRun]:
        return [run for run in group.runs if run.seed in self.seeds]

    @property
    def score(self) -> float | None:
        """The target, or else the best score that all of these runs have reached; None if one has none."""
        reached = [run.trail.best for run in (*self._runs(self.group), *self._runs(self.reference))]
        known = [each for each in reached if each is not None]
        if self.target is not None:
            return self.target
        if not known or len(known) < len(reached):
            return None
        return min(known) if self.group.first.score.better is HIGHER else max(known)

    def spent(self, group: RunGroup) -> Means:
        """The stages of one of the two groups until the score."""
        points = [(run, run.trail.until(self.score)) for run in self._runs(group)]
        return means_of([None if point is None else spent_by(run, point.rounds) for run, point in points])

    def result(self) -> ComparedPair:
        """The amounts of both until the score."""
        own, reference = self.spent(self.group), self.spent(self.reference)
        return ComparedPair(
            name=self.reference.label,
            is_twin=self.is_twin,
            differing=list(self.differing),
            seeds=self.seeds,
            score=self.score,
            spent=own,
            reference_spent=reference,
            factors=factors_of(own, reference),
        )


@dataclass(frozen=True)
class Audit:
    """Groups of runs, and the pairs of those that have a reference."""

    groups: Sequence[RunGroup]
    pairs: Mapping[str, ReferencePair]
    """Label of a group -> it and its reference"""
    target: float | None

    @property
    def score(self) -> RunScore:
        """The metric by which all of these runs are judged."""
        return self.groups[0].first.score

    def result(self) -> AuditResult:
        """The amounts of all groups, each beside its reference."""
        rows = []
        for group in self.groups:
            spent = [spent_by(run) for run in group.runs]
            pair = self.pairs.get(group.label)
            rows.append(
                AuditRow(
                    name=group.label,
                    method=group.first.method,
                    seeds=[run.seed for run in group.runs],
                    runs=[str(run.folder) for run in group.runs],
                    nominal_rule=stages.nominal_rule(group),
                    whole=means_of(spent),
                    slots=_slots(spent),
                    reference=None if pair is None else pair.result(),
                    is_private=group.first.guarantee is not None,
                )
            )
        return AuditResult(**vars(self.score), target=self.target, rows=rows)


def _slots(spent: Sequence[StageTotals]) -> list[SlotMeans]:
    means = []
    for slot, direction in sorted({key for run in spent for key in run.by_slot}):
        nbytes = [run.by_slot.get((slot, direction), stages.SlotBytes()) for run in spent]
        raw, encoded = Mean.of([each.raw for each in nbytes]), Mean.of([each.encoded for each in nbytes])
        means.append(SlotMeans(slot, direction, raw, encoded))
    return means


@not_imported()
def audit(folders: Sequence[Path], target: Target | None = None, twin: str | None = None) -> Audit:
    """The audit of these runs, comparisons or sweeps.

    ``target``: the score at which runs are compared, as of `target_of`; ``twin``: label, method, name or folder of the
    run that all others are compared with. ScenarioError for what these cannot be. Runs of a folder that have not ended
    are left out, with a note; ReportError for one that is named, and if there is no other.
    """
    runs = found(folders)
    runs.print_notes()
    opened = open_runs(runs.folders)
    going_on = [run for run in opened if run.summary is None]
    for run in going_on:
        why = f"{run.folder} has not ended, and its costs would grow; fedbr resume goes on with it"
        if len(going_on) == len(opened) or run.folder in map(Path, folders):  # there is no other, or it was named
            raise ReportError(why)
        print(f"fedbr: warning: left out: {why}", file=sys.stderr)
    opened = [run for run in opened if run not in going_on]
    score = opened[0].score
    if other := [run for run in opened if run.score != score]:
        why = f"is judged by {other[0].score.metric}, and {opened[0].label} by {score.metric}"
        raise ReportError(f"{other[0].folder}: {why}; audit compares runs at equal values of one metric")
    groups = grouped(opened)
    goal = None if target is None else target_of(target, score)
    if goal is not None and not any(run.trail.until(goal) for run in opened):
        reached = [(value, run.label) for run in opened if (value := run.trail.best) is not None]
        best = (max if score.better is HIGHER else min)(reached, default=None)
        most = "; none was evaluated" if best is None else f"; the best is {score.text(best[0])}, {best[1]}"
        raise ReportError(Argument("target", f"{goal:g}"), f": no run reached this {score.metric}{most}")
    return Audit(groups, {pair.group.label: pair for pair in _pairs(groups, goal, twin)}, goal)


def _pairs(groups: Sequence[RunGroup], target: float | None, twin: str | None) -> Iterator[ReferencePair]:
    """Each group with the one that is named, or with its twin, or with the first of FedAvg on the same data."""
    settings = settings_of(groups)
    chosen = None if twin is None else _chosen(groups, twin)
    for i, own in enumerate(settings):
        if chosen is not None and (other := _other_data(own, settings[chosen])):
            raise ReportError(
                Argument("twin", repr(twin)),
                f": {groups[i].label} has other data ({', '.join(other)}), on which an equal score says nothing",
            )
        twins = [j for j, each in enumerate(settings) if _is_twin(own, each)]
        averaging = [
            j
            for j, each in enumerate(settings)
            if groups[j].first.method == REFERENCE_METHOD and not stages.codecs(each) and not _other_data(own, each)
        ]
        for j in (*twins, *averaging) if chosen is None else (chosen,):
            if i == j:  # it is the reference of others
                break
            differing = labels.differing([own, settings[j]])
            pair = ReferencePair(groups[i], groups[j], j in twins, differing, target)
            if pair.seeds:
                yield pair
                break
            if chosen is not None:
                raise ReportError(Argument("twin", repr(twin)), f": has no seed in common with {groups[i].label}")


def _chosen(groups: Sequence[RunGroup], name: str) -> int:
    """The group of this label, or of a run with this name or folder, or the first of this method."""
    for i, group in enumerate(groups):
        runs = (*group.runs, *group.repeats)
        if name == group.label or any(name in (run.label, run.folder.name, str(run.folder)) for run in runs):
            return i
    for i, group in enumerate(groups):
        if name == group.first.method:
            return i
    known = list(dict.fromkeys(text for group in groups for text in (group.label, group.first.method)))
    raise ScenarioError(Argument("twin", repr(name)), ": none of these runs, ", given=name, choices=known)


def _is_twin(settings: labels.Settings, other: labels.Settings) -> bool:
    """Whether the other group has no codec, and is the same otherwise."""
    if not stages.codecs(settings) or stages.codecs(other):
        return False
    return all(key.startswith(stages.CODEC) for key in labels.differing([settings, other]))


def _other_data(settings: labels.Settings, other: labels.Settings) -> list[str]:
    """The keys of the data that differ."""
    keys = labels.differing([settings, other])
    return [key for key in keys if key.startswith("data.") and key != "data.root"]


# --- shown ------------------------------------------------------------------------------------------------------------


def sentences(result: AuditResult, with_factors: bool) -> list[str]:
    """A sentence per row that says what it lacks to be compared, or ``with_factors`` also the result."""
    lines, score = [], result.score
    used = {row.reference.name for row in result.rows if row.reference}
    for row in result.rows:
        pair = row.reference
        if pair is None:
            if row.name not in used:
                lines.append(
                    f"{row.name} has no reference: add the run with the same seed and without codecs, or one of "
                    f"method={REFERENCE_METHOD} on the same data, or name one with --twin."
                )
            continue
        both = f"{row.name} against {pair.name}, {'its twin without codecs' if pair.is_twin else 'no twin'}"
        if pair.score is None:
            lines.append(f"{both}: no common {score.metric}, since one was not evaluated.")
            continue
        known = [(stage, pair.factors[stage.key]) for stage in stages.CHAIN]
        texts = [f"{stage.heading} {_texts(FACTOR, [each])[0]}" for stage, each in known if each.mean is not None]
        if with_factors or not texts:
            lines.append(f"{both}, at {score.text(pair.score)}: {', '.join(texts) or 'one has not reached it'}.")
    return lines


def tables(result: AuditResult) -> list[Table]:
    """The stages of whole runs, the factors at equal accuracy, and what travelled by slot if that is more than one."""
    rows, score = result.rows, result.score
    shown = [stage for stage in stages.STAGES if any(row.whole[stage.key].mean for row in rows)]
    texts = [[stage.heading, *_texts(stage.quantity, [row.whole[stage.key] for row in rows])] for stage in shown]
    rules: dict[str, list[str]] = {}
    for row in rows:
        rules.setdefault(row.nominal_rule, []).append(row.name)
    notes = [f"Nominal: {rule} ({'; '.join(names)})." for rule, names in rules.items()]
    if any(stage is stages.WHOLE_MOMENTS for stage in shown):
        notes.append(MOMENTS)
    notes += _privacy_notes(rows)
    found = [of_texts("whole runs", ["", *(row.name for row in rows)], texts, notes)]
    paired = [(row, row.reference) for row in rows if row.reference]
    if paired:
        columns = [
            TableColumn("", key="run"),
            TableColumn("reference", is_left=True),
            TableColumn("at", quantity_of(score), missing=f"no common {score.metric}"),
            *(TableColumn(stage.heading, FACTOR, missing="not reached", key=stage.key) for stage in stages.CHAIN),
        ]
        cells_of: list[list[Cell]] = [
            [
                row.name,
                f"{pair.name} (twin)" if pair.is_twin else pair.name,
                pair.score,
                *(Number.mean(pair.factors[stage.key]) for stage in stages.CHAIN),
            ]
            for row, pair in paired
        ]
        note = "Amount of the reference over that of the run until both have the score: above 1, the run needs less."
        found.append(Table(f"factors at equal {score.metric}", columns, cells_of, [note]))
    slots = [(row, slot) for row in rows for slot in row.slots]
    if len({slot.slot for _, slot in slots}) > 1:
        columns = [TableColumn("", key="run"), TableColumn("slot", is_left=True), TableColumn("way", is_left=True)]
        columns += [TableColumn("float32", BYTES, key="raw"), TableColumn("encoded", BYTES, unit_of="raw")]
        of_slots: list[list[Cell]] = [
            [row.name, slot.slot, slot.direction, Number.mean(slot.raw), Number.mean(slot.encoded)]
            for row, slot in slots
        ]
        found.append(Table("payload by slot", columns, of_slots))
    return found


def _privacy_notes(rows: Sequence[AuditRow]) -> Iterator[str]:
    """Notes on what secure aggregation adds to each row, and that noise adds nothing."""
    for row in rows:
        secure, payload = (row.whole[stage.key].mean for stage in (stages.SECURE, stages.PAYLOAD))
        messages, wasted = (row.whole[stage.key].mean for stage in (stages.MESSAGES, stages.WASTED))
        if secure is not None and payload and messages is not None and wasted is not None:
            factor = (messages + wasted) / payload
            yield f"{row.name}: with secure aggregation all messages are {factor:.3g} times the float32 payload."
    if any(row.is_private for row in rows):
        yield "Noise of differential privacy has no bytes."


def pair_tables(result: AuditResult) -> Iterator[Table]:
    """All stages of each pair until its score, side by side."""
    for row in result.rows:
        pair = row.reference
        if pair is None or pair.score is None:
            continue
        texts = [
            [
                stage.heading,
                *_texts(stage.quantity, [pair.spent[stage.key], pair.reference_spent[stage.key]]),
                *_texts(FACTOR, [pair.factors[stage.key]]),
            ]
            for stage in stages.STAGES
        ]
        title = f"until {result.score.text(pair.score)}: {row.name} against {pair.name}"
        yield of_texts(title, ["", row.name, pair.name, "factor"], texts)


def _texts(quantity: Quantity, means: Sequence[Mean]) -> list[str]:
    return cells(quantity, [each.mean for each in means], [each.half_width for each in means])


def show(result: AuditResult, page: Path | None) -> None:
    for table in tables(result):
        terminal.print_table(table, len(table.columns))
    for line in sentences(result, with_factors=False):
        print(f"\n{line}")
    if page is not None:
        terminal.print_location(page)


def write_page(audited: Audit, result: AuditResult, output: Path) -> Path:
    """Write the page: sentences, the figure of all stages, tables, and the report of the runs."""
    from scenarios.report.html_figures import inline
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.result_figures import BarPanel, bars

    rows = result.rows
    names = {stage.key: stage.heading for stage in stages.OF_BYTES}
    panels = [
        BarPanel(
            "Bytes of the whole run, stage by stage",
            "bytes down and up",
            BYTES,
            {row.name: {names[key]: row.whole[key] for key in names} for row in rows},
        )
    ]
    if audited.pairs:
        factors = {row.name: {names[key]: row.reference.factors[key] for key in names} for row in rows if row.reference}
        panels.append(
            BarPanel(f"Factor against the reference at equal {result.metric}", "factor", FACTOR, factors, 1.0)
        )
    shown = ShownRuns(audited.groups)
    figure = inline("stages", lambda: bars(shown, [row.name for row in rows], panels))
    caption = (
        "Left: what papers count, the vectors as float32 and as they are encoded, messages with their headers, and "
        "frames on the wire with what was wasted. Right: how many times as much the reference needs until both have "
        f"the same {result.metric}, beyond the dashed line a saving."
    )
    answer = html.ExperimentAnswer(
        " ".join(sentences(result, with_factors=True)),
        {},
        [("stages", figure, caption)],
        [*tables(result), *pair_tables(result)],
    )
    title = f"Audit: {', '.join(group.label for group in audited.groups[: html.MOST_IN_TITLE])}"
    return html.write_experiment(output, title, answer, audited.groups, audited.target)
