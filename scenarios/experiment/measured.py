"""Rounds that were measured on real devices, beside the rounds that runs predict (``fedbr compare --measured``).

The file is CSV with a row per round: ``round``, from 1, and ``seconds``, its duration; ``accuracy`` may be there.
Apps that ``fedbr flower export`` writes make such a file, ``rounds.csv``.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.records.schema import RoundRow
from costmodel.files import read_bytes
from edge.protocol.bounds import MOST_INTEGER
from edge.protocol.spelling import nearest
from scenarios.config.errors import Argument, ScenarioError
from scenarios.report.tables import Table, of_texts

NEEDED = ("round", "seconds")
MOST_NBYTES = 64_000_000
MOST_SECONDS = 1e12
"""Of one round"""
HEADINGS = ("method", "rounds", "measured", "predicted", "median ratio", "median error")


def read(file: Path) -> dict[int, float]:
    """Round, from 1 -> its measured seconds. ScenarioError names the line of what is no such row."""
    argument = Argument("measured", str(file))
    try:
        content = read_bytes(file, MOST_NBYTES)
    except ValueError as error:
        raise ScenarioError(argument, str(error).removeprefix(str(file))) from None
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))  # Excel's begin with a mark
        for name in NEEDED:
            if name not in (rows.fieldnames or ()):
                raise ScenarioError(argument, f": has no column {name!r}; {nearest(name, rows.fieldnames or ())}")
        found: dict[int, float] = {}
        for row in rows:
            try:
                number, seconds = int(row["round"]), float(row["seconds"])
                if not 1 <= number <= MOST_INTEGER or number in found or not 0 < seconds <= MOST_SECONDS:
                    raise ValueError
            except (TypeError, ValueError):
                wrong = f"round {row['round']!r}, seconds {row['seconds']!r}"
                why = "rounds count from 1, once each, and seconds are above 0"
                raise ScenarioError(argument, f", line {rows.line_num}: {wrong}: {why}") from None
            found[number] = seconds
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(argument, f": is no CSV file: {error}") from None
    if not found:
        raise ScenarioError(argument, ": has no round")
    return found


def beside(measured: Mapping[int, float], rounds: Sequence[RoundRow]) -> dict[str, Any]:
    """The rounds that both have: their number, total seconds (measured, predicted), and medians over rounds of the
    predicted duration over the measured one, and of its relative error. Medians are None without a common round."""
    pairs = [(measured[row.round + 1], row.end_s - row.start_s) for row in rounds if row.round + 1 in measured]
    ratios = [predicted / real for real, predicted in pairs]
    return {
        "rounds": len(pairs),
        "seconds": [sum(real for real, _ in pairs), sum(predicted for _, predicted in pairs)],
        "median_ratio": statistics.median(ratios) if ratios else None,
        "median_error": statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else None,
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row per run."""
    rows = []
    for name, each in found.items():
        medians = ["-", "-"]
        if each["median_ratio"] is not None:
            medians = [f"{each['median_ratio']:.3f}", f"{100 * each['median_error']:.1f} %"]
        rows.append([name, str(each["rounds"]), *(f"{seconds:.2f} s" for seconds in each["seconds"]), *medians])
    return of_texts("rounds that were measured, and as runs predict them", HEADINGS, rows)
