"""The tables of a scenario: typed, frozen, every field with its unit and default. Unknown keys are refused.

A table that one part of a run takes whole is defined beside that part; the others are here.

Quantities take units (``"50 GB"``, ``"20 Mbit/s"``, ``"15 min"``) and are kept in SI: bytes, bit/s, seconds, FLOPs,
joules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from coordinator.aggregation.submodels import SubmodelConfig
from coordinator.aggregation.update_checks import UpdateChecks
from coordinator.records.kept_checkpoints import CheckpointRules
from coordinator.rounds.budget import RunLimits
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.split import SplitConfig
from coordinator.rounds.tier_schedule import TierSchedule
from costmodel.config import FILE_NAMES, FleetConfig
from edge.protocol.config import (
    AdapterConfig,
    Also,
    CodecConfig,
    DataConfig,
    EvalSplit,
    ModelConfig,
    PrivacyConfig,
    Section,
    SelectionSplit,
    TrainConfig,
)
from edge.protocol.home import abbreviated, expanded
from edge.protocol.plugins import FLOWER_APP
from scenarios.config.tables import TomlValue


def fraction(value: object) -> object:
    """A fraction as it is, or one that is written in percent: "90 %" -> 0.9.

    ValueError for text with % that is no number, and for a number of 2 to 100, which was meant in percent.
    """
    if isinstance(value, str) and value.rstrip().endswith("%"):
        try:
            return float(Decimal(value.rstrip().removesuffix("%").strip()) / 100)
        except ArithmeticError:  # no number, or one beyond all exponents
            raise ValueError(f"{value!r} is no number of percent, such as '90 %'") from None
    if isinstance(value, int | float) and 2 <= value <= 100:
        raise ValueError(f"is above 1; say {value / 100:g} or '{value:g} %'")
    return value


Fraction = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
"""A part of 1, also written in percent."""


@dataclass(frozen=True)
class BlockExchangeSection(Section):
    """Block exchange: which blocks are downloaded and uploaded; by default those of the method's spec."""

    down: str | None = None
    """Downloaded blocks: ``everything``, ``nothing``, ``without:BLOCK,..`` or ``last:ALPHA``."""
    up: str | None = None
    """Uploaded blocks, in the same form."""


@dataclass(frozen=True)
class AggregateSection(Section):
    """How the server sums updates."""

    weights: Literal["size", "trained", "uniform"] | None = None
    """Aggregation weights: by number of examples; by the number that an epoch trains on, which with ``train.drop_last``
    fills whole batches, as in FedAlign's code; or the same for all. By default those of the method's paper."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """client_order: the coordinator adds updates up in client order. fixed_point: each worker adds up those of its
    clients, in integers, so that far fewer bytes pass between processes; models agree with client_order's within 1e-6.
    In both cases the result depends neither on the number nor on the speed of workers."""


@dataclass(frozen=True)
class StopTarget(Section):
    """A value of the metric by which a run is judged."""

    metric: str
    """That of ``train.loss``, such as rmse (``fedbr list losses``)."""
    below: float | None = None
    """Reached by values of at most this, of metrics whose lower values are better."""
    above: float | None = None
    """Reached by values of at least this, of the others."""


@dataclass(frozen=True)
class StopSection(Section):
    """When a run has reached its goal."""

    target_accuracy: Annotated[Fraction | None, Also("target", "goal_accuracy")] = None
    """``run`` stops when the test accuracy reaches it; ``compare`` runs on and reports when it was reached. "90 %" is
    0.9."""
    target: StopTarget | None = None
    """The same for runs with another ``train.loss``: ``{ metric = "rmse", below = 4.0 }``, in the metric's units. It
    replaces ``target_accuracy``."""
    patience: Annotated[int | None, Field(ge=1), Also("early_stopping")] = None
    """Rounds without improvement after which a run has converged, in every command: it ends with the first evaluation
    that is so many rounds after the best, or more, and no better. The accuracy on the split of ``eval.select`` counts,
    or else the round's; ``rounds.max`` is the cap. By default runs go on."""

    @property
    def goal(self) -> float | None:
        """The value that the run's score has to reach; None without a target."""
        if self.target is None:
            return self.target_accuracy
        return self.target.above if self.target.below is None else self.target.below


