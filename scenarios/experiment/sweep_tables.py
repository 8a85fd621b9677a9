"""The tables of a sweep's result: scores, costs, and tests of pairs, which are named by the numbers of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import asdict

from coordinator.rounds.amounts import BYTES, CO2E, ENERGY, ROUNDS, VIRTUAL_SECONDS, Amount
from coordinator.rounds.budget import EARLY
from costmodel.fleet.carbon import LEFT_OUT
from edge.protocol.plugins import display_name
from scenarios.experiment import at_amounts, judged, statistics
from scenarios.experiment.at_amounts import AmountReading
from scenarios.experiment.experiment import Result
from scenarios.experiment.run_set import missing_note
from scenarios.experiment.statistics import MOST_SEEDS, SPENT, MeasureTests, RowStatistics, TargetCosts
from scenarios.report import readings, result_tables
from scenarios.report.columns import COUNT
from scenarios.report.tables import Cell, Number, Table, TableColumn
from scenarios.run.progress import Mean
from scenarios.run.score import OF_ACCURACY, RunScore, score_in

MOST_PAIRS = 20
"""Pairs of a table; of more, those with the smallest p are shown."""
INTERVAL = "mean ± half of the 95 % interval (Student's t over seeds); sd: sample standard deviation"
ONE_SEED = "one seed: no deviation, no interval and no test; use --seeds 3 or more"
CO2E_NOTE = f"CO2e: the energy of clients' visits at the intensity of fleet.carbon; left out: {LEFT_OUT}"
NO_MEAN = "-: a run of these seeds did not reach it, so that there is no mean"
OF_CLIENTS = ("mean", "worst decile", "spread")
CLIENTS = (
    "each client's model on the client's own examples, in the last evaluation of each run: mean over clients, mean of "
    "their worst tenth, and standard deviation over them"
)
WORST_DEVICE = "worst device: in each seed, the worst of the means over the clients of a kind of device"
TESTS = (
    "p: paired t-test, two-sided, for seeds that were chosen beforehand; Holm: p corrected for all pairs of rows; "
    "seeds needed: to find this difference with power 0.8 at 5 %"
)
IN_POINTS = ", of accuracies in percentage points (pp)"
PAIRED = "a - b over the seeds that both have{}; + and -: seeds in which a is above and below b; " + TESTS
AGAINST = (
    "over the seeds that both rows have{}; + and -: seeds in which a row is above and below the baseline; "
    f"{TESTS}; all pairs are in pairs.csv"
)
COMMON = (BYTES, VIRTUAL_SECONDS)
"""Amounts at whose smallest total the runs of a comparison are read"""
COMMON_READ = "when last evaluated within the amount, mean over seeds"
BEST_OF_ROUNDS = "best: of all rounds, chosen on the examples that it is measured on, so that it is flattered"
WORST_DECILE = "worst decile of clients"
ASKED = (VIRTUAL_SECONDS, BYTES)
"""Amounts until a target that the answer names"""
OF_RUN = (ROUNDS.key, VIRTUAL_SECONDS.key, *BYTES.columns, *ENERGY.columns, "model_sha256")
"""Keys of a run's summary that ``runs.csv`` has, beside the scores"""


class SweepRow(Struct, frozen=True):
    """A cell of a sweep."""

    name: str
    method: str
    settings: dict[str, str]
    runs: list[str]
    """Their names, by seed"""
    statistics: RowStatistics
    by_device: list[dict[str, float]] = []
    """For each seed, kind of device -> mean accuracy over its clients; empty without kinds of devices"""
    of_clients: dict[str, Mean] = {}
    """By `statistics.of_clients`; empty if a run has no such values"""

    def plain(self, score: RunScore = OF_ACCURACY) -> dict[str, object]:
        """For JSON: its statistics stand beside the other keys."""
        return {
            "name": self.name,
            "method": self.method,
            "settings": self.settings,
            "runs": self.runs,
            **self.statistics.plain(score),
            **({"by_device": self.by_device} if self.by_device else {}),
            **{key: asdict(each) for key, each in self.of_clients.items()},
        }


