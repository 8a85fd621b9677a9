"""The run folders of a report, from the folders that a user names: runs, comparisons, studies, or folders of any.

Nothing is opened here beyond the files that tell whether a folder is a run. A folder that is named itself must hold
runs; a damaged run below it is left out, and said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.report.run_reader import PARTS, ReportError, find, open_runs

LEDGER = PARTS[-1]


@dataclass(frozen=True)
class FoundRuns:
    """The runs of one report."""

    folders: Sequence[Path]
    """Each run once, in the order named; below a folder sorted by path."""
    comparison: Mapping[str, Any] | None = None
    """That of a comparison, if its folder is all that was named."""
    left_out: Sequence[str] = ()
    """Why folders below a named one are left out, a sentence for each."""

    @property
    def several(self) -> bool:
        """Whether they are neither one run nor one comparison."""
        return self.comparison is None and len(self.folders) > 1


def found(named: Sequence[Path]) -> FoundRuns:
    """The runs of these folders; ReportError for a folder that holds none, or is a damaged run itself."""
    if len(named) == 1 and (named[0] / "compare.json").exists():
        return FoundRuns(*find(named[0]))
    folders: dict[Path, Path] = {}
    left_out: dict[str, None] = {}
    for folder in named:
        runs, reasons = _runs_of(folder)
        folders |= {run.resolve(): run for run in runs if run.resolve() not in folders}
        left_out |= dict.fromkeys(reasons)
    return FoundRuns(list(folders.values()), None, list(left_out))


def _runs_of(folder: Path) -> tuple[list[Path], list[str]]:
    """(runs, reasons why others are left out) of one named folder."""
    if not folder.is_dir():
        raise ReportError(f"{folder} is not a run folder: there is no such folder")
    if _is_run(folder):
        return [folder], []  # if it is damaged, it is refused when it is opened
    runs, reasons = [], []
    for below in _below(folder):
        try:
            open_runs([below])
        except ReportError as error:
            reasons.append(str(error))
        else:
            runs.append(below)
    if not runs:
        why = f": {reasons[0]}" if reasons else ", and none is below it; name a run, a comparison, or a folder of these"
        raise ReportError(f"{folder} is not a run folder{why}")
    return runs, reasons


def _is_run(folder: Path) -> bool:
    """Whether a folder is meant as a run: it has one of a run's files, damaged or not."""
    return any((folder / name).is_file() for name in PARTS)


def _below(folder: Path) -> Iterator[Path]:
    """The folders below that have a ledger, sorted by path; a run's own folders are not searched."""
    for place, names, files in os.walk(folder):
        names.sort()
        if LEDGER in files:
            names.clear()
            yield Path(place)
