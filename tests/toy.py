"""A whole federation in this process: real clients on handwritten digits, called directly instead of over sockets.

Nothing here is a test. `federation` puts the parts of a run together as a user's scenario would, and `Direct` stands
where the worker processes stand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from coordinator.aggregation.server import ServerContext, models_sha256
from coordinator.aggregation.update_checks import UpdateChecks
from coordinator.methods.compute import ComputeContext
from coordinator.methods.optimizer_state import with_optimizer_state
from coordinator.methods.registry import Method, resolve
from coordinator.methods.spec import ObjectiveSpec
from coordinator.records.checkpoints import CheckpointStore
from coordinator.records.names import PLACES
from coordinator.records.resume import resume_checkpoint
from coordinator.records.store import Ledger, read
from coordinator.rounds.budget import Limits, RunLimits
from coordinator.rounds.evaluation import PoolEvaluator
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.pool_trainer import PoolTrainer, VisitValidator
from coordinator.rounds.run import FederatedRun, RoundFinished
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.task import PoolTask, Reply, ReplyHandler, Workers
from costmodel.clock import Clock
from costmodel.config import FleetConfig
from costmodel.fleet.devices import devices, networks
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.fleet import Fleet
from costmodel.network.links import Links
from costmodel.network.tcp import wire_bits
from costmodel.visits.work import Work
from edge.data.registry import dataset
from edge.models.registry import model as model_row
from edge.protocol import messages, serialization
from edge.protocol.config import (
    DataConfig,
    Job,
    ModelConfig,
    ModelProfile,
    PartitionConfig,
    TrainConfig,
)
from edge.protocol.fixed_point import FixedPointSums
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, BlockShape, Layout, Payload, Vector
from edge.protocol.rng import keyed_generator
from edge.protocol.secure_sum import secure_sum
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import ClientUpdate, VisitContext
from edge.training.trainer import LocalTrainer
from scenarios.config.load import Loaded
from scenarios.config.schema import Scenario
from scenarios.config.validation import named_blocks
from scenarios.run.federation import federated_run
from scenarios.run.observer import Observers
from scenarios.run.setup import RunInputs, Setup
from tests.observers import Listener
from tests.toy_cache import cache_folder

CPU = torch.device("cpu")
if not torch.cuda.is_available():
    # Each visit seeds torch, which notes its caller for each kind of device that is not there: a tenth of a run.
    torch.manual_seed = torch.default_generator.manual_seed
TRAIN = TrainConfig(lr=0.1, batch=32)
DIGITS_CNN = ModelConfig("digits-cnn", width=4)
DIRICHLET = PartitionConfig("dirichlet", alpha=0.3)


def streams(purpose: str, index: int, client: int) -> np.random.Generator:
    """The random streams of fleets in tests."""
    return keyed_generator(0, purpose, index, client)


@functools.cache
def described(
    model: ModelConfig, data: DataConfig, seed: int, by_layer: bool = False, initial_models: int = 1
) -> tuple[ModelProfile, Payload]:
    """What a worker says before round 0, asked once for all runs that share these."""
    objective = "edge.training.client_update:ClientUpdate"
    job = Job("", seed, "cpu", cache_folder(), model, data, TRAIN, objective)
    return LocalTrainer(replace(job, by_layer=by_layer, initial_models=initial_models)).describe(True)


@dataclass
class Later:
    """An order that is done when it is waited for."""

    left: list[Callable[[], None]]
    sums: FixedPointSums
    """Of the updates of its tasks with shares"""

    def wait(self) -> None:
        """Do it all."""
        while self.left:
            self.left.pop(0)()

    def collect(self) -> messages.Totals:
        """What the updates add up to."""
        return self.sums.message().totals

    def cancel(self) -> None:
        """Do nothing of it."""
        self.left.clear()


def build_now(make: Callable[[], Payload]) -> Future[Payload]:
    """`Workers.build` on this thread."""
    built: Future[Payload] = Future()
    built.set_result(make())
    return built


@dataclass
class Direct:
    """Workers that are sites in this process. Every message is encoded, to learn its real length."""

    site: LocalTrainer
    shuffle: np.random.Generator | None = None
    """If given, answers come in an order drawn from it."""
    others: Sequence[LocalTrainer] = ()
    """Further sites, which take turns with the first; each has a model and scratch vectors of its own."""
    bytes_down: int = 0
    bytes_up: int = 0
    trained: list[tuple[int, int]] = field(default_factory=list)
    """(turn, client) of each training visit; a turn is a round, or the number of the visit where there are none."""
    nbytes: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(turn, client) -> real length of both messages"""
    replies: dict[int, messages.Update] = field(default_factory=dict)
    """turn -> the last reply"""
    updates: list[messages.Update] = field(default_factory=list)
    """All replies of training visits, as they come"""
    change: Callable[[messages.Update], messages.Update] = lambda update: update
    """Changes replies on their way to the run"""

    size = 1
    build = staticmethod(build_now)

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> Later:
        """Do each task, and answer, when it is waited for."""
        order = range(len(tasks)) if self.shuffle is None else self.shuffle.permutation(len(tasks))
        first = tasks[0].message if tasks else None
        round = first.round if isinstance(first, messages.Train) else 0
        sums = FixedPointSums(round, secure_sum(self.site.job.privacy))

        def do(task: PoolTask) -> None:
            task = task if task.build is None else task.with_payload(task.build())
            reply = self._do(task)
            if task.weight > 0.0:
                assert isinstance(reply, messages.Update)
                reply = sums.put(self.site.clipped(reply), task.weight)
            if isinstance(reply, messages.Update):
                self.updates.append(reply)
                reply = self.change(reply)
            heard(task, reply)

        return Later([functools.partial(do, tasks[index]) for index in order], sums)

    def _do(self, task: PoolTask) -> Reply:
        message = task.message
        assert isinstance(message, messages.Train | messages.Evaluate)
        # A slot without vectors does not arrive.
        message = structs.replace(message, payload={slot: named for slot, named in message.payload.items() if named})
        if isinstance(message, messages.Evaluate):
            return self.site.evaluate(message, task.state_in)
        sites = (self.site, *self.others)
        site = sites[len(self.trained) % len(sites)]
        sent = serialization.encode(site.train(message, task.state_in, task.state_out), site.job.run_id)
        # The worker's own vectors change with the next task.
        reply = serialization.decode(sent.header, [bytes(frame) for frame in sent.frames], site.job.run_id)
        assert isinstance(reply, messages.Update)
        if site.job.codec.is_used:
            if task.weight > 0.0:
                assert isinstance(task.validator, VisitValidator)
                task.validator.trainer.note_download(task.validator.visit, task.payload)
                reply = site.decoded(reply) if reply.encoded else reply
            else:
                reply = task.validator.check(task, reply, None, False, False)[0]
        assert isinstance(reply, messages.Update)
        down, up = serialization.encode(message, site.job.run_id).nbytes, sent.nbytes
        self.bytes_down += down
        self.bytes_up += up
        self.trained.append((message.round, message.client))
        self.nbytes[message.round, message.client] = down, up
        self.replies[message.round] = reply
        return reply


