"""What a run leaves for people and other tools: its environment and its summary."""

from __future__ import annotations

import platform
import sqlite3
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from coordinator.federation import Federation
from coordinator.ledger import read
from edge.config import Description
from edge.payload import INPUT_GRADIENT
from scenarios.host import PACKAGES, Host, default_workers
from scenarios.load import Loaded


def environment(loaded: Loaded, description: Description, host: Host) -> dict[str, Any]:
    """What the run was made on and of, for whoever reads the folder."""
    layout = description.layout
    return {
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in ("fedbr-edge", *PACKAGES)},
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "cores": default_workers(),
        "memory_bytes": psutil.virtual_memory().total,
        "workers": host.workers,
        "device": host.device,
        "data": {
            "name": loaded.dataset.name,
            "sha256": description.data_sha256,
            "source": description.data_source,
            "test_examples": description.test_count,
        },
        "partition": {
            "clients": len(description.samples),
            "classes": description.classes,
            "histogram": description.histogram.tolist(),
        },
        "blocks": [
            {
                **asdict(block),
                "nbytes": layout.nbytes(layout.keys([block.name])),
                "flops_forward": float(forward),
                "flops_weight_gradient": float(weight),
                "flops_input_gradient": float(inner + inputs),
            }
            for block, (forward, weight, inner, inputs) in zip(layout.blocks, description.flops, strict=True)
        ],
        "flops_plain_per_sample": float(description.flops.sum() - description.flops[0, INPUT_GRADIENT]),
    }


def summary(
    folder: Path, loaded: Loaded, federation: Federation, stopped_by: str, wall_seconds: float
) -> dict[str, Any]:
    """What ``run --json`` prints."""
    rows = read(folder / "ledger.sqlite", "SELECT * FROM rounds ORDER BY round")
    scored = [row for row in rows if row["accuracy"] is not None]
    target = loaded.scenario.stop.target_accuracy
    total = {name: sum(row[name] for row in rows) for name in SUMMED}
    return {
        "run_dir": str(folder),
        "method": loaded.scenario.method,
        "seed": loaded.scenario.seed,
        "rounds": federation.rounds,
        "accuracy": scored[-1]["accuracy"] if scored else None,
        "best_accuracy": max((row["accuracy"] for row in scored), default=None),
        "virtual_seconds": federation.clock.now,
        **total,
        "target_accuracy": target,
        **to_target(rows, target),
        "stopped_by": stopped_by,
        "wall_seconds": wall_seconds,
        "model_sha256": federation.model_sha256(),
    }


SUMMED = ("bytes_down", "bytes_up", "nominal_bytes", "flops", "nominal_flops", "joules")


def to_target(rows: list[sqlite3.Row], target: float | None) -> dict[str, float | int | None]:
    """Virtual seconds, bytes and rounds until the accuracy first reached the target; all None if it did not."""
    nbytes = count = 0
    for row in rows:
        count += row["participants"] > 0
        nbytes += row["bytes_down"] + row["bytes_up"]
        if target is not None and row["accuracy"] is not None and row["accuracy"] >= target:
            return {"time_to_target_s": row["end_s"], "bytes_to_target": nbytes, "rounds_to_target": count}
    return {"time_to_target_s": None, "bytes_to_target": None, "rounds_to_target": None}
