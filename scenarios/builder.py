"""What a scenario means for each part of a run: job, fleet, and the server side of its method."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS
from coordinator.aggregation.server import ServerContext, ServerStrategy
from coordinator.methods.spec import CorrectionSpec
from coordinator.records.chain import initial_hash
from coordinator.records.checkpoints import CheckpointStore
from coordinator.records.client_states import ClientStates
from coordinator.records.store import Ledger
from coordinator.rounds.budget import Budget
from coordinator.rounds.evaluation import PoolEvaluator
from coordinator.rounds.pool_trainer import PoolTrainer
from coordinator.rounds.run import FederatedRun, RoundFinished
from coordinator.workers.task import Workers
from costmodel.clock import Clock
from costmodel.files import read_bytes
from costmodel.fleet.csv_table import LARGEST_NBYTES
from costmodel.fleet.fleet import Fleet
from edge.data.json_partition import MOST_NBYTES
from edge.protocol import codec
from edge.protocol.config import ComponentConfig, Job, ModelProfile
from edge.protocol.payload import INNER_GRADIENT, Layout, Payload
from scenarios import fleet_builder
from scenarios.config.load import Loaded, ScenarioError

RUN_ID_BYTES = 8
HEADERS_NBYTES = 4 * codec.MAX_HEADER_NBYTES
"""Envelope, header, and what sealing adds to each of a few thousand frames."""
KEPT_MODELS = 4
"""So many times the model's bytes may a client keep for one part of a method; its row does not say how many it does."""


def on_device(loaded: Loaded, device: str) -> Loaded:
    """The scenario as it runs on a device, with the defaults that depend on the type of device written out.

    ScenarioError for a precision that the device does not have.
    """
    loaded = _settled(loaded, device)
    kind = device.partition(":")[0]
    train = loaded.scenario.train
    for key, asked in (("precision = tf32", train.precision == "tf32"), ("graphs = true", train.graphs)):
        if asked and kind != "cuda":
            raise ScenarioError(f"{loaded.name}: train.{key}: needs a CUDA device; this run is on {kind}")
    return loaded


def _settled(loaded: Loaded, device: str) -> Loaded:
    train = loaded.scenario.train
    defaults = loaded.model.on(device.partition(":")[0], loaded.scenario.model.width, train.precision)
    keys = ("precision", "memory_format", "pathways")
    missing = {key: getattr(defaults, key) for key in keys if getattr(train, key) is None}
    settled = {"train": replace(train, **missing)}
    return replace(loaded, scenario=loaded.scenario.model_copy(update=settled))


def identity(loaded: Loaded) -> dict[str, Any]:
    """What the hash chain starts from: the resolved scenario, with hashes in place of where files lie."""
    scenario = loaded.scenario.model_dump()
    data = {key: value for key, value in scenario["data"].items() if key not in ("root", "download")}
    file = data["partition"]["file"]
    if file is not None and Path(file).is_file():
        data["partition"] = {**data["partition"], "file": _sha256("data.partition.file", Path(file), MOST_NBYTES)}
    files = {
        key: _sha256(key, path, LARGEST_NBYTES) for key, path in fleet_builder.named_files(loaded.scenario).items()
    }
    scenario["fleet"]["sites"] = scenario["fleet"].pop("gateways")  # its name in the chains of earlier runs
    own = [asdict(row) for rows in fleet_builder.own_rows(loaded.scenario) for row in rows.values()]
    return {**scenario, "data": data, "files": files, "own": own}


def _sha256(key: str, path: Path, most_nbytes: int) -> str:
    """The hash of a file that a reader takes up to so many bytes of; ScenarioError naming the key and the file."""
    try:
        return hashlib.sha256(read_bytes(path, most_nbytes)).hexdigest()
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def job(loaded: Loaded, known: ModelProfile | None, device: str, cache: Path) -> Job:
    """What every worker is told; before describe, when nothing is known, not what travels."""
    loaded = _settled(loaded, device)
    scenario, method = loaded.scenario, loaded.method
    down: tuple[str, ...] = ()
    up: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    flops: tuple[tuple[float, float, float, float], ...] = ()
    if known is not None:
        down, up = travels(loaded, known.layout)
        keep = method.objective.kept_blocks(known.layout, down)
        flops = tuple((float(f), float(w), float(n), float(i)) for f, w, n, i in known.flops)
    return Job(
        run_id=initial_hash(identity(loaded), "")[: 2 * RUN_ID_BYTES],
        seed=scenario.seed,
        device=device,
        cache=str(cache),
        model=scenario.model,
        data=scenario.data,
        train=scenario.train,
        objective=ComponentConfig(method.objective.client, method.options_of(loaded.options, method.objective)),
        corrections=tuple(ComponentConfig(c.client, method.options_of(loaded.options, c)) for c in method.corrections),
        up=up,
        kept_blocks=keep,
        reports=method.reports,
        eval_batch=scenario.eval.batch,
        eval_subset=scenario.eval.subset,
        flops=flops,
        data_sha256=known.data_sha256 if known is not None else "",
    )


