"""Prepares a run once: its scenario, the files that it names, and the description of its model and data, with whatever
follows from these. Nothing is trained, sent or written here.

`RunInputs` is what is known before a worker has described model and data, `Setup` what is known from then on. Both are
frozen; what they derive is computed when it is first asked for, and kept. What changes in a run (the server side, the
aggregators, the client selection) is made anew by each call, in its state before the first round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.adapters import AdapterGap
from coordinator.aggregation.download_codec import DownloadCodec
from coordinator.aggregation.optimizers import server_optimizer
from coordinator.aggregation.server import GLOBAL, ServerContext, ServerStrategy
from coordinator.aggregation.submodels import Submodels
from coordinator.aggregation.tiers import TieredServer
from coordinator.aggregation.update_checks import UpdateChecks
from coordinator.methods import fedbr
from coordinator.methods.compute import ComputeContext
from coordinator.privacy.accountant import Accountant
from coordinator.privacy.central_noise import CentralNoise
from coordinator.records.chain import initial_hash
from coordinator.records.client_states import ClientStates
from coordinator.records.client_vectors import ClientVectors
from coordinator.rounds.asynchronous_tiers import AsynchronousTiers
from coordinator.rounds.budget import Budget, Limits
from coordinator.rounds.ports import Evaluator, Recorder, Trainer
from coordinator.rounds.run import FederatedRun, RoundFinished
from coordinator.rounds.secure_rules import SecureRules
from coordinator.rounds.selection import ClientSelection
from coordinator.rounds.selectors.registry import selector
from coordinator.rounds.split import SplitModel
from coordinator.rounds.tiers import DOWN_SIDE, UP_SIDE, Tiers
from coordinator.rounds.untrained import DecisionOnlyServer, Untrained
from coordinator.rounds.visit import VisitPricing
from costmodel.arrays import Streams
from costmodel.clock import Clock
from costmodel.config import Scale
from costmodel.fleet import model_demand
from costmodel.fleet.availability import Always
from costmodel.fleet.devices import MEASUREMENTS, Device, Network
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs, InputFile
from costmodel.fleet.model_demand import FLOAT_NBYTES, Operations
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.tiers import TierClock, assigned, parents
from costmodel.units import format_bytes, format_rate
from edge.protocol import serialization
from edge.protocol.codecs.codecs import Codecs, unencoded
from edge.protocol.config import CPU, Cut, Job, ModelProfile, PrivacyConfig, SubmodelPlan
from edge.protocol.home import expanded
from edge.protocol.operations import KINDS
from edge.protocol.optimizers import SGD
from edge.protocol.payload import BUFFERS, ITEM_NBYTES, MODEL, Payload, Shapes, Vector, initial_slot, shapes, step_flops
from edge.protocol.portable import PORTABLE
from edge.protocol.privacy import examples_at_a_time
from edge.protocol.rng import keyed_generator
from edge.protocol.secure_sum import most_levels, secure_sum
from edge.protocol.submodels import part_profile
from edge.protocol.variant import Variant
from scenarios.config import fleet_files
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.schema import Scenario
from scenarios.config.tables import set_value, value_at
from scenarios.config.validation import evaluated, named_blocks
from scenarios.run.score import score_of

SUM_NBYTES = 8
"""Bytes of a number in the sum of updates"""
RUN_ID_BYTES = 8
MUCH = 10
"""How many times torch's default a step size is that a note speaks of"""
PLACES_OF_DATA = ("root", "download", "file", "reading", "series")
"""Keys of ``data`` that say where examples come from: what they are is in the hash of their content"""
DEVICE_KEYS = ("precision", "memory_format", "pathways", "graphs")
"""Keys of ``train`` whose defaults depend on the type of device"""


# --- before a worker has described anything ---------------------------------------------------------------------------


def on_device(loaded: Loaded, device: str) -> Loaded:
    """The scenario as it runs on a device, with the defaults that depend on the type of device written out.

    ScenarioError for a precision or instructions that the device does not have.
    """
    loaded = _with_device_defaults(loaded, device)
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


def _with_device_defaults(loaded: Loaded, device: str) -> Loaded:
    train = loaded.scenario.train
    missing = [key for key in DEVICE_KEYS if getattr(train, key) is None]
    if not missing:
        return loaded
    defaults = loaded.model.on(device.partition(":")[0], loaded.scenario.model.width, train.precision)
    train = replace(train, **{key: getattr(defaults, key) for key in missing})
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"train": train}))


@cache
def keyed_streams(seed: int) -> Streams:
    """The random streams of the fleet with a seed."""
    return lambda purpose, index, client: keyed_generator(seed, purpose, index, client)


def drawn_fleet(scenario: Scenario, families: tuple[str, ...], files: FleetInputs) -> Fleet:
    """The clients' devices and links, drawn with the fleet's seed; a device's throughput is that of the first of these
    names of a model that it has. ValueError names the key."""
    section = scenario.fleet
    streams = keyed_streams(scenario.seed if section.seed is None else section.seed)
    return Fleet.build(scenario.data.clients, section, streams=streams, families=families, inputs=files)


