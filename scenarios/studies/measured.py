"""Rounds that were measured on real devices, beside the rounds that runs predict (``fedbr compare --measured``).

They come from a run folder that an app of ``fedbr flower export`` has written, from a folder of several, or from CSV
with a row per round or visit: ``round``, from 1, and ``seconds``, its duration; ``method``, of which run it is; and
``client``, the number or name of a visit's client. Rows without a method are of all runs, rows without a client are
rounds.

A simulator may be right about durations and still put methods in the wrong order, or wrong by a constant factor and
always put them in the right one. So the orders of methods, rounds and clients are compared, too: Kendall's tau (tau-b,
M. G. Kendall, Biometrika 33, 1945) is 1 where every pair is predicted in the order that was measured, and -1 where none
is. Its interval is that of predictions in draws of the fleet's uncertain figures (`scenarios.studies.uncertainty`).
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins

from coordinator.records.schema import RoundRow
from costmodel.files import read_bytes
from edge.protocol.bounds import MOST_INTEGER
from edge.protocol.spelling import nearest
from scenarios.config.errors import Argument, ReportError, ScenarioError
from scenarios.experiment.compare import Comparison
from scenarios.experiment.experiment import ExperimentPage, Result
from scenarios.report.drawn_times import HIGH, LOW
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.report.tables import Table, of_texts
from scenarios.run import run_finder
from scenarios.studies.replay import prepared
from scenarios.studies.replayed_run import OtherVisits
from scenarios.studies.uncertainty import Draws, uncertain

NEEDED = ("round", "seconds")
METHOD, CLIENT = "method", "client"
MOST_NBYTES = 64_000_000
MOST_SECONDS = 1e12
"""The longest round"""
DRAWS = 50
HEADINGS = ("method", "rounds", "measured", "predicted", "median ratio", "median error")
METHODS, ROUNDS, CLIENTS = "methods", "rounds", "clients"
"""The orders: rows by their mean round, rounds of a run, and its clients by their mean visit"""


@dataclass
class ObservedTimes:
    """Seconds of the rounds of one run, and of its clients' visits."""

    rounds: dict[int, float] = field(default_factory=dict)
    """By number, from 1"""
    visits: dict[str, dict[int, float]] = field(default_factory=dict)
    """Client, by number or name -> round -> seconds of its visit"""

    def add(self, round: int, client: str, seconds: float) -> bool:
        """Count a visit, or the round itself if there is no client; whether that was not known yet."""
        known = self.visits.setdefault(client, {}) if client else self.rounds
        is_new = round not in known
        known.setdefault(round, seconds)
        return is_new


Measured = Mapping[str, ObservedTimes]
"""Method -> what was measured of its run; '' of every run that has nothing of its own"""


class Beside(Struct, frozen=True):
    """The rounds that were measured and are predicted, too."""

    rounds: int
    seconds: list[float]
    """In total, measured and predicted"""
    median_ratio: float | None
    """Predicted over measured; None without a common round"""
    median_error: float | None
    """The relative error"""


class Ranks(Struct, frozen=True):
    """How far the predicted order is the measured one."""

    of: str
    """`METHODS`, `ROUNDS` or `CLIENTS`"""
    run: str | None
    """Whose; None of methods"""
    items: int
    tau: float | None
    """None where either order is all ties"""
    low: float | None
    """The 5 % quantile over draws"""
    high: float | None
    draws: int
    """Draws with a tau"""


@dataclass(frozen=True)
class MeasuredComparison(Comparison):
    """A comparison beside rounds that were measured."""

    measured: Measured = field(default_factory=dict)

    def result(self, done: Result) -> dict[str, Any]:
        """The keys of a comparison, ``measured`` (run -> `Beside`), and ``ranks``, with ``ranks_notes`` on draws."""
        result = super().result(done)
        runs = {run["name"]: (row, run) for row, own in self.runs_by_row(done["runs"]).items() for run in own.values()}
        opened = dict(zip(runs, open_runs([Path(run["run_dir"]) for _, run in runs.values()]), strict=True))
        notes, real = list[str](), dict[str, ObservedTimes]()
        for name, (row, _) in runs.items():
            own = self.measured.get(row, self.measured.get("", ObservedTimes()))
            real[name], unknown = _by_number(own, opened[name])
            notes += [f"{name}: it has no client {client!r}, which was measured" for client in unknown]
        result["measured"] = {name: to_builtins(beside(real[name].rounds, run.rounds)) for name, run in opened.items()}
        # The same rounds beside all methods put these in no order.
        rows = {name: row for name, (row, _) in runs.items() if row in self.measured}
        ranks, more = ranked(real, opened, rows)
        return result | {"ranks": to_builtins(ranks), "ranks_notes": [*notes, *more]}

    def page(self, result: Result) -> ExperimentPage:
        """That of a comparison, with a table of durations and one of orders before its own."""
        page = super().page(result)
        return replace(page, tables=[*_tables(result), *page.tables])

    def show(self, result: Result, page: Path) -> None:
        """Print the rounds of real devices beside those of the runs, and the tables of a comparison."""
        from scenarios.report import terminal

        for table in _tables(result):
            terminal.print_table(table, columns=len(HEADINGS))
        super().show(result, page)


