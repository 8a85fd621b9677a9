"""The tables of a sweep's result: accuracies, costs, and tests of pairs, which are named by the numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.rounds.amounts import Amount
from coordinator.rounds.budget import EARLY
from edge.protocol.plugins import display_name
from scenarios.experiment import at_amounts, judged, statistics
from scenarios.experiment.run_set import missing_note
from scenarios.experiment.statistics import MOST_SEEDS, SPENT
from scenarios.report import readings, result_tables
from scenarios.report.columns import COUNT, PERCENT, POINTS
from scenarios.report.tables import Cell, Number, Table, TableColumn

Result = Mapping[str, Any]
MOST_PAIRS = 20
"""Pairs of a table; of more, those with the smallest p are shown."""
INTERVAL = "mean ± half of the 95 % interval (Student's t over seeds); sd: sample standard deviation"
ONE_SEED = "one seed: no deviation, no interval and no test; use --seeds 3 or more"
NO_MEAN = "-: a run of these seeds did not reach it, so that there is no mean"
OF_CLIENTS = ("mean", "worst decile", "spread")
CLIENTS = (
    "each client's model on the client's own examples, in the last evaluation of each run: mean over clients, mean of "
    "their worst tenth, and standard deviation over them"
)
WORST_DEVICE = "worst device: in each seed, the lowest of the means over the clients of a kind of device"
TESTS = (
    "p: paired t-test, two-sided, for seeds that were chosen beforehand; Holm: p corrected for all pairs of rows; "
    "seeds needed: to find this difference with power 0.8 at 5 %"
)
PAIRED = (
    "a - b over the seeds that both have, of accuracies in percentage points (pp); + and -: seeds in which a is above "
    f"and below b; {TESTS}"
)
AGAINST = (
    "over the seeds that both rows have, of accuracies in percentage points (pp); + and -: seeds in which a row is "
    f"above and below the baseline; {TESTS}; all pairs are in pairs.csv"
)
ACCURACIES = {"accuracy": "accuracy, last", "best_accuracy": "accuracy, best"}
BEST_OF_ROUNDS = "best: of all rounds, chosen on the examples that it is measured on, so that it is flattered"
TESTED = ACCURACIES | {"worst_decile": "worst decile of clients"}
"""Measures in [0, 1] that are tested -> their headings"""
ASKED = ("virtual_seconds", "bytes")
"""Amounts until a target that the answer names"""
OF_RUN = ("accuracy", "best_accuracy", "rounds", "virtual_seconds", "bytes_down", "bytes_up", "joules", "model_sha256")
"""Keys of a run's summary that ``runs.csv`` has"""


def tables(result: Result, baseline: str | None = None) -> list[Table]:
    """All tables: accuracies, costs to each target, totals, and the pairs of each measure that was tested.

    ``baseline``: the row that all others are compared with, in place of all pairs.
    """
    totals = Table(
        "whole runs",
        [TableColumn(""), *_spent(result)],
        [[name, *_means(result, row)] for name, row in zip(labels(result["rows"]), result["rows"], strict=True)],
        _notes(result, INTERVAL),
    )
    return [
        *_chosen(result),
        *_at(result),
        *_of_rows(result),
        *_of_clients(result),
        *_of_devices(result),
        totals,
        *(_tests(result, group, baseline) for group in _tested(result)),
    ]


