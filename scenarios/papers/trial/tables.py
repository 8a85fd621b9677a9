"""The tables of a trial's part, and its CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scenarios.experiment.run_set import missing_note
from scenarios.report.columns import PERCENT, POINTS
from scenarios.report.csv_files import csv_text
from scenarios.report.readings import AMOUNTS, ENERGY, NOMINAL_BYTES, VIRTUAL_SECONDS
from scenarios.report.readings import BYTES as NBYTES
from scenarios.report.tables import Cell, Number, Table, TableColumn

Row = Mapping[str, Any]
SHOWN = ((VIRTUAL_SECONDS, "time"), (NBYTES, "bytes"), (NOMINAL_BYTES, "nominal"), (ENERGY, "energy"))
"""Amounts until a target, with their headings"""
READ_AS = "mean ± half the 95 % interval (Student's t over seeds); differences are paired over seeds, in points"
COMPARED = "from FedAvg: of the same norm, and calibrated where the variant is"


def accuracies(result: Row) -> list[Table]:
    """A table per skew: the final accuracy, and its difference from FedAvg's."""
    left_out = [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]
    notes = [READ_AS, COMPARED, *left_out, *missing_note(result)]
    seeds = ", ".join(map(str, result["seeds"]))
    return [
        compared(
            f"{skew}: final accuracy, seeds {seeds}",
            "from FedAvg",
            {row["variant"]: (row["accuracy"], row["difference"]) for row in rows},
            notes,
        )
        for skew, rows in by_skew(result).items()
    ]


def by_skew(result: Row) -> dict[str, list[Row]]:
    """Skew -> its variants."""
    found: dict[str, list[Row]] = {}
    for row in result["variants"]:
        found.setdefault(row["skew"], []).append(row)
    return found


def compared(title: str, heading: str, rows: Mapping[str, tuple[Row, Row | None]], notes: Sequence[str]) -> Table:
    """Names with an accuracy, as ``41.9 ± 1.2 %``, and a difference, as ``-3.1 ± 0.8 pp``, if there is one."""
    columns = [
        TableColumn(""),
        TableColumn("accuracy", PERCENT, missing="-"),
        TableColumn(heading, POINTS, missing="", sign="+"),
    ]
    cells: list[list[Cell]] = [
        [name, Number.mean(accuracy), None if difference is None else Number.mean(difference)]
        for name, (accuracy, difference) in rows.items()
    ]
    return Table(title, columns, cells, notes)


def percent_of(share: float) -> str:
    """``30 %``."""
    return f"{100 * share:g} %"


def to_targets(result: Row, targets: Sequence[float]) -> Iterator[Table]:
    """A table per skew and target that some run reached: what was spent until then, or how many seeds reached it."""
    columns = [TableColumn(""), *(TableColumn(name, each.quantity, missing="") for each, name in SHOWN)]
    for skew, rows in by_skew(result).items():
        for target in targets:
            cells: list[list[Cell]] = []
            for row in rows:
                until = at_target(row, target)
                count = len(row["seeds"])
                short: list[Cell] = [f"{until['reached']} of {count} seeds"]
                cells.append(
                    [row["variant"], *([until[each.key] for each, _ in SHOWN] if until["reached"] == count else short)]
                )
            if any(at_target(row, target)["reached"] for row in rows):
                yield Table(f"{skew}: until {100 * target:g} % were reached, mean over seeds", columns, cells)


def at_target(row: Row, target: float) -> Row:
    """What a variant spent until a target."""
    return next(dict(until) for until in row["to_target"] if until["target"] == target)


def csv_files(result: Row) -> dict[str, str]:
    """``PART.csv``, a row per variant, and ``PART-targets.csv``, a row per variant, target and seed."""
    head = ["name", "skew", "variant", "seeds", "accuracy", "half_width", "reference", "difference", "difference_half"]
    targets = csv_text(["name", "seed", "target", *AMOUNTS], _target_rows(result["variants"]))
    part = result["part"]
    return {f"{part}.csv": csv_text(head, map(_csv_row, result["variants"])), f"{part}-targets.csv": targets}


def _csv_row(row: Row) -> list[Any]:
    accuracy, difference = row["accuracy"], row["difference"] or {}
    return [
        *(row["name"], row["skew"], row["variant"], len(row["seeds"]), accuracy["mean"], accuracy["half_width"]),
        *(row["reference"], difference.get("mean"), difference.get("half_width")),
    ]


def _target_rows(variants: Sequence[Row]) -> Iterator[list[Any]]:
    for row in variants:
        for until in row["to_target"]:
            for index, seed in enumerate(row["seeds"]):
                yield [row["name"], seed, until["target"], *(until["values"][key][index] for key in AMOUNTS)]
