"""A sweep's result by hand: two rows, three seeds, one target."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from scenarios.experiment import statistics
from scenarios.experiment.statistics import MeasureTests
from scenarios.run.progress import Mean


def _mean(values: list[float | None]) -> dict[str, Any]:
    return asdict(Mean.of(values))


def result_of_sweep(*, fairness: bool = False) -> dict[str, Any]:
    times = {"slow": {0: 40.0, 1: 41.0, 2: 42.5}, "fast": {0: 20.0, 1: 20.5, 2: 22.0}}
    rows: list[dict[str, Any]] = []
    for name, by_seed in times.items():
        seconds = _mean([*by_seed.values()])
        amounts: dict[str, Any] = dict.fromkeys((amount.key for amount in statistics.SPENT), seconds)
        row: dict[str, Any] = {
            "name": name, "method": name, "settings": {}, "runs": [], "seeds": [0, 1, 2], **amounts,
            "accuracy": _mean([0.9, 0.91, 0.9]), "best_accuracy": _mean([0.9, 0.92, 0.91]),
            "to_target": [amounts | {"target": 0.9, "runs": 3, "reached": 3}],
        }  # fmt: skip
        rows.append(row)
    pairs = statistics.compared(times)
    accuracies = statistics.compared({"slow": {0: 0.9, 1: 0.91}, "fast": {0: 0.91, 1: 0.9}})
    tests = [MeasureTests("accuracy", None, accuracies)]
    tests += [MeasureTests(amount.key, 0.9, pairs) for amount in statistics.TESTED]
    if fairness:
        of_clients = {
            "slow": [{"clients_accuracy": 0.8, "worst_decile": each, "spread": 0.1} for each in (0.5, 0.52, 0.51)],
            "fast": [{"clients_accuracy": 0.8, "worst_decile": each, "spread": 0.1} for each in (0.6, 0.63, 0.6)],
        }
        for row, found in zip(rows, statistics.over_clients(of_clients).values(), strict=True):
            row.update(to_builtins(found))
    return {"rows": rows, "targets": [0.9], "tests": to_builtins(tests), "runs": []}
