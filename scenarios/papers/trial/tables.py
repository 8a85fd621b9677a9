"""The tables of a trial's part as text, for its page and the terminal, and its CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scenarios.experiment.results import AMOUNTS
from scenarios.experiment.run_set import missing_note
from scenarios.report.columns import BYTES, JOULES, PERCENT, POINTS, SECONDS, Quantity, cells
from scenarios.report.csv_files import csv_text
from scenarios.report.pages import PageTable

Row = Mapping[str, Any]
SHOWN: Mapping[str, tuple[str, Quantity]] = {
    "virtual_seconds": ("time", SECONDS),
    "bytes": ("bytes", BYTES),
    "nominal_bytes": ("nominal", BYTES),
    "joules": ("energy", JOULES),
}
"""Key of a result -> (heading, what it holds)."""
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
    names = [row["variant"] for row in rows]
    found = [row["accuracy"] for row in rows], [row["difference"] for row in rows]
    notes = [READ_AS, COMPARED, *_left_out(result), *missing_note(result)]
    seeds = ", ".join(map(str, result["seeds"]))
    return PageTable(
        f"{skew}: final accuracy, seeds {seeds}", ["", "accuracy", "from FedAvg"], compared(names, *found), notes
    )


def _left_out(result: Row) -> list[str]:
    return [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]


def compared(
    names: Sequence[str], accuracies: Sequence[Row], differences: Sequence[Row | None]
) -> list[tuple[str, str, str]]:
    """Rows of a name, its accuracy, as ``41.9 ± 1.2 %``, and its difference, as ``-3.1 ± 0.8 pp``, if it has one."""
    texts = _means(PERCENT, accuracies, "-"), _means(POINTS, differences, "", "+")
    return list(zip(names, *texts, strict=True))


def _means(quantity: Quantity, found: Sequence[Row | None], missing: str, sign: str = "") -> list[str]:
    means, halves = ([None if each is None else each[key] for each in found] for key in ("mean", "half_width"))
    return cells(quantity, means, halves, missing, sign)


def percent_of(share: float) -> str:
    """``30 %``."""
    return f"{100 * share:g} %"


def to_targets(result: Row, targets: Sequence[float]) -> Iterator[PageTable]:
    """A table per skew and target that some run reached: what was spent until then."""
    for skew, rows in by_skew(result).items():
        for target in targets:
            spent = {row["variant"]: _at(row, target) for row in rows}
            if not any(found["reached"] for found in spent.values()):
                continue
            header = ["", *(heading for heading, _ in SHOWN.values())]
            title = f"{skew}: until {100 * target:g} % were reached, mean over seeds"
            yield PageTable(title, header, [[name, *row] for name, row in zip(spent, _amounts(spent), strict=True)])


def _at(row: Row, target: float) -> Row:
    return next(dict(found) for found in row["to_target"] if found["target"] == target)


def _amounts(spent: Mapping[str, Row]) -> Iterator[Sequence[str]]:
    """Of each variant what it spent, or how many of its seeds reached the target."""
    counts = {name: len(found["values"]["bytes"]) for name, found in spent.items()}
    means = {
        key: [found[key] if found["reached"] == counts[name] else None for name, found in spent.items()]
        for key in SHOWN
    }
    texts = zip(*(cells(quantity, means[key], missing="") for key, (_, quantity) in SHOWN.items()), strict=True)
    for (name, found), row in zip(spent.items(), texts, strict=True):
        short = f"{found['reached']} of {counts[name]} seeds", *([""] * (len(SHOWN) - 1))
        yield row if found["reached"] == counts[name] else short


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
        for found in row["to_target"]:
            for index, seed in enumerate(row["seeds"]):
                yield [row["name"], seed, found["target"], *(found["values"][key][index] for key in AMOUNTS)]
