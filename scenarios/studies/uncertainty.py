"""``fedbr replay FOLDER .. --draws N``: intervals of times, and the probability that one method is faster.

The figures of devices and networks are uncertain, each as its basis says, and so are the jitter, the noise and the lost
segments of single visits. A draw takes one factor for each figure of each row, and replays the whole run on that fleet.
Draws of one seed have the same factors in all runs, so that runs are compared in pairs. The server's link and links
that clients share are exact, and nothing is trained: a draw holds the training of its run fixed. Runs that differ in
their seed alone are therefore pooled, and methods are compared seed by seed (`drawn_times.TimesOverSeeds`); with one
seed, all figures are given its training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
from msgspec import Struct

from costmodel.fleet.devices import Device, Network, Row, basis
from costmodel.fleet.fleet import DEVICE_FIGURES, NETWORK_FIGURES, Fleet, RowFactors, scaled
from costmodel.fleet.model_demand import figures_of_speed
from costmodel.fleet.variation import MEASURED
from edge.protocol.rng import keyed_generator
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.config.overrides import KeyValues, words
from scenarios.report import drawn_times, terminal
from scenarios.report.drawn_times import MOST_DRAWS, Chance, DrawnTimes, Interval, TimesOverSeeds, scope
from scenarios.report.run_reader import RecordedRun, RunGroup, grouped, open_runs
from scenarios.report.tables import of_texts
from scenarios.run import run_finder
from scenarios.run.score import score_of
from scenarios.studies.replay import Prepared, prepared, time_to
from scenarios.studies.replayed_run import OtherVisits

SIGMAS: Mapping[str, float] = {
    "training": 0.1,
    "inference": 0.5,
    "derived": 0.3,
    "measured": 0.2,
    "assumed": 0.7,
    "family": 0.36,
}
"""Basis of a figure -> sigma of its lognormal factor, of median 1. Judgements, each after the errors that are known:

- ``training``: a device measured in training. Calibrated devices predict the steps of models to which nothing is
  fitted with a median error of 4.9 %, and 15 of 18 within 10 % (docs/evidence/results.md).
- ``inference``: a device measured in inference. A step should take 3 forward passes, and took 10 to 17 on a phone.
- ``derived``: from another figure. Two data sets of one source (FLASH) have ratios of 3.3 and 2.4: ln = 0.32.
- ``measured``: a network's median over users. For 19 users with a sigma of 0.6, its standard error is 0.17.
- ``family``: a throughput of the model's family, measured with another model: a further factor, beside that of the
  figure's basis. Nine models that the Raspberry Pi 5's row was not made from, of the table that it was made from, have
  a root mean square error of 0.37 in the logarithm (convolutions 0.15, depthwise 0.44, attention 0.33).