def loaded(
    method: str | Method = "fedavg",
    *,
    clients: int = 4,
    participants: int | None = None,
    rounds: int = 2,
    limits: RunLimits | None = None,
    target: float | None = None,
    patience: int | None = None,
    train: TrainConfig = TRAIN,
    partition: PartitionConfig = DIRICHLET,
    model: ModelConfig = DIGITS_CNN,
    weights: str | None = None,
    travels: tuple[str | None, str | None] = (None, None),
    validation: float | None = None,
    sum: str = "client_order",
    seed: int = 0,
    network: str = "lte",
    server_link: float = 100e6,
    server: str = "plain",
    server_options: Mapping[str, Any] | None = None,
    eval_every: int = 1,
    examples: str = "digits",
    evaluation: Mapping[str, Any] | None = None,
    rules: RoundPolicy | None = None,
    checks: UpdateChecks | None = None,
    fleet: Mapping[str, Any] | None = None,
    codec: Mapping[str, Any] | None = None,
    submodel: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
    aggregators: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    **options: Any,
) -> Loaded:
    """A scenario on digits; ``options`` are the method's.

    ``rules`` are for all clients unless ``participants`` says for how many; ``fleet`` adds to the fleet's section,
    ``evaluation`` to that of evaluations, ``aggregators`` are ``fleet.tiers`` and ``schedule`` is ``tiers``, and all
    else is as in a scenario.
    """
    method = with_optimizer_state(resolve(method) if isinstance(method, str) else method, train, *travels)
    architecture, data, policy = model_row(model.name), dataset(examples), rules or RoundPolicy()
    chosen, stepping = method.options(**options), SERVER_OPTIMIZERS[server].options(**server_options or {})
    shared = {"down": server_link, "up": server_link, "aggregate": math.inf}
    scenario = Scenario.model_validate(
        {
            "method": method.name,
            "method_options": chosen.model_dump(),
            "server": server,
            "server_options": stepping.model_dump(),
            "seed": seed,
            "data": DataConfig(
                data.name,
                clients=clients,
                partition=partition,
                validation=method.objective.evaluation.validation if validation is None else validation,
            ),
            "model": model,
            "train": replace(train, **{key: way for key, way in PLAIN.items() if getattr(train, key) is None}),
            "travels": dict(zip(("down", "up"), travels, strict=True)),
            "aggregate": {"weights": weights or method.objective.weights, "sum": sum},
            "codec": codec or {},
            "privacy": privacy or {},
            "submodel": submodel or {},
            "adapter": adapter or {},
            "faults": checks or UpdateChecks(),
            "rounds": replace(policy, participants=participants or clients, max=rounds),
            "stop": {"target_accuracy": target, "patience": patience},
            "budget": spendable(limits or RunLimits()),
            "fleet": FLEET
            | {"networks": {network: 1.0}, "server": shared, "tiers": aggregators or {}, **(fleet or {})},
            "tiers": schedule or {},
            "eval": {"every": eval_every, **(evaluation or {})},
        }
    )
    blocks = len(named_blocks(method, chosen, architecture, scenario))
    return Loaded("toy", scenario, method, chosen, stepping, data, architecture, blocks)