def answer(result: Result) -> list[str]:
    """The answer to what the sweep was asked, in sentences: who needs the least time and bytes until the highest
    target; without a target, or where no row reaches it with all of its seeds, who is the most accurate."""
    rows = dict(zip(labels(result["rows"]), result["rows"], strict=True))
    names = {row["name"]: label for label, row in rows.items()}
    tests = {(group["measure"], group["target"]): group["pairs"] for group in result["tests"]}
    target = max(result["targets"], default=None)

    def sentence(reading: readings.Reading[Any], means: Mapping[str, Any], key: str, at: float | None) -> str:
        p_values = {(names[pair["a"]], names[pair["b"]]): pair["p_holm"] for pair in tests[key, at]}
        return result_tables.best_row(reading, means, p_values)

    sentences = []
    if target is not None:
        place = result["targets"].index(target)
        for key in ASKED:
            means = {label: row["to_target"][place][key] for label, row in rows.items()}
            if any(found["mean"] is not None for found in means.values()):
                sentences.append(sentence(readings.until(readings.AMOUNTS[key], target), means, key, target))
        if not sentences:
            sentences.append(f"No row reaches {100 * target:g} % with all of its seeds.")
    if target is None or len(sentences) == 1:
        means = {label: row["accuracy"] for label, row in rows.items()}
        sentences.append(sentence(readings.ACCURACY, means, "accuracy", None))
    return sentences


def short(result: Result, baseline: str | None = None) -> list[Table]:
    """The tables of the terminal: the tests of the last accuracy and of what was asked, and every note once."""
    shown, noted = [*_chosen(result), *_at(result), *_of_rows(result), *_of_clients(result)], set[str]()
    shown += _of_devices(result)
    highest = max(result["targets"], default=None)
    asked = [("accuracy", None), *((key, highest) for key in ASKED)]
    shown += [
        _tests(result, group, baseline) for group in _tested(result) if (group["measure"], group["target"]) in asked
    ]
    for index, table in enumerate(shown):
        shown[index] = replace(table, notes=[note for note in table.notes if note not in noted])
        noted.update(table.notes)
    return shown