def beside_runs(comparison: Comparison, path: Path) -> MeasuredComparison:
    """The comparison beside what was measured. ScenarioError as of `read`, and for a method that it has no run of."""
    measured, methods = read(path), [row.name for row in comparison.rows]
    for method in sorted(measured.keys() - {"", *methods}):
        raise ScenarioError(Argument("measured", str(path)), f": method {method!r}: {nearest(method, methods)}")
    return MeasuredComparison(
        **{each.name: getattr(comparison, each.name) for each in fields(comparison)}, measured=measured
    )


# --- what was measured ------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, ObservedTimes]:
    """The times of a file or of run folders (`Measured`). ScenarioError names the line of a wrong row."""
    return _of_runs(path) if path.is_dir() else _of_csv(path)


def _of_runs(folder: Path) -> dict[str, ObservedTimes]:
    argument = Argument("measured", str(folder))
    try:
        found = run_finder.found([folder])
        found.print_notes()
        runs = open_runs(found.folders)
        measured: dict[str, ObservedTimes] = {}
        for run in runs:
            if run.method in measured:
                why = f": has several runs of {run.method}; name a folder with one run of each method"
                raise ScenarioError(argument, why)
            measured[run.method] = times_of(run.rounds, _visits(run), run.client_name)
    except ReportError as error:
        raise ScenarioError(argument, f": {error}") from None
    return measured