@dataclass(frozen=True, eq=False)
class RunInputs:
    """A run before a worker has described its model and data. All properties raise ScenarioError that names the key."""

    loaded: Loaded
    device: str = CPU
    """The device of its workers; the defaults of ``loaded`` that depend on it are written out"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "loaded", _with_device_defaults(self.loaded, self.device))

    @property
    def scenario(self) -> Scenario:
        """The resolved scenario."""
        return self.loaded.scenario

    @cached_property
    def files(self) -> FleetInputs:
        """The content of the files of the fleet."""
        return fleet_files.read_inputs(self.scenario)

    @cached_property
    def named_files(self) -> tuple[InputFile, ...]:
        """Each file that the scenario names, and those beside them."""
        return fleet_files.named_files(self.scenario, self.files)

    @property
    def file_hashes(self) -> Mapping[str, str]:
        """Key -> SHA-256 of each of them."""
        return {file.key: file.sha256 for file in self.named_files}

    @cached_property
    def drawn_fleet(self) -> Fleet:
        """The clients' devices and links, with the speeds that devices have for models of this name and family."""
        # Nothing is known of a Flower app's model.
        families = ("conv",) if self.loaded.method.app is not None else self.families
        with self._named():
            return drawn_fleet(self.scenario, families, self.files)

    @property
    def families(self) -> tuple[str, ...]:
        """The names by which devices have a throughput for the run's model."""
        return self.loaded.model.families

    @property
    def fleet_notes(self) -> list[str]:
        """How shares that look like counts, and rows of recordings, meet clients, where the two differ in number."""
        with self._named():
            return self.files.notes(self.scenario.fleet, self.scenario.data.clients)

    def tier_clock(self, scale: Scale | None = None) -> TierClock:
        """The clock of messages between aggregators and what is above them, at its beginning; ``scale``: in place of
        ``fleet.scale``."""
        section = self.scenario.fleet
        seed = self.scenario.seed if section.seed is None else section.seed
        section = section if scale is None else replace(section, scale=scale)
        return TierClock.build(section, streams=keyed_streams(seed), inputs=self.files)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The beginning of the hash chain: the resolved scenario, with hashes of files in place of their paths."""
        loaded = self.loaded
        scenario = _overlaid(self.scenario.model_dump(), loaded.began)
        if loaded.method.app is not None:
            scenario["method"] = loaded.method.objective.name  # its files are in the data's hash
        del scenario["checkpoints"]  # it decides what stays on the disk, not what is computed
        del scenario["fleet"]["carbon"]  # a reading of joules, on which nothing that is computed depends
        if scenario["fleet"]["seed"] == scenario["seed"]:
            del scenario["fleet"]["seed"]
        if scenario["model"]["norm"] == loaded.model.norm:
            del scenario["model"]["norm"]
        if loaded.method.objective.name == fedbr.SPEC.name:
            scenario["method_options"].pop("preset", None)  # the options that it stands for are written out
        for key, sha256 in self.file_hashes.items():
            if value_at(scenario, key) is not None:  # others are beside one that is named
                set_value(scenario, key, sha256)
        data = {key: value for key, value in scenario["data"].items() if key not in PLACES_OF_DATA}
        rows: list[Device | Network] = [*self.files.devices.values(), *self.files.networks.values()]
        # Measurements of a calibration say how its figures came about, and nothing is computed from them.
        figures = [{key: value for key, value in asdict(row).items() if key != MEASUREMENTS} for row in rows]
        return {**scenario, "data": data, "files": self.files.sha256, "own": figures}

    def genesis(self, data_sha256: str) -> str:
        """The first hash of the chain of a run on these data."""
        return initial_hash(self.identity, data_sha256)

    @cached_property
    def job(self) -> Job:
        """The job of workers that describe model and data: it names no blocks that are sent or kept."""
        loaded, scenario, objective = self.loaded, self.scenario, self.loaded.method.objective
        root, file = (
            None if path is None else str(expanded(path)) for path in (scenario.data.root, scenario.data.partition.file)
        )
        return Job(
            run_id=self.genesis("")[: 2 * RUN_ID_BYTES],
            seed=scenario.seed,
            device=self.device,
            cache=str(cache_folder()),
            model=scenario.model,
            # With the paths of this machine's user, since workers may be another's.
            data=replace(scenario.data, root=root, file=None, partition=replace(scenario.data.partition, file=file)),
            train=scenario.train,
            objective=objective.client,
            wrap_model=objective.model.wrap_model(loaded.options),
            variants=objective.costs.variants(loaded.options),
            corrections=tuple(correction.client for correction in loaded.method.corrections),
            options_types=tuple(
                f"{part.options.__module__}:{part.options.__qualname__}" for part in loaded.method.parts
            ),
            options_values=loaded.options.model_dump(),
            up=(),
            kept_blocks=(),
            codec=scenario.codec,
            privacy=scenario.privacy,
            adapter=scenario.adapter,
            cut=self._cut,
            submodels=self._submodel_plan,
            reports=loaded.method.reports,
            by_layer=objective.traffic.by_layer(loaded.options),
            initial_models=objective.model.initial_models(loaded.options),
            eval_batch=scenario.eval.batch,
            eval_subset=scenario.eval.subset,
            eval_drop_last=scenario.eval.drop_last,
            metrics=scenario.eval.metrics,
            metric_options=scenario.eval.metric_options,
            adapt_epochs=scenario.eval.adapt.epochs,
            adapt_lr=scenario.eval.adapt.lr,
            adapt_before=scenario.eval.adapt.before,
            eval_select=scenario.eval.select,
        )

    @property
    def _cut(self) -> Cut | None:
        """What workers must know of a cut, whose messages change numbers, or whose server part is shared."""
        split = self.scenario.split
        if split.after is None or not (self.scenario.changes_steps or split.is_shared):
            return None
        return Cut(split.after, split.labels == "u-shaped", split.clip, split.noise, split.is_shared)

    @property
    def _submodel_plan(self) -> SubmodelPlan | None:
        """The facts that workers must know of parts of the model before they have described it; None where all clients
        hold the whole model."""
        rules, options = self.loaded.method.objective.submodels, self.loaded.options
        if rules is None:
            return None
        return SubmodelPlan(
            self.scenario.submodel.levels,
            rules.by,
            rules.is_scaled(options),
            rules.is_static(options),
            rules.has_own_statistics(options),
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn a ValueError into a ScenarioError that names the scenario."""
        try:
            yield
        except ValueError as error:
            raise ScenarioError(f"{self.loaded.name}: {error}") from None


