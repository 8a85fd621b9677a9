"""``fedbr replay --measure``: metrics of a stored checkpoint's models, spread over workers. Never writes to a ledger.

Measured are the server's models, and the clients': those that an evaluation would use (``evaluated``), or their local
models after the visit that would follow the checkpoint, with the draws of the run's next round (``local``). Each model
is a task of its own, but for the test set, which is split as in evaluations.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace as replace_fields
from pydantic import ValidationError
from rich.console import Console

from coordinator.aggregation.server import Download, Model
from coordinator.records import foreign, names
from coordinator.records.checkpoints import restore_server
from coordinator.records.names import CHECKPOINTS, STATE, VECTORS
from coordinator.records.resume import resume_checkpoint
from coordinator.records.round_record import EvalResult
from coordinator.records.store import Ledger
from coordinator.rounds.evaluation import EvaluationScope, PoolEvaluator, Scoring, evaluated_examples, result
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolTask, Reply, ReplyHandler, ReplyValidator, TaskGroup
from costmodel.clock import Clock
from edge.protocol.config import Job
from edge.protocol.files import opened, write_text
from edge.protocol.home import shared
from edge.protocol.messages import GLOBAL, LOCAL_MODEL, SUBVALUE, Evaluate, EvaluatedQuantity, Score, Train, Update
from edge.protocol.payload import MODEL, Payload
from edge.protocol.scratch import scratch
from edge.training.metrics.registry import metric_rows
from scenarios.config import plugin_errors
from scenarios.config.error_messages import error_message
from scenarios.config.errors import Argument
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.overrides import KeyValues
from scenarios.config.schema import EvalSection
from scenarios.report import terminal
from scenarios.report.tables import Table, TableColumn
from scenarios.run import evaluated_clients, run_problems, runner
from scenarios.run.federation import federated_run
from scenarios.run.folder_files import run_lock
from scenarios.run.host import Host
from scenarios.run.observer import Observers
from scenarios.run.run_folder import RunFolder
from scenarios.run.setup import RunInputs, Setup

VISITS_PER_WORKER = 2
"""Local models per worker that are held at a time"""
OPTIONS = "eval.metric_options."
METRICS = Argument("metrics", option="measure")
Clients = Literal["local", "evaluated", "none"]
Values = dict[EvaluatedQuantity, float | None]
Tell = Callable[[int, int], None]
"""(tasks that are done, all tasks)"""


# --- what is asked for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasurePlan:
    loaded: Loaded
    """The run's scenario"""
    evaluation: EvalSection
    """Its table ``eval`` with the metrics and options that are measured"""
    round: int
    """The round of the checkpoint, as the ledger numbers it"""
    clients: Clients


def plan(
    loaded: Loaded, folder: Path, metrics: str, overrides: KeyValues, round: int | None, clients: str | None
) -> MeasurePlan:
    """The plan that these words ask for: names separated by commas, options as ``eval.metric_options.NAME.KEY=VALUE``,
    a round counted from 1 (None: the newest). ScenarioError for anything that cannot be measured."""
    chosen = tuple(name.strip() for name in metrics.split(","))
    try:
        rows = metric_rows(chosen, loaded.scenario.train.score)
    except ValueError as error:
        raise ScenarioError(METRICS, f": {error}") from None
    given = {name: dict(options) for name, options in loaded.scenario.eval.metric_options.items()}
    for key, value in overrides.items():
        name, dot, option = key.removeprefix(OPTIONS).partition(".")
        if not key.startswith(OPTIONS) or not dot:
            raise ScenarioError(f"{key}: only options of metrics can be set, such as {OPTIONS}hessian.pairs=distinct")
        if name not in {row.name for row in rows if row.options is not None}:
            raise ScenarioError(f"{key}: no metric of ", METRICS, f" {metrics} has options of that name")
        given.setdefault(name, {})[option] = value
    options = {}
    for row in rows:
        if row.options is None:
            continue
        try:
            options[row.name] = row.options.model_validate(given.get(row.name, {})).model_dump()
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join([f"{OPTIONS}{row.name}", *map(str, first["loc"])])
            fields = [f"{OPTIONS}{row.name}.{name}" for name in row.options.model_fields]
            parts, choices = error_message(first, key, {name: name for name in fields})
            raise ScenarioError(*parts, key=key, choices=choices) from None
    has_global_model = loaded.method.objective.evaluation.has_global_model
    if clients not in (None, "local", "evaluated", "none"):
        raise ScenarioError(f"--clients {clients}: must be local, evaluated or none")
    models: Any = clients or ("local" if has_global_model else "evaluated")
    evaluation = replace(loaded.scenario.eval, metrics=chosen, metric_options=options)
    return MeasurePlan(loaded, evaluation, _stored_round(folder, round), models)


