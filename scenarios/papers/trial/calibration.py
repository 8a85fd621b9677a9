"""What calibration changes: each calibrated run against its twin without calibration, of the same seed and folder.

A twin may come from another part. It counts if its scenario differs in nothing but the calibration, and it is as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.records.store import has_rounds
from scenarios.papers.trial.tables import READ_AS, compared
from scenarios.papers.trial.trial import PartAnalysis, Say, Trial, difference
from scenarios.papers.trial.variants import CALIBRATED
from scenarios.report.tables import Table
from scenarios.run.progress import Trail
from scenarios.run.run_folder import RunFolder


def read(trial: Trial, result: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """``calibration``: for each calibrated variant its accuracy minus its twin's; none where no twin is there."""
    folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
    found = [_paired(row, folders) for row in result["variants"] if CALIBRATED in row["variant"]]
    return {"calibration": [row for row in found if row["difference"] is not None]}


def _paired(row: Mapping[str, Any], folders: Mapping[str, Path]) -> dict[str, Any]:
    own: dict[int, Trail] = {}
    twins: dict[int, Trail] = {}
    for seed in row["seeds"]:
        folder = folders[f"{row['name']}-seed{seed}"]
        twin = folder.parent / folder.name.replace(CALIBRATED, "", 1)
        if is_twin(folder, twin):
            own[seed], twins[seed] = RunFolder(folder).trail, RunFolder(twin).trail
    keys = ("name", "skew", "variant", "accuracy")
    return {**{key: row[key] for key in keys}, "difference": difference(own, twins)}


def is_twin(calibrated: Path, plain: Path) -> bool:
    """Whether a run is there that differs in the calibration alone, and has as many rounds."""
    if not (has_rounds(plain / "ledger.sqlite") and (plain / "scenario.toml").is_file()):
        return False
    own, other = (RunFolder(run).keys() for run in (calibrated, plain))
    differing = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
    added = {key for key in own.keys() - other.keys() if key.startswith("method_options.")}
    return differing <= {"method", *added} and len(RunFolder(calibrated).trail) == len(RunFolder(plain).trail)


def tables(result: Mapping[str, Any]) -> list[Table]:
    """One table, if there are twins."""
    rows = {row["name"]: (row["accuracy"], row["difference"]) for row in result["calibration"]}
    title = "calibrated logits: difference from the same variant without"
    return [compared(title, "difference", rows, [READ_AS])] if rows else []


ANALYSIS = PartAnalysis(read, tables)