@dataclass(frozen=True)
class AdaptSection(Section):
    """Adaptation of each client's model to its training examples before it is evaluated; nothing of it is kept."""

    epochs: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Local epochs on the cross-entropy alone; 0: none. They are charged if ``eval.charged`` is set."""
    lr: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """Their step size; by default that of a visit that begins now."""
    before: bool = False
    """Whether accuracy and loss are measured before the adaptation, too: values of the kind ``before``."""


@dataclass(frozen=True)
class EvalSection(Section):
    """When, by which metrics and on which examples which models are evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between evaluations; the last round is always evaluated."""
    batch: Annotated[int, Field(ge=1)] = 500
    """Examples per shard of the test set; part of the result, since losses are summed shard by shard."""
    subset: Annotated[int | None, Field(ge=1)] = None
    """Number of test examples that are evaluated, drawn once with the seed; by default all."""
    drop_last: bool = False
    """Whether test examples beyond the last whole batch of ``train.batch`` are left out, as in FedAlign's code: it
    evaluates the first 9,984 of CIFAR's 10,000. With ``subset``, those of the subset."""
    metrics: tuple[str, ...] = ("accuracy", "loss")
    """Metrics by name (accuracy, loss, class-accuracy, hessian) or ``module:NAME``; the first two are always measured.
    With other than default values of this key and those below, the ledger's table ``evaluations`` has all values."""
    metric_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of a metric with options -> its options, as in ``eval.metric_options.hessian.pairs=distinct``."""
    on: Literal["global", "clients", "both"] | None = None
    """Evaluated models: the global one, on the test set; each client's own, on its examples; or both. By default as the
    method's spec says, which for ``both`` also decides whose accuracy is the round's."""
    aggregators: bool = False
    """Whether the models that aggregators have of their own between two meetings with the server (``tiers.interval``)
    are evaluated as well, on the test set, by the same metrics; the values name their aggregator. Evaluations
    are then made in these rounds, too, as ``every`` says, of all models. They take no virtual time and cost nothing."""
    split: EvalSplit = "test"
    """The examples of its own that a client's model is evaluated on."""
    select: SelectionSplit | None = None
    """``validation``: the best round is that with the highest mean accuracy on clients' validation examples. In each
    evaluation accuracy and loss of each client's model are measured on them as well, after the adaptation if there is
    one: values of the kind ``validation``. By default the round's accuracy decides."""
    adapt: AdaptSection = AdaptSection()
    charged: bool = False
    """Whether evaluation on clients is part of the protocol of a synchronous policy: after the server's step each
    client that is available is visited, at the cost of downloading its model, computing on its device and sending the
    values. The round ends with these visits, and only clients that were visited are evaluated. By default evaluations
    take no virtual time and cost nothing."""

    @property
    def keeps_values(self) -> bool:
        """Whether the ledger holds the values of evaluations beside the accuracy and loss of each round."""
        default = EvalSection()
        return any(getattr(self, key) != getattr(default, key) for key in EVALUATION_KEYS)


EVALUATION_KEYS = ("metrics", "metric_options", "on", "aggregators", "split", "select", "adapt", "charged")
"""Keys of `EvalSection` that decide what is measured."""


def _abbreviated(table: Any) -> Any:
    """A table of the fleet with the names of its files as `edge.protocol.home.abbreviated` shares them."""
    changes = {
        name: _abbreviated(value) if dataclasses.is_dataclass(value) else abbreviated(value)
        for name, value in vars(table).items()
        if dataclasses.is_dataclass(value) or (name in FILE_NAMES and value is not None)
    }
    return replace(table, **changes)


def _whole_path(method: str) -> str:
    """A method, with the path of a Flower app from the root or the user's home."""
    if not method.startswith(FLOWER_APP):
        return method
    return FLOWER_APP + abbreviated(str(expanded(method.removeprefix(FLOWER_APP)).absolute()))