def spendable(limits: Limits) -> dict[str, Any]:
    """What is limited, as a scenario says it: bytes are whole."""
    given = {rule: limit for rule, limit in vars(limits).items() if limit is not None}
    return {
        rule: spendable(limit) if rule == "client" else int(limit) if rule.startswith("bytes") else limit
        for rule, limit in given.items()
    }


PLAIN: dict[str, Any] = {"precision": "fp32", "memory_format": "contiguous", "pathways": "each", "graphs": False}
"""How runs train whose `TrainConfig` does not say, whatever is fastest on this machine."""
FLEET = {
    "devices": {"raspberry-pi-5": 1.0, "raspberry-pi-4": 1.0},
    "compute_spread": 2.0,
    "bandwidth_spread": 2.0,
    "jitter": 0.0,
}


def federation(
    folder: Path,
    method: str | Method = "fedavg",
    *,
    shuffle: int | None = None,
    sites: int = 1,
    optimiser: ServerOptimizer | None = None,
    on_round: Callable[[RoundFinished], None] = lambda progress: None,
    behaviour: ClientDynamics | None = None,
    links: Links | None = None,
    fleet: Mapping[str, Any] | None = None,
    seconds: Sequence[tuple[float, float, float]] = (),
    again: bool = False,
    device: str = "cpu",
    **scenario: Any,
) -> FederatedRun:
    """A run on digits that is ready to start, built as the run of a scenario is; ``scenario`` is for `loaded`.

    ``optimiser`` takes the place of the scenario's server optimizer. If there are ``seconds``, its clients are those
    of `clockwork`, with these ``links`` and this ``behaviour``, and ``fleet`` is for that. With ``again`` there is a
    ledger in the folder already. ``device`` is that of its training and evaluations.
    """
    known = loaded(method, **scenario, fleet=None if seconds else fleet)
    inputs = RunInputs(known, device)
    plain = inputs.job
    if plain.wrap_model is None and not plain.variants and plain.submodels is None and plain.adapter.kind is None:
        shared = plain.by_layer, plain.initial_models
        description, initial = described(plain.model, plain.data, plain.seed, *shared)
    else:
        description, initial = LocalTrainer(plain).describe(True)
    setup = Setup(inputs, description)
    job = setup.job
    with patch.dict(SERVER_OPTIMIZERS):
        if optimiser is not None:
            named = SERVER_OPTIMIZERS[known.scenario.server]
            SERVER_OPTIMIZERS[known.scenario.server] = replace(named, make=lambda options: optimiser)
        server = setup.server(initial, folder)
    for place in PLACES:
        (folder / place).mkdir(parents=True, exist_ok=True)
    workers = Direct(
        LocalTrainer(job),
        None if shuffle is None else np.random.default_rng(shuffle),
        [LocalTrainer(job) for _ in range(sites - 1)],
    )
    drawn = inputs.drawn_fleet
    if known.scenario.fleet.tiers.count:
        drawn = drawn.below(setup.aggregator_of)
    ledger = Ledger(folder / "ledger.sqlite", None if again else "genesis", known.method.objective.records.table)
    run, _ = federated_run(
        setup,
        server,
        Clock(drawn),
        workers,
        ledger,
        Observers([Listener(on_round=on_round)]),
        refused={},
        stop_at_target=True,
    )
    if seconds:
        works = [run.prepare(client, 0).work for client in range(len(seconds))]
        run.clock = Clock(clockwork(works, seconds, links or Links(), behaviour or ClientDynamics(), **(fleet or {})))
        if run.tiers is not None:
            lan = replace(run.clock.fleet, links=inputs.drawn_fleet.links)
            run.clock = run.tiers.visits_clock = Clock(lan.below(run.tiers.aggregator_of))
    return run


