"""Several methods on the same data, fleet and seed: which reaches the target first, and what does it cost?

Each method runs on to its limit; the target is a yardstick. Accuracies are also read at the smallest total of bytes,
and at the smallest virtual time, that all methods have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coordinator.ledger import read
from coordinator.pool import Nursery
from scenarios import runner
from scenarios.load import Loaded
from scenarios.runner import Host


def compare(runs: Sequence[Loaded], host: Host, nursery: Nursery, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Run each scenario to its limit; the result is what ``compare --json`` prints."""
    summaries: list[dict[str, Any]] = []
    for loaded in runs:
        summaries.append(runner.run(loaded, host, nursery, stopped, stop_at_target=False))
        if summaries[-1]["stopped_by"] == "user":
            break
    return {
        "target_accuracy": runs[0].scenario.stop.target_accuracy,
        "runs": summaries,
        **in_common(summaries),
    }


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
