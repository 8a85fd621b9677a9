"""The figure of a sweep: which lines it has, and how they look."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scenarios.experiment import sweep_page as page
from tests.ledgers import made_run

METHODS = {"fedbr": 2, "fedavg": 0}
"""Method -> the place of its colour"""


def test_cells_of_a_sweep_have_the_colours_of_their_methods_and_their_labels(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        for lr in ("0.05", "0.1"):
            name = f"{method}-{lr}"
            made_run(tmp_path / name, (0.3, 0.5), f'method = "{method}"\n')
            settings = {"method": method, "train.lr": lr}
            row = {"name": name, "method": method, "settings": settings, "runs": [name], "accuracy": {"mean": 0.5}}
            rows.append(row)
    runs = [{"name": row["name"], "run_dir": str(tmp_path / row["name"]), "rounds": 2} for row in rows]
    result = {"axes": {}, "scenario": "digits", "seeds": [0], "targets": [], "rows": rows, "runs": runs}
    drawn = page._bands(result)
    assert set(re.findall(r"var\(--series-(\d)", drawn)) == {str(place) for place in METHODS.values()}
    assert all(f">{label}<" in drawn for label in ("1 fedbr lr=0.05", "2 fedbr lr=0.1", "3 fedavg lr=0.05"))
