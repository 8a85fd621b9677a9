"""The tables of a scenario: typed, frozen, every field with its unit and default. Unknown keys are refused.

A table that one part of a run takes whole is defined beside that part; the others are here.

Quantities take units (``"50 GB"``, ``"20 Mbit/s"``, ``"15 min"``) and are kept in SI: bytes, bit/s, seconds, FLOPs,
joules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from coordinator.aggregation.update_checks import UpdateChecks
from coordinator.records.kept_checkpoints import CheckpointRules
from coordinator.rounds.budget import Joules, RunLimits, Seconds
from coordinator.rounds.policy import RoundPolicy
from costmodel import units
from edge.protocol.config import Also, DataConfig, EvalSplit, ModelConfig, Section, SelectionSplit, TrainConfig
from edge.protocol.home import FilePath

Rate = Annotated[float, AllowInfNan(True), BeforeValidator(units.bits_per_second), Field(ge=1)]
"""Bit/s; inf is a link that is never a bottleneck."""
LongSeconds = Annotated[float, AllowInfNan(True), BeforeValidator(units.seconds), Field(ge=1)]
"""Seconds; inf is never."""
Share = Annotated[float, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=5)]
Names = Annotated[list[str], Field(fail_fast=True)]
"""There may be a million names, so validation stops at the first error: a list of all would fill gigabytes."""


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
class StopSection(Section):
    """When a run has reached its goal."""

    target_accuracy: Annotated[Fraction | None, Also("target", "goal_accuracy")] = None
    """``run`` stops when the test accuracy reaches it; ``compare`` runs on and reports when it was reached. "90 %" is
    0.9."""
    patience: Annotated[int | None, Field(ge=1), Also("early_stopping")] = None
    """Rounds without improvement after which a run has converged, in every command: it ends with the first evaluation
    that is so many rounds after the best, or more, and no better. The accuracy on the split of ``eval.select`` counts,
    or else the round's; ``rounds.max`` is the cap. By default runs go on."""


@dataclass(frozen=True)
class ServerLinkSection(Section):
    """The server's link, shared by all visits under way; directions as clients see them."""

    down: Rate = 1e9
    """From the server to clients, bit/s."""
    up: Rate = 1e9
    """From clients to the server, bit/s."""
    aggregate: Rate = 24e9
    """Rate at which the server adds updates up, bit/s (assumed: 3 GB/s)."""


@dataclass(frozen=True)
class AccessLinksSection(Section):
    """Access links, such as a building's: each connects some of the clients to the server's link."""

    count: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of access links; clients are assigned to them in turn. 0: clients reach the server's link directly."""
    down: Rate = 1e9
    """Rate of each to its clients, bit/s; not with airtime."""
    up: Rate = 1e9
    """Rate of each from its clients, bit/s; not with airtime."""
    kind: Literal["rate", "airtime"] = "rate"
    """``rate``: clients share ``down`` and ``up``; ``airtime``: they share the time of one radio channel, on which each
    sends at the rate of its own link, in both directions."""
    fair: Literal["time", "packets"] = "time"
    """airtime: equal shares of the time (Linux access points, cells), or of the packets (plain 802.11, where a slow
    station slows all others)."""


@dataclass(frozen=True)
class TransportSection(Section):
    """Delays of transfers beyond their share of the links."""

    security: Literal["none", "tls", "curve"] = "none"
    """Handshake of a new connection: 3.5 (none), 4.5 (tls: TLS 1.3, RFC 8446) or 5.5 (curve) round trips."""
    slow_start: bool = True
    """Whether an idle connection returns to slow start, as Linux does by default."""
    congestion: Literal["cubic", "bbr"] = "cubic"
    """Congestion control of all senders. The random loss of a network narrows cubic's window (Mathis et al., 1997; RFC
    9438), and not that of bbr."""
    noise: Annotated[float, Field(ge=0, le=2)] | Literal["measured"] = 0.0
    """Sigma of a lognormal factor of mean 1 on each transfer, for TCP's deviations from fair shares; or ``measured``:
    the spread of repetitions of real transfers (median 1.8 %, 90th percentile 9 %)."""
    reconnect: LongSeconds = math.inf
    """Disuse after which a connection is closed, and takes its handshake again with the next message; by default never.
    RFC 5382 asks NATs to keep connections for at least 2 h 4 min; those of many access networks keep them for minutes
    (assumed, no figure)."""
    promotion: bool = False
    """Whether an idle radio takes its network's ``promotion_seconds`` before a message, if the message before it ended
    longer than the network's ``tail_seconds`` ago."""


