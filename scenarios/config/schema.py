"""The tables of a scenario: typed, frozen, every field with its unit and default. Unknown keys are refused.

A table that a part of a run is given as it stands is defined beside that part; the others are here.

Quantities take units (``"50 GB"``, ``"20 Mbit/s"``, ``"15 min"``) and are kept in SI: bytes, bit/s, seconds, FLOPs,
joules.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from coordinator.aggregation.update_checks import UpdateChecks
from coordinator.rounds.budget import Joules, RunLimits, Seconds
from coordinator.rounds.policy import RoundPolicy
from costmodel import units
from edge.protocol.config import Also, DataConfig, ModelConfig, Section, TrainConfig

Rate = Annotated[float, AllowInfNan(True), BeforeValidator(units.bits_per_second), Field(ge=1)]
"""inf is a link that is never a bottleneck."""
Share = Annotated[float, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=5)]
Names = Annotated[list[str], Field(fail_fast=True)]
"""Perhaps a million: what is wrong with each of them would fill gigabytes."""


@dataclass(frozen=True)
class BlockExchangeSection(Section):
    """Which blocks travel; by default what the method says."""

    down: str | None = None
    """``everything``, ``nothing``, ``without:BLOCK,..`` or ``last:ALPHA``."""
    up: str | None = None
    """Likewise."""


@dataclass(frozen=True)
class AggregateSection(Section):
    """How the server sums updates."""

    weights: Literal["size", "uniform"] | None = None
    """By number of examples, or all alike; by default what the method's paper does."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """client_order: the coordinator adds updates up in client order. fixed_point: each worker adds up those of its own
    clients, in integers, so that far fewer bytes pass between processes; models agree with client_order's within 1e-6.
    In both the result depends neither on the number of workers nor on who is fastest."""


@dataclass(frozen=True)
class StopSection(Section):
    """The goal."""

    target_accuracy: Annotated[float | None, Field(gt=0, le=1)] = None
    """``run`` stops when the test accuracy reaches it; in ``compare`` it is a yardstick."""


@dataclass(frozen=True)
class ServerLinkSection(Section):
    """The server's link, shared by all clients at work, as clients see it."""

    down: Rate = 1e9
    """From the server to clients, bit/s."""
    up: Rate = 1e9
    """From clients to the server, bit/s."""
    aggregate: Rate = 24e9
    """How fast the server adds updates up, bit/s (assumed: 3 GB/s)."""


@dataclass(frozen=True)
class AccessLinksSection(Section):
    """Links between some clients each and the server's link, such as a building's."""

    count: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many there are; clients are spread over them in turn. 0: clients reach the server's link directly."""
    down: Rate = 1e9
    """To the clients behind one of them, bit/s."""
    up: Rate = 1e9
    """From the clients behind one of them, bit/s."""


@dataclass(frozen=True)
class TransportSection(Section):
    """How messages travel beside their share of the links."""

    security: Literal["none", "curve"] = "none"
    """What a new connection agrees on: 3.5 or 5.5 round trips."""
    slow_start: bool = True
    """Whether a connection that has been idle starts slowly again, as Linux does by default."""
    noise: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sigma of a lognormal factor of mean 1 on each message: what TCP does beyond fair shares (about 0.1)."""


@dataclass(frozen=True)
class BandwidthSection(Section):
    """How clients' own links vary in time."""

    kind: Literal["constant", "ou", "trace"] = "constant"
    """``ou``: the logarithm is an Ornstein-Uhlenbeck process; ``trace``: recorded factors, repeated."""
    cv: Annotated[float, Field(ge=0, le=3)] = 0.37
    """Of each client's rate over time, where ``fleet.trace`` does not tell (0.37: FLASH's users, WWW 2021)."""
    tau: Annotated[Seconds, Field(le=1e6)] = 30.0
    """After which a deviation has decayed to 1/e (assumed: 30 s on Wi-Fi, 10 s in cellular networks)."""
    step: Annotated[Seconds, Field(ge=1e-3)] = 10.0
    """Between changes of the rate; at least a thousandth of tau."""
    file: str | None = None
    """CSV with columns seconds, factor and perhaps client."""


