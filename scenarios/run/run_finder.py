"""The run folders of a report or replay, from those that a user names: runs, comparisons, studies, or folders of any.

Nothing is opened here beyond the files that tell whether a folder is a run. A folder that is named itself must hold
runs; a damaged run below it is left out, and said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.protocol.home import expanded
from scenarios.config.errors import Argument, ReportError, worded
from scenarios.run.run_folder import LEDGER, PARTS, RunFolder, check_folder
from scenarios.run.run_records import ComparisonRecord, read_json

COMPARISON = "compare.json"
MOST_FOLDERS = 10_000
"""Folders that are searched below a named one, runs not counted; it takes about a second"""


@dataclass(frozen=True)
class FoundRuns:
    folders: Sequence[Path]
    """Each run once, in the order named; below a folder sorted by path."""
    comparison: ComparisonRecord | None = None
    """That of a comparison, if its folder is all that was named."""
    left_out: Sequence[str] = ()
    """Why folders below a named one are left out, a sentence for each."""
    unfinished: Sequence[Sequence[str | Argument]] = ()
    """How to go on with comparisons among the named folders that have not ended, a sentence for each."""

    @property
    def several(self) -> bool:
        """Whether they are neither one run nor one comparison."""
        return self.comparison is None and len(self.folders) > 1

    def print_notes(self) -> None:
        """Print to stderr which folders are left out, and how comparisons go on."""
        for reason in self.left_out:
            print(f"fedbr: warning: left out: {reason}", file=sys.stderr)
        for parts in self.unfinished:
            print(f"fedbr: note: {worded(parts)}", file=sys.stderr)


def found(named: Sequence[Path]) -> FoundRuns:
    """The runs of these folders; ReportError for a folder that holds none, or is a damaged run itself."""
    begun = [folder for folder in named if _is_begun(folder / COMPARISON)]
    if len(named) == 1 and not begun and (file := named[0] / COMPARISON).exists():
        try:
            comparison = ComparisonRecord.model_validate(read_json(file, ComparisonRecord))
            runs = [expanded(run.run_dir) for run in comparison.runs]
        except ValueError as error:
            raise ReportError(
                f"{file} does not name the runs that were compared: {error}; make the comparison again with ",
                Argument("run_id"),
                f" {named[0].resolve().name}, or name the folder of one of its runs",
            ) from error
        # By their folders' names, if the comparison was moved.
        return FoundRuns([run if run.is_dir() else named[0] / run.name for run in runs], comparison)
    folders: dict[Path, Path] = {}
    left_out: dict[str, None] = {}
    for folder in named:
        runs, reasons = _runs_of(folder)
        folders |= {run.resolve(): run for run in runs if run.resolve() not in folders}
        left_out |= dict.fromkeys(reasons)
    return FoundRuns(list(folders.values()), None, list(left_out), list(map(_to_go_on, begun)))


def _is_begun(file: Path) -> bool:
    """Whether a comparison has begun whose first run has not ended; its file then names no runs."""
    try:
        comparison = read_json(file)
    except ValueError:
        return False
    return "study" in comparison and "runs" not in comparison


def _to_go_on(folder: Path) -> tuple[str | Argument, ...]:
    name = folder.resolve().name
    return f"the comparison {folder} has not ended; the same one with ", Argument("run_id"), f" {name} goes on with it"


def _runs_of(folder: Path) -> tuple[list[Path], list[str]]:
    """(runs, reasons why others are left out) of one named folder."""
    check_folder(folder)
    if any((folder / name).is_file() for name in PARTS):
        return [folder], []  # meant as a run; if it is damaged, it is refused when it is opened
    runs, reasons = [], []
    for below in list(_below(folder)):  # all of them, before the first is opened
        try:
            RunFolder(below).check()
        except ReportError as error:
            reasons.append(str(error))
        else:
            runs.append(below)
    if not runs and _is_begun(folder / COMPARISON):
        raise ReportError("no run in it has committed a round: ", *_to_go_on(folder))
    if not runs:
        why = f": {reasons[0]}" if reasons else ", and none is below it; name a run, a comparison, or a folder of these"
        raise ReportError(f"{folder} is not a run folder{why}")
    return runs, reasons


def _below(folder: Path) -> Iterator[Path]:
    """The folders below that have a ledger, sorted by path; a run's own folders are not searched.

    ReportError if there are more than `MOST_FOLDERS` others, as below a home folder.
    """
    searched = 0
    for place, names, files in os.walk(folder):
        names.sort()
        if LEDGER in files:
            names.clear()
            yield Path(place)
            continue
        searched += 1
        if searched > MOST_FOLDERS:
            raise ReportError(
                f"{folder}: more than {MOST_FOLDERS:,} folders are below it, which are not all searched for runs; name "
                "a folder that is nearer to them"
            )
