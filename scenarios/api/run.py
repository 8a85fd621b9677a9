"""`Run`: the folder of one run as an object. It is read anew at every access, so that a running run can be watched.

torch is imported by `Run.model` and `Run.test_set`, and by nothing else here.
"""

from __future__ import annotations

from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coordinator.aggregation.server import GLOBAL
from coordinator.records.checkpoints import SEPARATOR, arrays_under, file_sha256, model_prefix
from coordinator.records.names import CHECKPOINTS, is_valid
from coordinator.records.schema import (
    CONDITIONS,
    SPENT,
    TABLES,
    ConditionsRow,
    EvaluationRow,
    LoggedRow,
    RoundRow,
    StepsRow,
    VisitRow,
    column_types,
)
from coordinator.rounds.amounts import ENERGY
from coordinator.rounds.ports import Arrays
from costmodel.units import format_bytes, format_joules, format_seconds
from edge.protocol.payload import MERGED, MODEL, Vector
from edge.protocol.plugins import display_name
from edge.protocol.spelling import nearest
from scenarios.api import tables
from scenarios.api.figures import RunFigures
from scenarios.api.values import place
from scenarios.config.errors import ReportError
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.run.score import OF_ACCURACY, RunScore
from scenarios.run.setup import RunInputs
from scenarios.studies.visit_parts import VisitParts, visit_parts

if TYPE_CHECKING:
    import pyarrow

    from edge.training.trained_model import Examples, TrainedModel