def _of_csv(file: Path) -> dict[str, ObservedTimes]:
    argument = Argument("measured", str(file))
    try:
        content = read_bytes(file, MOST_NBYTES)
    except ValueError as error:
        raise ScenarioError(argument, str(error).removeprefix(str(file))) from None
    measured: dict[str, ObservedTimes] = {}
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))  # Excel's begin with a mark
        for name in NEEDED:
            if name not in (rows.fieldnames or ()):
                raise ScenarioError(argument, f": has no column {name!r}; {nearest(name, rows.fieldnames or ())}")
        for row in rows:
            method, client = ((row.get(name) or "").strip() for name in (METHOD, CLIENT))
            try:
                number, seconds = int(row["round"]), float(row["seconds"])
                known = measured.setdefault(method, ObservedTimes())
                is_valid = 1 <= number <= MOST_INTEGER and 0 < seconds <= MOST_SECONDS
                if not is_valid or not known.add(number, client, seconds):
                    raise ValueError
            except (TypeError, ValueError):
                wrong = f"round {row['round']!r}, seconds {row['seconds']!r}"
                why = "rounds count from 1, once each (for each method and client), and seconds are above 0"
                raise ScenarioError(argument, f", line {rows.line_num}: {wrong}: {why}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(argument, f": is no CSV file: {error}") from None
    if not measured:
        raise ScenarioError(argument, ": has no round")
    return measured


def _visits(run: RecordedRun) -> Iterator[tuple[int, int, float]]:
    for row in run.query("SELECT round, client, up_end_s - start_s s FROM visits WHERE kind = 'train' ORDER BY visit"):
        yield row["round"], row["client"], row["s"]


def times_of(
    rounds: Sequence[RoundRow], visits: Iterable[tuple[int, int, float]], called: Callable[[int], str] = str
) -> ObservedTimes:
    """The times that a run recorded, of its whole rounds.

    ``visits``: (round from 0, client, seconds); ``called``: the key of a client.
    """
    found = ObservedTimes(_whole(rounds))
    for round, client, seconds in visits:
        if round + 1 in found.rounds and seconds > 0:
            found.add(round + 1, called(client), seconds)
    return found


def _whole(rounds: Sequence[RoundRow]) -> dict[int, float]:
    """Round, from 1 -> seconds, of those that nothing cut short."""
    lasted = {row.round + 1: row.end_s - row.start_s for row in rounds if not row.cut_by}
    return {round: seconds for round, seconds in lasted.items() if seconds > 0}


def _by_number(measured: ObservedTimes, run: RecordedRun) -> tuple[ObservedTimes, list[str]]:
    """(the same with clients by the numbers of a run that may name them, clients that it does not have)."""
    clients = range(int((run.scenario.get("data") or {}).get("clients", 0)))
    number = dict(zip(map(str, clients), map(str, clients), strict=True))
    number |= {run.client_name(client): str(client) for client in clients}
    visits = {number[client]: seconds for client, seconds in measured.visits.items() if client in number}
    return ObservedTimes(measured.rounds, visits), [client for client in measured.visits if client not in number]


# --- durations and orders ---------------------------------------------------------------------------------------------


def beside(measured: Mapping[int, float], rounds: Sequence[RoundRow]) -> Beside:
    """The rounds that both have, and nothing cut short."""
    pairs = [(measured[round], seconds) for round, seconds in _whole(rounds).items() if round in measured]
    ratios = [predicted / real for real, predicted in pairs]
    return Beside(
        len(pairs),
        [sum(real for real, _ in pairs), sum(predicted for _, predicted in pairs)],
        statistics.median(ratios) if ratios else None,
        statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else None,
    )


def ranked(
    measured: Mapping[str, ObservedTimes], runs: Mapping[str, RecordedRun], rows: Mapping[str, str]
) -> tuple[list[Ranks], list[str]]:
    """The orders of methods, rounds and clients, and why some have no interval; all by the runs' names.

    ``rows``: the row of each run of which something of its own was measured. Methods are compared by their mean round
    over seeds, clients by their mean visit, of the rounds and visits that were measured and predicted.
    """
    predicted = {name: times_of(run.rounds, _visits(run)) for name, run in runs.items()}
    drawn, notes = dict[str, list[ObservedTimes | None]](), []
    for name, run in runs.items():
        try:
            drawn[name] = _in_draws(run)
        except (ScenarioError, ReportError) as error:
            notes.append(f"{name}: no draws, so no interval: {error}")
    needed, taus = {name for name in rows if measured[name].rounds}, dict[tuple[str, str | None], list[float]]()
    for draw in range(DRAWS):
        guesses = {name: each for name, draws in drawn.items() if (each := draws[draw]) is not None}
        # Methods are in an order only where all of them are.
        for of, run_name, *order in _orders(measured, guesses, rows if needed <= guesses.keys() else {}):
            if (one := tau(*order)) is not None:
                taus.setdefault((of, run_name), []).append(one)
    found = []
    for of, run_name, *order in _orders(measured, predicted, rows):
        own = taus.get((of, run_name), [])
        low, high = map(float, np.quantile(own, [LOW, HIGH])) if own else (None, None)
        found.append(Ranks(of, run_name, len(order[0]), tau(*order), low, high, len(own)))
    return found, notes


def tau(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """Kendall's tau-b of two orders; None where either is all ties."""
    from scipy.stats import kendalltau  # it takes half a second

    value = float(kendalltau(measured, predicted).statistic) if len(measured) > 1 else float("nan")
    return None if value != value else value


def _orders(
    measured: Mapping[str, ObservedTimes], predicted: Mapping[str, ObservedTimes], rows: Mapping[str, str]
) -> Iterator[tuple[str, str | None, list[float], list[float]]]:
    """(what, whose, measured seconds, predicted seconds), where there are two things to compare."""
    means: dict[str, list[tuple[float, float]]] = {}
    of_runs: list[tuple[str, str | None, list[float], list[float]]] = []
    for name, guess in predicted.items():
        real = measured[name]
        pairs = [(real.rounds[round], seconds) for round, seconds in guess.rounds.items() if round in real.rounds]
        of_runs.append((ROUNDS, name, *_columns(pairs)))
        if pairs and name in rows:
            means.setdefault(rows[name], []).append(_mean(pairs))
        of_clients = []
        for client, visits in guess.visits.items():
            known = real.visits.get(client, {})
            if common := [(known[round], seconds) for round, seconds in visits.items() if round in known]:
                of_clients.append(_mean(common))
        of_runs.append((CLIENTS, name, *_columns(of_clients)))
    every = [(METHODS, None, *_columns([_mean(pairs) for pairs in means.values()])), *of_runs]
    yield from (order for order in every if len(order[2]) > 1)


def _mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    real, predicted = _columns(pairs)
    return statistics.fmean(real), statistics.fmean(predicted)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [real for real, _ in pairs], [predicted for _, predicted in pairs]


def _in_draws(run: RecordedRun) -> list[ObservedTimes | None]:
    """The times that the run would have recorded in each draw; None where other visits would have been trained.

    ScenarioError for a run that cannot be replayed.
    """
    ready, draws, found = prepared(run.folder), Draws(DRAWS), list[ObservedTimes | None]()
    for draw in range(DRAWS):
        try:
            new = ready.play(uncertain(ready, draws, draw))
        except OtherVisits:
            found.append(None)
            continue
        visits = [(row.round, row.client, row.up_end_s - row.start_s) for row in new.visits_done if row.kind == "train"]
        found.append(times_of(new.rounds_done, visits))
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def _tables(result: Result) -> list[Table]:
    """Durations, a row per run; and orders, if any."""
    rows = []
    for name, each in result["measured"].items():
        medians = ["-", "-"]
        if each["median_ratio"] is not None:
            medians = [f"{each['median_ratio']:.3f}", f"{100 * each['median_error']:.1f} %"]
        rows.append([name, str(each["rounds"]), *(f"{seconds:.2f} s" for seconds in each["seconds"]), *medians])
    found = [of_texts("rounds that were measured, and as runs predict them", HEADINGS, rows)]
    orders = []
    for each in result["ranks"]:
        interval = "-" if each["low"] is None else f"{each['low']:.2f} to {each['high']:.2f}"
        of = each["of"] if each["run"] is None else f"{each['of']} of {each['run']}"
        orders.append([of, str(each["items"]), "-" if each["tau"] is None else f"{each['tau']:.2f}", interval])
    if orders:
        title = "are they predicted in the measured order?"
        headings = ("order of", "number", "Kendall's tau", f"5 to 95 % of {DRAWS} draws")
        found.append(of_texts(title, headings, orders, result["ranks_notes"]))
    return found
