"""Builds the parts of a run from its scenario: job, fleet, the method's server side, and the run itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.download_codec import DownloadCodec
from coordinator.aggregation.optimizers import server_optimizer
from coordinator.aggregation.server import GLOBAL, ServerContext, ServerStrategy
from coordinator.aggregation.submodels import Submodels
from coordinator.aggregation.tiers import TieredServer
from coordinator.methods import fedbr
from coordinator.methods.compute import ComputeContext
from coordinator.records.chain import initial_hash
from coordinator.records.checkpoints import CheckpointStore
from coordinator.records.client_states import ClientStates
from coordinator.records.client_vectors import ClientVectors
from coordinator.records.store import Ledger
from coordinator.rounds.asynchronous_tiers import AsynchronousTiers
from coordinator.rounds.budget import Budget
from coordinator.rounds.evaluation import PoolEvaluator
from coordinator.rounds.pool_trainer import PoolTrainer
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.selection import ClientSelection
from coordinator.rounds.selectors.registry import selector
from coordinator.rounds.tiers import DOWN_SIDE, UP_SIDE, Tiers
from coordinator.rounds.visit import VisitPricing
from coordinator.workers.task import Workers
from costmodel.arrays import Streams
from costmodel.clock import Clock
from costmodel.config import Scale
from costmodel.fleet import model_demand
from costmodel.fleet.availability import Always
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.model_demand import Operations
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.tiers import TierClock, assigned, parents
from costmodel.units import format_rate
from edge.protocol import serialization
from edge.protocol.codecs.update_codec import UpdateCodec, VectorCodecs
from edge.protocol.config import CPU, CodecConfig, Job, ModelProfile, SubmodelPlan
from edge.protocol.home import expanded
from edge.protocol.operations import KINDS
from edge.protocol.payload import BUFFERS, ITEM_NBYTES, MODEL, Layout, Payload, shapes, step_flops
from edge.protocol.portable import PORTABLE
from edge.protocol.rng import keyed_generator
from edge.protocol.submodels import RATE, SliceMap, part_profile
from scenarios.config import fleet_files
from scenarios.config.fleet_files import read_inputs
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.schema import Scenario
from scenarios.config.tables import set_value, value_at
from scenarios.config.validation import evaluated, named_blocks
from scenarios.run.evaluated_clients import evaluation_scope, examples_of_clients
from scenarios.run.observer import Observers

SUM_NBYTES = 8
"""Of a number in the sum of updates"""
RUN_ID_BYTES = 8
HEADERS_NBYTES = 4 * serialization.MAX_HEADER_NBYTES
"""Bound of an envelope, a header, and the bytes that encryption adds to each of a few thousand frames."""
PassFlops = tuple[tuple[float, float, float, float], ...]
"""FLOPs by type of pass, a row per block or unit"""
RateOfVisit = Callable[[int, int], float]
"""(client, round) -> rate of the part that the visit has"""
KEPT_MODELS = 4
"""Bound of the client state of one part of a method, in models; its spec does not say how much it keeps."""


def on_device(loaded: Loaded, device: str) -> Loaded:
    """The scenario as it runs on a device, with the defaults that depend on the type of device written out.

    ScenarioError for a precision or instructions that the device does not have.
    """
    loaded = _settled(loaded, device)
    kind = device.partition(":")[0]
    train = loaded.scenario.train
    if train.instructions == PORTABLE and kind != CPU:
        raise ScenarioError(
            f"{loaded.name}: train.instructions = portable: only on the CPU, and this run is on {kind}; choose "
            "--device cpu, or native"
        )
    for key, is_set in (("precision = tf32", train.precision == "tf32"), ("graphs = true", train.graphs)):
        if is_set and kind != "cuda":
            raise ScenarioError(f"{loaded.name}: train.{key}: needs a CUDA device; this run is on {kind}")
    return loaded


def _settled(loaded: Loaded, device: str) -> Loaded:
    train = loaded.scenario.train
    defaults = loaded.model.on(device.partition(":")[0], loaded.scenario.model.width, train.precision)
    keys = ("precision", "memory_format", "pathways", "graphs")
    missing = {key: getattr(defaults, key) for key in keys if getattr(train, key) is None}
    settled = {"train": replace(train, **missing)}
    return replace(loaded, scenario=loaded.scenario.model_copy(update=settled))


def identity(loaded: Loaded) -> dict[str, Any]:
    """The beginning of the hash chain: the resolved scenario, with hashes of files in place of their paths."""
    scenario = _overlaid(loaded.scenario.model_dump(), loaded.began)
    if loaded.method.app is not None:
        scenario["method"] = loaded.method.objective.name  # its files are in the data's hash
    del scenario["checkpoints"]  # it decides what stays on the disk, not what is computed
    if scenario["fleet"]["seed"] == scenario["seed"]:
        del scenario["fleet"]["seed"]
    if scenario["model"]["norm"] == loaded.model.norm:
        del scenario["model"]["norm"]
    if loaded.method.objective.name == fedbr.SPEC.name:
        scenario["method_options"].pop("preset", None)  # the options that it stands for are written out
    files, inputs = fleet_files.hashes(loaded.scenario), read_inputs(loaded.scenario)
    for key, sha256 in files.items():
        if value_at(scenario, key) is not None:  # others are beside one that is named
            set_value(scenario, key, sha256)
    data = {key: value for key, value in scenario["data"].items() if key not in ("root", "download")}
    rows: list[Device | Network] = [*inputs.devices.values(), *inputs.networks.values()]
    return {**scenario, "data": data, "files": inputs.sha256, "own": [asdict(row) for row in rows]}


def _overlaid(tables: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with the values of others in place of their own."""
    merged = dict(tables)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _overlaid(merged[key], value) if both else value
    return merged