class CommonReading(Struct, frozen=True):
    """Scores within an amount."""

    amount: float
    score: dict[str, float | None]
    """By row, the mean over its seeds"""


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep, read from what ``sweep --json`` prints."""

    scenario: str
    overrides: Sequence[str]
    axes: Mapping[str, Sequence[str]]
    seeds: Sequence[int]
    targets: Sequence[float]
    """Of the score, the easiest first"""
    score: RunScore
    """The metric by which its runs are judged"""
    rows: Sequence[SweepRow]
    tests: Sequence[MeasureTests]
    at: Mapping[str, Sequence[AmountReading]]
    """Name of an amount -> its readings; empty if none is named"""
    in_common: Mapping[Amount, CommonReading]
    """At the smallest totals of the runs of a comparison; empty of other sweeps"""
    choice: judged.JudgedSettings | None
    """On validation examples, if that was asked"""
    stopped_by: Sequence[str]
    """What ended each run"""
    missing: Sequence[str]
    """Names of runs"""
    has_diverged: bool
    """Whether a run did"""
    baselines: Mapping[str, float]
    """Forecasts that need no model -> their score on the test examples, where that is one of all runs"""


def read(result: Result) -> SweepResult:
    """The result of `Sweep.result`, or of a part of its keys."""
    score = score_in(result)
    return SweepResult(
        scenario=result.get("scenario", ""),
        overrides=result.get("overrides", []),
        axes=result.get("axes", {}),
        seeds=result.get("seeds", []),
        targets=result["targets"],
        score=score,
        rows=[_row(row, score) for row in result["rows"]],
        tests=convert(result["tests"], list[MeasureTests]),
        at=at_amounts.read(result.get("at", {}), score),
        in_common={
            amount: CommonReading(common[amount.name], common[readings.of_score(score)[0].key])
            for amount in COMMON
            if (common := result.get(f"at_common_{amount.name}")) is not None
        },
        choice=convert(result, judged.JudgedSettings) if "chosen" in result else None,
        stopped_by=[run["stopped_by"] for run in result.get("runs", [])],
        missing=result.get("missing", []),
        has_diverged="diverged" in result,
        baselines=_baselines(result.get("runs", []), score),
    )


def _baselines(runs: Sequence[Result], score: RunScore) -> dict[str, float]:
    """Those whose score is the same in all runs."""
    found = [
        {name: errors[score.metric] for name, errors in (run.get("baselines") or {}).items() if score.metric in errors}
        for run in runs
    ]
    return found[0] if found and all(each == found[0] for each in found) else {}


def _row(row: Result, score: RunScore) -> SweepRow:
    def means(found: Result, keys: Iterable[str]) -> dict[str, Mean]:
        return {key: convert(found[key], Mean) for key in keys if key in found}

    amounts = (*readings.AMOUNTS, *readings.OF_SOME)
    until = [
        TargetCosts(each["target"], each["runs"], each["reached"], means(each, amounts)) for each in row["to_target"]
    ]
    last, best = (convert(row[reading.key], Mean) for reading in readings.of_score(score))
    found = RowStatistics(row["seeds"], last, best, means(row, amounts), until)
    clients = means(row, statistics.of_clients(score))
    return SweepRow(
        row["name"], row["method"], row["settings"], row.get("runs", []), found, row.get("by_device", []), clients
    )


def tables(result: SweepResult, baseline: str | None = None) -> list[Table]:
    """All tables: scores, costs to each target, totals, and the pairs of each measure that was tested.

    ``baseline``: the row that all others are compared with, in place of all pairs.
    """
    return [
        *_chosen(result),
        *_at(result),
        *_in_common(result),
        *_of_rows(result),
        *_of_clients(result),
        *_of_devices(result),
        _totals(result),
        *(_tests(result, group, baseline) for group in _tested(result)),
    ]


def _totals(result: SweepResult) -> Table:
    rows = zip(labels(result.rows), result.rows, strict=True)
    cells: list[list[Cell]] = [[name, *_means(result, row.statistics.spent)] for name, row in rows]
    notes = _notes(result, INTERVAL, *_co2e_note(result))
    return Table("whole runs", [TableColumn(""), *_spent(result)], cells, notes)


def _co2e_note(result: SweepResult) -> list[str]:
    return [CO2E_NOTE] if CO2E in spent(result) else []


def answer(result: SweepResult) -> list[str]:
    """The answer to what the sweep was asked, in sentences: who needs the least time and bytes until the hardest
    target; without a target, or where no row reaches it with all of its seeds, who has the best score."""
    rows = dict(zip(labels(result.rows), result.rows, strict=True))
    names = {row.name: label for label, row in rows.items()}
    tests = {(group.measure, group.target): group.pairs for group in result.tests}
    target = result.targets[-1] if result.targets else None

    def sentence(reading: readings.Reading[Any], means: Mapping[str, Mean], key: str, at: float | None) -> str:
        p_values = {(names[pair.a], names[pair.b]): pair.p_holm for pair in tests[key, at]}
        return result_tables.best_row(reading, means, p_values)

    sentences = []
    if target is not None:
        place = result.targets.index(target)
        for amount in ASKED:
            means = {label: row.statistics.to_target[place].spent[amount.key] for label, row in rows.items()}
            if any(found.mean is not None for found in means.values()):
                sentences.append(sentence(readings.until(amount, target, result.score), means, amount.key, target))
        if not sentences:
            sentences.append(f"No row reaches {result.score.text_of_target(target)} with all of its seeds.")
    if target is None or len(sentences) == 1:
        means = {label: row.statistics.final for label, row in rows.items()}
        last = readings.of_score(result.score)[0]
        sentences.append(sentence(last, means, last.key, None))
    return sentences


def short(result: SweepResult, baseline: str | None = None) -> list[Table]:
    """The tables of the terminal: the tests of the last score and of what was asked, and every note once.

    Whole runs are there where no row reaches the hardest target with any seed.
    """
    shown, noted = [*_chosen(result), *_at(result), *_in_common(result), *_of_rows(result)], set[str]()
    shown += [*_of_clients(result), *_of_devices(result)]
    hardest = result.targets[-1] if result.targets else None
    asked = [(readings.of_score(result.score)[0].key, None), *((amount.key, hardest) for amount in ASKED)]
    if hardest is None or not any(row.statistics.to_target[-1].reached for row in result.rows):
        shown.append(_totals(result))
    shown += [_tests(result, group, baseline) for group in _tested(result) if (group.measure, group.target) in asked]
    for index, table in enumerate(shown):
        shown[index] = replace(table, notes=[note for note in table.notes if note not in noted])
        noted.update(table.notes)
    return shown


def labels(rows: Sequence[SweepRow]) -> list[str]:
    """What tells the rows apart, as of `labels_of`."""
    return labels_of([(row.method, row.settings) for row in rows])


def labels_of(rows: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
    """What tells rows of (method, settings) apart: ``2 fedbr lr=0.05``; a key is its last part, unless two would have
    the same."""
    keys = dict.fromkeys(key for _, settings in rows for key in settings)
    ends = [key.rpartition(".")[2] for key in keys]
    names = {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
    texts = []
    for number, (method, settings) in enumerate(rows, start=1):
        words = (value if key == "method" else f"{names[key]}={value}" for key, value in settings.items())
        texts.append(f"{number} {display_name(' '.join(words) or method)}")
    return texts


def headings(rows: Sequence[SweepRow]) -> dict[str, str]:
    """Name of a row -> its label."""
    return {row.name: label for row, label in zip(rows, labels(rows), strict=True)}


def _at(result: SweepResult) -> list[Table]:
    """Scores at amounts, if any are named."""
    labels = headings(result.rows)
    return list(at_amounts.tables(result.at, result.score, labels, result.stopped_by, result.missing))


def _in_common(result: SweepResult) -> list[Table]:
    """Scores at what all runs of a comparison have spent."""
    rows: list[list[Cell]] = [
        [amount.shown(common.amount), *(common.score.get(row.name) for row in result.rows)]
        for amount, common in result.in_common.items()
    ]
    held = readings.quantity_of(result.score)
    columns = [TableColumn(""), *(TableColumn(label, held, missing="-") for label in labels(result.rows))]
    return [Table(f"{result.score.metric} at what all runs have spent", columns, rows, [COMMON_READ])] if rows else []


def _chosen(result: SweepResult) -> list[Table]:
    """The settings that are chosen on validation examples, if that was asked, and all of them."""
    if result.choice is None:
        return []
    return judged.tables(result.choice, result.score, result.missing, result.has_diverged)


def spent(result: SweepResult) -> list[Amount]:
    """The amounts that rows have: those of `SPENT`, and of `readings.OF_SOME` if any row has them."""
    above = [
        amount for key, amount in readings.OF_SOME.items() if any(key in row.statistics.spent for row in result.rows)
    ]
    return [*SPENT, *above]


def _spent(result: SweepResult, dispensable: Mapping[Amount, int] | None = None) -> list[TableColumn]:
    order = dispensable or {}
    return [
        TableColumn(amount.heading, readings.quantity(amount), missing="-", dispensable=order.get(amount, 0))
        for amount in spent(result)
    ]


def _means(result: SweepResult, found: Mapping[str, Mean]) -> Iterator[Number]:
    """The mean of each amount of `spent`, of a row or of one of its targets."""
    for amount in spent(result):
        yield Number.mean(found[amount.key]) if amount.key in found else Number(None)


def _notes(result: SweepResult, *notes: str) -> list[str]:
    alone = [ONE_SEED] if any(len(row.statistics.seeds) == 1 for row in result.rows) else []
    stopped = sum(rule in EARLY for rule in result.stopped_by)
    unfinished = f"runs that were stopped before their end, and count as far as they are: {stopped}"
    return [*notes, *alone, *([unfinished] if stopped else []), *missing_note(result.missing)]


def _of_rows(result: SweepResult) -> list[Table]:
    """Scores, and what was spent until each target."""
    metric, held = result.score.metric, readings.quantity_of(result.score)
    columns = [
        TableColumn(""),
        TableColumn(f"{metric}, last", held, missing="-"),
        TableColumn("sd", held, missing="-", dispensable=2),
        TableColumn(f"{metric}, best", held, missing="-", dispensable=3),
        TableColumn("sd", held, missing="-", dispensable=1),
        TableColumn("seeds", COUNT),
    ]
    rows: list[list[Cell]] = []
    for name, row in zip(labels(result.rows), result.rows, strict=True):
        values = [(Number.mean(mean), mean.deviation) for mean in (row.statistics.final, row.statistics.best)]
        rows.append([name, *values[0], *values[1], len(row.statistics.seeds)])
    shown = [Table(metric, columns, rows, _notes(result, INTERVAL, BEST_OF_ROUNDS, *_without_model(result)))]
    for index, target in enumerate(result.targets):
        rows = []
        for name, row in zip(labels(result.rows), result.rows, strict=True):
            until = row.statistics.to_target[index]
            rows.append([name, f"{until.reached} of {until.runs}", *_means(result, until.spent)])
        every = [row.statistics for row in result.rows]
        is_short = any(found.to_target[index].reached < len(found.seeds) for found in every)
        columns = [TableColumn(""), TableColumn("reached"), *_spent(result, {ROUNDS: 1, ENERGY: 2})]
        notes = _notes(result, INTERVAL, *([NO_MEAN] if is_short else []), *_co2e_note(result))
        shown.append(Table(f"until {result.score.words_of_target(target)}", columns, rows, notes))
    return shown


def _without_model(result: SweepResult) -> Iterator[str]:
    """The forecasts that need no model, and the rows that lose to one."""
    score = result.score
    if result.baselines:
        texts = ", ".join(f"{name} {score.text(value)}" for name, value in result.baselines.items())
        yield f"forecasts that need no model, on the same windows: {texts}"
    for name, value in result.baselines.items():
        rows = zip(labels(result.rows), result.rows, strict=True)
        finals = ((label, row.statistics.final.mean) for label, row in rows)
        lost = [label for label, mean in finals if mean is not None and score.better.prefers(value, mean)]
        if lost:
            yield f"{', '.join(lost)} {'loses' if len(lost) == 1 else 'lose'} to {name}"


def _of_clients(result: SweepResult) -> list[Table]:
    """Scores on clients' own examples, if rows have any."""
    rows: list[list[Cell]] = [
        [name, *(Number.mean(row.of_clients[key]) for key in statistics.of_clients(result.score))]
        for name, row in zip(labels(result.rows), result.rows, strict=True)
        if row.of_clients
    ]
    held = readings.quantity_of(result.score)
    columns = [TableColumn(""), *(TableColumn(name, held) for name in OF_CLIENTS)]
    return (
        [Table(f"{result.score.metric} of clients", columns, rows, _notes(result, INTERVAL, CLIENTS))] if rows else []
    )