def labels(rows: Sequence[Result]) -> list[str]:
    """What tells the rows apart: ``2 fedbr lr=0.05``; a key is its last part, unless two would have the same."""
    keys = dict.fromkeys(key for row in rows for key in row["settings"])
    ends = [key.rpartition(".")[2] for key in keys]
    names = {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
    texts = []
    for number, row in enumerate(rows, start=1):
        words = (value if key == "method" else f"{names[key]}={value}" for key, value in row["settings"].items())
        texts.append(f"{number} {display_name(' '.join(words) or row['method'])}")
    return texts


def headings(rows: Sequence[Result]) -> dict[str, str]:
    """Name of a row -> its label."""
    return {row["name"]: label for row, label in zip(rows, labels(rows), strict=True)}


def _at(result: Result) -> list[Table]:
    """Accuracies at amounts, if any are named."""
    return list(at_amounts.tables(result, headings(result["rows"]))) if result.get("at") else []


def _chosen(result: Result) -> list[Table]:
    """The settings that are chosen on validation examples, if that was asked, and all of them."""
    return judged.tables(result) if "chosen" in result else []


def spent(result: Result) -> list[Amount]:
    """The amounts that rows have: those of `SPENT`, and of `readings.OF_TIERS` if any row has tiers."""
    above = [amount for key, amount in readings.OF_TIERS.items() if any(key in row for row in result["rows"])]
    return [*(readings.AMOUNTS[key] for key in SPENT), *above]


def _spent(result: Result, dispensable: Mapping[str, int] | None = None) -> list[TableColumn]:
    order = dispensable or {}
    return [
        TableColumn(amount.heading, readings.quantity(amount), missing="-", dispensable=order.get(amount.key, 0))
        for amount in spent(result)
    ]


def _means(result: Result, found: Mapping[str, Any]) -> Iterator[Number]:
    """The mean of each amount of `spent`, of a row or of one of its targets."""
    for amount in spent(result):
        yield Number.mean(found[amount.key]) if amount.key in found else Number(None)


def _notes(result: Result, *notes: str) -> list[str]:
    alone = [ONE_SEED] if any(len(row["seeds"]) == 1 for row in result["rows"]) else []
    stopped = sum(run["stopped_by"] in EARLY for run in result.get("runs", []))
    unfinished = f"runs that were stopped before their end, and count as far as they are: {stopped}"
    return [*notes, *alone, *([unfinished] if stopped else []), *missing_note(result)]


def _of_rows(result: Result) -> list[Table]:
    """Accuracies, and what was spent until each target."""
    last, best = ACCURACIES.values()
    columns = [
        TableColumn(""),
        TableColumn(last, PERCENT, missing="-"),
        TableColumn("sd", PERCENT, missing="-", dispensable=2),
        TableColumn(best, PERCENT, missing="-", dispensable=3),
        TableColumn("sd", PERCENT, missing="-", dispensable=1),
        TableColumn("seeds", COUNT),
    ]
    rows: list[list[Cell]] = []
    for name, row in zip(labels(result["rows"]), result["rows"], strict=True):
        values = [(Number.mean(row[key]), row[key]["deviation"]) for key in ACCURACIES]
        rows.append([name, *values[0], *values[1], len(row["seeds"])])
    shown = [Table("accuracy", columns, rows, _notes(result, INTERVAL, BEST_OF_ROUNDS))]
    for index, target in enumerate(result["targets"]):
        rows = []
        for name, row in zip(labels(result["rows"]), result["rows"], strict=True):
            until = row["to_target"][index]
            rows.append([name, f"{until['reached']} of {until['runs']}", *_means(result, until)])
        is_short = any(row["to_target"][index]["reached"] < len(row["seeds"]) for row in result["rows"])
        columns = [TableColumn(""), TableColumn("reached"), *_spent(result, {"rounds": 1, "joules": 2})]
        notes = _notes(result, INTERVAL, *([NO_MEAN] if is_short else []))
        shown.append(Table(f"until accuracy {100 * target:g} %", columns, rows, notes))
    return shown


def _of_clients(result: Result) -> list[Table]:
    """Accuracies on clients' own examples, if rows have any."""
    rows: list[list[Cell]] = [
        [name, *(Number.mean(row[key]) for key in statistics.OF_CLIENTS)]
        for name, row in zip(labels(result["rows"]), result["rows"], strict=True)
        if "worst_decile" in row
    ]
    columns = [TableColumn(""), *(TableColumn(name, PERCENT) for name in OF_CLIENTS)]
    return [Table("accuracy of clients", columns, rows, _notes(result, INTERVAL, CLIENTS))] if rows else []


def _of_devices(result: Result) -> list[Table]:
    """Accuracies of clients by kind of device, if rows have any."""
    rows = zip(labels(result["rows"]), result["rows"], strict=True)
    table = result_tables.device_means({name: row["by_device"] for name, row in rows if "by_device" in row})
    return [] if table is None else [replace(table, notes=_notes(result, INTERVAL, WORST_DEVICE))]


# --- pairs --------------------------------------------------------------------------------------------------------


def _tested(result: Result) -> list[Result]:
    """The groups of tests in which a pair has one."""
    return [group for group in result["tests"] if any(pair["p"] is not None for pair in group["pairs"])]


def _tests(result: Result, group: Result, baseline: str | None) -> Table:
    """The tests of a measure: of each row against the baseline, or without one of all pairs, by numbers of rows."""
    is_accuracy = group["measure"] in TESTED
    amount = TESTED[group["measure"]] if is_accuracy else readings.AMOUNTS[group["measure"]].heading
    measure = amount if group["target"] is None else f"{amount} until accuracy {100 * group['target']:g} %"
    quantity = POINTS if is_accuracy else readings.quantity(readings.AMOUNTS[group["measure"]])
    if baseline is not None:
        names = {row["name"]: label for row, label in zip(result["rows"], labels(result["rows"]), strict=True)}
        pairs = statistics.against(group["pairs"], baseline)
        by_label = {label: pairs.get(name) for name, label in names.items()}
        table = result_tables.differences(measure, quantity, names[baseline], by_label, MOST_SEEDS)
        return replace(table, notes=[AGAINST])
    numbers = {row["name"]: number for number, row in enumerate(result["rows"], start=1)}
    known = [pair for pair in group["pairs"] if pair["p"] is not None]
    shown = known if len(known) <= MOST_PAIRS else sorted(known, key=lambda pair: float(pair["p"]))[:MOST_PAIRS]
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
            f"{numbers[pair['a']]} - {numbers[pair['b']]}",
            Number.mean(pair),
            len(pair["seeds"]),
            f"{pair['higher']} / {pair['lower']}",
            *("< 0.001" if p < 0.001 else f"{p:.3f}" for p in (pair["p"], pair["p_holm"])),
            f"> {MOST_SEEDS:,}" if pair["seeds_needed"] is None else str(pair["seeds_needed"]),
        ]
        for pair in shown
    ]
    left = [f"the {len(shown)} of {len(known)} pairs with the smallest p; all are in pairs.csv"]
    without = len(group["pairs"]) - len(known)
    untested = [f"{without} pairs are not tested: a run has no value, or all differences are the same"]
    notes = [PAIRED, *(left if len(shown) < len(known) else []), *(untested if without else [])]
    return Table(f"differences of {measure}, paired over seeds", columns, rows, notes)


