"""``fedbr measure``: metrics of the models of a stored checkpoint, spread over workers. Never writes to a ledger.

Measured are the server's models, and the clients': those that an evaluation would use (``evaluated``), or their local
models after the visit that would follow the checkpoint, with the draws of the run's next round (``local``). Each model
is a task of its own, but for the test set, which is split as in evaluations.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coordinator.aggregation.server import Model
from coordinator.records.chain import initial_hash
from coordinator.records.round_record import EvalResult
from coordinator.rounds.evaluation import Evaluation, EvaluationScope, PoolEvaluator, evaluated_examples, result
from coordinator.rounds.run import FederatedRun
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolTask, Reply, ReplyHandler, TaskGroup
from edge.protocol.config import ComponentConfig, EvalSplit, Job
from edge.protocol.files import write_text
from edge.protocol.home import shared
from edge.protocol.messages import GLOBAL, LOCAL_MODEL, OWN_COMPONENT, SUBVALUE, Evaluate, Score, Train, Update
from edge.protocol.payload import MODEL, Payload
from edge.protocol.scratch import scratch
from edge.training.metrics.registry import metric_rows
from scenarios.config import plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import ScenarioError
from scenarios.run import builder, evaluated_clients, run_errors, runner
from scenarios.run.folder_files import run_lock
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder
from scenarios.studies.measure_request import MeasureRequest
from scenarios.studies.restored_run import copied_ledger, restored_run

LOCAL_VISIT = "edge.training.measured_visit:MeasuredVisit"
VISITS_PER_WORKER = 2
"""Local models per worker that are held at a time"""
Values = dict[str, float | None]
Tell = Callable[[int, int], None]
"""(tasks that are done, all tasks)"""


def measure(
    asked: MeasureRequest, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], tell: Tell
) -> dict[str, Any]:
    """Measure, and return what ``measure --json`` prints.

    Keys: run_dir, method, seed, round (server steps of the measured models), metrics, metric_options, clients, split
    (of the clients' own examples), models (name of a server's model -> its values by name), by_client (client -> the
    same), over_clients, wall_seconds. ScenarioError, RunFailed and PoolError as `runner.resume` raises them.
    """
    started = time.monotonic()
    with run_lock(folder), scratch() as place:
        launcher.adopt(place)  # the launcher removes it if this process is killed
        if change := RunFolder(folder).source_change():
            raise ScenarioError(f"{folder}: {change}; to measure this run, restore the files")
        with plugin_errors.named(asked.loaded.scenario.model_dump(), ScenarioError, asked.loaded.name):
            found = _measured(asked, folder, place, host, launcher, stopped, tell)
    return {"run_dir": str(folder), **found, "wall_seconds": time.monotonic() - started}


def _measured(
    asked: MeasureRequest,
    folder: Path,
    place: Path,
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    tell: Tell,
) -> dict[str, Any]:
    loaded, logs = asked.loaded, place / "logs"
    logs.mkdir()
    with runner.probe_worker(loaded, host.device, launcher, logs, stopped) as probe:
        profile, initial = probe.describe(True)
    job = builder.job(loaded, profile, host.device, cache_folder())
    own = _measuring_job(job, asked)
    with (
        contextlib.closing(copied_ledger(asked, folder, place)) as ledger,
        Pool(own, host.workers, launcher, logs, run_errors.user_error_hook(loaded), stopped) as pool,
    ):
        if ledger.genesis != initial_hash(builder.identity(loaded), profile.data_sha256):
            raise ScenarioError(f"{folder}: the data or the files that the scenario names have changed")
        run = restored_run(asked, job, profile, initial, pool, ledger, place, stopped)
        return _Measuring(asked, own, run, CountedWorkers(pool, tell)).result()


def _measuring_job(job: Job, asked: MeasureRequest) -> Job:
    """The run's job with other metrics; for local models with visits that upload them, and without adaptations."""
    config = asked.evaluation
    own = replace(job, metrics=config.metrics, metric_options=config.metric_options, collects_vectors=True)
    if asked.clients != "local":
        return own
    objective = ComponentConfig(LOCAL_VISIT, {**job.objective.options, OWN_COMPONENT: job.objective.component})
    return replace(own, objective=objective, reports=(), adapt_epochs=0, adapt_before=False, eval_select=None)


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
        """Number of workers."""
        return self.pool.size

    def build(self, make: Callable[[], Payload]) -> Any:
        """As of the pool."""
        return self.pool.build(make)

    def submit(self, tasks: Sequence[PoolTask], on_reply: ReplyHandler) -> TaskGroup:
        """As of the pool."""

        def counted(task: PoolTask, reply: Reply) -> None:
            if isinstance(reply, Score) and reply.payload:
                self.vectors[reply.client] = reply.payload
            on_reply(task, reply)
            self.done += 1
            self.tell(self.done, self.planned)

        return self.pool.submit([replace(task, takes_vectors=True) for task in tasks], counted)