def _of_devices(result: SweepResult) -> list[Table]:
    """Scores of clients by kind of device, if rows have any."""
    rows = zip(labels(result.rows), result.rows, strict=True)
    table = result_tables.device_means({name: row.by_device for name, row in rows if row.by_device}, result.score)
    return [] if table is None else [replace(table, notes=_notes(result, INTERVAL, WORST_DEVICE))]


# --- pairs --------------------------------------------------------------------------------------------------------


def _tested(result: SweepResult) -> list[MeasureTests]:
    """The groups of tests in which a pair has one."""
    return [group for group in result.tests if any(pair.p is not None for pair in group.pairs)]


def _tests(result: SweepResult, group: MeasureTests, baseline: str | None) -> Table:
    """The tests of a measure: of each row against the baseline, or without one of all pairs, by numbers of rows."""
    last, best = (reading.key for reading in readings.of_score(result.score))
    metric = result.score.metric
    of_scores = {last: f"{metric}, last", best: f"{metric}, best", readings.WORST_DECILE: WORST_DECILE}
    is_score = group.measure in of_scores
    amount = of_scores[group.measure] if is_score else readings.AMOUNTS[group.measure].heading
    measure = amount if group.target is None else f"{amount} until {result.score.words_of_target(group.target)}"
    amounts = readings.AMOUNTS
    quantity = readings.differences_of(result.score) if is_score else readings.quantity(amounts[group.measure])
    points = IN_POINTS if result.score.is_share else ""
    if baseline is not None:
        names = headings(result.rows)
        pairs = statistics.against(group.pairs, baseline)
        by_label = {label: pairs.get(name) for name, label in names.items()}
        table = result_tables.differences(measure, quantity, names[baseline], by_label, MOST_SEEDS)
        return replace(table, notes=[AGAINST.format(points)])
    numbers = {row.name: number for number, row in enumerate(result.rows, start=1)}
    known = [(pair.p, pair.p_holm, pair) for pair in group.pairs if pair.p is not None and pair.p_holm is not None]
    shown = known if len(known) <= MOST_PAIRS else sorted(known, key=itemgetter(0))[:MOST_PAIRS]
    columns = [
        TableColumn("a - b"),
        TableColumn("difference", quantity.of_differences),
        TableColumn("seeds", COUNT),
        TableColumn("+ / -", dispensable=1),
        TableColumn("p"),
        TableColumn("Holm"),
        TableColumn("seeds needed", dispensable=2),
    ]
    rows: list[list[Cell]] = [
        [
            f"{numbers[pair.a]} - {numbers[pair.b]}",
            Number.mean(pair.difference),
            len(pair.seeds),
            f"{pair.higher} / {pair.lower}",
            *("< 0.001" if p < 0.001 else f"{p:.3f}" for p in probabilities),
            f"> {MOST_SEEDS:,}" if pair.seeds_needed is None else str(pair.seeds_needed),
        ]
        for *probabilities, pair in shown
    ]
    left = [f"the {len(shown)} of {len(known)} pairs with the smallest p; all are in pairs.csv"]
    without = len(group.pairs) - len(known)
    untested = [f"{without} pairs are not tested: a run has no value, or all differences are the same"]
    notes = [PAIRED.format(points), *(left if len(shown) < len(known) else []), *(untested if without else [])]
    return Table(f"differences of {measure}, paired over seeds", columns, rows, notes)