# --- numbers for files --------------------------------------------------------------------------------------------


def numbers(result: Result) -> Table:
    """``sweep.csv``: a row per cell, amounts in seconds, bytes and joules, accuracies in [0, 1]."""
    keys = list(dict.fromkeys(key for row in result["rows"] for key in row["settings"]))
    amounts = [amount.key for amount in spent(result)]
    fairness = [key for key in statistics.OF_CLIENTS if any(key in row for row in result["rows"])]
    header = [*keys, "seeds", *ACCURACIES, *fairness, *amounts]
    for target in result["targets"]:
        header += [f"reached_{target:g}", *(f"{key}_to_{target:g}" for key in amounts)]

    def cells(row: Result) -> Iterator[Any]:
        yield from (row["settings"].get(key) for key in keys)
        yield len(row["seeds"])
        yield from (Number.mean(row[key]) for key in ACCURACIES)
        yield from (Number.mean(row[key]) if key in row else Number(None) for key in fairness)
        yield from _means(result, row)
        for until in row["to_target"]:
            yield until["reached"]
            yield from _means(result, until)

    return Table("", [TableColumn(key) for key in header], [list(cells(row)) for row in result["rows"]])


def pair_numbers(result: Result) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``pairs.csv``: a row per measure and pair."""
    keys = ["mean", "deviation", "half_width", "higher", "lower", "p", "p_holm", "seeds_needed"]
    rows = [
        [group["measure"], group["target"], pair["a"], pair["b"], len(pair["seeds"]), *(pair[key] for key in keys)]
        for group in result["tests"]
        for pair in group["pairs"]
    ]
    return ["measure", "target", "a", "b", "seeds", *keys], rows


def runs(result: Result) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``runs.csv``: a row per run, with what it spent until each target."""
    keys = list(dict.fromkeys(key for row in result["rows"] for key in row["settings"]))
    summaries = {run["name"]: run for run in result["runs"]}
    amounts = [amount.key for amount in spent(result)]
    above = [key for key in amounts if key in readings.OF_TIERS]
    to_target = [f"{key}_to_{target:g}" for target in result["targets"] for key in amounts]
    rows = []
    for row in result["rows"]:
        for index, (seed, name) in enumerate(zip(row["seeds"], row["runs"], strict=True)):
            own = [summaries[name].get(key) for key in OF_RUN]
            own += [row[key]["values"][index] if key in row else None for key in above]
            until = [
                each[key]["values"][index] if key in each else None for each in row["to_target"] for key in amounts
            ]
            rows.append([name, *(row["settings"].get(key) for key in keys), seed, *own, *until])
    return ["run", *keys, "seed", *OF_RUN, *above, *to_target], rows