class _Measuring:
    """One measurement of a run that stands at its checkpoint."""

    def __init__(self, asked: MeasureRequest, job: Job, run: FederatedRun, workers: CountedWorkers) -> None:
        self.asked, self.job, self.run, self.workers = asked, job, run, workers
        self.split = _split(asked, run)
        rows = metric_rows(asked.evaluation.metrics)
        self.scope = EvaluationScope(
            "clients", "clients", self.split, frozenset(row.name for row in rows), keeps_values=True
        )

    def result(self) -> dict[str, Any]:
        """All but the folder and the seconds."""
        asked, scenario = self.asked, self.asked.loaded.scenario
        whole = self._server_models()
        self.workers.planned = len(whole) * len(self._shards()) + self._tasks_of_clients()
        models = {name: self._of_model(model) for name, model in whole.items()}
        self.workers.vectors.clear()
        by_client = {"none": dict, "local": self._local, "evaluated": self._evaluated}[asked.clients]()
        finite = {
            client: {name: value for name, value in values.items() if value is not None}
            for client, values in by_client.items()
        }
        return {
            "method": scenario.method,
            "seed": scenario.seed,
            "round": self.run.rounds,
            "metrics": [row.name for row in metric_rows(asked.evaluation.metrics)],
            "metric_options": asked.evaluation.metric_options,
            "clients": asked.clients,
            "split": self.split,
            "models": models,
            "by_client": {str(client): values for client, values in by_client.items()},
            "over_clients": evaluated_clients.values_over_clients(asked.evaluation, finite, self.workers.vectors),
        }

    def _server_models(self) -> dict[str, Model]:
        """The models that can be evaluated: the global one, or several whole ones."""
        server, spec = self.run.server, self.asked.loaded.method.objective
        if spec.has_global_model:
            return {"global": server.global_evaluation_model()[MODEL]}
        whole = {name: model for name, model in server.models.items() if model.keys() >= self._keys}
        return whole if len(server.models) > 1 else {}

    @property
    def _keys(self) -> set[str]:
        return set(self.run.description.layout.sizes)

    def _of_model(self, model: Model) -> Values:
        evaluations = [Evaluate(*shard, GLOBAL, {MODEL: model}, self.run.rounds) for shard in self._shards()]
        return self._values(list(map(self._task, evaluations))).get(GLOBAL, {})

    def _shards(self) -> list[tuple[int, int]]:
        """(first, last exclusive) of the test examples in use, as in evaluations."""
        count, batch = self.job.scored(self.run.description.test_count), self.job.eval_batch
        return [(start, min(start + batch, count)) for start in range(0, count, batch)]

    def _tasks_of_clients(self) -> int:
        """Of local models, a visit and an evaluation each."""
        evaluated = int((evaluated_examples(self.run.description, self.split) > 0).sum())
        return {"none": 0, "local": 2 * len(self.run.candidates), "evaluated": evaluated}[self.asked.clients]

    def _evaluated(self) -> dict[int, Values]:
        """The models that an evaluation on clients would use."""
        run = self.run
        assert isinstance(run.evaluator, PoolEvaluator)
        scope = replace(self.scope, metrics=None)
        tasks = PoolEvaluator(self.job, scope, run.description, run.server, self.workers, run.states)
        return _by_client(tasks.evaluate(run.rounds).wait())

    def _local(self) -> dict[int, Values]:
        """The local models after each client's next visit."""
        values: dict[int, Values] = {}
        together = VISITS_PER_WORKER * self.workers.size
        for start in range(0, len(self.run.candidates), together):
            clients = self.run.candidates[start : start + together]
            models: dict[int, Payload] = {}
            tasks = [self._visit(client) for client in clients]
            self.workers.submit(tasks, partial(_keep, models)).wait()
            values |= self._values([self._of_local(client, models[client]) for client in clients])
        return values

    def _visit(self, client: int) -> PoolTask:
        """The next visit of a client, with its draws."""
        run = self.run
        visit = run.prepare(client, run.rounds, run.visits if run.is_asynchronous else None)
        dispatch = visit.dispatch
        return PoolTask(
            Train(client, visit.rng_round, visit.lr, dispatch.choice, dispatch.payload),
            None if run.states is None else run.states.newest(client),
            flops=visit.work.flops,
            build=dispatch.build,
        )

    def _of_local(self, client: int, model: Payload) -> PoolTask:
        count = int(evaluated_examples(self.run.description, self.split)[client])
        return self._task(Evaluate(0, count, client, model, self.run.rounds, split=self.split))

    def _task(self, message: Evaluate) -> PoolTask:
        return PoolTask(message, metrics=self.scope.metrics)

    def _values(self, tasks: Sequence[PoolTask]) -> dict[int, Values]:
        return _by_client(Evaluation(self.workers, tasks, lambda scores: result(scores, self.scope)).wait())