def unsteady_world(policy: PolicyName) -> dict[str, Any]:
    """For `federation`: clients of all kinds that come and go, crash and differ from visit to visit."""
    return {
        "clients": 6,
        "participants": 4,
        "rounds": 4,
        "train": TrainConfig(lr=0.1, batch=32, local_steps=2),
        "partition": PartitionConfig("iid"),
        "rules": RoundPolicy(policy, deadline=0.2, buffer=3),
        "fleet": {
            "jitter": 0.3,
            "redraw": 0.2,
            "crashes_per_hour": 7200,
            "transport": {"noise": 0.1},
            "availability": {"kind": "renewal", "on": 0.3, "off": 0.1, "sigma": 0.5},
        },
    }


RECEIVE_WATTS, TRAIN_WATTS, TRANSMIT_WATTS, IDLE_WATTS = 2.0, 8.0, 4.0, 1.0
"""Of the clients of `clockwork`."""


def clockwork(
    works: Sequence[Work],
    seconds: Sequence[tuple[float, float, float]],
    links: Links,
    behaviour: ClientDynamics,
    **more: Any,
) -> Fleet:
    """A fleet in which ``works[k]`` of client k, left to itself, takes ``seconds[k]``: down, computing, up.

    Nobody's messages have a round trip. Times are exact if they are powers of 2; ``more`` goes to `FleetConfig`.
    """
    down, compute, up = np.array(seconds, np.float64).T
    network = replace(
        networks()["lte"], transmit_watts=TRANSMIT_WATTS - IDLE_WATTS, receive_watts=RECEIVE_WATTS - IDLE_WATTS
    )
    device = replace(devices()["phone-mid"], step_seconds=0.0, train_watts=TRAIN_WATTS, idle_watts=IDLE_WATTS)
    same = np.zeros(len(seconds), np.intp)
    return Fleet(
        (device,),
        (network,),
        same,
        same,
        flops_per_second=np.array([work.flops for work in works]) / compute,
        codec_slowdown=np.ones(len(seconds)),
        down=wire_bits(np.array([work.bytes_down for work in works], np.float64)) / down,
        up=wire_bits(np.array([work.bytes_up for work in works], np.float64)) / up,
        rtt=np.zeros(len(seconds)),
        streams=streams,
        config=FleetConfig(**({"jitter": 0.0} | more)),
        links=links,
        behaviour=behaviour,
    )