@dataclass(frozen=True)
class AvailabilitySection(Section):
    """When clients are there."""

    kind: Literal["always", "renewal", "diurnal", "trace"] = "always"
    """``renewal``: lognormal intervals of presence and absence; ``diurnal``: once a day; ``trace``: recorded
    windows."""
    on_loss: Literal["abort", "pause"] = "abort"
    """What becomes of a visit whose client goes away."""
    on: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 3600.0
    """renewal: median of a presence."""
    off: Annotated[Seconds, Field(ge=1e-3, le=1e9)] = 3600.0
    """renewal: median of an absence."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 1.0
    """renewal: of both lognormal distributions; diurnal: of the length of the daily presence."""
    hour: Annotated[float, Field(ge=0, lt=24)] = 23.0
    """diurnal: when the presence begins, on average."""
    hours: Annotated[float, Field(ge=0.01, le=23)] = 7.0
    """diurnal: median of its length."""
    spread_hours: Annotated[float, Field(ge=0, le=12)] = 2.0
    """diurnal: by how much clients differ in the hour (standard deviation)."""
    jitter_hours: Annotated[float, Field(ge=0, le=12)] = 0.5
    """diurnal: by how much the days of one client differ."""
    start_hour: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """diurnal, trace: time of day at which the run begins."""
    file: str | None = None
    """trace: CSV with columns device, start_s, end_s."""
    repeat: bool = True
    """trace: whether windows come again when the recording is over."""


@dataclass(frozen=True)
class FleetSection(Section):
    """Devices and networks of the clients (``fedbr list devices``, ``fedbr list networks``)."""

    devices: dict[str, Share] | Names = field(default_factory=lambda: {"raspberry-pi-4": 1.0})
    """Shares by name, or one name per client."""
    networks: dict[str, Share] | Names = field(default_factory=lambda: {"wifi-4": 1.0})
    """Likewise."""
    compute_spread: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    """Each client's device is slower by a fixed factor, log-uniform in 1 .. compute_spread."""
    bandwidth_spread: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    """Likewise for both directions of its link."""
    compute_sigma: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Each client's speed is times a fixed lognormal factor of median 1 (0.6: FedScale)."""
    down_sigma: Sigma | Literal["network"] = 0.0
    """Likewise for its rate down; ``network``: what its network's row says."""
    up_sigma: Sigma | Literal["network"] = 0.0
    """Likewise for its rate up."""
    rates: tuple[Rate, Rate] | None = None
    """Lowest and highest rate that a speed test would see: both directions are uniform in between."""
    trace: str | None = None
    """CSV of devices or links: FedScale's capacities, FLASH's users, FLHetBench's cases, or columns client,
    flops_per_second, down_bits_per_second, up_bits_per_second. Seconds per sample are read as relative speeds: the
    median row computes like ``devices``."""
    trace_case: int = 1
    """Which case of a file that has several."""
    device_file: str | None = None
    """TOML with devices of your own, in the format of those that ship."""
    network_file: str | None = None
    """TOML with networks of your own."""
    redraw: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In each round, speed and rates vary by a factor uniform in 1 - redraw .. 1 + redraw."""
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.1
    """Sigma of a lognormal factor of median 1 on the computing time of each visit."""
    mode_rounds: Annotated[int, Field(ge=0)] = 0
    """Every so many rounds clients draw a power mode of their device, and ``rates`` anew (20: the USTC testbeds)."""
    crashes_per_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Of being at work."""
    battery: Joules | None = None
    """What each client may spend, waiting included, until it is lost for good; by default mains."""
    compute_energy: Literal["power", "kappa"] = "power"
    """The device's watts; or kappa f^2 per cycle, which makes slower power modes cheaper."""
    radio_energy: Literal["power", "rate"] = "power"
    """The network's watts; or a part that grows with the rate, and a tail after each transfer."""
    server: ServerLinkSection = ServerLinkSection()
    gateways: AccessLinksSection = AccessLinksSection()
    transport: TransportSection = TransportSection()
    bandwidth: BandwidthSection = BandwidthSection()
    availability: AvailabilitySection = AvailabilitySection()


@dataclass(frozen=True)
class EvalSection(Section):
    """How often the model is scored."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between evaluations; the last round always is."""
    batch: Annotated[int, Field(ge=1)] = 500
    """Examples per shard of the test set; part of the result, since losses are summed shard by shard."""
    subset: Annotated[int | None, Field(ge=1)] = None
    """Score on so many examples of the test set, drawn once by the seed; by default on all of it."""


class Scenario(BaseModel):
    """All that a run is made of."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = "fedavg"
    """A method's name (``fedbr list methods``), joined with ``+`` (``fedmlb+fedprox``), or ``module:ROW``."""
    method_options: dict[str, Any] = {}
    """The method's hyperparameters."""
    server: Annotated[str, Also("server_optimizer", "strategy")] = "plain"
    """Server optimiser (``fedbr list servers``)."""
    server_options: dict[str, Any] = {}
    """The server optimiser's hyperparameters."""
    seed: int = Field(default=0, ge=0)
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


def fields(table: type[Any]) -> dict[str, FieldInfo]:
    """The keys of a table."""
    if issubclass(table, BaseModel):
        return table.model_fields
    types = get_type_hints(table, include_extras=True)
    return {key.name: FieldInfo.from_annotation(types[key.name]) for key in dataclasses.fields(table)}
