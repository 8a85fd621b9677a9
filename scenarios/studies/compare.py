"""Several methods on the same data, fleet and seed: which reaches the target first, and what does it cost?

Each method runs on to its limit; the target is a yardstick. Accuracies are also read at the smallest total of bytes,
and at the smallest virtual time, that all methods have in common. One folder holds a comparison: a run folder per
method, ``compare.json`` and ``report.html``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.methods.registry import resolve
from coordinator.records.store import read
from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.files import write_text
from edge.protocol.spelling import nearest
from scenarios import runner
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.toml_source import COMMAND_LINE, parse
from scenarios.host import Host, make_folder
from scenarios.report import html

OPTIONS = "method_options"


def variants(name: str, overrides: Sequence[str], methods: str, seed: int | None = None) -> list[Loaded]:
    """The scenario once per method of a list separated by commas.

    Options of ``method_options`` go to the methods that have them. ScenarioError for a method that is unknown or named
    twice, and for an option of the command line that none of the methods has.
    """
    names = [method.strip() for method in methods.split(",")]
    if not all(names):
        raise ScenarioError(f"--methods {methods!r}: write names separated by commas, for example fedavg,fedbr")
    given = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    check_settings(name, given)  # what the file says of its own method is checked too
    runs = [load(name, given, method=method) for method in names]
    resolved = [run.scenario.method for run in runs]
    for method in resolved:
        spelled = dict.fromkeys(name for name, one in zip(names, resolved, strict=True) if one == method)
        if resolved.count(method) > 1:
            twice = "are one method" if len(spelled) > 1 else "is named twice"
            raise ScenarioError(f"--methods: {' and '.join(spelled)} {twice}")
    check_options(given, names)
    return runs


def check_settings(name: str, overrides: Sequence[str]) -> Loaded:
    """The scenario as it is without any method's options; ScenarioError for overrides that name a method."""
    settings = [override for override in overrides if not _is_option(override)]
    if any(parse(override)[0] == "method" for override in settings):
        raise ScenarioError(f"{COMMAND_LINE}: method: the methods of a comparison are named by --methods")
    return load(name, settings)


def _is_option(override: str) -> bool:
    return parse(override)[0].split(".")[0] == OPTIONS


def check_options(overrides: Sequence[str], methods: Sequence[str]) -> None:
    """ScenarioError for an option of the command line that none of the methods has."""
    known = {name for method in methods for name in resolve(method).options.model_fields}
    for override in filter(_is_option, overrides):
        key, value = parse(override)
        for option in [key.split(".")[1]] if "." in key else value:
            if option not in known:
                hint = nearest(f"{OPTIONS}.{option}", [f"{OPTIONS}.{name}" for name in sorted(known)])
                raise ScenarioError(
                    f"{COMMAND_LINE}: unknown key {OPTIONS}.{option}: none of {', '.join(methods)} has it, {hint}"
                )


def compare(
    runs: Sequence[Loaded], host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Run each scenario to its limit; the result is what ``compare --json`` prints.

    Where the user stops, the result covers the methods that came so far; `Stopped` if none did. A method that fails
    costs the others nothing: it stands under ``failed`` with its reason; RunFailed if no method ended otherwise.
    """
    folder = make_folder(runs[0].name, host)
    summaries: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for loaded in runs:
        method = loaded.scenario.method
        try:
            inside = replace(host, run_id=f"{folder.name}/{method}")
            summaries.append(runner.run(loaded, inside, launcher, stopped, stop_at_target=False))
        except (ScenarioError, Stopped) as error:
            if not (summaries or failed):  # both leave no run folder behind
                with contextlib.suppress(OSError):
                    folder.rmdir()
                raise
            if isinstance(error, Stopped):
                break
            failed[method] = str(error)
        except (RunFailed, PoolError) as error:
            failed[method] = str(error)
        if summaries and summaries[-1]["stopped_by"] == "user":
            break
    if not summaries:
        raise RunFailed(failures(failed))
    return {
        "target_accuracy": runs[0].scenario.stop.target_accuracy,
        "runs": summaries,
        **in_common(summaries),
        **({"failed": failed} if failed else {}),
    }


def failures(failed: Mapping[str, str]) -> str:
    """Which methods failed, and why."""
    return "\n".join(f"{method} failed: {why}" for method, why in failed.items())


def write(result: dict[str, Any], name: str, with_report: bool = True) -> Path:
    """Write ``compare.json`` and the report beside the run folders; returns the report, or the folder without one."""
    folders = [Path(run["run_dir"]) for run in result["runs"]]
    folder = folders[0].parent
    write_text(folder / "compare.json", json.dumps(result, indent=1))
    if not with_report:
        return folder
    methods = ", ".join(run["method"] for run in result["runs"])
    return html.build(folders, folder / "report.html", f"{name}: {methods}", result)


def in_common(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy of each run at the smallest bytes, and at the smallest virtual time, that all runs reached."""
    nbytes = min(run["bytes_down"] + run["bytes_up"] for run in summaries)
    seconds = min(run["virtual_seconds"] for run in summaries)
    curves = {run["method"]: curve(Path(run["run_dir"])) for run in summaries}
    return {
        "at_common_bytes": {"bytes": nbytes, "accuracy": {m: accuracy_at(c, nbytes, 1) for m, c in curves.items()}},
        "at_common_seconds": {
            "seconds": seconds,
            "accuracy": {m: accuracy_at(c, seconds, 0) for m, c in curves.items()},
        },
    }


Curve = list[tuple[float, float, float]]
"""(virtual seconds, bytes, accuracy) after each evaluated round, running totals."""


def curve(folder: Path) -> Curve:
    """The accuracy curve of a run."""
    points, nbytes = [], 0
    for row in read(folder / "ledger.sqlite", "SELECT * FROM rounds ORDER BY round"):
        nbytes += row["bytes_down"] + row["bytes_up"]
        if row["accuracy"] is not None:
            points.append((float(row["end_s"]), float(nbytes), float(row["accuracy"])))
    return points


def accuracy_at(points: Curve, limit: float, axis: int) -> float | None:
    """The last accuracy that was reached within ``limit`` of seconds (axis 0) or bytes (axis 1)."""
    within = [point[2] for point in points if point[axis] <= limit]
    return within[-1] if within else None