class Scenario(BaseModel):
    """The tables and keys of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: Annotated[str, Also("algorithm"), AfterValidator(_whole_path)] = "fedavg"
    """Names of methods (``fedbr list methods``) or ``module:SPEC``, joined with ``+`` (``fedmlb+fedprox``); or
    ``flower:FOLDER``, a Flower app."""
    method_options: dict[str, Any] = {}
    """The method's hyperparameters."""
    server: Annotated[str, Also("server_optimizer", "strategy")] = "plain"
    """Server optimizer (``fedbr list servers``)."""
    server_options: dict[str, Any] = {}
    """The server optimizer's hyperparameters."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random draws of the run; partition and fleet have seeds of their own if ``data.partition.seed`` and
    ``fleet.seed`` are given."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    adapter: AdapterConfig = AdapterConfig()
    split: SplitConfig = SplitConfig()
    train: TrainConfig = TrainConfig()
    travels: BlockExchangeSection = BlockExchangeSection()
    codec: CodecConfig = CodecConfig()
    submodel: SubmodelConfig = SubmodelConfig()
    aggregate: AggregateSection = AggregateSection()
    privacy: PrivacyConfig = PrivacyConfig()
    faults: UpdateChecks = UpdateChecks()
    rounds: RoundPolicy = RoundPolicy()
    stop: StopSection = StopSection()
    budget: RunLimits = RunLimits()
    fleet: Annotated[FleetConfig, AfterValidator(_abbreviated)] = FleetConfig()
    tiers: TierSchedule = TierSchedule()
    eval: EvalSection = EvalSection()
    checkpoints: CheckpointRules = CheckpointRules()

    @property
    def changes_steps(self) -> bool:
        """Whether one side of a cut gets other numbers than the other has computed, so that each cut trains others."""
        return bool(self.codec.steps) or self.split.clip is not None


@cache
def fields(table: type[Any]) -> Mapping[str, FieldInfo]:
    """The keys of a table."""
    if issubclass(table, BaseModel):
        return table.model_fields
    types = get_type_hints(table, include_extras=True)
    return {key.name: FieldInfo.from_annotation(types[key.name]) for key in dataclasses.fields(table)}


def is_table(annotation: Any) -> TypeGuard[type]:
    """Whether a field is a table of keys, and no key."""
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


NONE = "none"
"""Text that takes a key back whose default is that it is not set"""


def without_nones(
    tables: Mapping[str, TomlValue], fields: Mapping[str, FieldInfo] | None = None, at: str = ""
) -> dict[str, TomlValue]:
    """The tables with None for each `NONE` at a key that may be None and has no choice of that name.

    ``fields``: by key; those of a scenario by default.
    """
    fields = _all_fields() if fields is None else fields
    taken: dict[str, TomlValue] = {}
    for name, value in tables.items():
        key = f"{at}{name}"
        if isinstance(value, Mapping):
            taken[name] = without_nones(value, fields, f"{key}.")
        else:
            is_none = value == NONE and key in fields and _may_be_none(fields[key].annotation)
            taken[name] = None if is_none else value
    return taken


def takes_none(key: str) -> bool:
    """Whether a key may be taken back, or is one of options, which their rows know."""
    info = _all_fields().get(key)
    return info is None or _may_be_none(info.annotation)


def _may_be_none(annotation: Any) -> bool:
    kinds, parts = set[Any](), [annotation]
    while parts:
        part = parts.pop()
        kinds.add(part)
        parts += get_args(part)
    return NoneType in kinds and NONE not in kinds


@cache
def _all_fields() -> dict[str, FieldInfo]:
    return dict(all_fields())


def all_fields(table: type = Scenario, at: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, its field) of every key that is no table of keys."""
    for name, info in fields(table).items():
        kind = info.annotation
        if is_table(kind):
            yield from all_fields(kind, f"{at}{name}.")
        else:
            yield f"{at}{name}", info