def objective(name: str, client: str = "edge.training.client_update:ClientUpdate", **fields: Any) -> Method:
    """A method that is not in the registry; ``client``: "module:Class" of its client side."""
    fields = {"options": Options, "client": client, **fields}
    return Method(name, ObjectiveSpec(name=name, title=name, source="a test", neutral="", **fields), ())


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    federation: FederatedRun
    stopped_by: str

    @property
    def start(self) -> NDArray[np.float32]:
        """All numbers of the global model before round 0, in one vector."""
        return np.concatenate([vector.data for vector in self.federation.server.setup.initial[MODEL].values()])

    @property
    def model(self) -> NDArray[np.float32]:
        """All numbers of the models that are trained, in one vector."""
        models = trained_models(self.federation)
        return np.concatenate([vector.data for model in models.values() for vector in model.values()])

    @property
    def workers(self) -> Direct:
        """Who did the work."""
        return direct(self.federation)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the ledger."""
        return [tuple(row) for row in read(store(self.federation).folder / "ledger.sqlite", query)]


def play(folder: Path, method: str | Method = "fedavg", **how: Any) -> Run:
    """Start a `federation` and let it run to its end."""
    run = federation(folder, method, **how)
    try:
        return Run(run, run_rounds(run))
    finally:
        store(run).ledger.close()


def broken_off(folder: Path, method: str, after: int, **how: Any) -> None:
    """A run whose coordinator dies while the next round is already under way."""

    class Killed(BaseException):
        pass

    def look(progress: RoundFinished) -> None:
        if progress.rounds == after:
            raise Killed

    run = federation(folder, method, on_round=look, **how)
    if how.get("again"):
        assert resume_checkpoint(run, store(run)) is None
    try:
        run_rounds(run)
        raise AssertionError(f"the run has ended before round {after + 1}")
    except Killed:
        store(run).ledger.close()


def resumed(folder: Path, method: str, **how: Any) -> Run:
    """The rest of a run that was broken off."""
    run = federation(folder, method, again=True, **how)
    rule = resume_checkpoint(run, store(run)) or run_rounds(run)
    store(run).remove_orphans()
    store(run).ledger.close()
    return Run(run, rule)


def trainer(run: FederatedRun) -> PoolTrainer:
    """Who has a run's visits trained."""
    assert isinstance(run.trainer, PoolTrainer)
    return run.trainer


def direct(run: FederatedRun) -> Direct:
    """The workers in this process that train a run's visits."""
    workers = trainer(run).workers
    assert isinstance(workers, Direct)
    return workers


def set_workers(run: FederatedRun, workers: Workers) -> None:
    """Let other workers train and evaluate."""
    assert isinstance(run.evaluator, PoolEvaluator)
    trainer(run).workers = run.evaluator.workers = workers


def state_file(run: FederatedRun, client: int) -> str | None:
    """The file of what a client keeps, if it keeps anything."""
    return None if run.states is None else run.states.newest(client)


def committed_states(run: FederatedRun) -> dict[int, str]:
    """client -> name of the file of what it keeps, as committed."""
    return {} if run.states is None else run.states.committed


def model_sha256(run: FederatedRun) -> str:
    """The hash of the models that are trained."""
    return models_sha256(trained_models(run))


def trained_models(run: FederatedRun) -> dict[str, dict[str, Vector]]:
    """The server's models by name; of a method that stores one per client, these."""
    store, slots = run.server.store, run.server.store_shapes()
    stored = {
        f"{slot} {client}": store.get(client, slot) or {} for slot in slots for client in store.view().clients(slot)
    }
    return stored or run.server.models


