"""The environment and the summary of a run, which its folder holds for people and other tools."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ValidationError

from coordinator.records.schema import EvaluationRow, RoundRow
from coordinator.records.store import evaluations, has_rounds, read
from coordinator.rounds.run import FederatedRun
from edge.protocol.config import ModelProfile
from edge.protocol.home import abbreviated
from edge.protocol.operations import KINDS
from edge.protocol.payload import step_flops
from edge.protocol.portable import NATIVE, PORTABLE, Instructions, numpy_instructions, numpy_is_portable
from edge.runtime.numerics import difference, fingerprint, processor
from scenarios.config.load import Loaded, ScenarioError
from scenarios.report import client_values, own_method, progress, time_basis
from scenarios.report.best_round import best_round
from scenarios.report.calibration import calibrations
from scenarios.report.run_reader import is_cut_step
from scenarios.run import builder, evaluated_clients, visits
from scenarios.run.host import PACKAGES, Host, default_workers
from scenarios.run.plugin_sources import SourceFile, change, of_run
from scenarios.run.run_records import read_json


def environment(
    loaded: Loaded,
    description: ModelProfile,
    host: Host,
    refused: Mapping[int, str],
    stop_at_target: bool,
    own: Mapping[str, SourceFile],
) -> dict[str, Any]:
    """The content of ``environment.json``: machine, versions, data, blocks and fleet of the run.

    ``refused``: client -> reason why it cannot take part. ``own``: user's module -> its file.
    """
    return {
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        **_machine(host, loaded.scenario.train.instructions),
        **_data(loaded, description),
        "blocks": _blocks(description),
        "calibrations": calibrations(loaded.scenario),
        "bases": time_basis.row_bases(loaded),
        "refused_clients": {str(client): why for client, why in refused.items()},
        "flops_plain_per_sample": step_flops(description.flops),
        "stops_at_target": stop_at_target,
        "asynchronous": loaded.scenario.rounds.is_asynchronous,
        **({"files": files} if (files := builder.file_hashes(loaded.scenario)) else {}),
        **({"variants": description.variants.tolist()} if len(description.variants) else {}),
        **({"outputs": description.outputs.tolist()} if len(description.outputs) else {}),
        **_operations(description),
        **_units(description),
        **own_method.record(loaded.method),
        **({"sources": {module: asdict(source) for module, source in own.items()}} if own else {}),
    }


def _machine(host: Host, instructions: Instructions) -> dict[str, Any]:
    """Versions, platform and devices that compute the run."""
    return {
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in ("fedbr-edge", *PACKAGES)},
        "platform": platform.platform(),
        "cores": default_workers(),
        "memory_bytes": psutil.virtual_memory().total,
        "workers": host.workers,
        "device": host.device,
        "computes": _computes(host.device, instructions),
        "processor": processor(),
    }


def _data(loaded: Loaded, description: ModelProfile) -> dict[str, Any]:
    """The data set, and each client's part of it."""
    return {
        "data": {
            "name": loaded.dataset.name,
            "sha256": description.data_sha256,
            "source": abbreviated(description.data_source),
            "test_examples": description.test_count,
        },
        "partition": {
            "clients": len(description.samples),
            "classes": description.classes,
            "histogram": description.histogram.tolist(),
            "validation": description.validation_samples.tolist(),
            "test": description.test_samples.tolist(),
        },
    }


def _operations(description: ModelProfile) -> dict[str, Any]:
    """Kind -> operations of a plain step, per example and per step."""
    counts = description.operations.tolist()
    return {"operations": dict(zip(KINDS, counts, strict=True))} if counts else {}


def _units(description: ModelProfile) -> dict[str, Any]:
    """The blocks of residual units and the FLOPs of their bodies, if the model has any."""
    if not len(description.unit_blocks):
        return {}
    return {"unit_blocks": description.unit_blocks.tolist(), "unit_flops": description.unit_flops.tolist()}


def _blocks(description: ModelProfile) -> list[dict[str, Any]]:
    """Shape, bytes, FLOPs and activations of each block, per example."""
    layout = description.layout
    return [
        {
            **asdict(block),
            "nbytes": layout.nbytes(layout.keys([block.name])),
            "flops_forward": float(forward),
            "flops_weight_gradient": float(weight),
            "flops_input_gradient": float(inner + inputs),
            "activations": float(activations),
        }
        for block, (forward, weight, inner, inputs), activations in zip(
            layout.blocks, description.flops, description.activations, strict=True
        )
    ]


def stops_at_target(folder: Path) -> bool:
    """Whether the run of a folder ends at its target accuracy; True if it has no environment yet."""
    return _recorded(folder).stops_at_target


def device_of(folder: Path) -> str | None:
    """The device that a run began on; None if it has no environment yet."""
    return _recorded(folder).device


def data_sha256(folder: Path) -> str:
    """The hash of the data that a run began with; empty if it has no environment yet."""
    return str(_recorded(folder).data.get("sha256", ""))


def began_with(folder: Path) -> dict[str, dict[str, Any]]:
    """The limits that a run began with, if it has been given others since (`scenarios.run.extension`)."""
    return _recorded(folder).began_with


def machine_change(folder: Path, device: str) -> str:
    """Differences between this machine and the run's that affect bit-identical results; empty if there are none."""
    before = _recorded(folder).computes
    return difference(_computes(device, _instructions(before)), before) if before else ""


def _computes(device: str, instructions: Instructions) -> dict[str, str]:
    """What decides about the bits of workers, and of this process, whose NumPy computes times and server steps."""
    found = fingerprint(device, instructions)
    if instructions == PORTABLE:
        found["instructions"] = PORTABLE
        if not numpy_is_portable(os.environ):
            found["NumPy"] = " ".join(("native", *numpy_instructions()))
    return found