def job(loaded: Loaded, profile: ModelProfile | None, device: str, cache: Path) -> Job:
    """The job of every worker; without a profile (before describe), it names no blocks that are sent or kept."""
    loaded = _settled(loaded, device)
    scenario, method = loaded.scenario, loaded.method
    named = (scenario.data.root, scenario.data.partition.file)
    root, file = (None if path is None else str(expanded(path)) for path in named)
    up: tuple[str, ...] = ()
    kept_blocks: tuple[str, ...] = ()
    flops: PassFlops = ()
    unit_flops: PassFlops = ()
    if profile is not None:
        down, up = travels(loaded, profile.layout)
        kept_blocks = method.objective.traffic.kept_blocks(profile.layout, down, loaded.options)
        flops, unit_flops = (
            tuple((float(f), float(w), float(n), float(i)) for f, w, n, i in rows)
            for rows in (profile.flops, profile.unit_flops)
        )
    return Job(
        run_id=initial_hash(identity(loaded), "")[: 2 * RUN_ID_BYTES],
        seed=scenario.seed,
        device=device,
        cache=str(cache),
        model=scenario.model,
        # With the paths of this machine's user, since workers may be another's.
        data=replace(scenario.data, root=root, partition=replace(scenario.data.partition, file=file)),
        train=scenario.train,
        objective=method.objective.client,
        wrap_model=method.objective.model.wrap_model(loaded.options),
        variants=method.objective.costs.variants(loaded.options),
        corrections=tuple(correction.client for correction in method.corrections),
        options_types=tuple(f"{kind.__module__}:{kind.__qualname__}" for kind in (p.options for p in method.parts)),
        options_values=loaded.options.model_dump(),
        up=up,
        kept_blocks=kept_blocks,
        codec=scenario.codec,
        submodels=submodel_plan(loaded, profile),
        tensors=profile.tensors if profile is not None and scenario.codec.is_used else {},
        reports=method.reports,
        by_layer=method.objective.traffic.by_layer(loaded.options),
        initial_models=method.objective.model.initial_models(loaded.options),
        eval_batch=scenario.eval.batch,
        eval_subset=scenario.eval.subset,
        eval_drop_last=scenario.eval.drop_last,
        metrics=scenario.eval.metrics,
        metric_options=scenario.eval.metric_options,
        adapt_epochs=scenario.eval.adapt.epochs,
        adapt_lr=scenario.eval.adapt.lr,
        adapt_before=scenario.eval.adapt.before,
        eval_select=scenario.eval.select,
        flops=flops,
        unit_flops=unit_flops,
        data_sha256=profile.data_sha256 if profile is not None else "",
    )