def _split(asked: MeasureRequest, run: FederatedRun) -> EvalSplit:
    """The clients' examples for metrics of examples; local models without such examples are measured on training."""
    split = asked.evaluation.split
    examples = evaluated_examples(run.description, split)
    if asked.clients == "evaluated" and not examples.any():
        raise ScenarioError(f"--clients evaluated: no client has {split} examples; choose local or none")
    lacks = asked.clients == "local" and not all(examples[client] for client in run.candidates)
    return "train" if lacks else split


def _keep(models: dict[int, Payload], task: PoolTask, reply: Reply) -> None:
    assert isinstance(reply, Update)
    models[reply.client] = {LOCAL_MODEL: reply.payload[LOCAL_MODEL]}


def _by_client(found: EvalResult) -> dict[int, Values]:
    values: dict[int, Values] = {}
    for client, name, value, _ in found.values:
        values.setdefault(client, {})[name] = value
    return values


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write the result as JSON; the file is whole or absent. ScenarioError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(shared(found), indent=1, allow_nan=False))
    except OSError as error:
        raise ScenarioError(f"--out: cannot write {path}: {error.strerror}") from None


def show(found: Mapping[str, Any], path: Path) -> None:
    """Print the values of models, numbered parts aside, and the file that has all."""
    console, every = Console(), _rows(found)
    columns = list(dict.fromkeys(name for _, values in every for name in values if not _is_numbered(name)))
    table = Table("model", *columns, box=None)
    for whose, values in every:
        table.add_row(whose, *(_shown(values.get(name)) for name in columns))
    console.print(table)
    for name, value in found["over_clients"].items():
        console.print(f"{name}: {_shown(value)}", markup=False, highlight=False)
    console.print(f"after round {found['round']}; {path}", markup=False, highlight=False, soft_wrap=True)


def _rows(found: Mapping[str, Any]) -> list[tuple[str, Values]]:
    return [*found["models"].items(), *((f"client {client}", own) for client, own in found["by_client"].items())]


def _is_numbered(name: str) -> bool:
    return name.rpartition(SUBVALUE)[2].isdigit()


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def progress_lines(say: Callable[[str], None]) -> Tell:
    """Tell the progress in lines, whenever a further tenth of the tasks is done."""
    told = -1

    def tell(done: int, planned: int) -> None:
        nonlocal told
        tenth = 10 * done // planned
        if tenth != told:
            told = tenth
            say(f"{done} of {planned} tasks are done")

    return tell