def stored_rounds(folder: Path) -> set[int]:
    """The ledger's numbers of the rounds whose checkpoints a run keeps; sqlite3.Error."""
    recorded = RunFolder(folder)
    rows = recorded.query("SELECT round FROM checkpoints") if recorded.is_begun else []
    return {int(row["round"]) for row in rows}


def _stored_round(folder: Path, round: int | None) -> int:
    """The ledger's number of a round whose checkpoint is kept; ScenarioError that names those that are."""
    try:
        stored = sorted(stored_rounds(folder))
    except sqlite3.Error as error:
        raise ScenarioError(f"{RunFolder(folder).ledger} cannot be read: {error}") from None
    if not stored:
        raise ScenarioError(f"{folder}: there is nothing to measure before the first round has been committed")
    if round is None:
        return stored[-1]
    if round - 1 not in stored:
        kept = ", ".join(str(number + 1) for number in stored)
        raise ScenarioError(
            f"--round {round}: checkpoints are kept of the rounds {kept}; checkpoints.keep of a scenario keeps more"
        )
    return round - 1


# --- the measurement --------------------------------------------------------------------------------------------------


ByName = dict[str, float | None]


class MeasuredModels(Struct, frozen=True):
    """The output of ``replay --measure --json``."""

    run_dir: str
    method: str
    seed: int
    round: int
    """Server steps of the measured models"""
    metrics: list[str]
    metric_options: Mapping[str, Mapping[str, object]]
    clients: Clients
    split: str
    """Of the clients' own examples"""
    models: dict[str, ByName]
    """Name of a server's model -> its values"""
    by_client: dict[str, ByName]
    score: float | None
    """Of the clients' models, as rounds have it where these are evaluated; None unless they were (``evaluated``)"""
    over_clients: ByName
    wall_seconds: float


def measure(
    request: MeasurePlan, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], tell: Tell
) -> MeasuredModels:
    """Measure. ScenarioError, RunFailed and PoolError as `runner.resume` raises them."""
    started, loaded = time.monotonic(), request.loaded
    with run_lock(folder), scratch() as place:
        launcher.adopt(place)  # the launcher removes it if this process is killed
        if change := RunFolder(folder).source_change():
            raise ScenarioError(f"{folder}: {change}; to measure this run, restore the files")
        with plugin_errors.named(loaded.scenario.model_dump(), ScenarioError, loaded.name):
            logs = place / "logs"
            logs.mkdir()
            inputs = RunInputs(loaded, host.device)
            with runner.probe_worker(inputs, launcher, logs, stopped) as probe:
                profile, initial = probe.describe(True)
            setup, config = Setup(inputs, profile), request.evaluation
            job = replace(
                setup.job, metrics=config.metrics, metric_options=config.metric_options, collects_vectors=True
            )
            if request.clients == "local":  # visits upload their models, which are not adapted
                job = replace(job, is_measured=True, reports=(), adapt_epochs=0, adapt_before=False, eval_select=None)
            with (
                contextlib.closing(copied_ledger(loaded, request.round, folder, place)) as ledger,
                Pool(job, host.workers, launcher, logs, run_problems.user_error_hook(loaded), stopped) as pool,
            ):
                if ledger.genesis != inputs.genesis(profile.data_sha256):
                    raise runner.is_another(inputs, RunFolder(folder), profile.data_sha256)
                run = restored_run(setup, request.round, initial, pool, ledger, stopped)
                result = _Measuring(request, job, run, CountedWorkers(pool, tell)).result(folder)
    return replace_fields(result, wall_seconds=time.monotonic() - started)


@dataclass
class CountedWorkers:
    """Workers that tell how many tasks they have done, and keep the vectors of scores."""

    pool: Pool
    tell: Tell
    planned: int = 0
    done: int = 0
    vectors: dict[int, Payload] = field(default_factory=dict)
    """Client -> name of a metric -> its vectors"""

    @property
    def size(self) -> int:
        return self.pool.size

    def build(self, make: Callable[[], Payload]) -> Any:
        return self.pool.build(make)

    def submit(self, tasks: Sequence[PoolTask], on_reply: ReplyHandler) -> TaskGroup:
        def counted(task: PoolTask, reply: Reply) -> None:
            if isinstance(reply, Score) and reply.payload:
                self.vectors[reply.client] = reply.payload
            on_reply(task, reply)
            self.done += 1
            self.tell(self.done, self.planned)

        takers = [replace(task, validator=replace(task.validator, takes_vectors=True)) for task in tasks]
        return self.pool.submit(takers, counted)