def travels(loaded: Loaded, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(keys down, keys up). ScenarioError names the key."""
    try:
        return loaded.method.travels(layout, loaded.scenario.travels.down, loaded.scenario.travels.up)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def fleet(loaded: Loaded) -> Fleet:
    """The clients' devices and links, drawn by the scenario's seed."""
    try:
        return fleet_builder.fleet(loaded.scenario, (loaded.model.name, loaded.model.family))
    except ScenarioError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def refused(loaded: Loaded, drawn: Fleet, description: ModelProfile) -> dict[int, str]:
    """client -> why the model does not fit its device; with as many pathways as the method ever trains."""
    row, blocks = loaded.method.objective, len(description.layout)
    most = dict.fromkeys(row.choices, blocks - 1)
    # What is kept for the way back is kept by passes that have one.
    kept = row.pass_counts(blocks, loaded.options, most)[:, INNER_GRADIENT]
    try:
        return fleet_builder.refused(loaded.scenario, drawn, description, kept)
    except ScenarioError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def server(loaded: Loaded, description: ModelProfile, initial: Payload) -> ServerStrategy:
    """The method's server side, with those of its corrections, before the first round."""
    scenario, method = loaded.scenario, loaded.method
    down, up = travels(loaded, description.layout)
    assert scenario.aggregate.weights is not None
    setup = ServerContext(
        layout=description.layout,
        initial=initial,
        options=method.options_of(loaded.options, method.objective),
        weights=scenario.aggregate.weights,
        down=down,
        up=up,
        seed=scenario.seed,
        samples=description.samples,
        histogram=description.histogram,
        optimiser=SERVER_OPTIMIZERS[scenario.server].make(loaded.server_options),
        asynchronous=scenario.rounds.is_asynchronous,
        sum=scenario.aggregate.sum,
        train=scenario.train,
    )
    parts = [
        correction.server(_with_options(setup, loaded, correction))
        for correction in method.corrections
        if correction.server
    ]
    return method.objective.server(setup, parts)


def federated_run(
    loaded: Loaded,
    asked: Job,
    description: ModelProfile,
    server_side: ServerStrategy,
    clock: Clock,
    workers: Workers,
    ledger: Ledger,
    folder: Path,
    *,
    refused: Mapping[int, str],
    on_round: Callable[[RoundFinished], None],
    is_stopped: Callable[[], bool],
    stop_at_target: bool,
) -> tuple[FederatedRun, CheckpointStore]:
    """A run that trains, before its first round, and the store of its checkpoints.

    ``refused``: client -> why it takes no part; the other arguments are the run's parts.
    """
    method, scenario = loaded.method, loaded.scenario
    keeps = bool(asked.kept_blocks) or method.keeps_slots
    target = scenario.stop.target_accuracy if stop_at_target else None
    states = ClientStates(folder, asked.kept_blocks, method.keeps_slots) if keeps else None
    store = CheckpointStore(ledger, folder, server_side, states)
    run = FederatedRun(
        job=asked,
        method=method,
        options=loaded.options,
        description=description,
        server=server_side,
        clock=clock,
        trainer=PoolTrainer(asked, method, description, server_side, workers, folder, scenario.faults, states),
        evaluator=PoolEvaluator(asked, method.objective.evaluated, description, server_side, workers, states),
        recorder=store,
        states=states,
        budget=Budget(scenario.budget, scenario.rounds.max, target),
        rules=scenario.rounds,
        eval_every=scenario.eval.every,
        on_round=on_round,
        is_stopped=is_stopped,
        refused=refused,
    )
    return run, store


def largest_message(loaded: Loaded, asked: Job, description: ModelProfile, server_side: ServerStrategy) -> int:
    """Bytes that one message of a worker can have at most, all of its parts together, but for headers: see `wire`."""
    model = description.layout.nbytes()
    up = codec.update_nbytes(asked.run_id, asked.reports, server_side.up_shapes())
    keeps = sum(part.has_client_state for part in loaded.method.parts)
    kept = description.layout.nbytes(asked.kept_blocks) + KEPT_MODELS * model * keeps
    return max(2 * up, kept) + HEADERS_NBYTES  # sums have eight bytes where updates have four


def _with_options(setup: ServerContext, loaded: Loaded, correction: CorrectionSpec) -> ServerContext:
    return replace(setup, options=loaded.method.options_of(loaded.options, correction))
