"""The metric `hessian` of a run: its values, those over clients, its options, and what is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from coordinator.records.schema import EvaluationRow
from coordinator.records.store import evaluations, read
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.report.html import from_folder
from tests.brief import brief_figures
from tests.scenarios.in_this_process import pool_in_this_process, run

__all__ = ["pool_in_this_process"]
HESSIAN = ('eval.metrics=["hessian"]', "model.width=4", "rounds.max=1")
BRIEF = tuple(f"eval.metric_options.hessian.{key}" for key in ("examples=40", "batch=40", "iterations=2", "probes=2"))


def test_values_of_the_global_model_and_over_clients(tmp_path: Path) -> None:
    folder = run(tmp_path, *HESSIAN, *BRIEF, "eval.on=both", "data.clients=3", "rounds.participants=3")
    values: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in map(EvaluationRow._make, evaluations(folder / "ledger.sqlite")):
        assert row.value is not None
        values[row.quantity.name][row.client] = row.value
    # Clients have the global model; examples and probes are the same for all.
    assert len(set(values["hessian/trace"].values())) == 1
    assert set(values["hessian/eigenvalue"]) == {-1, 0, 1, 2}
    parts = [each[-1] for name, each in values.items() if name.removeprefix("hessian/").isdigit()]
    assert len(parts) == 8, "weights and biases of four layers"
    assert sum(parts) == pytest.approx(values["hessian/trace"][-1])
    assert values["hessian/H_N"] == {-1: 0.0}
    assert values["hessian/H_D"] == {-1: pytest.approx(1)}
    summary = json.loads(read(folder / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")[0]["value"])
    shown = ("eigenvalue", "trace", "trace-error", "probes", "H_N", "H_D")
    assert summary["evaluation"]["values"] == {f"hessian/{part}": values[f"hessian/{part}"][-1] for part in shown}
    assert values["hessian/probes"][-1] == 2
    assert 0 < values["hessian/trace-error"][-1] < values["hessian/trace"][-1]
    with brief_figures("metrics"):
        report = from_folder(folder, tmp_path / "report.html").read_text()
    drawn = report[report.index('id="metrics"') :]
    assert [part for part in shown if f">hessian/{part}<" not in drawn] == []


def test_options_are_written_out_for_metrics_that_have_any() -> None:
    given = load(
        "digits", parse_all([*HESSIAN, "eval.metric_options.hessian.pairs=distinct"])
    ).scenario.eval.metric_options
    assert given["hessian"]["pairs"] == "distinct"
    assert given["hessian"]["diag"] == "per_tensor"
    plain = load("digits")
    assert plain.scenario.eval.metric_options == {}


def test_a_diagonal_per_parameter_is_for_measure_alone(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"hessian\.diag = per_parameter: needs a vector .* choose per_tensor"):
        run(tmp_path, *HESSIAN, "eval.metric_options.hessian.diag=per_parameter")
