"""The folders of runs from Python: `ls` and `diff`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.api import values
from scenarios.api.calls import Folder, calling
from scenarios.api.run import Run
from scenarios.api.tables import data_frame
from scenarios.api.values import Scenario, place, shown
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Source
from scenarios.studies import run_difference, run_list
from scenarios.studies.run_difference import RunDifference
from scenarios.studies.run_list import RunEntry

if TYPE_CHECKING:
    import pandas

COLUMNS = ("folder", "kind", "scenario", "method", "seed", "state", "stopped_by", "rounds", "accuracy", "bytes")


class RunList(list[RunEntry]):
    """The runs and run sets that `fedbr.ls` has found, the newest last."""

    def to_pandas(self) -> pandas.DataFrame:
        """A row per run, those of run sets among them, whose folder is in the column ``run_set``.

        ``modified`` is a time with its zone, ``problem`` empty for a folder with nothing wrong. ImportError without
        pandas.
        """
        rows = []
        for top in self:
            for run in top.runs if top.is_set else (top,):
                record = run.to_dict()
                ends = {"modified": run.modified, "run_set": str(top.folder) if top.is_set else None}
                rows.append({key: record[key] for key in COLUMNS} | ends | {"problem": run.problem})
        return data_frame("RunList.to_pandas", rows, [*COLUMNS, "modified", "run_set", "problem"])


def ls(*folders: Folder) -> RunList:
    """The runs, comparisons, sweeps and studies that these folders are, or that are below them; by default ``runs``.

    Each is a `RunEntry`; a folder that is damaged, or that no run has written, has a ``problem``. Nothing is imported
    or written. ScenarioError for a folder that is not there.
    """
    with calling():
        return RunList(run_list.entries([place("folder", folder) for folder in folders or ("runs",)]))


def diff(a: Folder | Run | Scenario, b: Folder | Run | Scenario) -> RunDifference:
    """The difference of two runs, of two scenarios, or of a run and a scenario: what ``fedbr diff --json`` prints.

    Runs are objects or folders, scenarios names, files or mappings. ``same`` says whether their keys and, for two runs,
    all their rounds are the same to the bit. ScenarioError and ReportError for what is neither.
    """
    with calling():
        return run_difference.difference(_side(a), _side(b))


def _side(side: Folder | Run | Scenario) -> Source:
    """The folder of a run, or a scenario."""
    if not isinstance(side, Run | str | PathLike | Mapping):
        raise ScenarioError(f"{shown(side)}: must be a run, its folder, or a scenario")
    if isinstance(side, str | PathLike) and side == "":
        raise ScenarioError("'': must be a run, its folder, or a scenario")
    return values.named(Path(side.folder) if isinstance(side, Run) else side)