class _Measuring:
    """One measurement of a run that stands at its checkpoint."""

    def __init__(self, request: MeasurePlan, job: Job, run: FederatedRun, workers: CountedWorkers) -> None:
        self.request, self.job, self.run, self.workers = request, job, run, workers
        self.metrics = [row.name for row in metric_rows(request.evaluation.metrics, job.train.score)]
        self.split = request.evaluation.split
        self.examples = evaluated_examples(run.description, self.split)
        if request.clients == "evaluated" and not self.examples.any():
            raise ScenarioError(f"--clients evaluated: no client has {self.split} examples; choose local or none")
        if request.clients == "local" and run.split is not None and run.split.config.is_shared:
            raise ScenarioError(
                "--clients local: clients train one server part (splitfed-v2); choose evaluated or none"
            )
        if request.clients == "local" and not all(self.examples[client] for client in run.candidates):
            self.split = "train"  # for metrics of examples, local models without such examples
            self.examples = evaluated_examples(run.description, self.split)
        self.score: float | None = None
        quantities = evaluated_clients.quantities(request.evaluation, run.description, job.train.score)
        self.scope = EvaluationScope(
            "clients",
            "clients",
            self.split,
            quantities,
            keeps_values=True,
            **evaluated_clients.score_fields(job.train, request.evaluation),
        )

    def result(self, folder: Path) -> MeasuredModels:
        """The values, whose seconds are still to be told."""
        request, scenario, run = self.request, self.request.loaded.scenario, self.run
        models, batch = self._server_models(), self.job.eval_batch
        count = self.job.scored(run.description.test_count)
        shards = [(start, min(start + batch, count)) for start in range(0, count, batch)]  # as in evaluations
        evaluated = int((self.examples > 0).sum())
        # Local models take a visit and an evaluation each.
        of_clients = {"none": 0, "local": 2 * len(run.candidates), "evaluated": evaluated}[request.clients]
        self.workers.planned = len(models) * len(shards) + of_clients
        variant = run.server.global_evaluation_variant()
        by_model = {
            name: self._values(
                [Evaluate(*shard, GLOBAL, {MODEL: model}, run.rounds, variant=variant) for shard in shards]
            )
            for name, model in models.items()
        }
        self.workers.vectors.clear()
        by_client = {"none": dict, "local": self._local, "evaluated": self._evaluated}[request.clients]()
        finite = {
            client: {quantity: value for quantity, value in values.items() if value is not None}
            for client, values in by_client.items()
        }
        over_clients = evaluated_clients.values_over_clients(request.evaluation, finite, self.workers.vectors)
        return MeasuredModels(
            run_dir=str(folder),
            method=scenario.method,
            seed=scenario.seed,
            round=run.rounds,
            metrics=self.metrics,
            metric_options=request.evaluation.metric_options,
            clients=request.clients,
            split=self.split,
            models={name: _by_name(values.get(GLOBAL, {})) for name, values in by_model.items()},
            by_client={str(client): _by_name(values) for client, values in by_client.items()},
            score=self.score,
            over_clients=_by_name(over_clients),
            wall_seconds=0.0,
        )

    def _server_models(self) -> dict[str, Model]:
        """The models that can be evaluated: the global one, or several whole ones."""
        server, keys = self.run.server, set(self.run.description.layout.sizes)
        if self.request.loaded.method.objective.evaluation.has_global_model:
            return {"global": server.global_evaluation_model()[MODEL]}
        return {name: model for name, model in server.models.items() if model.keys() >= keys and len(server.models) > 1}

    def _evaluated(self) -> dict[int, Values]:
        """The models that an evaluation on clients would use."""
        run = self.run
        assert isinstance(run.evaluator, PoolEvaluator)
        scope = replace(self.scope, quantities=None)
        tasks = PoolEvaluator(self.job, scope, run.description, run.server, self.workers, run.states)
        found = tasks.evaluate(run.rounds).wait()
        self.score = found.judged
        return _by_client(found)

    def _local(self) -> dict[int, Values]:
        """The local models after each client's next visit, with the draws of that."""
        run, values = self.run, dict[int, Values]()
        together = VISITS_PER_WORKER * self.workers.size
        for start in range(0, len(run.candidates), together):
            clients = run.candidates[start : start + together]
            models, dispatches = dict[int, Payload](), dict[int, Download]()

            def keep(task: PoolTask, reply: Reply, models: dict[int, Payload] = models) -> None:
                assert isinstance(reply, Update)
                models[reply.client] = {LOCAL_MODEL: reply.payload[LOCAL_MODEL]}

            tasks = []
            for client in clients:
                visit = run.prepare(client, run.rounds, run.visits if run.is_asynchronous else None)
                dispatch = dispatches[client] = visit.dispatch
                message = Train(client, visit.rng_round, visit.lr, dispatch.choice, dispatch.payload, dispatch.variant)
                state = None if run.states is None else run.states.newest(client)
                later = dispatch.later
                build = None if later is None else later.build
                tasks.append(PoolTask(message, state, flops=visit.work.flops, build=build))
            self.workers.submit(tasks, keep).wait()
            counts = [int(self.examples[client]) for client in clients]
            values |= self._values(
                [
                    Evaluate(
                        *(0, count, client, models[client], run.rounds),
                        choice=dispatches[client].choice,
                        split=self.split,
                        variant=dispatches[client].variant,
                    )
                    for client, count in zip(clients, counts, strict=True)
                ]
            )
        return values

    def _values(self, evaluations: Sequence[Evaluate]) -> dict[int, Values]:
        validator = ReplyValidator(self.scope.quantities, most_losses=self.job.train.loss_row[0].most_of_an_example)
        tasks = [PoolTask(message, validator=validator) for message in evaluations]
        return _by_client(result(Scoring(self.workers, tasks).wait(), self.scope))


