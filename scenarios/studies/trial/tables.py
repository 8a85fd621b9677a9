"""The tables of a trial's part as text, for its page and the terminal, and its CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.units import format_bytes, format_joules, format_seconds
from scenarios.report import terminal
from scenarios.report.csv_files import write_csv
from scenarios.report.pages import PageTable
from scenarios.studies.run_set import missing_note
from scenarios.studies.trial.results import SPENT

Row = Mapping[str, Any]
SHOWN = {
    "virtual_seconds": ("time", format_seconds),
    "bytes": ("bytes", format_bytes),
    "nominal_bytes": ("nominal", format_bytes),
    "joules": ("energy", format_joules),
}
"""Key of a result -> (heading, text)."""
READ_AS = "mean ± half the 95 % interval (Student's t over seeds); differences are paired over seeds, in points"
COMPARED = "from FedAvg: of the same norm, and calibrated where the variant is"


def accuracies(result: Row) -> list[PageTable]:
    """A table per skew: the final accuracy, and its difference from FedAvg's."""
    return [_accuracy_table(result, skew, rows) for skew, rows in by_skew(result).items()]


def by_skew(result: Row) -> dict[str, list[Row]]:
    """Skew -> its variants."""
    found: dict[str, list[Row]] = {}
    for row in result["variants"]:
        found.setdefault(row["skew"], []).append(row)
    return found


def _accuracy_table(result: Row, skew: str, rows: Sequence[Row]) -> PageTable:
    cells = [[row["variant"], percent(row["accuracy"]), points(row["difference"])] for row in rows]
    notes = [READ_AS, COMPARED, *_left_out(result), *missing_note(result)]
    seeds = ", ".join(map(str, result["seeds"]))
    return PageTable(f"{skew}: final accuracy, seeds {seeds}", ["", "accuracy", "from FedAvg"], cells, notes)


def _left_out(result: Row) -> list[str]:
    return [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]


def percent(found: Row) -> str:
    """``41.9 ± 1.2 %``; a dash without a mean."""
    return terminal.mean_text(found["mean"], found["half_width"])


def percent_of(share: float) -> str:
    """``30 %``."""
    return f"{100 * share:g} %"


def points(found: Row | None) -> str:
    """``-3.1 ± 0.8``, in percentage points; empty without a difference."""
    if found is None or found["mean"] is None:
        return ""
    interval = "" if found["half_width"] is None else f" ± {100 * found['half_width']:.1f}"
    return f"{100 * found['mean']:+.1f}{interval}"


def to_targets(result: Row, targets: Sequence[float]) -> Iterator[PageTable]:
    """A table per skew and target that some run reached: what was spent until then."""
    for skew, rows in by_skew(result).items():
        for target in targets:
            spent = {row["variant"]: _at(row, target) for row in rows}
            if not any(found["reached"] for found in spent.values()):
                continue
            cells = [[name, *_amounts(found)] for name, found in spent.items()]
            header = ["", *(heading for heading, _ in SHOWN.values())]
            yield PageTable(f"{skew}: until {100 * target:g} % were reached, mean over seeds", header, cells)


def _at(row: Row, target: float) -> Row:
    return next(dict(found) for found in row["to_target"] if found["target"] == target)


def _amounts(found: Row) -> list[str]:
    count = len(found["values"]["bytes"])
    if found["reached"] < count:
        return [f"{found['reached']} of {count} seeds", *([""] * (len(SHOWN) - 1))]
    return [text(found[key]) for key, (_, text) in SHOWN.items()]


def write_tables(result: Row, folder: Path) -> None:
    """Write ``PART.csv``, a row per variant, and ``PART-targets.csv``, a row per variant, target and seed."""
    head = ["name", "skew", "variant", "seeds", "accuracy", "half_width", "reference", "difference", "difference_half"]
    write_csv(folder / f"{result['part']}.csv", head, map(_csv_row, result["variants"]))
    head = ["name", "seed", "target", *SPENT]
    write_csv(folder / f"{result['part']}-targets.csv", head, _target_rows(result["variants"]))


def _csv_row(row: Row) -> list[Any]:
    accuracy, difference = row["accuracy"], row["difference"] or {}
    return [
        *(row["name"], row["skew"], row["variant"], len(row["seeds"]), accuracy["mean"], accuracy["half_width"]),
        *(row["reference"], difference.get("mean"), difference.get("half_width")),
    ]


def _target_rows(variants: Sequence[Row]) -> Iterator[list[Any]]:
    for row in variants:
        for found in row["to_target"]:
            for index, seed in enumerate(row["seeds"]):
                yield [row["name"], seed, found["target"], *(found["values"][key][index] for key in SPENT)]