def _instructions(computes: Mapping[str, str]) -> Instructions:
    return PORTABLE if computes.get("instructions") == PORTABLE else NATIVE


def source_change(folder: Path) -> str:
    """Differences of the user's own modules from those that a run began with; empty if there are none."""
    return change(_recorded(folder).sources, folder)


@contextlib.contextmanager
def modules_of(folder: Path, allow_code: bool) -> Iterator[None]:
    """For a body that imports the user's own modules that a run names, from where `of_run` allows it.

    A run whose record is missing or damaged, which other functions here refuse, has recorded none.
    """
    sources: Mapping[str, SourceFile] = {}
    with contextlib.suppress(ScenarioError):
        sources = _recorded(folder).sources
    with of_run(folder, sources, allow_code):
        yield


class _Recorded(BaseModel, extra="ignore", strict=True):
    """The part of a run's environment that `resume`, `verify` and the summary use."""

    device: str | None = None
    computes: dict[str, str] = {}
    data: dict[str, Any] = {}
    stops_at_target: bool = True
    sources: dict[str, SourceFile] = {}
    bases: dict[str, dict[str, dict[str, str]]] | None = None
    began_with: dict[str, dict[str, Any]] = {}


def _recorded(folder: Path) -> _Recorded:
    """ScenarioError for a file that is damaged, or missing although rounds have been committed."""
    path = folder / "environment.json"
    try:
        if path.exists():
            return _Recorded.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f" {part}:" for part in first["loc"])
        raise ScenarioError(f"{path} is damaged:{where} {first['msg']}") from None
    except ValueError as error:
        raise ScenarioError(f"{path} is damaged: {error}") from None
    else:
        with contextlib.suppress(sqlite3.DatabaseError):  # another check names a damaged ledger
            if has_rounds(folder / "ledger.sqlite"):
                raise ScenarioError(f"{path} is missing, and without it the run cannot be resumed") from None
        return _Recorded()


def summary(folder: Path, loaded: Loaded, run: FederatedRun, stopped_by: str, wall_seconds: float) -> dict[str, Any]:
    """What ``run --json`` prints.

    ``evaluation``: of the last evaluation whose values of clients are in the ledger, ``clients_accuracy`` (mean over
    clients), ``worst_decile`` (mean of the worst tenth, at least one client) and ``spread`` (standard deviation over
    clients); and ``values`` of whole models (`client_values.whole_values`); None without such values.
    ``clients_left_out``: clients without examples of ``eval.split``, which are not in these means. ``best_round``: a
    `BestRound`, or None before the first evaluation. ``cut_round``: as of `cut_round`. ``method_notes``: sentences on
    the method and this model, of which there may be none. ``joules_by_part``: `visits.energy`.
    ``seconds_by_basis``: `time_basis.seconds_by_basis`.
    """
    query = partial(read, folder / "ledger.sqlite")
    rows = [RoundRow._make(row) for row in query(progress.ROUNDS)]
    values = [EvaluationRow._make(row) for row in evaluations(folder / "ledger.sqlite")]
    trail = progress.accumulated(rows)
    best = best_round(rows, values, run.committed.rounds)
    target = loaded.scenario.stop.target_accuracy
    reached = progress.to_target(trail, target)
    return {
        "run_dir": str(folder),
        "method": loaded.scenario.method,
        "seed": loaded.scenario.seed,
        "data": abbreviated(run.description.data_source),
        "rounds": run.committed.rounds,
        "accuracy": progress.final(trail),
        "best_accuracy": progress.best(trail),
        "evaluation": client_values.summary(values),
        "clients_left_out": evaluated_clients.left_out(loaded, run.description),
        "method_notes": builder.method_notes(loaded, run.description),
        "best_round": None if best is None else asdict(best),
        "virtual_seconds": run.committed.virtual_seconds,
        **{name: sum(getattr(row, name) for row in rows) for name in SUMMED},
        "joules_by_part": visits.energy(query),
        "wasted_seconds": sum(row.wasted_s for row in rows),
        "bottlenecks": {name: each.rounds for name, each in visits.bottlenecks(query).items()},
        "visits": visits.by_kind(query),
        "seconds_by_basis": time_basis.seconds_by_basis(query, _recorded(folder).bases),
        "target_accuracy": target,
        "time_to_target_s": reached and reached.virtual_seconds,
        "bytes_to_target": reached and reached.nbytes,
        # A row after the last round is a round that was cut, or a score that came late.
        "rounds_to_target": reached and min(reached.rounds, run.committed.rounds),
        "stopped_by": stopped_by,
        "cut_round": cut_round(rows),
        "wall_seconds": wall_seconds,
        "model_sha256": run.committed.model_sha256,
    }


def cut_round(rows: Sequence[RoundRow]) -> dict[str, Any] | None:
    """The last round, from 1, with its participants and accuracy, if a budget cut it and its clients still made a step.

    The accuracy of such a model is that of fewer clients than in the rounds before (``rounds.min_fraction``).
    """
    last = rows[-1] if rows else None
    if last is None or not is_cut_step(last):
        return None
    return {
        "round": last.round + 1,
        "participants": last.participants,
        "accuracy": last.accuracy,
        "cut_by": last.cut_by,
    }


SUMMED = (
    "bytes_down",
    "bytes_up",
    "nominal_bytes",
    "flops",
    "nominal_flops",
    "joules",
    "wasted_bytes",
    "wasted_joules",
)