@dataclass(frozen=True)
class BandwidthSection(Section):
    """Variation of clients' own links in time."""

    kind: Literal["constant", "ou", "trace"] = "constant"
    """``ou``: the logarithm is an Ornstein-Uhlenbeck process; ``trace``: recorded factors or rates, repeated."""
    cv: Annotated[float, Field(ge=0, le=3)] = 0.37
    """Coefficient of variation of each client's rate, where ``fleet.trace`` gives none (0.37: FLASH's users, WWW
    2021)."""
    tau: Annotated[Seconds, Field(le=1e6)] = 30.0
    """Time in which a deviation decays to 1/e (assumed: 30 s on Wi-Fi, 10 s in cellular networks)."""
    step: Annotated[Seconds, Field(ge=1e-3)] = 10.0
    """Time between changes of the rate; at least a thousandth of tau."""
    file: FilePath | None = None
    """trace: CSV with columns seconds, factor or bits_per_second, and optionally client; or a packet series in
    Mahimahi's format. A factor or rate of 0 is an outage. Rates replace those of the networks."""
    up_file: FilePath | None = None
    """trace: the same for uploads, with the same clients; by default uploads follow ``file``."""
    outages: bool = False
    """Whether clients' links fail for a time, as often and for as long as their networks' rows say."""


@dataclass(frozen=True)
class AvailabilitySection(Section):
    """When clients are available."""

    kind: Literal["always", "renewal", "diurnal", "trace"] = "always"
    """``renewal``: lognormal availability intervals and absences; ``diurnal``: one interval a day; ``trace``: recorded
    intervals."""
    on_loss: Literal["abort", "pause"] = "abort"
    """Whether a visit is lost or paused when its client leaves."""
    on: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 3600.0
    """renewal: median length of an availability interval."""
    off: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 3600.0
    """renewal: median length of an absence."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 1.0
    """renewal: sigma of both lognormal distributions; diurnal: sigma of the length of an interval."""
    hour: Annotated[float, Field(ge=0, lt=24)] = 23.0
    """diurnal: mean hour at which an interval begins."""
    hours: Annotated[float, Field(ge=0.01, le=23)] = 7.0
    """diurnal: median length of an interval."""
    spread_hours: Annotated[float, Field(ge=0, le=12)] = 2.0
    """diurnal: standard deviation of the hour over clients."""
    jitter_hours: Annotated[float, Field(ge=0, le=12)] = 0.5
    """diurnal: standard deviation of the hour over the days of one client."""
    start_hour: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """diurnal, trace: time of day at which the run begins; recordings of clients begin so many hours later."""
    file: FilePath | None = None
    """trace: CSV with columns device, start_s, end_s."""
    repeat: bool = True
    """trace, recorded days: whether the recording is repeated after its end, or its clients are gone for good."""


@dataclass(frozen=True)
class SpeedSection(Section):
    """Variation of devices' speeds in time, beyond that of recorded days (``fleet.trace``)."""

    kind: Literal["constant", "load"] = "constant"
    """``load``: the device's user is active in lognormal intervals, and leaves training a part of the speed."""
    load_factor: Annotated[float, Field(ge=1e-3, le=1)] = 0.5
    """load: factor on the speed while the user is active (assumed)."""
    on: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 300.0
    """load: median time for which the user is active (assumed)."""
    off: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 1800.0
    """load: median time for which the user is not (assumed)."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 1.0
    """load: sigma of both lognormal distributions."""
    throttle_after: Annotated[Seconds, Field(ge=1e-3, le=1e9)] | None = None
    """Seconds of computing without a break after which a device gets too hot for its full speed; by default never."""
    throttle_to: Annotated[float, Field(ge=1e-3, le=1)] = 0.5
    """Factor on the speed of a device that is too hot (assumed)."""


@dataclass(frozen=True)
class FleetSection(Section):
    """Devices and networks of the clients (``fedbr list devices``, ``fedbr list networks``)."""

    devices: dict[str, Share] | Names = field(default_factory=lambda: {"raspberry-pi-4": 1.0})
    """Shares by name of device, or one name per client."""
    networks: dict[str, Share] | Names = field(default_factory=lambda: {"wifi-4": 1.0})
    """Shares by name of network, or one name per client."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the fleet alone: devices, links, availability, and all that varies over clients, visits and time. By
    default the run's ``seed``. A number gives runs of different seeds one fleet."""
    compute_spread: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    """A fixed factor slows down each client's device, log-uniform in 1 .. compute_spread."""
    bandwidth_spread: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    """A fixed factor slows down both directions of each client's link, log-uniform in 1 .. bandwidth_spread."""
    compute_sigma: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Sigma of a fixed lognormal factor of median 1 on each client's speed (0.89: the 595 capacities of
    fedscale_client_capacity_595.csv; 0.6: FedScale's synthetic generator)."""
    down_sigma: Sigma | Literal["network"] = 0.0
    """Sigma of such a factor on its downlink rate; ``network``: that of its network's row."""
    up_sigma: Sigma | Literal["network"] = 0.0
    """Sigma of such a factor on its uplink rate; ``network``: that of its network's row."""
    rates: tuple[Rate, Rate] | None = None
    """Lowest and highest rate that a speed test would measure: both directions are uniform in between."""
    trace: FilePath | None = None
    """CSV of devices or links: FedScale's capacities, FLASH's users, FLHetBench's cases, or columns client,
    flops_per_second, down_bits_per_second, up_bits_per_second. Seconds per sample are read as relative speeds: the
    median row computes like ``devices``. With a column seconds, the rows are recorded days: each is the state of its
    client from then on, optionally with available (0 or 1)."""
    trace_assign: Literal["shuffled", "by_client"] = "shuffled"
    """How the rows of ``trace``, ``bandwidth.file`` and ``availability.file`` meet clients: ``shuffled``, each file on
    its own, series from random times on; ``by_client``: row k is client k's, all from the recording's beginning on."""
    trace_case: int = 1
    """Number of the case, for a file with several."""
    device_file: FilePath | None = None
    """TOML with devices of your own, in the format of those that ship."""
    network_file: FilePath | None = None
    """TOML with networks of your own."""
    redraw: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """A factor for each round on speed and rates, uniform in 1 - redraw .. 1 + redraw."""
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.1
    """Sigma of a lognormal factor of median 1 on the computing time of each visit."""
    mode_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds after which clients redraw their device's power mode, and ``rates`` (20: the USTC testbeds); 0: never."""
    crashes_per_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Expected crashes of a client per hour of visits."""
    battery: Joules | None = None
    """Energy that each client can spend, including that of waiting, before it is lost for good; by default mains."""
    compute_energy: Literal["power", "kappa"] = "power"
    """The device's watts; or kappa f^2 per cycle, which makes slower power modes cheaper."""
    radio_energy: Literal["power", "rate"] = "power"
    """The network's watts; or a part that grows with the rate, and a tail after each transfer."""
    server: ServerLinkSection = ServerLinkSection()
    gateways: AccessLinksSection = AccessLinksSection()
    transport: TransportSection = TransportSection()
    bandwidth: BandwidthSection = BandwidthSection()
    speed: SpeedSection = SpeedSection()
    availability: AvailabilitySection = AvailabilitySection()