def travels(loaded: Loaded, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(downloaded blocks, uploaded blocks). ScenarioError names the key.

    Running statistics must be uploaded where the global model is evaluated with them.
    """
    scenario = loaded.scenario
    foreseen = named_blocks(loaded.method, loaded.options, loaded.model, scenario).names
    if loaded.method.objective.model.wrap_model(loaded.options) is not None and layout.names != foreseen:
        raise ScenarioError(
            f"{loaded.name}: method = {loaded.method.name!r}: its model has the blocks {', '.join(layout.names)}, but "
            f"wrapped_blocks of its spec foresees {', '.join(foreseen)}"
        )
    try:
        down, up = loaded.method.travels(loaded.options, layout, scenario.travels.down, scenario.travels.up)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None
    kept = [key.removesuffix(BUFFERS) for key in layout.sizes if key.endswith(BUFFERS) and key not in up]
    rules = loaded.method.objective.submodels
    is_static = rules is not None and rules.is_static(loaded.options)
    if kept and not is_static and scenario.model.norm == "batch" and evaluated(loaded.method, scenario) != "clients":
        raise ScenarioError(
            f"{loaded.name}: model.norm = 'batch': the running statistics of {', '.join(kept)} are never uploaded, so "
            "that the global model cannot be evaluated; choose another travels.up, eval.on = clients, or model.norm = "
            "group"
        )
    return down, up


def fleet(loaded: Loaded) -> Fleet:
    """The clients' devices and links, drawn with the fleet's seed. ScenarioError names the key."""
    try:
        return fleet_of(loaded.scenario, families(loaded))
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def families(loaded: Loaded) -> tuple[str, ...]:
    """The names by which devices have a throughput for the run's model; of a Flower app's nothing is known."""
    return ("conv",) if loaded.method.app is not None else (loaded.model.name, loaded.model.family)


def fleet_of(scenario: Scenario, families: tuple[str, ...]) -> Fleet:
    """`fleet` for a model of these names; a device's throughput is that of the first name that it has."""
    section = scenario.fleet
    streams = _keyed(scenario.seed if section.seed is None else section.seed)
    return Fleet.build(scenario.data.clients, section, streams=streams, families=families, inputs=read_inputs(scenario))


@cache
def _keyed(seed: int) -> Streams:
    return lambda purpose, index, client: keyed_generator(seed, purpose, index, client)


def fleet_notes(loaded: Loaded) -> list[str]:
    """How shares that look like counts, and rows of recordings, meet clients, where there are not as many of both."""
    try:
        return read_inputs(loaded.scenario).notes(loaded.scenario.fleet, loaded.scenario.data.clients)
    except ScenarioError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def method_notes(loaded: Loaded, description: ModelProfile) -> list[str]:
    """What the method says of the described model, if anything."""
    note = loaded.method.objective.records.note(description, loaded.options)
    return [] if note is None else [f"method = {loaded.method.name!r}: {note}"]


def with_operations(loaded: Loaded, drawn: Fleet, description: ModelProfile) -> Fleet:
    """The fleet with the speed of its devices for the described model and the scenario's codecs, for devices calibrated
    by kind of operation or by codec.

    A plain step computes no gradient for the examples. ScenarioError for a speed out of range.
    """
    if loaded.scenario.fleet.tiers.count:
        drawn = drawn.below(aggregator_of(loaded, description))
    drawn = _with_codecs(loaded, drawn, description)
    if not len(description.operations):
        return drawn
    families, whole = (loaded.model.name, loaded.model.family), _operations(description)
    parts = {rate: _operations(part_profile(description, rate)) for rate in description.rates if rate != 1}
    try:
        return drawn.for_parts(families, whole, parts).for_model(families, whole)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def _operations(description: ModelProfile) -> Operations:
    """Those of a plain step."""
    per_example, per_step = (dict(zip(KINDS, counts, strict=True)) for counts in description.operations.T.tolist())
    return Operations(step_flops(description.flops), per_example, per_step)


def _with_codecs(loaded: Loaded, drawn: Fleet, description: ModelProfile) -> Fleet:
    codec = loaded.scenario.codec
    if not codec.is_used:
        return drawn
    stages = []
    for keys, chain, slots in zip(
        travels(loaded, description.layout), (codec.down, codec.up), (codec.down_slots, codec.up_slots), strict=True
    ):
        codecs = VectorCodecs(chain, slots, codec.min_values, description.tensors)
        model = description.layout.shapes(keys)
        stages.append(codecs.stages(codecs.lengths({MODEL: model}), {MODEL: model}))
    return drawn.for_codecs(encoded=stages[1], decoded=stages[0])


def refused(loaded: Loaded, drawn: Fleet, description: ModelProfile) -> dict[int, str]:
    """client -> why its device has too little memory for training, with the largest number of pathways of the method,
    and the largest part of the model that the client may have.

    ScenarioError if no client is left.
    """
    own = submodel_rates(loaded, description)[1] if description.rates else None
    largest = [1.0] * len(drawn) if own is None else [own(client) for client in range(len(drawn))]
    reasons: dict[tuple[int, float], str] = {}
    for row, rate in sorted(set(zip(drawn.device_of.tolist(), largest, strict=True))):
        part, device = part_profile(description, rate), drawn.devices[row]
        try:
            parameters, activations = training_memory(loaded, part)
        except ScenarioError as error:
            raise ScenarioError(f"{loaded.name}: {error}") from None
        batch, kept = loaded.scenario.train.batch, kept_by_codec(loaded, description, rate)
        if not model_demand.fits(
            model_demand.training_nbytes(parameters, activations, batch, kept), device.memory_bytes
        ):
            text = model_demand.sum_text(parameters, activations, batch, device.memory_bytes, kept)
            reasons[row, rate] = f"{device.name}: {text}" if rate == 1 else f"{device.name}, rate {rate:g}: {text}"
    rows = zip(drawn.device_of.tolist(), largest, strict=True)
    refused = {client: reasons[each] for client, each in enumerate(rows) if each in reasons}
    if len(refused) == len(drawn):
        fits_none = "; ".join(reasons.values())
        raise ScenarioError(f"{loaded.name}: fleet.devices: the model fits no device; {fits_none}")
    return refused


def training_nbytes(loaded: Loaded, description: ModelProfile) -> int:
    """Bytes that a training visit takes by the count of `costmodel.fleet.model_demand`, with the largest choice."""
    return model_demand.training_nbytes(*training_memory(loaded, description), loaded.scenario.train.batch)


def kept_by_codec(loaded: Loaded, description: ModelProfile, rate: float) -> int:
    """Numbers that a client with the part of a rate keeps for codecs between visits: residuals, what stages keep, and
    versions that updates and downloads differ from."""
    codec = loaded.scenario.codec
    if not codec.is_used:
        return 0
    part = part_profile(description, rate)
    layout = part.layout
    down, up = (tuple(key for key in keys if key in layout.sizes) for keys in travels(loaded, description.layout))
    upwards = UpdateCodec(codec, loaded.scenario.seed, part.tensors)
    state = upwards.client_state({MODEL: layout.shapes(up)})
    kept = sum(size for named in state.values() for size in named.values())
    kept_blocks = loaded.method.objective.traffic.kept_blocks(layout, down, loaded.options)
    held = set(upwards.references(kept_blocks))
    if codec.down and codec.of == "update":
        downwards = VectorCodecs(codec.down, codec.down_slots, codec.min_values, part.tensors)
        held |= {key for _, key, *_ in downwards.encoded({MODEL: layout.sizes})}
    return kept + sum(layout.sizes[key] for key in held)


def training_memory(loaded: Loaded, description: ModelProfile) -> tuple[int, float]:
    """(parameters, activations of one example that are stored for a backward pass), for the largest choice.

    A teacher's pass stores none. ScenarioError for a method whose ``compute`` is wrong.
    """
    spec, blocks, train = loaded.method.objective, len(description.layout), loaded.scenario.train
    context = ComputeContext(
        layout=description.layout,
        options=loaded.options,
        choice=dict.fromkeys(spec.traffic.choices, blocks - 1),
        train=train,
        plan=train.plan(train.batch),
        samples=train.batch,
        flops=description.flops,
        seed=loaded.scenario.seed,
        variants=dict(zip(spec.costs.variants(loaded.options), description.variant_flops, strict=True)),
        outputs=description.outputs,
        unit_flops=description.unit_flops,
    )
    compute = spec.costs.compute(context)
    try:
        compute.check(description.flops)
    except ValueError as error:
        raise ScenarioError(f"method = {loaded.method.name!r}: its spec's compute: {error}") from None
    parameters = sum(block.params for block in description.layout.blocks)
    return parameters, float((description.activations * compute.stored_forwards).sum())


def server(loaded: Loaded, description: ModelProfile, initial: Payload, folder: Path | None = None) -> ServerStrategy:
    """The server side of the method and of its corrections, before the first round.

    ``folder``: of the run, for vectors that it stores per client; None for the price of a run.
    """
    scenario, method = loaded.scenario, loaded.method
    down, up = travels(loaded, description.layout)
    assert scenario.aggregate.weights is not None
    setup = ServerContext(
        layout=description.layout,
        initial=initial,
        options=loaded.options,
        weights=scenario.aggregate.weights,
        down=down,
        up=up,
        seed=scenario.seed,
        samples=description.samples,
        histogram=description.histogram,
        optimiser=server_optimizer(scenario.server).make(loaded.server_options),
        asynchronous=scenario.rounds.is_asynchronous,
        sum=scenario.aggregate.sum,
        train=scenario.train,
        store=ClientVectors(folder),
        submodels=submodels_of(loaded, description),
    )

    def method_server(setup: ServerContext) -> ServerStrategy:
        parts = [correction.server(setup) for correction in method.corrections if correction.server]
        return method.objective.server(setup, parts)

    server_side = method_server(setup)
    if scenario.fleet.tiers.count:
        belongs, codec = aggregator_of(loaded, description), _wan_codec(loaded, description)
        server_side = TieredServer(setup, method_server, belongs, parents(scenario.fleet), codec)
    server_side.store.expected = server_side.store_shapes()
    return server_side


def aggregator_of(loaded: Loaded, description: ModelProfile) -> NDArray[np.intp]:
    """(clients,) the aggregator that each belongs to. ScenarioError names the key."""
    scenario = loaded.scenario
    if not len(description.histogram):  # an estimate without the data set
        return np.arange(scenario.data.clients) % scenario.fleet.tiers.count
    try:
        memberships = read_inputs(scenario).memberships
        return assigned(scenario.fleet, scenario.data.clients, description.histogram, memberships)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def _wan_codec(loaded: Loaded, description: ModelProfile) -> UpdateCodec | None:
    """That of the models which aggregators send up."""
    codec = loaded.scenario.codec
    if not codec.wan:
        return None
    config = replace(CodecConfig(), up=codec.wan, error_feedback=False, min_values=codec.min_values)
    return UpdateCodec(config, loaded.scenario.seed, description.tensors)


def tier_clock(loaded: Loaded, scale: Scale | None = None) -> TierClock:
    """The clock of messages between aggregators and what is above them, at its beginning; ``scale``: in place of
    ``fleet.scale``."""
    scenario = loaded.scenario
    seed = scenario.seed if scenario.fleet.seed is None else scenario.fleet.seed
    section = scenario.fleet if scale is None else replace(scenario.fleet, scale=scale)
    return TierClock.build(section, streams=_keyed(seed), inputs=read_inputs(scenario))


def tiers(
    loaded: Loaded,
    job: Job,
    description: ModelProfile,
    server_side: ServerStrategy,
    scale: Scale | None = None,
) -> Tiers | None:
    """The aggregators of a run before its first round; None where clients reach the server directly.

    ``scale`` as of `tier_clock`.
    """
    scenario, section = loaded.scenario, loaded.scenario.fleet
    if not isinstance(server_side, TieredServer):
        return None
    clock = tier_clock(loaded, scale)
    vectors = {
        MODEL if name == GLOBAL else name: {key: vector.data.size for key, vector in model.items()}
        for name, model in server_side.models.items()
    }
    up, down = (
        {slot: {key: size for key, size in named.items() if key in keys} for slot, named in vectors.items()}
        for keys in (server_side.setup.up, server_side.setup.down)
    )
    carried = shapes(server_side.top.carried())
    vectors, up, down = (each | carried for each in (vectors, up, down))
    codec = _wan_codec(loaded, description)
    encoded = {} if codec is None else codec.codecs.lengths(up)
    raw = {
        slot: {key: size for key, size in named.items() if key not in encoded.get(slot, {})}
        for slot, named in up.items()
    }
    nbytes = {
        UP_SIDE: serialization.update_nbytes(job.run_id, (), raw, encoded),
        DOWN_SIDE: serialization.train_nbytes(job.run_id, (), down),
    }

    def draw(round: int) -> np.random.Generator:
        return keyed_generator(scenario.seed, "aggregators", round)

    for level in range(clock.levels):
        key = f"fleet.tiers{'.above' * level}.devices"
        # Its own model, the sum of updates in float64, and the update that comes.
        needed = (2 * ITEM_NBYTES + SUM_NBYTES) * sum(size for named in vectors.values() for size in named.values())
        for name in clock.check_memory(level, needed):
            raise ScenarioError(f"{key}: {name}: has too little memory to aggregate, which takes {needed:,} bytes")
    if scenario.tiers.is_asynchronous:
        for key, direction in (("down", DOWN), ("up", UP)):
            capacity, together = clock.fleet(0).links.capacity(direction), clock.needed_rate(0, direction)
            if capacity < together:
                # As the key has it, before fleet.scale; a hundredth more, since the text is rounded.
                own = clock.fleet(0).config.scale.server
                least = 1.01 * together / own
                choose = "inf, since their own rates vary" if together == math.inf else format_rate(least)
                raise ScenarioError(
                    f"fleet.server.{key} = {format_rate(capacity / own)}: tiers.upwards = asynchronous does not model "
                    f"a link on which aggregators delay each other; choose {choose}"
                )
    kind = AsynchronousTiers if scenario.tiers.is_asynchronous else Tiers
    return kind(
        scenario.tiers,
        clock,
        server_side.aggregator_of,
        nbytes,
        (section.tiers.price, section.tiers.above.price),
        draw,
        scenario.budget,
        section.tiers.on_loss,
        evaluated(loaded.method, scenario) != "global" or scenario.eval.aggregators,
    )


def federated_run(
    loaded: Loaded,
    job: Job,
    description: ModelProfile,
    server_side: ServerStrategy,
    clock: Clock,
    workers: Workers,
    ledger: Ledger,
    watch: Observers,
    *,
    refused: Mapping[int, str],
    stop_at_target: bool,
) -> tuple[FederatedRun, CheckpointStore]:
    """A run that trains, before its first round, and the store of its checkpoints, in the folder of its ledger.

    ``refused``: client -> why it cannot take part; the other arguments are the parts of the run.
    """
    method, scenario, folder = loaded.method, loaded.scenario, ledger.path.parent
    codec = UpdateCodec(job.codec, job.seed, description.tensors, description.axes)
    keeps_slots = method.keeps_slots or bool(codec.client_state(server_side.up_shapes()))
    has_client_state = bool(job.kept_blocks) or keeps_slots
    downloads = DownloadCodec(job.codec, job.seed, description.tensors, job.kept_blocks, description.axes)
    keeps_references = bool(codec.references(job.kept_blocks))
    target = scenario.stop.target_accuracy if stop_at_target else None
    states = ClientStates(folder, job.kept_blocks, keeps_slots, keeps_references) if has_client_state else None
    store = CheckpointStore(ledger, folder, server_side, states)
    run = FederatedRun(
        job=job,
        method=method,
        options=loaded.options,
        description=description,
        server=server_side,
        clock=clock,
        trainer=PoolTrainer(
            *(job, method, description, server_side, workers, folder, scenario.faults, states, downloads.held)
        ),
        evaluator=PoolEvaluator(job, evaluation_scope(loaded, description), description, server_side, workers, states),
        recorder=store,
        states=states,
        budget=Budget(scenario.budget, scenario.rounds.max, target, scenario.stop.patience, scenario.fleet.price),
        rules=scenario.rounds,
        selection=client_selection(loaded, description),
        downloads=downloads,
        eval_every=scenario.eval.every,
        on_round=watch.on_round,
        is_stopped=watch,
        refused=refused,
        tiers=tiers(loaded, job, description, server_side),
        charged_examples=examples_of_clients(loaded, description) if scenario.eval.charged else None,
    )
    return run, store


def client_selection(loaded: Loaded, description: ModelProfile) -> ClientSelection:
    """The scenario's client selector, before the first round."""
    rules = loaded.scenario.rounds
    chosen = selector(rules.selection, rules.selection_options)
    return ClientSelection(rules.selection, chosen, loaded.scenario.seed, description.samples)


def largest_message(loaded: Loaded, job: Job, description: ModelProfile, server_side: ServerStrategy) -> int:
    """A bound of the bytes of one message of a worker, all of its parts together."""
    model = description.layout.nbytes()
    up = serialization.update_nbytes(job.run_id, job.reports, server_side.up_shapes())
    parts_with_state = sum(part.client_state is not None for part in loaded.method.parts)
    codec = UpdateCodec(job.codec, job.seed, description.tensors)
    kept = sum(size for named in codec.client_state(server_side.up_shapes()).values() for size in named.values())
    state = 2 * description.layout.nbytes(job.kept_blocks) + KEPT_MODELS * model * parts_with_state + ITEM_NBYTES * kept
    return max(2 * up, state) + HEADERS_NBYTES  # partial sums have eight bytes where updates have four


# --- sub-models -------------------------------------------------------------------------------------------------------


def submodel_plan(loaded: Loaded, profile: ModelProfile | None) -> SubmodelPlan | None:
    """What workers must know of parts; None where all clients hold the whole model."""
    rules = loaded.method.objective.submodels
    if rules is None:
        return None
    return SubmodelPlan(
        loaded.scenario.submodel.levels,
        rules.by,
        rules.is_scaled(loaded.options),
        rules.is_static(loaded.options),
        rules.has_own_statistics(loaded.options),
        {} if profile is None else profile.axes,
        () if profile is None else _rows(profile),
        () if profile is None else tuple(rate for rate in _trained_rates(loaded, profile) if rate != 1),
    )


def used_rates(loaded: Loaded, description: ModelProfile) -> list[float]:
    """The rates that visits of the run may have, the largest first."""
    return _rates_of(loaded, submodel_rates(loaded, description)[1])


def _rates_of(loaded: Loaded, own: Callable[[int], float]) -> list[float]:
    """`used_rates`; ``own``: client -> its largest rate."""
    if loaded.scenario.submodel.rate == "round":
        return [*loaded.scenario.submodel.levels]
    return sorted({own(client) for client in range(loaded.scenario.data.clients)}, reverse=True)


def _trained_rates(loaded: Loaded, description: ModelProfile) -> list[float]:
    """The rates of all parts that the run trains, the largest first."""
    rules, rates = loaded.method.objective.submodels, used_rates(loaded, description)
    if rules is None or not rules.trains_narrower:
        return rates
    return [rate for rate in loaded.scenario.submodel.levels if rate <= rates[0]]


def _rows(profile: ModelProfile) -> tuple[tuple[tuple[float, float, float, float], ...], ...]:
    each = profile.flops_by_rate.values()
    return tuple(tuple((f, w, n, i) for f, w, n, i in rows.tolist()) for rows in each)


def submodels_of(loaded: Loaded, description: ModelProfile) -> Submodels | None:
    """The parts of the run's clients; None where all hold the whole model."""
    rules = loaded.method.objective.submodels
    if rules is None:
        return None
    rate, own = submodel_rates(loaded, description)
    held = description.histogram > 0 if rules.masks_classes(loaded.options) else None
    return Submodels(description.axes, rate, own, _rates_of(loaded, own), rules.rolls, held)


def submodels_differ(recorded: Loaded, loaded: Loaded, description: ModelProfile) -> bool:
    """Whether clients have other parts in the second scenario, whose fleet may be another."""
    clients = range(recorded.scenario.data.clients)
    own, others = (submodel_rates(each, description)[1] for each in (recorded, loaded))
    return any(own(client) != others(client) for client in clients)


def submodel_rates(loaded: Loaded, description: ModelProfile) -> tuple[RateOfVisit, Callable[[int], float]]:
    """((client, round) -> rate of a visit, client -> the largest rate that it has). ScenarioError names the key."""
    config, clients, seed = loaded.scenario.submodel, loaded.scenario.data.clients, loaded.scenario.seed
    levels, rate = config.levels, config.rate
    if isinstance(rate, float | int):
        fixed = np.full(clients, float(rate))
    elif isinstance(rate, dict):
        drawn = fleet(loaded)
        names = [device.name for device in drawn.devices]
        missing = [name for name in names if name not in rate]
        if missing:
            raise ScenarioError(f"{loaded.name}: submodel.rate: no rate for the device {missing[0]!r} of the fleet")
        fixed = np.array([rate[name] for name in names])[drawn.device_of]
    elif rate == "memory":
        fixed = _by_device(loaded, description)
    elif rate == "deadline":
        fixed = _in_time(loaded, description)
    else:
        shares = np.array(config.shares or [1.0] * len(config.rates))
        shares = shares / shares.sum()
        if rate == "round":

            def drawn_rate(client: int, round: int) -> float:
                return float(keyed_generator(seed, "submodel", round, client).choice(config.rates, p=shares))

            return drawn_rate, lambda client: levels[0]
        # Shares are kept as closely as whole clients allow; who has which rate is drawn.
        ends = np.round(np.cumsum(shares) * clients).astype(int)
        order = keyed_generator(seed, "submodels").permutation(clients)
        fixed = np.empty(clients)
        fixed[order] = np.array(config.rates)[np.searchsorted(ends, np.arange(clients), side="right")]
    each = fixed.tolist()
    return (lambda client, round: each[client]), each.__getitem__


def fitting_rates(loaded: Loaded, description: ModelProfile) -> Callable[[float], tuple[float, ...]]:
    """memory of a device, bytes -> rates of parts that it can train, the largest first."""
    batch = loaded.scenario.train.batch

    @cache
    def needed(rate: float) -> int:
        part = part_profile(description, rate)
        demand = training_memory(loaded, part)
        return model_demand.training_nbytes(*demand, batch, kept_by_codec(loaded, description, rate))

    return lambda memory: tuple(
        rate for rate in loaded.scenario.submodel.levels if model_demand.fits(needed(rate), memory)
    )


def _in_time(loaded: Loaded, description: ModelProfile) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(clients,) the largest rate at which a visit in round 0, without contention, ends within the deadline; the least
    where none does."""
    config, clients = loaded.scenario.submodel, loaded.scenario.data.clients
    deadline = config.deadline or loaded.scenario.rounds.deadline
    asked = job(loaded, None, "cpu", Path())
    down, up = travels(loaded, description.layout)
    pricing = VisitPricing(asked, loaded.method, loaded.options, description, {MODEL: description.layout.shapes(up)})
    drawn = with_operations(loaded, fleet(loaded), description)
    clock = Clock(replace(drawn, links=Links(), behaviour=replace(drawn.behaviour, availability=Always())))
    samples = description.samples.tolist() or [loaded.scenario.train.batch] * clients
    chosen = np.full(clients, config.levels[-1])
    for rate in reversed(config.levels):
        choice = {RATE: rate}
        part = pricing.of_visit(choice)
        shapes = {MODEL: SliceMap(description.axes, rate).of(description.layout.shapes(down))}
        prices = [part.train(choice, shapes, samples[client], client, 0) for client in range(clients)]
        conditions = clock.fleet.of_parts(clock.conditions(range(clients), 0), [price.rates for price in prices])
        ends = clock.solve(np.zeros(clients), [price.work for price in prices], conditions).up_end
        chosen[ends <= deadline] = rate
    return chosen


def _by_device(loaded: Loaded, description: ModelProfile) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(clients,) the largest rate that fits the client's device; the least where none does, which is refused later."""
    drawn, fits = fleet(loaded), fitting_rates(loaded, description)
    least = loaded.scenario.submodel.levels[-1]
    by_device = [next(iter(fits(device.memory_bytes)), least) for device in drawn.devices]
    return np.array(by_device)[drawn.device_of]