class Run(RunFigures):
    """One run. `fedbr.run` and `fedbr.resume` return one, and `fedbr.open` opens its folder later.

    ReportError for a folder that is not a run, or cannot be read.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = place("folder", folder)
        """The run's folder, which every command of ``fedbr`` takes"""
        self._opened()

    @property
    def scenario(self) -> dict[str, Any]:
        """The resolved scenario, as nested tables with every default."""
        return dict(self._opened().scenario)

    @property
    def environment(self) -> dict[str, Any]:
        """Machine, versions, data, blocks and fleet of the run."""
        return self._opened().environment.tables()

    @property
    def summary(self) -> dict[str, Any]:
        """The keys of ``fedbr run --json``.

        Of a run that has not ended only totals, accuracies and ``rounds``, up to the last committed round, and
        ``stopped_by`` None.
        """
        run = self._opened()
        if run.summary is not None:
            return {**run.summary, "run_dir": str(self.folder)}
        return {
            "run_dir": str(self.folder),
            "method": run.method,
            "seed": run.scenario.get("seed"),
            "rounds": run.completed,
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            "metric": run.score.metric,
            "score": run.final(),
            "best_score": run.best(),
            "virtual_seconds": run.rounds[-1].end_s if run.rounds else 0.0,
            **{name: run.total(name) for name in SPENT},
            "stopped_by": None,
        }

    @property
    def stopped_by(self) -> str | None:
        """The rule that ended the run: target, rounds, a budget, or ``user``; None if it has not ended."""
        return None if (summary := self._opened().summary) is None else str(summary["stopped_by"])

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was evaluated, in [0, 1]; None if none was, and for runs that are judged by another
        metric (``train.loss``)."""
        run = self._opened()
        return run.final() if run.score == OF_ACCURACY else None

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy of any round, in [0, 1]; None as of `accuracy`."""
        run = self._opened()
        return run.best() if run.score == OF_ACCURACY else None

    @property
    def score(self) -> float | None:
        """The last value of the metric by which the run is judged, such as its accuracy or RMSE; None if none was."""
        return self._opened().final()

    @property
    def best_score(self) -> float | None:
        """The best value of that metric in any round; None if none was evaluated."""
        return self._opened().best()

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> pyarrow.Table:
        """One row per committed round: round (0 is the first), start_s, end_s, accuracy, test_loss, bytes, joules, ..

        The last row may be no round: one that was cut, or an evaluation after the last round.
        """
        return tables.filled(column_types(RoundRow), RecordedRun(self.folder).rounds)

    @property
    def visits(self) -> pyarrow.Table:
        """One row per visit of a client: round, client, device, kind, phases, bytes, joules, loss, .."""
        return tables.of_ledger(RecordedRun(self.folder), "visits", column_types(VisitRow), "visit")

    @property
    def transfers(self) -> pyarrow.Table:
        """One row per visit, direction and block: visit, round, client, direction, slot, key, nbytes."""
        return tables.of_ledger(RecordedRun(self.folder), "transfers", tables.TRANSFERS, "visit, direction, slot")

    @property
    def evaluations(self) -> pyarrow.Table:
        """One row per value of an evaluation, with the columns of `EvaluationRow`; client -1 is the global model.

        Empty for a run that evaluated nothing but the accuracy and loss of the global model, which `rounds` has.
        """
        run = RecordedRun(self.folder)
        return tables.with_names(run, tables.filled(column_types(EvaluationRow), run.evaluations))

    @property
    def logged(self) -> pyarrow.Table:
        """One row per number that the method has logged: round, client (null: the server's side), name, value.

        Empty for a method that logs nothing, as all shipped ones.
        """
        run = RecordedRun(self.folder)
        return tables.with_names(run, tables.filled(column_types(LoggedRow), run.logged))

    @property
    def choices(self) -> pyarrow.Table:
        """The method's own table, such as the choices and rewards of FedBR's bandit; empty for most methods."""
        run = RecordedRun(self.folder)
        names = [row["name"] for row in run.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        table = next((name for name in names if name not in TABLES and str(name).isidentifier()), None)
        if table is None:
            return tables.filled({"round": "INTEGER", "client": "INTEGER"}, [])
        columns = {row["name"]: row["type"] for row in run.query(f"PRAGMA table_info({table})")}
        return tables.of_ledger(run, table, columns, "rowid")

    @property
    def conditions(self) -> pyarrow.Table:
        """One row per visit: what it met, with the figures from which its times can be computed by hand.

        Rates in bit/s on the wire, watts of the whole device, factors (jitter, noise), and the seconds of each message
        for connecting and for which each link set its rate. `explain` divides a visit by them.
        """
        return tables.of_ledger(RecordedRun(self.folder), CONDITIONS, column_types(ConditionsRow), "visit")

    @property
    def steps(self) -> pyarrow.Table:
        """One row per visit of a model that is cut: visit, round, and its seconds of links, round trips, the server's
        device, and waits for that and for links. Empty where clients train whole models."""
        return tables.filled(column_types(StepsRow), RecordedRun(self.folder).steps)

    def explain(self, visit: int) -> VisitParts:
        """The parts of the seconds and joules of one visit, by its number; ``fedbr explain RUN VISIT``."""
        return visit_parts(self.folder, visit)

    # --- figures, report, model ---------------------------------------------------------------------------------------

    def run_folders(self) -> list[Path]:
        """The folders that figures are drawn of."""
        return [self.folder]

    def report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write the report, by default ``report.html`` in the run's folder, and return its path."""
        from scenarios.report import html

        return html.from_folder(self.folder, None if path is None else place("path", path))

    def model(self, round: int | None = None, name: str = GLOBAL, *, allow_code: bool = False) -> TrainedModel:
        """The global model as a torch module on the CPU, in evaluation mode, with one module per block.

        It maps examples as `test_set` has them to logits (batch, classes). ``round``: of a kept checkpoint, from 1 on;
        by default the newest. ``name``: of another model of the server's, such as ``cluster0``, for methods that have
        several. ``allow_code``: as of `fedbr.resume`. This imports torch. ReportError for a checkpoint that is not
        kept, or a model that there is not.
        """
        from edge.training.trained_model import trained_model

        run = self._opened()
        arrays = _checkpoint(run, round)
        heads = {key.partition(SEPARATOR)[0] for key in arrays if key.startswith(MODEL)}
        known = sorted(GLOBAL if head == MODEL else head.removeprefix(f"{MODEL} ") for head in heads)
        if name not in known:
            raise ReportError(f"name = {name!r}: {run.method} has no such model; {nearest(name, known)}")
        vectors, merged = (_vectors(arrays, each) if each in known else {} for each in (name, MERGED))
        with run.open_scenario("auto", allow_code) as (loaded, _):
            return trained_model(RunInputs(loaded).job, vectors, merged)

    def test_set(self, *, allow_code: bool = False) -> Examples:
        """(inputs, labels) of the test examples on which `accuracy` was evaluated, as tensors for `model`.

        ``allow_code``: as of `fedbr.resume`. This imports torch. DataError if the data is no longer there.
        """
        from edge.training.trained_model import evaluated_examples

        with self._opened().open_scenario("auto", allow_code) as (loaded, _):
            return evaluated_examples(RunInputs(loaded).job)

    def _opened(self) -> RecordedRun:
        return open_runs([self.folder])[0]

    def __repr__(self) -> str:
        run = self._opened()
        judged = _scored(run.score, run.final())
        return f"<fedbr.Run {self.folder}: {display_name(run.method)}, {judged}, {run.stopped_by()}>"

    def _repr_html_(self) -> str:
        summary, run = self.summary, self._opened()
        rows = {
            "method": display_name(str(summary["method"])),
            "seed": str(summary["seed"]),
            "rounds": f"{summary['rounds']}, {run.stopped_by()}",
            run.score.metric: f"{_scored(run.score, self.score)}, best {_scored(run.score, self.best_score)}",
            "virtual time": format_seconds(summary["virtual_seconds"]),
            "bytes down, up": f"{format_bytes(summary['bytes_down'])}, {format_bytes(summary['bytes_up'])}",
            "energy": format_joules(summary[ENERGY.key]),
            "folder": str(self.folder),
        }
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{cells}</table>"


def _scored(score: RunScore, value: float | None) -> str:
    return "not evaluated" if value is None else score.text(value)


def _vectors(arrays: Arrays, name: str) -> dict[str, Vector]:
    """The vectors of a model in a checkpoint, by key."""
    stored = arrays_under(model_prefix(name), arrays)
    return {key: Vector(np.asarray(array, np.float32)) for key, array in stored.items()}


def _checkpoint(run: RecordedRun, round: int | None) -> Arrays:
    """The arrays of a kept checkpoint; ``round`` is counted from 1, None for the newest.

    ReportError for one that is not kept or damaged.
    """
    rows = run.query("SELECT round, file, sha256 FROM checkpoints ORDER BY round")
    if not rows:
        raise ReportError(f"{run.folder}: there is no model before the first round has been committed")
    kept = {round_of(row["round"], run.completed): row for row in rows}
    if round is not None and round not in kept:
        raise ReportError(
            f"round = {round}: checkpoints are kept of the rounds {', '.join(map(str, kept))}; checkpoints.keep of a "
            "scenario keeps more"
        )
    row = kept[max(kept) if round is None else round]
    file = run.folder / CHECKPOINTS / row["file"]
    try:
        is_whole = is_valid(CHECKPOINTS, row["file"]) and file_sha256(file) == row["sha256"]
    except OSError:
        is_whole = False
    if not is_whole:
        raise ReportError(f"{file} is missing or not what was committed")
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise ReportError(f"{file} cannot be read: {error}") from error


def round_of(row_round: int, completed: int) -> int:
    """The round, counted from 1, after which the model of a row is kept.

    A row after the last completed round, that was cut or only evaluates, has the number of that round, whose model it
    replaces.
    """
    return min(row_round + 1, completed)
