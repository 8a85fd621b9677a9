"""Measures the Hessians of a reproduction's finished runs, for the tables that print them.

Each run folder gets the file that ``fedbr measure RUN --metrics hessian`` writes. One that has it is not measured
again, so that an interrupted reproduction goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from scenarios.config.overrides import parse_all
from scenarios.papers.amounts import HESSIAN_DIRECTION, HESSIAN_NORM, HESSIANS
from scenarios.papers.cells import CellSelection
from scenarios.run.folder_files import MEASURED
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder
from scenarios.studies import measure
from scenarios.studies.measure import MeasurePlan


def measure_runs(
    plan: CellSelection,
    done: Mapping[str, Any],
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Measure the runs of a figure that has values of Hessians; ``done`` is what `make_runs` returns.

    A run that cannot be measured is told, and its cells say that they are not measured.
    """
    options = plan.figure.hessians.get(plan.scale)
    if options is None or not any(panel.measure in HESSIANS for panel in plan.panels):
        return
    needs_clients = any(panel.measure in (HESSIAN_NORM, HESSIAN_DIRECTION) for panel in plan.panels)
    for run in done["runs"]:
        if stopped():
            return
        folder = Path(run["run_dir"])
        try:
            # Its plug-ins are those of this reproduction, which has imported them from where this process searches.
            with RunFolder(folder).open_scenario(host.device, allow_code=True) as (loaded, _):
                asked = measure.plan(
                    loaded,
                    folder,
                    ",".join(plan.figure.metrics),
                    parse_all(options.overrides),
                    None,
                    None if needs_clients else "none",
                )
                _measure(asked, folder, host, launcher, stopped, tell)
        except Stopped:
            return
        except (RunFailed, PoolError) as error:
            tell(f"{run['name']} is not measured: {error}")


def _measure(
    asked: MeasurePlan,
    folder: Path,
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    if is_measured(asked, folder / MEASURED):
        return
    tell(f"{folder.name}: Hessians of its models")
    found = measure.measure(asked, folder, host, launcher, stopped, measure.progress_lines(tell))
    measure.write(found, folder / MEASURED)


def is_measured(asked: MeasurePlan, file: Path) -> bool:
    """Whether a file has this measurement of this checkpoint, of the same models of clients."""
    if not file.is_file():
        return False
    found = json.loads(file.read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(asked.evaluation.metric_options))
    same = (asked.round + 1, wanted, asked.clients)
    return bool((found["round"], found["metric_options"], found["clients"]) == same)
