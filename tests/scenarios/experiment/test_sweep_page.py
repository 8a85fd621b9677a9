"""The figure of a sweep: which lines it has, and how they look."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scenarios.experiment.grid import grid_of
from scenarios.experiment.sweep import plan
from tests.ledgers import made_run

METHODS = {"fedbr": 2, "fedavg": 0}
"""Method -> the place of its colour"""


def test_cells_of_a_sweep_have_the_colours_of_their_methods_and_their_labels(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        for lr in ("0.05", "0.1"):
            name = f"{method}-lr-{lr}-seed0"
            made_run(tmp_path / name, (0.3, 0.5), f'method = "{method}"\n')
            settings = {"method": method, "train.lr": lr}
            label = f"method={method} train.lr={lr}"
            row = {"name": label, "method": method, "settings": settings, "runs": [name], "accuracy": {"mean": 0.5}}
            rows.append(row)
    names = [row["runs"][0] for row in rows]
    runs = [{"name": name, "run_dir": str(tmp_path / name), "rounds": 2} for name in names]
    result = {"axes": {}, "scenario": "digits", "seeds": [0], "targets": [], "rows": rows, "runs": runs}
    swept = plan(grid_of("digits", ["method=fedbr,fedavg", "train.lr=0.05,0.1"]), seeds=1)
    _, drawn, _ = swept._bands(result)
    assert set(re.findall(r"var\(--series-(\d)", drawn)) == {str(place) for place in METHODS.values()}
    assert all(f">{label}<" in drawn for label in ("1 fedbr lr=0.05", "2 fedbr lr=0.1", "3 fedavg lr=0.05"))