# --- numbers for files --------------------------------------------------------------------------------------------


def numbers(given: Result) -> Table:
    """``sweep.csv``: a row per cell, amounts in seconds, bytes and joules, shares in [0, 1]."""
    result = read(given)
    keys = list(dict.fromkeys(key for row in result.rows for key in row.settings))
    amounts = [amount.key for amount in spent(result)]
    fairness = [key for key in statistics.of_clients(result.score) if any(key in row.of_clients for row in result.rows)]
    scores = [reading.key for reading in readings.of_score(result.score)]
    header = [*keys, "seeds", *scores, *fairness, *amounts]
    for target in result.targets:
        header += [f"reached_{target:g}", *(f"{key}_to_{target:g}" for key in amounts)]

    def cells(row: SweepRow) -> Iterator[Cell]:
        yield from (row.settings.get(key) for key in keys)
        yield len(row.statistics.seeds)
        yield from map(Number.mean, (row.statistics.final, row.statistics.best))
        yield from (Number.mean(row.of_clients[key]) if row.of_clients else Number(None) for key in fairness)
        yield from _means(result, row.statistics.spent)
        for until in row.statistics.to_target:
            yield until.reached
            yield from _means(result, until.spent)

    return Table("", [TableColumn(key) for key in header], [list(cells(row)) for row in result.rows])


