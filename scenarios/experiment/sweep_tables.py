"""The tables of a sweep's result, as text for the terminal, the report, Markdown and LaTeX, and as numbers for CSV.

Cells are numbered in their order; pairs are named by these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.rounds.budget import EARLY
from edge.protocol.plugins import display_name
from scenarios.experiment.results import SPENT
from scenarios.experiment.run_set import missing_note
from scenarios.experiment.statistics import MOST_SEEDS
from scenarios.report.columns import BYTES, COUNT, JOULES, PERCENT, POINTS, SECONDS, Quantity, cells
from scenarios.report.narrow import fitting, widths
from scenarios.report.pages import PageTable
from scenarios.report.terminal import GAP

Result = Mapping[str, Any]
MOST_PAIRS = 20
"""Pairs of a table; of more, those with the smallest p are shown."""
INTERVAL = "mean ± half of the 95 % interval (Student's t over seeds); sd: sample standard deviation"
ONE_SEED = "one seed: no deviation, no interval and no test; use --seeds 3 or more"
PAIRED = (
    "a - b over the seeds that both have, of accuracies in percentage points (pp); + and -: seeds in which a is above "
    "and below b; p: paired t-test, two-sided; "
    "Holm: p corrected for all pairs of the table; seeds needed: to find this difference with power 0.8 at 5 %"
)
AMOUNTS: Mapping[str, tuple[str, Quantity]] = {
    "virtual_seconds": ("virtual time", SECONDS),
    "bytes": ("bytes", BYTES),
    "joules": ("energy", JOULES),
    "rounds": ("rounds", COUNT),
}
"""Key of a row -> its name and what it holds."""
ACCURACIES = {"accuracy": "accuracy, last", "best_accuracy": "accuracy, best"}
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},  # which text fonts may lack
}


def tables(result: Result) -> list[PageTable]:
    """All tables: accuracies, costs to each target, totals, and the pairs of each measure that was tested."""
    return [
        _accuracies(result),
        *(_to_target(result, index) for index in range(len(result["targets"]))),
        _totals(result),
        *(_pairs(result, group) for group in result["tests"] if any(pair["p"] is not None for pair in group["pairs"])),
    ]


def short(result: Result, width: int = 80) -> list[PageTable]:
    """The tables of the terminal: columns that ``width`` has room for, and every note once.

    Left out first are deviations beside an interval, rounds and energy, and of pairs the counts of signs and the seeds
    needed; never a p or the number of seeds.
    """
    found = [
        _fitting(_accuracies(result), width, (4, 2, 3)),
        *(_fitting(_to_target(result, index), width, (5, 4)) for index in range(len(result["targets"]))),
    ]
    group = result["tests"][0]
    if any(pair["p"] is not None for pair in group["pairs"]):
        found.append(_fitting(_pairs(result, group), width, (3, 6)))
    return list(_said_once(found))


def _said_once(found: Iterable[PageTable]) -> Iterator[PageTable]:
    said = set[str]()
    for table in found:
        yield replace(table, notes=[note for note in table.notes if note not in said])
        said.update(table.notes)


def _fitting(table: PageTable, width: int, dispensable: Sequence[int]) -> PageTable:
    """The table without those of its ``dispensable`` columns that a terminal of ``width`` has no room for."""
    chosen = fitting(widths([table.header, *table.rows]), width, GAP, dispensable)
    rows = [[row[index] for index in chosen] for row in table.rows]
    return replace(table, header=[table.header[index] for index in chosen], rows=rows)


def labels(rows: Sequence[Result]) -> list[str]:
    """What tells the rows apart: ``2 fedbr lr=0.05``."""
    names = short_keys(dict.fromkeys(key for row in rows for key in row["settings"]))
    return [f"{number} {_label(row, names)}" for number, row in enumerate(rows, start=1)]


def _label(row: Result, names: Mapping[str, str]) -> str:
    words = (value if key == "method" else f"{names[key]}={value}" for key, value in row["settings"].items())
    return display_name(" ".join(words) or str(row["method"]))


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Key -> its last part, or the whole key where two would have the same."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    return {key: end if list(ends.values()).count(end) == 1 else key for key, end in ends.items()}


def _notes(result: Result, *notes: str) -> list[str]:
    alone = [ONE_SEED] if any(len(row["seeds"]) == 1 for row in result["rows"]) else []
    stopped = sum(run["stopped_by"] in EARLY for run in result.get("runs", []))
    unfinished = (
        [f"runs that were stopped before their end, and count as far as they are: {stopped}"] if stopped else []
    )
    return [*notes, *alone, *unfinished, *missing_note(result)]


def _accuracies(result: Result) -> PageTable:
    values = [[row[key] for row in result["rows"]] for key in ACCURACIES]
    columns = [column for of in values for column in (_means(of, PERCENT), _deviations(of))]
    seeds = [str(len(row["seeds"])) for row in result["rows"]]
    rows = [list(row) for row in zip(labels(result["rows"]), *columns, seeds, strict=True)]
    header = ["", *(name for title in ACCURACIES.values() for name in (title, "sd")), "seeds"]
    return PageTable("accuracy", header, rows, _notes(result, INTERVAL))


def _means(values: Sequence[Result], quantity: Quantity) -> list[str]:
    """A column of means with their intervals."""
    return cells(quantity, [value["mean"] for value in values], [value["half_width"] for value in values], "-")


def _deviations(accuracies: Sequence[Result]) -> list[str]:
    return cells(PERCENT, [value["deviation"] for value in accuracies], missing="-")


def _spent(rows: Sequence[Result]) -> Iterator[list[str]]:
    """A column for each of `AMOUNTS`."""
    return (_means([row[key] for row in rows], quantity) for key, (_, quantity) in AMOUNTS.items())


def _to_target(result: Result, index: int) -> PageTable:
    found = [row["to_target"][index] for row in result["rows"]]
    reached = [f"{row['reached']} of {row['runs']}" for row in found]
    rows = [list(row) for row in zip(labels(result["rows"]), reached, *_spent(found), strict=True)]
    short = any(row["reached"] < row["runs"] for row in found)
    note = ["-: a run of these seeds did not reach it, so that there is no mean"] if short else []
    title = f"until accuracy {100 * result['targets'][index]:g} %"
    header = ["", "reached", *(name for name, _ in AMOUNTS.values())]
    return PageTable(title, header, rows, _notes(result, INTERVAL, *note))


def _totals(result: Result) -> PageTable:
    rows = [list(row) for row in zip(labels(result["rows"]), *_spent(result["rows"]), strict=True)]
    header = ["", *(name for name, _ in AMOUNTS.values())]
    return PageTable("whole runs", header, rows, _notes(result, INTERVAL))


# --- pairs --------------------------------------------------------------------------------------------------------


def _pairs(result: Result, group: Result) -> PageTable:
    numbers = {row["name"]: number for number, row in enumerate(result["rows"], start=1)}
    known = [pair for pair in group["pairs"] if pair["p"] is not None]
    shown = known if len(known) <= MOST_PAIRS else sorted(known, key=lambda pair: float(pair["p"]))[:MOST_PAIRS]
    quantity = POINTS if group["measure"] in ACCURACIES else AMOUNTS[group["measure"]][1]
    rows = [
        [f"{numbers[pair['a']]} - {numbers[pair['b']]}", difference, *_test(pair)]
        for pair, difference in zip(shown, _means(shown, quantity), strict=True)
    ]
    header = ["a - b", "difference", "seeds", "+ / -", "p", "Holm", "seeds needed"]
    left = [f"the {len(shown)} of {len(known)} pairs with the smallest p; all are in pairs.csv"]
    without = len(group["pairs"]) - len(known)
    untested = [f"{without} pairs are not tested: a run has no value, or all differences are the same"]
    notes = [PAIRED, *(left if len(shown) < len(known) else []), *(untested if without else [])]
    return PageTable(f"differences of {measure_name(group)}, paired over seeds", header, rows, notes)


def measure_name(group: Result) -> str:
    """``accuracy, last``, or ``bytes until accuracy 90 %``."""
    if group["target"] is None:
        return ACCURACIES[group["measure"]]
    return f"{AMOUNTS[group['measure']][0]} until accuracy {100 * group['target']:g} %"


def _test(pair: Result) -> list[str]:
    needed = f"{pair['seeds_needed']}" if pair["seeds_needed"] is not None else f"> {MOST_SEEDS:,}"
    return [
        str(len(pair["seeds"])),
        f"{pair['higher']} / {pair['lower']}",
        _probability(pair["p"]),
        _probability(pair["p_holm"]),
        needed,
    ]


def _probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- files --------------------------------------------------------------------------------------------------------


def markdown(found: Sequence[PageTable]) -> str:
    """The tables as Markdown."""
    return "\n".join(line for table in found for line in _markdown(table))


def _markdown(table: PageTable) -> Iterator[str]:
    yield from (f"## {table.title[:1].upper()}{table.title[1:]}", "")
    yield _row(table.header)
    yield _row(["---", *("---:" for _ in table.header[1:])])
    yield from map(_row, table.rows)
    yield ""
    for note in table.notes:
        yield from (note, "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def latex(found: Sequence[PageTable]) -> str:
    """The tables as LaTeX, for the package booktabs."""
    return "\n".join(line for table in found for line in _latex(table))


def _latex(table: PageTable) -> Iterator[str]:
    yield from (r"\begin{table}", r"\centering", rf"\caption{{{escaped('. '.join([table.title, *table.notes]))}}}")
    yield from (rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\toprule")
    yield from (_latex_row(table.header), r"\midrule", *map(_latex_row, table.rows))
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{table}", "")


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(escaped, cells))} \\\\"


def escaped(text: str) -> str:
    """A text for LaTeX."""
    return re.sub(r"[\\~^±&%$#_{}<>|]", lambda found: LATEX[found[0]], text)


def numbers(result: Result) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``sweep.csv``: a row per cell, amounts in seconds, bytes and joules, accuracies in [0, 1]."""
    keys = list(dict.fromkeys(key for row in result["rows"] for key in row["settings"]))
    measures = [*ACCURACIES, *SPENT]
    header = [*keys, "seeds", *(name for key in measures for name in _four(key))]
    for target in result["targets"]:
        header += [f"reached_{target:g}", *(name for key in SPENT for name in _four(f"{key}_to_{target:g}"))]
    return header, [_numbers(row, keys, measures) for row in result["rows"]]


def _four(name: str) -> list[str]:
    return [f"{name}_{part}" for part in ("mean", "deviation", "low", "high")]


def _numbers(row: Result, keys: Sequence[str], measures: Sequence[str]) -> list[Any]:
    cells = [row["settings"].get(key) for key in keys]
    cells += [len(row["seeds"]), *(number for key in measures for number in _interval(row[key]))]
    for found in row["to_target"]:
        cells += [found["reached"], *(number for key in SPENT for number in _interval(found[key]))]
    return cells


def _interval(value: Result) -> list[float | None]:
    mean, half = value["mean"], value["half_width"]
    ends = [None, None] if half is None else [mean - half, mean + half]
    return [mean, value["deviation"], *ends]


def pair_numbers(result: Result) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``pairs.csv``: a row per measure and pair."""
    keys = ["mean", "deviation", "half_width", "higher", "lower", "p", "p_holm", "seeds_needed"]
    rows = [
        [group["measure"], group["target"], pair["a"], pair["b"], len(pair["seeds"]), *(pair[key] for key in keys)]
        for group in result["tests"]
        for pair in group["pairs"]
    ]
    return ["measure", "target", "a", "b", "seeds", *keys], rows
