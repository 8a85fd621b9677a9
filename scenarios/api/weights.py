"""The weights of a run: kept checkpoints, and the models in them as torch modules.

torch is imported by the functions that make modules, and by nothing else in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coordinator.aggregation.server import GLOBAL
from coordinator.records import names
from coordinator.records.checkpoints import SEPARATOR, arrays_under, file_sha256, model_prefix
from coordinator.records.names import CHECKPOINTS
from coordinator.rounds.ports import Arrays
from edge.protocol.config import Job
from edge.protocol.payload import MODEL, Vector
from edge.protocol.spelling import nearest
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ReportError
from scenarios.report.run_reader import RecordedRun
from scenarios.run import builder

if TYPE_CHECKING:
    from edge.training.trained_model import Examples, TrainedModel


def model(run: RecordedRun, round: int | None, name: str = GLOBAL, allow_code: bool = False) -> TrainedModel:
    """A model of the server's in a kept checkpoint; ``round`` is counted from 1, None for the newest.

    ReportError for a checkpoint that is not kept or damaged, and for a method without a model of this name.
    """
    from edge.training.trained_model import trained_model

    arrays = _checkpoint(run, round)
    heads = {key.partition(SEPARATOR)[0] for key in arrays if key.startswith(MODEL)}
    known = sorted(GLOBAL if head == MODEL else head.removeprefix(f"{MODEL} ") for head in heads)
    if name not in known:
        raise ReportError(f"name = {name!r}: {run.method} has no such model; {nearest(name, known)}")
    stored = arrays_under(model_prefix(name), arrays)
    with _job(run, allow_code) as job:
        return trained_model(job, {key: Vector(np.asarray(array, np.float32)) for key, array in stored.items()})


def test_set(run: RecordedRun, allow_code: bool = False) -> Examples:
    """(inputs, labels) of the test examples that the run's evaluations use, prepared for `model`."""
    from edge.training.trained_model import evaluated_examples

    with _job(run, allow_code) as job:
        return evaluated_examples(job)


@contextmanager
def _job(run: RecordedRun, allow_code: bool) -> Iterator[Job]:
    with run.open_scenario("auto", allow_code) as (loaded, _):
        yield builder.job(loaded, None, "cpu", cache_folder())


def _checkpoint(run: RecordedRun, round: int | None) -> Arrays:
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
        is_whole = names.is_valid(CHECKPOINTS, row["file"]) and file_sha256(file) == row["sha256"]
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
