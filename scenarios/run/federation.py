"""Puts a run that trains together: from its `Setup`, a clock, workers and a ledger."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.aggregation.server import ServerStrategy
from coordinator.records.checkpoints import CheckpointStore
from coordinator.records.client_states import ClientStates
from coordinator.records.store import Ledger
from coordinator.rounds.evaluation import PoolEvaluator
from coordinator.rounds.pool_trainer import PoolTrainer
from coordinator.rounds.run import FederatedRun
from coordinator.workers.task import Workers
from costmodel.clock import Clock
from edge.protocol import serialization
from edge.protocol.payload import ITEM_NBYTES
from scenarios.run.evaluated_clients import evaluation_scope, examples_of_clients
from scenarios.run.observer import Observers
from scenarios.run.setup import Setup

HEADERS_NBYTES = 4 * serialization.MAX_HEADER_NBYTES
"""Bound of an envelope, a header, and the bytes that encryption adds to each of a few thousand frames."""
KEPT_MODELS = 4
"""Bound of the client state of one part of a method, in models; its spec does not say how much it keeps."""


def federated_run(
    setup: Setup,
    server: ServerStrategy,
    clock: Clock,
    workers: Workers,
    ledger: Ledger,
    watch: Observers,
    *,
    refused: Mapping[int, str],
    stop_at_target: bool,
) -> tuple[FederatedRun, CheckpointStore]:
    """A run that trains, before its first round, and the store of its checkpoints, in the folder of its ledger.

    ``refused``: client -> why it cannot take part.
    """
    method, scenario, folder = setup.loaded.method, setup.scenario, ledger.path.parent
    job, description, downloads = setup.job, setup.description, setup.downloads()
    upwards = setup.codecs.up
    keeps_slots = method.keeps_slots or bool(upwards.client_state(server.up_shapes()))
    keeps_references = bool(upwards.references(job.kept_blocks))
    states = None
    if job.kept_blocks or keeps_slots:
        states = ClientStates(folder, job.kept_blocks, keeps_slots, keeps_references)
    store = CheckpointStore(ledger, folder, server, states)
    run = setup.federated(
        server,
        clock,
        PoolTrainer(*(job, method, description, server, workers, folder, setup.update_checks, states, downloads)),
        PoolEvaluator(job, evaluation_scope(setup), description, server, workers, states),
        store,
        refused=refused,
        states=states,
        downloads=downloads,
        target=scenario.stop.goal if stop_at_target else None,
        charged_examples=examples_of_clients(setup) if scenario.eval.charged else None,
        on_round=watch.on_round,
        is_stopped=watch,
    )
    return run, store


def largest_message(setup: Setup, server: ServerStrategy) -> int:
    """A bound of the bytes of one message of a worker, all of its parts together."""
    job, description, model = setup.job, setup.description, setup.description.layout.nbytes()
    up = serialization.update_nbytes(job.run_id, job.reports, server.up_shapes())
    parts_with_state = sum(part.client_state is not None for part in setup.loaded.method.parts)
    state_shapes = setup.codecs.up.client_state(server.up_shapes())
    kept = sum(size for sizes in state_shapes.values() for size in sizes.values())
    state = 2 * description.layout.nbytes(job.kept_blocks) + KEPT_MODELS * model * parts_with_state + ITEM_NBYTES * kept
    return max(2 * up, state) + HEADERS_NBYTES  # partial sums have eight bytes where updates have four
