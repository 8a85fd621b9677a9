"""Amounts of published tables that are no accuracies: where each is read, and the unit in which papers print it.

Some are counted for a method on the paper's model, at every scale, and need no run (`PaperPanel.counts`). Others are
read in the folder of a run; those of Hessians from what ``fedbr measure`` has left there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coordinator.records.store import read
from scenarios.run.folder_files import MEASURED
from scenarios.run.run_folder import RunFolder

FORWARD_MACS, TRAINING_MACS = "forward MACs per example", "MACs of a training step per example"
STORED_WEIGHTS, STORED_PARAMETERS = "stored weights", "stored parameters"
WALL_SECONDS, VIRTUAL_SECONDS = "wall-clock seconds per round", "virtual seconds per round"
EIGENVALUE, TRACE = "top Hessian eigenvalue", "Hessian trace"
HESSIAN_NORM, HESSIAN_DIRECTION = "difference of clients' Hessian norms", "cosine of clients' Hessians"
HESSIANS = (EIGENVALUE, TRACE, HESSIAN_NORM, HESSIAN_DIRECTION)


def wall_seconds(folder: Path) -> float | None:
    """Measured seconds per round of a run, of all its rounds, with their evaluations."""
    rows = read(folder / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")
    points = RunFolder(folder).trail
    return float(json.loads(rows[0]["value"])["wall_seconds"]) / points[-1].rounds if rows and points else None


def virtual_seconds(folder: Path) -> float | None:
    """Seconds per round of a run on the virtual clock."""
    points = RunFolder(folder).trail
    return points[-1].virtual_seconds / points[-1].rounds if points else None


def hessian(name: str, folder: Path) -> float | None:
    """A value of the last measurement of a run's Hessians: of its global model, or over its clients.

    None if it has not been measured.
    """
    file = folder / MEASURED
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    value = {**found["models"].get("global", {}), **found["over_clients"]}.get(f"hessian/{name}")
    return None if value is None else float(value)


@dataclass(frozen=True)
class TableAmount:
    """A column of a table that is no accuracy."""

    column: str
    """Heading, with its unit"""
    read: Callable[[Path], float | None] | None = None
    """Run folder -> the amount; None for one that is counted"""
    unit: float = 1.0
    """The amount is shown in multiples of it"""


TABLE_AMOUNTS: Mapping[str, TableAmount] = {
    FORWARD_MACS: TableAmount("MFLOPs forward", unit=1e6),
    TRAINING_MACS: TableAmount("MFLOPs of all passes", unit=1e6),
    STORED_WEIGHTS: TableAmount("Param (M)", unit=1e6),
    STORED_PARAMETERS: TableAmount("all parameters (M)", unit=1e6),
    WALL_SECONDS: TableAmount("time (s)", wall_seconds),
    VIRTUAL_SECONDS: TableAmount("virtual time (s)", virtual_seconds),
    EIGENVALUE: TableAmount("lambda_max", partial(hessian, "eigenvalue")),
    TRACE: TableAmount("H_T", partial(hessian, "trace")),
    HESSIAN_NORM: TableAmount("H_N", partial(hessian, "H_N")),
    HESSIAN_DIRECTION: TableAmount("H_D", partial(hessian, "H_D")),
}
"""Measure -> how it is read and shown; papers call one multiply-accumulate a FLOP"""