def store(run: FederatedRun) -> CheckpointStore:
    """Where a run's rounds are recorded."""
    assert isinstance(run.recorder, CheckpointStore)
    return run.recorder


def small_context(
    layout: Layout, options: Options, samples: Sequence[int], initial: Payload | None = None, **more: Any
) -> ServerContext:
    """For a server side by hand, with so many examples per client, all of one class.

    All keys travel, the model is zeros by default, and means are by size; ``more`` goes to `ServerContext`.
    """
    held, keys = np.array(samples, np.int64), tuple(layout.sizes)
    zeros = {MODEL: {key: Vector(np.zeros(size, np.float32)) for key, size in layout.sizes.items()}}
    travels: dict[str, Any] = {"weights": "size", "down": keys, "up": keys, "seed": 0, **more}
    return ServerContext(layout, initial or zeros, options, samples=held, histogram=held[:, None], **travels)


# --- small nets, without data or server -------------------------------------------------------------------------------


def tower_blocks(sizes: Sequence[int] = (5, 7, 6, 4, 3), seed: int = 0) -> list[Block]:
    """Linear blocks with tanh between them; ``len(sizes) - 1`` blocks."""
    torch.manual_seed(seed)
    last = len(sizes) - 2
    return [
        (f"b{i + 1}", nn.Sequential(nn.Linear(sizes[i], sizes[i + 1]), *([nn.Tanh()] if i < last else [])))
        for i in range(last + 1)
    ]


def tower(sizes: Sequence[int] = (5, 7, 6, 4, 3), seed: int = 0) -> BlockModel:
    """The net of `tower_blocks`."""
    return BlockModel(lambda: tower_blocks(sizes, seed), CPU)


def batch(examples: int = 8, seed: int = 1, inputs: int = 5, classes: int = 3) -> tuple[Tensor, Tensor]:
    """One batch for a `tower`: (examples, inputs), (examples,)."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(examples, inputs, generator=rng), torch.randint(classes, (examples,), generator=rng)


def visit(net: BlockModel, **choice: int) -> VisitContext:
    """A visit in which everything goes up and nothing is kept."""
    return VisitContext(
        client=0,
        round=0,
        seed=0,
        lr=0.1,
        step_sum=1.0,
        choice=choice,
        plan=TrainConfig(batch=8).plan(8),
        up=net.layout.keys(),
        keep=(),
        local=lambda: iter([batch()]),
        device=CPU,
    )


def one_example(
    blocks: int, flops: NDArray[np.float64], options: Options, choice: Mapping[str, int] | None = None
) -> ComputeContext:
    """A visit of one step to a client with one example, for compute plans; ``flops``: (blocks, 4)."""
    layout = Layout(tuple(BlockShape(f"b{number + 1}", 1) for number in range(blocks)))
    train = TrainConfig(batch=1)
    return ComputeContext(layout, options, choice or {}, train, train.plan(1), samples=1, flops=flops)


def whole(net: BlockModel) -> Payload:
    """The net's own numbers, as they would arrive."""
    return {MODEL: net.dump(net.layout.sizes)}


def shifted(net: BlockModel, by: float = 0.05, seed: int = 2) -> None:
    """Move the net's parameters away from where it stands, as local steps would."""
    rng = torch.Generator().manual_seed(seed)
    net.flat.add_(by * torch.randn(net.flat.shape, generator=rng))


def gradient(client_side: ClientUpdate, net: BlockModel, x: Tensor, y: Tensor) -> NDArray[np.float32]:
    """The gradient of a client side's objective on one batch, as one flat vector."""
    net.grad.zero_()
    torch.autograd.backward(client_side.loss(net, x, y))
    return np.array(net.grad.numpy())


def vector(*numbers: float) -> Vector:
    """A vector for a message."""
    return Vector(np.array(numbers, dtype=np.float32))