- ``assumed``: no source. Three such figures of phones, measured later, were wrong by 2.9, 3 and 10: ln = 1.1 to 2.3.
"""
LARGEST_SIGMA = 3
MOST_LEFT_OUT_PERCENT = 10
"""Of the draws, those in which other visits would be trained are left out; more of them would bias an interval."""


@dataclass(frozen=True)
class Draws:
    count: int
    seed: int = 0
    sigmas: Mapping[str, float] = field(default_factory=lambda: SIGMAS)


def sigmas(settings: Sequence[str]) -> dict[str, float]:
    """`SIGMAS` with settings such as ``assumed=0.7``; ScenarioError names an invalid one."""
    chosen = dict(SIGMAS)
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in SIGMAS:
            raise ScenarioError(f"--sigma {setting}: unknown basis {name!r}, {nearest(name, list(SIGMAS))}")
        try:
            chosen[name] = float(text)
        except ValueError:
            chosen[name] = math.nan
        if not 0 <= chosen[name] <= LARGEST_SIGMA:
            raise ScenarioError(
                f"--sigma {setting}: must be a number from 0 to {LARGEST_SIGMA}, for example {name}=0.2"
            )
    return chosen


class Quantiles(Struct, frozen=True):
    """An `Interval`."""

    low: float
    median: float
    high: float


class Times(Struct, frozen=True):
    time_to_target_s: float | None
    virtual_seconds: float


class TimesInDraws(Struct, frozen=True):
    """By draw; None: not reached, or other visits would have been trained."""

    time_to_target_s: list[float | None]
    virtual_seconds: list[float | None]


class RunInDraws(Struct, frozen=True):
    run_dir: str
    label: str
    method: str
    seed: int
    rounds: int
    noise: float | str
    """Of transfers, as `DrawnTimes` has it"""
    recorded: Times
    time_to_target_s: Quantiles | None
    virtual_seconds: Quantiles
    reached: float
    """Share of draws"""
    left_out: int
    reason: str | None
    """Why the first draw is left out that is"""
    values: TimesInDraws


class GroupInDraws(Struct, frozen=True):
    """Runs that differ in their seed alone."""

    label: str
    method: str
    seeds: list[int]
    scope: str
    time_to_target_s: Quantiles | None
    virtual_seconds: Quantiles
    reached: float
    left_out: int


class PairInDraws(Struct, frozen=True):
    """The probability that the first group is before the second."""

    first: str
    second: str
    seeds: list[int]
    scope: str
    probability: float
    low: float | None
    high: float | None
    values: list[float]
    """By seed"""
    draws: int


class DrawsResult(Struct, frozen=True):
    """The output of ``replay --draws --json``."""

    draws: int
    seed: int
    sigmas: dict[str, float]
    overrides: list[str]
    target_accuracy: float | None
    runs: list[RunInDraws]
    groups: list[GroupInDraws]
    pairs: list[PairInDraws]


@dataclass(frozen=True)
class DrawnRuns:
    """Several runs, replayed in the same draws."""

    runs: Sequence[RecordedRun]
    ready: Sequence[Prepared]
    times: Sequence[DrawnTimes]
    draws: Draws
    overrides: KeyValues

    @cached_property
    def groups(self) -> list[tuple[RunGroup, TimesOverSeeds]]:
        """The runs that differ in their seed alone, with their times; of repeats of a seed, the first."""
        times_of = dict(zip([run.folder for run in self.runs], self.times, strict=True))
        return [
            (group, TimesOverSeeds({run.seed: times_of[run.folder] for run in group.runs}))
            for group in grouped(self.runs)
        ]

    @cached_property
    def chances(self) -> dict[tuple[int, int], Chance]:
        """(first, second) of `groups` -> the probability that the first is before the second."""
        return drawn_times.chances([times for _, times in self.groups])

    def result(self) -> DrawsResult:
        """The intervals of all runs and groups, and the probabilities of pairs."""
        runs = [
            RunInDraws(
                run_dir=str(run.folder),
                label=run.label,
                method=run.method,
                seed=run.seed,
                rounds=ready.record.completed,
                noise=times.noise,
                recorded=Times(time_to(times.target_accuracy, run.rounds, run.score), run.rounds[-1].end_s),
                time_to_target_s=quantiles(drawn.to_target),
                virtual_seconds=Quantiles(*drawn.to_end),
                reached=drawn.reached,
                left_out=drawn.left_out,
                reason=times.reason,
                values=TimesInDraws(list(times.time_to_target_s), list(times.virtual_seconds)),
            )
            for run, ready, times in zip(self.runs, self.ready, self.times, strict=True)
            for drawn in [TimesOverSeeds({run.seed: times})]
        ]
        groups = [
            GroupInDraws(
                label=group.label,
                method=group.first.method,
                seeds=list(times.by_seed),
                scope=scope(len(times.by_seed)),
                time_to_target_s=quantiles(times.to_target),
                virtual_seconds=Quantiles(*times.to_end),
                reached=times.reached,
                left_out=times.left_out,
            )
            for group, times in self.groups
        ]
        pairs = [
            PairInDraws(
                first=self.groups[i][0].label,
                second=self.groups[j][0].label,
                seeds=list(chance.by_seed),
                scope=scope(len(chance.by_seed)),
                probability=chance.probability,
                low=chance.low,
                high=chance.high,
                values=list(chance.by_seed.values()),
                draws=chance.draws,
            )
            for (i, j), chance in self.chances.items()
        ]
        of_draws = self.draws.count, self.draws.seed, dict(self.draws.sigmas), words(self.overrides)
        return DrawsResult(*of_draws, self.target, runs, groups, pairs)

    @property
    def target(self) -> float | None:
        """The accuracy that all runs are to reach."""
        return self.times[0].target_accuracy

    def keep(self) -> list[Path]:
        """Write the times of each run into its folder, and return the files; OSError.

        Nothing is written after a replay with overrides, whose times are those of another fleet than the run's.
        """
        if self.overrides:
            return []
        for run, times in zip(self.runs, self.times, strict=True):
            drawn_times.write(run.folder, times)
        return [run.folder / drawn_times.FILE for run in self.runs]


def replay_in_draws(folders: Sequence[Path], overrides: KeyValues, draws: Draws, allow_code: bool = False) -> DrawnRuns:
    """Replay the runs of folders, as `run_finder.found` has them, in the same draws.

    ScenarioError and ReportError as of `scenarios.studies.replay.replay`; ScenarioError also if more
    than `MOST_LEFT_OUT_PERCENT` of the draws would have trained other visits, and for runs with different targets.
    """
    if not 2 <= draws.count <= MOST_DRAWS:
        raise ScenarioError(f"--draws {draws.count}: must be from 2 to {MOST_DRAWS:,}")
    in_folders = run_finder.found(folders)
    in_folders.print_notes()
    runs = open_runs(in_folders.folders)
    ready = [prepared(run.folder, overrides, allow_code) for run in runs]
    targets = {each.loaded.scenario.stop.goal for each in ready}
    if len(targets) > 1:
        named = ", ".join(sorted("none" if target is None else f"{target:g}" for target in targets))
        raise ScenarioError(
            f"stop.target_accuracy: the runs have different targets ({named}); add stop.target_accuracy=.. for all"
        )
    times = [drawn(each, draws, run.folder) for each, run in zip(ready, runs, strict=True)]
    return DrawnRuns(runs, ready, times, draws, overrides)


def quantiles(interval: Interval | None) -> Quantiles | None:
    """The interval as JSON has it; None where there is none."""
    return None if interval is None else Quantiles(*interval)


# --- draws ------------------------------------------------------------------------------------------------------------


def drawn(ready: Prepared, draws: Draws, folder: Path) -> DrawnTimes:
    """The times of one run in all draws.

    ScenarioError as soon as more than `MOST_LEFT_OUT_PERCENT` of them would have trained other visits.
    """
    target = ready.loaded.scenario.stop.goal
    ends: list[float | None] = []
    reached: list[float | None] = []
    reason: str | None = None
    for draw in range(draws.count):
        try:
            rows = ready.play(uncertain(ready, draws, draw)).rounds_done
        except OtherVisits as other:
            reason = reason or one_paragraph(other.reason)
            ends.append(None)
            reached.append(None)
            left_out = ends.count(None)
            if 100 * left_out > MOST_LEFT_OUT_PERCENT * draws.count:
                raise ScenarioError(
                    f"{folder}: {left_out} of the first {len(ends)} draws would have trained other visits, more than "
                    f"{MOST_LEFT_OUT_PERCENT} % of {draws.count} (first reason: {reason}); to train anew: {ready.fresh}"
                ) from None
        else:
            ends.append(rows[-1].end_s)
            reached.append(time_to(target, rows, score_of(ready.loaded.scenario.train)))
    return DrawnTimes(
        seed=draws.seed,
        sigmas=dict(draws.sigmas),
        noise=ready.fleet.links.transport.noise or MEASURED,
        target_accuracy=target,
        model_sha256=ready.record.rounds[-1].model_sha256,
        virtual_seconds=ends,
        time_to_target_s=reached,
        reason=reason,
    )


def uncertain(ready: Prepared, draws: Draws, draw: int) -> Fleet:
    """The fleet of one draw: figures times their factors, and other jitter, noise and losses of all visits.

    A fleet without noise has that of real transfers. Crashes, power modes, redrawn rates and availability stay.
    """

    def normal_stream(purpose: str, index: int, client: int) -> np.random.Generator:
        return keyed_generator(draws.seed, f"uncertainty: {purpose}, {client}", index, draw)

    fleet, model = ready.fleet, ready.loaded.model
    transport = replace(fleet.links.transport, noise=fleet.links.transport.noise or MEASURED)
    factors = row_factors(fleet.devices, fleet.networks, model.families, draws, draw)
    links = replace(fleet.links, transport=transport)
    return scaled(replace(fleet, links=links, normal_streams=normal_stream), factors)


def row_factors(
    devices: Sequence[Device], networks: Sequence[Network], families: Sequence[str], draws: Draws, draw: int
) -> RowFactors:
    """The factors of one draw; those of a row depend on its name and not on the other rows.

    ``families``: the names by which a device's throughput is looked up, the model's and then its family's.
    """
    by_device: dict[str, dict[str, float]] = {figure: {} for figure in DEVICE_FIGURES}
    by_network: dict[str, dict[str, float]] = {figure: {} for figure in NETWORK_FIGURES}

    def add(factors: dict[str, dict[str, float]], kind: str, row: Row, sigmas_of_figures: Sequence[float]) -> None:
        normals = keyed_generator(draws.seed, f"uncertainty: {kind} {row.name}", draw).standard_normal(len(factors))
        for figure, factor in zip(factors, np.exp(np.array(sigmas_of_figures) * normals).tolist(), strict=True):
            factors[figure][row.name] = factor

    by_basis = draws.sigmas
    for device in devices:
        others = [by_basis[basis(device, key)] for key in ("step_seconds", "codec_slowdown")]
        add(by_device, "device", device, [throughput_sigma(device, families, by_basis), *others])
    for network in networks:
        keys = "down_bits_per_second", "up_bits_per_second", "rtt_seconds"
        add(by_network, "network", network, [by_basis[basis(network, key)] for key in keys])
    return RowFactors(by_device, by_network)


def throughput_sigma(device: Device, families: Sequence[str], by_basis: Mapping[str, float]) -> float:
    """Sigma of a device's throughput for a model; arguments as of `row_factors`, and a sigma for each basis.

    Of a device that was measured by kind of operation, it is that of the weakest figure. A figure of the family was
    measured with another model.
    """
    keys = figures_of_speed(device, families)
    sigma = max(by_basis[basis(device, key)] for key in keys)
    of_the_family = keys[0] in [f"flops_per_second.{family}" for family in families if family != families[0]]
    return math.hypot(sigma, by_basis["family"]) if of_the_family else sigma


# --- the table --------------------------------------------------------------------------------------------------------


def show(found: DrawnRuns, kept: Sequence[Path]) -> None:
    """Print a row per time, with a column per group, and a row per pair of them; ``kept``: files of the draws."""
    labels = [group.label for group, _ in found.groups]
    times, draws, score = [each for _, each in found.groups], found.draws.count, found.runs[0].score
    rows = [["virtual time", *drawn_times.median_texts(times, "virtual_seconds")]]
    if found.target is not None:
        rows.append([f"to {score.text_of_target(found.target)}", *drawn_times.median_texts(times, "time_to_target_s")])
        rows.append(["reached in", *(f"{100 * each.reached:.0f} % of draws" for each in times)])
    rows.append(["scope", *(scope(len(each.by_seed)) for each in times)])
    notes = [
        f"{run.label}: {each.left_out} of {draws} draws would have trained other visits and are left "
        f"out (first reason: {each.reason})"
        for run, each in zip(found.runs, found.times, strict=True)
        if each.left_out
    ]
    notes += [
        f"{label}: of its {len(each.by_seed)} seeds only one reaches the target, from which no interval follows"
        for label, each in zip(labels, times, strict=True)
        if each.reached and each.to_target is None
    ]
    notes += [
        f"{labels[i]} and {labels[j]} have no seed in common, and are not compared"
        for i, j in combinations(range(len(labels)), 2)
        if not times[i].by_seed.keys() & times[j].by_seed.keys()
    ]
    changed = f", with {' '.join(found.overrides)}" if found.overrides else ""
    title = f"median of {draws} draws (5 to 95 %){changed}"
    terminal.print_table(of_texts(title, ["", *labels], rows, notes))
    pairs = [
        [f"{labels[i]} before {labels[j]}", drawn_times.probability_text(pair), scope(len(pair.by_seed))]
        for (i, j), pair in found.chances.items()
    ]
    if pairs and found.target is not None:
        title = f"which reaches {score.text_of_target(found.target)} first"
        terminal.print_table(of_texts(title, ["", "probability", "scope"], pairs))
    for path in kept:
        terminal.print_path("kept", path)