def _overlaid(tables: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with the values of others in place of their own."""
    merged = dict(tables)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _overlaid(merged[key], value) if both else value
    return merged


# --- with the description of model and data ---------------------------------------------------------------------------


class Travels(NamedTuple):
    """The blocks of a visit's messages, by name of their vectors."""

    down: tuple[str, ...]
    up: tuple[str, ...]


class SubmodelRates(NamedTuple):
    """The parts of the model that clients have, by their share of its channels or depths."""

    of_visit: Callable[[int, int], float]
    """(client, round) -> rate of its visit"""
    of_client: Callable[[int], float]
    """client -> the largest rate that it may have"""


@dataclass(frozen=True, eq=False)
class Setup:
    """A run whose workers have described model and data. All properties raise ScenarioError that names the key."""

    inputs: RunInputs
    description: ModelProfile
    constant_rate: float | None = None
    """The rate of the part of the model that all clients have, in place of ``submodel.rate``"""

    @classmethod
    def of(cls, loaded: Loaded, description: ModelProfile, device: str = CPU) -> Setup:
        """The run of a scenario on a device."""
        return cls(RunInputs(loaded, device), description)

    @property
    def loaded(self) -> Loaded:
        """The scenario, with the method, data set and model that it names."""
        return self.inputs.loaded

    @property
    def scenario(self) -> Scenario:
        """The resolved scenario."""
        return self.inputs.scenario

    @cached_property
    def travels(self) -> Travels:
        """The blocks that go down and up.

        Running statistics must be uploaded where the global model is evaluated with them.
        """
        loaded, scenario, layout = self.loaded, self.scenario, self.description.layout
        foreseen = named_blocks(loaded.method, loaded.options, loaded.model, scenario).names
        if loaded.method.objective.model.wrap_model(loaded.options) is not None and layout.names != foreseen:
            raise ScenarioError(
                f"{loaded.name}: method = {loaded.method.name!r}: its model has the blocks {', '.join(layout.names)}, "
                f"but wrapped_blocks of its spec foresees {', '.join(foreseen)}"
            )
        try:
            down, up = loaded.method.travels(loaded.options, layout, scenario.travels.down, scenario.travels.up)
        except ValueError as error:
            raise ScenarioError(f"{loaded.name}: {error}") from None
        kept = [key.removesuffix(BUFFERS) for key in layout.sizes if key.endswith(BUFFERS) and key not in up]
        rules = loaded.method.objective.submodels
        is_static = rules is not None and rules.is_static(loaded.options)
        is_evaluated = evaluated(loaded.method, scenario) != "clients"
        if kept and not is_static and scenario.model.norm == "batch" and is_evaluated:
            raise ScenarioError(
                f"{loaded.name}: model.norm = 'batch': the running statistics of {', '.join(kept)} are never uploaded, "
                "so that the global model cannot be evaluated; choose another travels.up, eval.on = clients, or "
                "model.norm = group"
            )
        return Travels(down, up)

    @cached_property
    def kept_blocks(self) -> tuple[str, ...]:
        """The blocks that clients keep between visits."""
        traffic = self.loaded.method.objective.traffic
        return traffic.kept_blocks(self.description.layout, self.travels.down, self.loaded.options)

    @cached_property
    def codecs(self) -> Codecs:
        """The codecs of the run."""
        return Codecs(self.scenario.codec, self.scenario.seed, self.description.tensors, self.description.axes)

    @property
    def method_notes(self) -> list[str]:
        """The method's notes on the described model, if any, and the costs of another optimizer than SGD."""
        note = self.loaded.method.objective.records.note(self.description, self.loaded.options)
        notes = [] if note is None else [f"method = {self.loaded.method.name!r}: {note}"]
        train = self.scenario.train
        row, options = train.optimizer_row
        if train.optimizer == SGD:
            return notes
        weights = sum(block.params for block in self.description.layout.blocks)
        moved, kept = row.traffic(options), FLOAT_NBYTES * len(train.optimizer_vectors)
        notes.append(
            f"train.optimizer = {train.optimizer}: a step reads and writes {moved} B a weight, "
            f"{format_bytes(moved * weights)}, and sgd {moved - train.further_traffic}; its vectors take {kept} B a "
            f"weight on each device, {format_bytes(kept * weights)}"
        )
        if train.lr >= MUCH * row.lr:
            notes.append(
                f"train.lr = {train.lr:g}: is {train.lr / row.lr:.3g} times torch's default for {train.optimizer}, "
                f"{row.lr:g}"
            )
        return notes

    # --- devices and links --------------------------------------------------------------------------------------------

    @cached_property
    def fleet(self) -> Fleet:
        """The clients below their aggregators, with the speed of their devices for the described model and the run's
        codecs, for devices calibrated by kind of operation or by codec.

        A plain step computes no gradient for the examples.
        """
        fleet, description, families = self.inputs.drawn_fleet, self.description, self.inputs.families
        if self.scenario.fleet.tiers.count:
            fleet = fleet.below(self.aggregator_of)
        if self.scenario.codec.is_used:
            fleet = self._with_codecs(fleet)
        traffic = self.scenario.train.further_traffic
        if not len(description.operations) and not traffic:
            return fleet
        whole = _operations(description, traffic)
        parts = {rate: _operations(part_profile(description, rate), traffic) for rate in description.rates if rate != 1}
        try:
            return fleet.for_parts(families, whole, parts).for_model(families, whole)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    def _with_codecs(self, fleet: Fleet) -> Fleet:
        down, up = ({MODEL: self.description.layout.shapes(keys)} for keys in self.travels)
        decoded = self.codecs.down.stages(self.codecs.down.lengths(down), down)
        return fleet.for_codecs(encoded=self.codecs.up_stages(up)[0], decoded=decoded)

    @cached_property
    def aggregator_of(self) -> NDArray[np.intp]:
        """(clients,) the aggregator that each belongs to."""
        scenario, histogram = self.scenario, self.description.histogram
        if not len(histogram):  # an estimate without the data set
            return np.arange(scenario.data.clients) % scenario.fleet.tiers.count
        try:
            return assigned(scenario.fleet, scenario.data.clients, histogram, self.inputs.files.memberships)
        except ValueError as error:
            raise ScenarioError(f"{self.loaded.name}: {error}") from None

    # --- memory of devices --------------------------------------------------------------------------------------------

    @cached_property
    def refused(self) -> Mapping[int, str]:
        """client -> why its device has too little memory for training, with the largest number of pathways of the
        method, and the largest part of the model that the client may have.

        ScenarioError if no client is left.
        """
        fleet, name = self.inputs.drawn_fleet, self.loaded.name
        largest = [1.0] * len(fleet)
        if self.description.rates:
            largest = [self.rates.of_client(client) for client in range(len(fleet))]
        rows = list(zip(fleet.device_of.tolist(), largest, strict=True))
        reasons: dict[tuple[int, float], str] = {}
        batch = self.scenario.train.batch
        for row, rate in sorted(set(rows)):
            device, beside = fleet.devices[row], (self.optimizer_numbers(rate), self.kept_by_codec(rate))
            try:
                parameters, activations = self.training_memory(rate)
            except ScenarioError as error:
                raise ScenarioError(f"{name}: {error}") from None
            nbytes = model_demand.training_nbytes(parameters, activations, batch, *beside)
            if not model_demand.fits(nbytes, device.memory_bytes):
                text = model_demand.sum_text(parameters, activations, batch, device.memory_bytes, *beside)
                reasons[row, rate] = f"{device.name}: {text}" if rate == 1 else f"{device.name}, rate {rate:g}: {text}"
        refused = {client: reasons[row] for client, row in enumerate(rows) if row in reasons}
        if len(refused) == len(fleet):
            fits_none = "; ".join(reasons.values())
            raise ScenarioError(f"{name}: fleet.devices: the model fits no device; {fits_none}")
        return refused

    def training_nbytes(self, rate: float = 1.0) -> int:
        """Bytes that a training visit with the part of a rate takes by the count of `costmodel.fleet.model_demand`,
        with the largest choice, codecs left out."""
        batch, state = self.scenario.train.batch, self.optimizer_numbers(rate)
        return model_demand.training_nbytes(*self.training_memory(rate), batch, state)

    def optimizer_numbers(self, rate: float) -> int:
        """Numbers of the vectors that the optimizer keeps beside the weights of the part of a rate.

        With those of the gradients of single examples that DP-SGD has at a time, and of a frozen base.
        """
        layout, frozen = part_profile(self.description, rate).layout, self.description.frozen
        held = self._held(len(layout))
        weights = sum(block.params for block, is_held in zip(layout.blocks, held, strict=True) if is_held)
        vectors = len(self.scenario.train.optimizer_vectors)
        if self.scenario.privacy.unit == "example":
            vectors += min(self.scenario.train.batch, examples_at_a_time(weights))
        return vectors * weights + int(frozen[held].sum() if len(frozen) else 0)

    def _held(self, blocks: int) -> NDArray[np.bool_]:
        """Which of so many blocks clients hold."""
        return np.ones(blocks, bool) if self.split is None else self.split.is_clients

    def training_memory(self, rate: float) -> tuple[int, float]:
        """(parameters, activations of one example that are stored for a backward pass) of the part of a rate, for the
        largest choice.

        A teacher's pass stores none. ScenarioError for a method whose ``compute`` is wrong.
        """
        loaded, train, part = self.loaded, self.scenario.train, part_profile(self.description, rate)
        spec, blocks = loaded.method.objective, len(part.layout)
        context = ComputeContext(
            layout=part.layout,
            options=loaded.options,
            choice=dict.fromkeys(spec.traffic.choices, blocks - 1),
            train=train,
            plan=train.plan(train.batch),
            samples=train.batch,
            flops=part.flops,
            seed=self.scenario.seed,
            variants=dict(zip(spec.costs.variants(loaded.options), part.variant_flops, strict=True)),
            outputs=part.outputs,
            unit_flops=part.unit_flops,
        )
        compute = spec.costs.compute(context)
        try:
            compute.check(part.flops)
        except ValueError as error:
            raise ScenarioError(f"method = {loaded.method.name!r}: its spec's compute: {error}") from None
        held = self._held(blocks)
        parameters = sum(block.params for block, is_held in zip(part.layout.blocks, held, strict=True) if is_held)
        return parameters, float((part.activations * compute.stored_forwards)[held].sum())

    def kept_by_codec(self, rate: float) -> int:
        """Numbers that a client with the part of a rate keeps for codecs between visits."""
        if not self.scenario.codec.is_used:
            return 0
        layout = part_profile(self.description, rate).layout
        down, up = (tuple(key for key in keys if key in layout.sizes) for keys in self.travels)
        kept_blocks = self.loaded.method.objective.traffic.kept_blocks(layout, down, self.loaded.options)
        return self.codecs.of(Variant(rate)).kept_numbers({MODEL: layout.shapes(up)}, kept_blocks, layout.sizes)

    # --- parts of the model -------------------------------------------------------------------------------------------

    @cached_property
    def rates(self) -> SubmodelRates:
        """The parts that clients have, for methods with sub-models."""
        config, clients, seed = self.scenario.submodel, self.scenario.data.clients, self.scenario.seed
        rate = config.rate if self.constant_rate is None else self.constant_rate
        if isinstance(rate, float | int):
            by_client = np.full(clients, float(rate))
        elif isinstance(rate, dict):
            fleet = self.inputs.drawn_fleet
            names = [device.name for device in fleet.devices]
            if missing := [name for name in names if name not in rate]:
                raise ScenarioError(
                    f"{self.loaded.name}: submodel.rate: no rate for the device {missing[0]!r} of the fleet"
                )
            by_client = np.array([rate[name] for name in names])[fleet.device_of]
        elif rate == "memory":
            by_client = self._rates_by_memory()
        elif rate == "deadline":
            by_client = self._rates_by_deadline()
        else:
            shares = np.array(config.shares or [1.0] * len(config.rates))
            shares = shares / shares.sum()
            if rate == "round":

                def of_visit(client: int, round: int) -> float:
                    return float(keyed_generator(seed, "submodel", round, client).choice(config.rates, p=shares))

                return SubmodelRates(of_visit, lambda client: config.levels[0])
            # Shares are kept as closely as whole clients allow; who has which rate is drawn.
            ends = np.round(np.cumsum(shares) * clients).astype(int)
            order = keyed_generator(seed, "submodels").permutation(clients)
            by_client = np.empty(clients)
            by_client[order] = np.array(config.rates)[np.searchsorted(ends, np.arange(clients), side="right")]
        rates = by_client.tolist()
        return SubmodelRates(lambda client, round: rates[client], rates.__getitem__)

    def fitting_rates(self, memory_bytes: float) -> tuple[float, ...]:
        """Rates of the parts that a device with this memory can train, the largest first."""
        needed = self._nbytes_by_rate
        return tuple(rate for rate, nbytes in needed.items() if model_demand.fits(nbytes, memory_bytes))

    @cached_property
    def _nbytes_by_rate(self) -> dict[float, int]:
        """Rate, the largest first -> bytes that a training visit with its part takes, codecs included."""
        batch = self.scenario.train.batch
        return {
            rate: model_demand.training_nbytes(
                *self.training_memory(rate), batch, self.optimizer_numbers(rate), self.kept_by_codec(rate)
            )
            for rate in self.scenario.submodel.levels
        }

    def _rates_by_memory(self) -> NDArray[np.float64]:
        """(clients,) the largest rate that fits the client's device; the least where none does, which is refused."""
        fleet, least = self.inputs.drawn_fleet, self.scenario.submodel.levels[-1]
        by_device = [next(iter(self.fitting_rates(device.memory_bytes)), least) for device in fleet.devices]
        return np.array(by_device)[fleet.device_of]

    def _rates_by_deadline(self) -> NDArray[np.float64]:
        """(clients,) the largest rate at which a client's visit in round 0, without contention, ends within the
        deadline; the least where none does."""
        config, clients = self.scenario.submodel, self.scenario.data.clients
        deadline = config.deadline or self.scenario.rounds.deadline
        by_client = np.full(clients, config.levels[-1])
        for rate in reversed(config.levels):
            alike = replace(self, constant_rate=rate).with_examples
            always = replace(alike.fleet.behaviour, availability=Always())
            clock = Clock(replace(alike.fleet, links=Links(), behaviour=always))
            run = alike.federated(alike.server_of_zeros(), clock, *(Untrained(clients),) * 3)
            visits = [run.prepare(client, 0) for client in range(clients)]
            conditions = clock.conditions(range(clients), 0)
            conditions = clock.fleet.of_parts(conditions, [visit.price.rates for visit in visits])
            ends = clock.solve(np.zeros(clients), [visit.work for visit in visits], conditions).up_end
            by_client[ends <= deadline] = rate
        return by_client

    @cached_property
    def used_rates(self) -> list[float]:
        """The rates that visits of the run may have, the largest first."""
        if self.scenario.submodel.rate == "round":
            return [*self.scenario.submodel.levels]
        return sorted({self.rates.of_client(client) for client in range(self.scenario.data.clients)}, reverse=True)

    @property
    def _trained_rates(self) -> list[float]:
        """The rates of all parts that the run trains, the largest first."""
        rules, rates = self.loaded.method.objective.submodels, self.used_rates
        if rules is None or not rules.trains_narrower:
            return rates
        return [rate for rate in self.scenario.submodel.levels if rate <= rates[0]]

    def submodels(self) -> Submodels | None:
        """The parts of the run's clients before its first round; None where all hold the whole model."""
        rules = self.loaded.method.objective.submodels
        if rules is None:
            return None
        classes = self.description.histogram > 0 if rules.masks_classes(self.loaded.options) else None
        return Submodels(self.description.axes, *self.rates, self.used_rates, rules.rolls, classes)

    # --- job, server side and aggregators -----------------------------------------------------------------------------

    @cached_property
    def job(self) -> Job:
        """The job of every worker."""
        undescribed, plan = self.inputs.job, self.inputs.job.submodels
        if plan is not None:
            plan = replace(plan, evaluated=tuple(rate for rate in self._trained_rates if rate != 1))
        return replace(
            undescribed,
            up=self.travels.up,
            kept_blocks=self.kept_blocks,
            privacy=self._levels_of_sums,
            submodels=plan,
            description=serialization.packed_text(self.description.of_model),
            data_sha256=self.description.data_sha256,
        )

    def pricing(self, job: Job, up: Shapes) -> VisitPricing:
        """Prices of visits; ``up``: shapes of an upload."""
        method, options = self.loaded.method, self.loaded.options
        return VisitPricing(job, method, options, self.description, up, self.codecs, self.split)

    @cached_property
    def split(self) -> SplitModel | None:
        """The model's cut; None if clients train whole models. ScenarioError for one that the model does not have."""
        config = self.scenario.split
        if config.after is None:
            return None
        try:
            return SplitModel(config, self.description, self.codecs.steps)
        except ValueError as error:
            raise ScenarioError(str(error), key="split.after") from None

    @property
    def _sees_adapters(self) -> bool:
        """Whether the server may tell how far the mean of adapters is from the mean of their products: it sees single
        updates without noise, and the figure's last bits may depend on the processor."""
        scenario, privacy = self.scenario, self.scenario.privacy
        if not scenario.adapter.keys(self.description.layout) or scenario.train.instructions == PORTABLE:
            return False
        sees = scenario.aggregate.sum == "client_order" and privacy.secagg is None and privacy.unit != "client"
        return sees and self.loaded.method.objective.submodels is None and not scenario.fleet.tiers.count

    def server(self, initial: Payload, folder: Path | None = None) -> ServerStrategy:
        """The server side of the method and of its corrections, before the first round.

        ``folder``: of the run, for vectors that it stores per client; None for the price of a run.
        """
        scenario, method, description = self.scenario, self.loaded.method, self.description
        assert scenario.aggregate.weights is not None
        self._refuse_vectors()
        context = ServerContext(
            layout=description.layout,
            initial=initial,
            options=self.loaded.options,
            weights=scenario.aggregate.weights,
            down=self.travels.down,
            up=self.travels.up,
            seed=scenario.seed,
            samples=description.samples,
            histogram=description.histogram,
            optimiser=server_optimizer(scenario.server).make(self.loaded.server_options),
            asynchronous=scenario.rounds.is_asynchronous,
            sum=scenario.aggregate.sum,
            train=scenario.train,
            store=ClientVectors(folder),
            submodels=self.submodels(),
            adapters={key: description.tensors[key] for key in scenario.adapter.keys(description.layout)},
            privacy=None if folder is None else self.central_noise(),
            weight_cap=scenario.privacy.weight_cap,
            secure=secure_sum(self.job.privacy),
        )

        def method_server(context: ServerContext) -> ServerStrategy:
            parts = [correction.server(context) for correction in method.corrections if correction.server]
            if self._sees_adapters:
                parts.append(AdapterGap(context))
            return method.objective.server(context, parts)

        server = method_server(context)
        if scenario.fleet.tiers.count:
            above = parents(scenario.fleet)
            server = TieredServer(context, method_server, self.aggregator_of, above, self.codecs.wan)
        server.store.expected = server.store_shapes()
        if scenario.privacy.unit == "client" and (more := sorted(server.up_shapes().keys() - {MODEL})):
            why = f"clients send {', '.join(more)} beside the model, which alone gets noise"
            raise ScenarioError(f"{self.loaded.name}: privacy.unit = client: {why}; choose another method")
        return server

    @property
    def update_checks(self) -> UpdateChecks:
        """How updates are checked; clipped ones may come from any distance."""
        faults = self.scenario.faults
        return replace(faults, max_growth=math.inf) if self.scenario.privacy.unit == "client" else faults

    def _refuse_vectors(self) -> None:
        """ScenarioError for a model whose vectors a frozen base or differential privacy cannot have."""
        name, adapter, unit = self.loaded.name, self.scenario.adapter.kind, self.scenario.privacy.unit
        every = tuple(self.description.layout.sizes)
        private = self.travels.up if unit == "client" else every if unit else ()
        for key, keys, why in (
            (f"adapter.kind = {adapter}", every if adapter else (), "which a frozen base cannot keep"),
            (f"privacy.unit = {unit}", private, "which no clipping bounds"),
        ):
            if buffers := [each for each in keys if each.endswith(BUFFERS)]:
                has = f"{buffers[0]} has running statistics, {why}"
                raise ScenarioError(f'{name}: {key}: {has}; choose model.norm = "group"')
        if unit == "client" and (missing := sorted(set(self.travels.up) - set(self.travels.down))):
            why = f"{missing[0]} goes up but not down, so that there is nothing that its change is from"
            raise ScenarioError(f"{name}: privacy.unit = client: {why}; choose travels.up without it")

    def central_noise(self) -> CentralNoise | None:
        """The noise on sums of updates, before the first round; None without central differential privacy."""
        scenario, samples = self.scenario, self.description.samples
        privacy, cap = scenario.privacy, scenario.privacy.weight_cap
        if not privacy.is_central:
            return None
        cohort = float(scenario.rounds.participants)
        held = samples[samples > 0]
        weight = 1.0 if cap is None or not len(held) else float(np.minimum(held / cap, 1.0).mean())
        return CentralNoise(privacy, scenario.seed, cohort, cohort * weight)

    def secure_rules(self, server: ServerStrategy) -> SecureRules | None:
        """The rules of secure aggregation; None without it."""
        if self.scenario.privacy.secagg is None:
            return None
        numbers = sum(size for sizes in server.up_shapes().values() for size in sizes.values())
        invitation = serialization.train_nbytes(self.job.run_id, (), {})
        return SecureRules(self.scenario.privacy, numbers, self.scenario.seed, invitation)

    @property
    def _levels_of_sums(self) -> PrivacyConfig:
        """The table ``privacy`` with the levels and the largest weight of secure aggregation written out."""
        privacy, scenario = self.scenario.privacy, self.scenario
        if privacy.secagg is None:
            return privacy
        levels = privacy.secagg_levels or most_levels(scenario.rounds.cohort)
        if levels * scenario.rounds.cohort >= 1 << 32:
            most = most_levels(scenario.rounds.cohort)
            why = f"{scenario.rounds.cohort:,} clients would add up to 2^32 and more; choose {most}"
            raise ScenarioError(f"{self.loaded.name}: privacy.secagg_levels = {levels}: {why}")
        largest = 1.0
        if scenario.aggregate.weights != "uniform" and privacy.weight_cap is None:
            largest = max(1000.0, float(self.description.samples.max(initial=1)))
        weight = privacy.secagg_weight or largest
        return replace(privacy, secagg_levels=levels, secagg_weight=weight)

    def accountant(self, refused: Collection[int] = ()) -> Accountant | None:
        """The accountant of differential privacy; None without any. ``refused``: clients that cannot take part."""
        scenario, samples = self.scenario, self.description.samples
        if scenario.privacy.unit is None:
            return None
        rounds, availability = scenario.rounds, scenario.fleet.availability
        why = ""
        if scenario.fleet.tiers.count:
            why = "each aggregator has a cohort of its own (fleet.tiers)"
        elif rounds.policy != "sync":
            why = f"rounds.policy = {rounds.policy} chooses among visits"
        elif rounds.selection not in ("uniform", "poisson"):
            why = f"rounds.selection = {rounds.selection} does not draw all clients alike"
        elif availability.kind not in (None, "always") or availability.file or scenario.fleet.battery is not None:
            why = "who is there decides who takes part (fleet.availability, fleet.battery)"
        elif scenario.budget.client != Limits():
            why = "who can pay decides who takes part (budget.client)"
        train = scenario.train
        return Accountant(
            config=scenario.privacy,
            sampling="none" if why else "poisson" if rounds.selection == "poisson" else "fixed",
            people=int(np.count_nonzero(samples)) - len(set(refused).intersection(np.flatnonzero(samples).tolist())),
            cohort=float(rounds.participants),
            examples=samples,
            batch=train.batch,
            visit_steps=np.array([train.plan(count).steps for count in samples.tolist()], np.int64),
            limit=scenario.budget.epsilon,
            why_not_sampled=why,
        )

    def server_of_zeros(self) -> ServerStrategy:
        """The server side with models of zeros, for runs that train nothing."""
        zeros = {key: Vector(np.zeros(size, np.float32)) for key, size in self.description.layout.sizes.items()}
        models = self.loaded.method.objective.model.initial_models(self.loaded.options)
        return self.server({initial_slot(index): zeros for index in range(models)})

    @cached_property
    def with_examples(self) -> Setup:
        """The same; without the data set, one in which each client has an example of its own to train, and another."""
        clients, description = self.scenario.data.clients, self.description
        if len(description.samples):
            return self
        ones, histogram = np.ones(clients, np.int64), np.zeros((clients, description.classes), np.int64)
        described = replace(description, samples=ones, test_samples=ones, validation_samples=ones, histogram=histogram)
        return replace(self, description=described)

    def selection(self) -> ClientSelection:
        """The scenario's client selector, before the first round."""
        rules = self.scenario.rounds
        chosen = selector(rules.selection, rules.selection_options)
        return ClientSelection(rules.selection, chosen, self.scenario.seed, self.description.samples)

    def downloads(self) -> DownloadCodec:
        """The codecs of downloads, and the versions that clients hold before the first round."""
        return DownloadCodec(self.codecs, self.kept_blocks)

    def budget(self, target: float | None = None) -> Budget:
        """The budget of a run before its first round; ``target``: the accuracy that ends it."""
        scenario = self.scenario
        better = score_of(scenario.train).better
        return Budget(
            scenario.budget, scenario.rounds.max, target, scenario.stop.patience, scenario.fleet.price, better
        )

    def federated(
        self,
        server: ServerStrategy,
        clock: Clock,
        trainer: Trainer,
        evaluator: Evaluator,
        recorder: Recorder,
        *,
        refused: Mapping[int, str] = MappingProxyType({}),
        states: ClientStates | None = None,
        downloads: DownloadCodec | None = None,
        target: float | None = None,
        charged_examples: NDArray[np.int64] | None = None,
        solves_for_bottlenecks: bool = True,
        on_round: Callable[[RoundFinished], None] = lambda progress: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> FederatedRun:
        """A run before its first round. ``target``: as of `budget`; all else as of `FederatedRun`."""
        scenario = self.scenario
        return FederatedRun(
            job=self.job,
            method=self.loaded.method,
            options=self.loaded.options,
            description=self.description,
            server=server,
            clock=clock,
            trainer=trainer,
            evaluator=evaluator,
            recorder=recorder,
            states=states,
            budget=self.budget(target),
            rules=scenario.rounds,
            selection=self.selection(),
            downloads=downloads or self.downloads(),
            eval_every=scenario.eval.every,
            on_round=on_round,
            is_stopped=is_stopped,
            refused=refused,
            privacy=self.accountant(refused),
            secure=self.secure_rules(server),
            split=self.split,
            tiers=self.tiers(server, clock),
            charged_examples=charged_examples,
            solves_for_bottlenecks=solves_for_bottlenecks,
        )

    def tiers(self, server: ServerStrategy, clients: Clock) -> Tiers | None:
        """The aggregators of a run before its first round; None where clients reach the server directly.

        ``clients``: the clock of visits, of whose fleet they have the scale.
        """
        if isinstance(server, DecisionOnlyServer):
            server = server.server_side
        if not isinstance(server, TieredServer):
            return None
        scenario, section, clock = (
            self.scenario,
            self.scenario.fleet,
            self.inputs.tier_clock(clients.fleet.config.scale),
        )
        vectors = {
            MODEL if name == GLOBAL else name: {key: vector.data.size for key, vector in model.items()}
            for name, model in server.models.items()
        }
        up, down = (
            {slot: {key: size for key, size in sizes.items() if key in keys} for slot, sizes in vectors.items()}
            for keys in (server.setup.up, server.setup.down)
        )
        carried = shapes(server.top.carried())
        vectors, up, down = (group | carried for group in (vectors, up, down))
        encoded = {} if self.codecs.wan is None else self.codecs.wan.codecs.lengths(up)
        nbytes = {
            UP_SIDE: serialization.update_nbytes(self.job.run_id, (), unencoded(up, encoded), encoded),
            DOWN_SIDE: serialization.train_nbytes(self.job.run_id, (), down),
        }
        _check_aggregators(clock, sum(size for sizes in vectors.values() for size in sizes.values()))
        if scenario.tiers.is_asynchronous:
            _check_undelayed(clock)
        kind = AsynchronousTiers if scenario.tiers.is_asynchronous else Tiers
        return kind(
            scenario.tiers,
            clients,
            clock,
            server.aggregator_of,
            nbytes,
            (section.tiers.price, section.tiers.above.price),
            lambda round: keyed_generator(scenario.seed, "aggregators", round),
            scenario.budget,
            section.tiers.on_loss,
            evaluated(self.loaded.method, scenario) != "global" or scenario.eval.aggregators,
        )


def _operations(description: ModelProfile, traffic: int) -> Operations:
    """The operations of a plain step, whose optimizer moves ``traffic`` bytes a weight more than SGD."""
    nbytes = float(traffic * sum(block.params for block in description.layout.blocks))
    if not len(description.operations):
        return Operations(0.0, {}, {}, nbytes)
    per_example, per_step = (dict(zip(KINDS, counts, strict=True)) for counts in description.operations.T.tolist())
    return Operations(step_flops(description.flops), per_example, per_step, nbytes)


def _check_aggregators(clock: TierClock, numbers: int) -> None:
    """ScenarioError for an aggregator with too little memory for its own model of so many numbers, the sum of updates
    in float64, and the update that comes."""
    needed = (2 * ITEM_NBYTES + SUM_NBYTES) * numbers
    for level in range(clock.levels):
        key = f"fleet.tiers{'.above' * level}.devices"
        for name in clock.check_memory(level, needed):
            raise ScenarioError(f"{key}: {name}: has too little memory to aggregate, which takes {needed:,} bytes")


def _check_undelayed(clock: TierClock) -> None:
    """ScenarioError where aggregators that meet the server one by one would delay each other on its link."""
    for key, direction in (("down", DOWN), ("up", UP)):
        capacity, together = clock.fleet(0).links.capacity(direction), clock.needed_rate(0, direction)
        if capacity >= together:
            continue
        # As the key has it, before fleet.scale; a hundredth more, since the text is rounded.
        scale = clock.fleet(0).config.scale.server
        least = 1.01 * together / scale
        choose = "inf, since their own rates vary" if together == math.inf else format_rate(least)
        raise ScenarioError(
            f"fleet.server.{key} = {format_rate(capacity / scale)}: tiers.upwards = asynchronous does not model a link "
            f"on which aggregators delay each other; choose {choose}"
        )