def _by_client(result: EvalResult) -> dict[int, Values]:
    values: dict[int, Values] = {}
    for row in result.values:
        values.setdefault(row.client, {})[row.quantity] = row.value
    return values


def _by_name(values: Mapping[EvaluatedQuantity, float | None]) -> ByName:
    return {quantity.name: value for quantity, value in values.items()}


# --- output -----------------------------------------------------------------------------------------------------------


def write(result: MeasuredModels, path: Path) -> None:
    """Write the result as JSON; the file is whole or absent. ScenarioError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(shared(to_builtins(result)), indent=1, allow_nan=False))
    except OSError as error:
        raise ScenarioError(f"--out: cannot write {path}: {error.strerror}") from None


def show(result: MeasuredModels, path: Path) -> None:
    """Print the values of models, numbered parts aside, and the file that has all."""

    def text(value: float | None) -> str:
        return "" if value is None else f"{value:.5g}"

    console = Console()
    clients = {f"client {client}": client_values for client, client_values in result.by_client.items()}
    for title, values_of in (("models", result.models), ("clients", clients)):
        names = dict.fromkeys(name for values in values_of.values() for name in values)
        shown = [name for name in names if not name.rpartition(SUBVALUE)[2].isdigit()]
        if shown:
            columns = [TableColumn(title), *(TableColumn(name, missing="") for name in shown)]
            rows = [[model, *(text(values.get(name)) for name in shown)] for model, values in values_of.items()]
            terminal.print_table(Table(f"{title} after round {result.round}", columns, rows))
    for name, value in result.over_clients.items():
        console.print(f"{name}: {text(value)}", markup=False, highlight=False)
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def progress_lines(say: Callable[[str], None]) -> Tell:
    """Tell the progress in lines, whenever a further tenth of the tasks is done."""
    last = -1

    def tell(done: int, planned: int) -> None:
        nonlocal last
        tenth = 10 * done // planned
        if tenth != last:
            last = tenth
            say(f"{done} of {planned} tasks are done")

    return tell


# --- a run as it was at a checkpoint ----------------------------------------------------------------------------------


COPIED_PAGES = 4096
"""At a time; signals are handled in between"""


def copied_ledger(loaded: Loaded, round: int, folder: Path, place: Path) -> Ledger:
    """A copy of the ledger up to the checkpoint, beside the files of that."""
    copy = place / "ledger.sqlite"
    with (
        contextlib.closing(foreign.connect(folder / copy.name)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target, pages=COPIED_PAGES)
    ledger = Ledger(copy, None, loaded.method.objective.records.table)
    ledger.truncate_after(round)
    files = [(CHECKPOINTS, name) for number, name, _ in ledger.checkpoints() if number == round]
    files += [(STATE, name) for name, _ in ledger.client_states(round).values()]
    files += [(VECTORS, name) for name, _ in ledger.client_vectors(round).values()]
    for kind in names.PLACES:
        (place / kind).mkdir()
    for kind, name in dict.fromkeys(files):
        if names.is_valid(kind, name):  # others are refused by `resume_checkpoint`
            source_file, target_file = folder / kind / name, place / kind / name
            try:
                os.link(source_file, target_file, follow_symlinks=False)
            except FileNotFoundError:  # `resume_checkpoint` names it
                pass
            except OSError:  # another disk
                with opened(source_file) as file, target_file.open("wb") as other:
                    shutil.copyfileobj(file, other)
    return ledger


def restored_run(
    setup: Setup,
    round: int,
    initial: Payload,
    pool: Pool,
    ledger: Ledger,
    stopped: Callable[[], bool],
) -> FederatedRun:
    """The run at its checkpoint."""
    run, store = federated_run(
        setup,
        setup.server(initial, ledger.path.parent),
        Clock(setup.fleet),
        pool,
        ledger,
        Observers((), stopped),
        refused=setup.refused,
        stop_at_target=False,
    )
    resume_checkpoint(run, store)
    if ledger.checkpoints()[0][0] != round:
        raise RunFailed(f"round {round + 1}: its checkpoint is damaged")
    if run.history is not None:
        restore_server(run.server, run.history.checkpoint)
    return run