@dataclass(frozen=True)
class AdaptSection(Section):
    """Adaptation of each client's model to its training examples before it is evaluated; nothing of it is kept."""

    epochs: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Local epochs on the cross-entropy alone; 0: none. They are charged if ``eval.charged`` is set."""
    lr: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """Their step size; by default that of a visit that begins now."""
    before: bool = False
    """Whether accuracy and loss are measured before the adaptation, too: ``before/accuracy``, ``before/loss``."""


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
    split: EvalSplit = "test"
    """The examples of its own that a client's model is evaluated on."""
    select: SelectionSplit | None = None
    """``validation``: the best round is that with the highest mean accuracy on clients' validation examples. In each
    evaluation accuracy and loss of each client's model are measured on them as well, after the adaptation if there is
    one: ``validation/accuracy``, ``validation/loss``. By default the round's accuracy decides."""
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


EVALUATION_KEYS = ("metrics", "metric_options", "on", "split", "select", "adapt", "charged")
"""Keys of `EvalSection` that decide what is measured."""


class Scenario(BaseModel):
    """The tables and keys of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: Annotated[str, Also("algorithm")] = "fedavg"
    """Names of methods (``fedbr list methods``) or ``module:SPEC``, joined with ``+`` (``fedmlb+fedprox``)."""
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
    train: TrainConfig = TrainConfig()
    travels: BlockExchangeSection = BlockExchangeSection()
    aggregate: AggregateSection = AggregateSection()
    faults: UpdateChecks = UpdateChecks()
    rounds: RoundPolicy = RoundPolicy()
    stop: StopSection = StopSection()
    budget: RunLimits = RunLimits()
    fleet: FleetSection = FleetSection()
    eval: EvalSection = EvalSection()
    checkpoints: CheckpointRules = CheckpointRules()


def fields(table: type[Any]) -> dict[str, FieldInfo]:
    """The keys of a table."""
    if issubclass(table, BaseModel):
        return table.model_fields
    types = get_type_hints(table, include_extras=True)
    return {key.name: FieldInfo.from_annotation(types[key.name]) for key in dataclasses.fields(table)}


def all_fields(table: type = Scenario, at: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, its field) of every key that is no table of keys."""
    for name, info in fields(table).items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from all_fields(kind, f"{at}{name}.")
        else:
            yield f"{at}{name}", info