def pair_numbers(tests: Sequence[MeasureTests]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``pairs.csv``: a row per measure and pair."""
    keys = ["mean", "deviation", "half_width", "higher", "lower", "p", "p_holm", "seeds_needed"]
    rows = [
        [group.measure, group.target, pair.a, pair.b, len(pair.seeds), *(getattr(pair, key) for key in keys)]
        for group in tests
        for pair in group.pairs
    ]
    return ["measure", "target", "a", "b", "seeds", *keys], rows


def runs(given: Result) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``runs.csv``: a row per run, with what it spent until each target."""
    result, summaries = read(given), {run["name"]: run for run in given["runs"]}
    keys = list(dict.fromkeys(key for row in result.rows for key in row.settings))
    amounts = [amount.key for amount in spent(result)]
    above = [key for key in amounts if key in readings.OF_SOME]
    to_target = [f"{key}_to_{target:g}" for target in result.targets for key in amounts]
    of_run = [*(reading.key for reading in readings.of_score(result.score)), *OF_RUN]
    rows = []
    for row in result.rows:
        found = row.statistics
        for index, (seed, name) in enumerate(zip(found.seeds, row.runs, strict=True)):
            own = [summaries[name].get(key) for key in of_run]
            own += [found.spent[key].values[index] if key in found.spent else None for key in above]
            until = [
                each.spent[key].values[index] if key in each.spent else None
                for each in found.to_target
                for key in amounts
            ]
            rows.append([name, *(row.settings.get(key) for key in keys), seed, *own, *until])
    return ["run", *keys, "seed", *of_run, *above, *to_target], rows
