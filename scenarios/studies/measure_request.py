"""What ``fedbr measure`` is asked for, and whether that can be measured."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from edge.training.metrics.registry import metric_rows
from scenarios.config.error_messages import error_message
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.schema import EvalSection
from scenarios.config.toml_source import parse
from scenarios.run.run_folder import RunFolder

OPTIONS = "eval.metric_options."
Clients = Literal["local", "evaluated", "none"]


@dataclass(frozen=True)
class MeasureRequest:
    """What is to be measured."""

    loaded: Loaded
    """The run's scenario"""
    evaluation: EvalSection
    """Its table ``eval`` with the metrics and options that are measured"""
    round: int
    """Of the checkpoint, as the ledger numbers it"""
    clients: Clients


def plan(
    loaded: Loaded, folder: Path, metrics: str, overrides: Sequence[str], round: int | None, clients: str | None
) -> MeasureRequest:
    """What these words ask for: names separated by commas, options as ``eval.metric_options.NAME.KEY=VALUE``, a round
    counted from 1 (None: the newest). ScenarioError for anything that cannot be measured."""
    chosen = tuple(name.strip() for name in metrics.split(","))
    try:
        rows = metric_rows(chosen)
    except ValueError as error:
        raise ScenarioError(f"--metrics: {error}") from None
    given = {name: dict(options) for name, options in loaded.scenario.eval.metric_options.items()}
    for key, value in map(parse, overrides):
        name, dot, option = key.removeprefix(OPTIONS).partition(".")
        if not key.startswith(OPTIONS) or not dot:
            raise ScenarioError(f"{key}: only options of metrics can be set, such as {OPTIONS}hessian.pairs=distinct")
        if name not in {row.name for row in rows if row.options is not None}:
            raise ScenarioError(f"{key}: no metric of --metrics {metrics} has options of that name")
        given.setdefault(name, {})[option] = value
    options = {row.name: _options(row.name, row.options, given) for row in rows if row.options is not None}
    own = loaded.method.objective.has_global_model
    if clients not in (None, "local", "evaluated", "none"):
        raise ScenarioError(f"--clients {clients}: must be local, evaluated or none")
    models: Any = clients or ("local" if own else "evaluated")
    evaluation = replace(loaded.scenario.eval, metrics=chosen, metric_options=options)
    return MeasureRequest(loaded, evaluation, _stored_round(folder, round), models)


def _options(name: str, kind: Any, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    try:
        options: dict[str, Any] = kind.model_validate(given.get(name, {})).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([f"{OPTIONS}{name}", *map(str, first["loc"])])
        known = {f"{OPTIONS}{name}.{field}": f"{OPTIONS}{name}.{field}" for field in kind.model_fields}
        raise ScenarioError(error_message(first, key, known)) from None
    return options


def _stored_round(folder: Path, round: int | None) -> int:
    """The ledger's number of a round whose checkpoint is kept; ScenarioError that names those that are."""
    recorded = RunFolder(folder)
    try:
        rows = recorded.query("SELECT round FROM checkpoints ORDER BY round") if recorded.is_begun else []
    except sqlite3.Error as error:
        raise ScenarioError(f"{recorded.ledger} cannot be read: {error}") from None
    stored = [int(row["round"]) for row in rows]
    if not stored:
        raise ScenarioError(f"{folder}: there is nothing to measure before the first round has been committed")
    if round is None:
        return stored[-1]
    if round - 1 not in stored:
        kept = ", ".join(str(each + 1) for each in stored)
        raise ScenarioError(
            f"--round {round}: checkpoints are kept of the rounds {kept}; checkpoints.keep of a scenario keeps more"
        )
    return round - 1
