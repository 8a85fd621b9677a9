"""The configuration of the cost model: the table ``fleet`` of a scenario, with its tables.

`scenarios.config.schema` validates it, with the bounds that stand here, and the cost model trusts it. Files are named
here and read elsewhere (`costmodel.fleet.inputs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Field

from costmodel import units

Rate = Annotated[float, AllowInfNan(True), BeforeValidator(units.bits_per_second), Field(ge=1)]
"""Bit/s; inf is a link that is never a bottleneck."""
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
LongSeconds = Annotated[float, AllowInfNan(True), BeforeValidator(units.seconds), Field(ge=1)]
"""Seconds; inf is never."""
Joules = Annotated[float, BeforeValidator(units.joules), Field(gt=0)]
Allowance = Annotated[int, BeforeValidator(units.nbytes), BeforeValidator(units.of_a_month), Field(gt=0)]
"""Bytes of a month: "10 GB/month", or "10 GB"."""
CarbonIntensity = Annotated[float, BeforeValidator(units.grams_per_kwh), Field(ge=0, le=1e6)]
"""g/kWh of CO2 equivalents: a number, or "381 g/kWh"."""
Money = Annotated[float, Field(ge=0, le=1e6)]
"""In any currency, one for all prices of a scenario"""
Share = Annotated[float, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=5)]
Names = Annotated[list[str], Field(fail_fast=True)]
"""There may be a million names, so validation stops at the first error: a list of all would fill gigabytes."""
CONNECT_ROUND_TRIPS = {"none": 3.5, "tls": 4.5, "curve": 5.5}
"""connect() to the first message: TCP, then the greeting of ZeroMQ without and with CURVE, measured at 30, 60, 100 ms.
TLS 1.3 takes one round trip more between TCP and the greeting: its full handshake ends with a message of the client,
and what the client sends next goes with it (RFC 8446, section 2). Its 22 bytes per record of 16 kB are not counted."""


def _rate_unit(text: str) -> str:
    units.bits_per_second(f"1 {text}")
    return text


FILE_KEYS = (
    "trace",
    "device_file",
    "network_file",
    "bandwidth.file",
    "bandwidth.up_file",
    "availability.file",
    "gateways.file",
    "gateways.bandwidth.file",
    "gateways.bandwidth.up_file",
    "tiers.file",
    "tiers.bandwidth.file",
    "tiers.bandwidth.up_file",
    "tiers.availability.file",
)
"""Keys of `FleetConfig` that name files"""
FILE_NAMES = frozenset(key.rpartition(".")[2] for key in FILE_KEYS)
"""The fields of all tables that name files of the user's."""


class FleetTable:
    """Base of the tables: frozen records that are validated where they are read, and trusted where code makes them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class ServerLink(FleetTable):
    """The server's link, shared by all visits under way; directions as clients see them."""

    down: Rate = 1e9
    """From the server to clients, bit/s."""
    up: Rate = 1e9
    """From clients to the server, bit/s."""
    aggregate: Rate = 24e9
    """Rate at which the server handles the bytes of updates once the last has come, bit/s (assumed: 3 GB/s, a server
    that only adds up). Our own coordinator took 2.0 ns of CPU per byte sent or received on a virtual core of an AMD
    EPYC, 2026 (docs/evidence/scale.md): 4 Gbit/s, or 2 Gbit/s where each model also goes down to its client alone. It
    includes decoding, where messages have a codec: bytes are those on the wire, of which codecs of 4 bits a value make
    an eighth, but not of the server's work."""
    visit: Annotated[float, BeforeValidator(units.seconds), Field(ge=0)] = 0.0
    """Seconds of the server's CPU for each update that counts, beside its bytes. Our own coordinator took 0.38 ms
    (likewise), which a round of 10,000 visits would add 3.8 s for. By default none: most of it falls while other
    clients still compute or send, and the clock adds all of it after the last update. Decoding of an update is part of
    it."""


@dataclass(frozen=True)
class Scale(FleetTable):
    """What if links or devices were slower or faster: factors on all of them, which leave watts as they are."""

    server: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """On both directions of the server's link."""
    links: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """On both directions of all others: clients' own, and those of gateways and aggregators. Round trips stay."""
    devices: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """On the speeds of clients' devices: throughput, and what a step and codecs take beside it."""

    def times(self, other: Scale) -> Scale:
        """Both, one after the other."""
        return Scale(self.server * other.server, self.links * other.links, self.devices * other.devices)


@dataclass(frozen=True)
class Transport(FleetTable):
    """Delays of transfers beyond their share of the links."""

    security: Literal["none", "tls", "curve"] = "none"
    """Handshake of a new connection: 3.5 (none), 4.5 (tls: TLS 1.3, RFC 8446) or 5.5 (curve) round trips."""
    slow_start: bool = True
    """Whether an idle connection returns to slow start, as Linux does by default."""
    congestion: Literal["cubic", "reno", "bbr"] = "cubic"
    """Congestion control of all senders. The random loss of a network narrows the windows of cubic (RFC 9438) and reno
    (RFC 5681; Mathis et al., 1997), and not that of bbr."""
    queue: Annotated[int, BeforeValidator(units.nbytes), Field(ge=3028, le=10**9)] = 256_000
    """Bytes that wait before a link until frames are dropped: for random loss, for acknowledgements in the slower
    direction of a shared link, if it takes 50 ms or longer for them (by windows 10 ms), and for all messages where
    windows share links (256 kB: uplink queues of 128 and 256 kB were common among 130,000 access links; Kreibich et
    al., Netalyzr, IMC 2010)."""
    sharing: Literal["fair", "windows"] = "fair"
    """How messages share links: ``fair``, max-min fair shares, what windows come to over time where queues are longer
    than paths; or ``windows``, those of senders, which leave long round trips, late starts and losses behind, and links
    idle where queues are short. It takes longer to compute."""
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

    @property
    def by_windows(self) -> bool:
        """Whether the windows of senders share links (``sharing``)."""
        return self.sharing == "windows"

    @property
    def connect_round_trips(self) -> float:
        """Round trips of a new connection before its first message."""
        return CONNECT_ROUND_TRIPS[self.security]

    @property
    def queue_bits(self) -> float:
        """``queue`` in bits."""
        return 8.0 * self.queue

    @property
    def depends_on_disuse(self) -> bool:
        """Whether a message may take longer for the time since the one before it, beside slow start."""
        return self.promotion or self.reconnect < math.inf


@dataclass(frozen=True)
class RateColumns(FleetTable):
    """The columns of a recorded link that have names of their own in a CSV file."""

    time: str | None = None
    """Seconds, a time of a clock or a date and time; from 1e11 on milliseconds since 1970."""
    down: str | None = None
    """Rates, of downloads where ``up`` is named too."""
    up: str | None = None
    """Rates of uploads."""
    link: str | None = None
    """Client, gateway or aggregator."""
    unit: Annotated[str, AfterValidator(_rate_unit)] = "bit/s"
    """Of rates: bit/s, kbit/s, Mbit/s, .."""

    @property
    def named(self) -> dict[str, tuple[str, float]]:
        """Column of a trace -> its name in the file, and the factor to its unit."""
        factor = units.bits_per_second(f"1 {self.unit}")
        down = "bits_per_second" if self.up is None else "down_bits_per_second"
        found = {"seconds": (self.time, 1.0), "client": (self.link, 1.0)}
        found |= {down: (self.down, factor), "up_bits_per_second": (self.up, factor)}
        return {column: (name, scale) for column, (name, scale) in found.items() if name is not None}


@dataclass(frozen=True)
class BandwidthConfig(FleetTable):
    """Variation of clients' own links in time."""

    kind: Literal["constant", "ou", "trace"] | None = None
    """``ou``: the logarithm is an Ornstein-Uhlenbeck process; ``trace``: recorded factors or rates, repeated. By
    default ``trace`` if there is a ``file``, or else ``constant``."""
    cv: Annotated[float, Field(ge=0, le=3)] = 0.37
    """Coefficient of variation of each client's rate, where ``fleet.trace`` gives none (0.37: FLASH's users, WWW
    2021)."""
    tau: Annotated[Seconds, Field(le=1e6)] = 30.0
    """Time in which a deviation decays to 1/e (assumed: 30 s on Wi-Fi, 10 s in cellular networks)."""
    step: Annotated[Seconds, Field(ge=1e-3)] = 10.0
    """Time between changes of the rate; at least a thousandth of tau."""
    file: str | None = None
    """trace: CSV with columns seconds, factor or bits_per_second, and optionally client; or a packet series in
    Mahimahi's format. A factor or rate of 0 is an outage; in a packet series it is a pause, whose bits wait. Rates
    replace those of the networks."""
    up_file: str | None = None
    """trace: the same for uploads, with the same clients; by default uploads follow ``file``."""
    columns: RateColumns = RateColumns()
    """trace: the names and unit of columns of both files, where these are none of the known ones."""
    outages: bool = False
    """Whether clients' links fail for a time, as often and for as long as their networks' rows say."""

    @property
    def form(self) -> Literal["constant", "ou", "trace"]:
        """The kind that holds."""
        return self.kind or ("constant" if self.file is None else "trace")


@dataclass(frozen=True)
class AccessLinks(FleetTable):
    """Access links, such as a building's: each connects some of the clients to the server's link."""

    count: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of access links; 0: clients reach the server's link directly."""
    down: Rate = 1e9
    """Rate of each to its clients, bit/s; not with airtime."""
    up: Rate = 1e9
    """Rate of each from its clients, bit/s; not with airtime."""
    kind: Literal["rate", "airtime"] = "rate"
    """``rate``: clients share ``down`` and ``up``; ``airtime``: they share the time of one radio channel, on which each
    sends at the rate of its own link, in both directions."""
    assign: Literal["turn", "place", "file"] = "turn"
    """Which access link a client is behind. turn: client k behind link k mod count; place: neighbouring numbers
    together, as many behind each; file: as ``file`` says."""
    file: str | None = None
    """assign = file: CSV with columns client (from 0) and gateway or router, a number from 0 or a name."""
    bandwidth: BandwidthConfig = BandwidthConfig()
    """Variation of their rates in time; not with airtime. A file names links in a column gateway or router, or has one
    series for all of them; recordings begin with the run. Recorded rates replace ``down`` and ``up``."""
    fair: Literal["time", "packets"] = "time"
    """airtime: equal shares of the time (Linux access points, cells), or of the packets (plain 802.11, where a slow
    station slows all others)."""


@dataclass(frozen=True)
class AvailabilityConfig(FleetTable):
    """When clients are available."""

    kind: Literal["always", "renewal", "diurnal", "trace"] | None = None
    """``renewal``: lognormal availability intervals and absences; ``diurnal``: one interval a day; ``trace``: recorded
    intervals. By default ``trace`` if there is a ``file``, or else ``always``."""
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
    file: str | None = None
    """trace: CSV with columns device, start_s, end_s. A repeated recording keeps the time of day: a device's windows
    come again after whole days, those of ten seconds a day later."""
    repeat: bool = True
    """trace, recorded days: whether the recording is repeated after its end, or its clients are gone for good."""

    @property
    def form(self) -> Literal["always", "renewal", "diurnal", "trace"]:
        """The kind that holds."""
        return self.kind or ("always" if self.file is None else "trace")


@dataclass(frozen=True)
class SpeedConfig(FleetTable):
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
class UpperTier(FleetTable):
    """Aggregators between those of ``fleet.tiers`` and the server, over which these are distributed in turn."""

    count: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of aggregators; 0: none, so that those below reach the server directly."""
    devices: dict[str, Share] | Names = field(default_factory=lambda: {"raspberry-pi-4": 1.0})
    """Their devices: shares by name, or one name per aggregator."""
    networks: dict[str, Share] | Names = field(default_factory=lambda: {"broadband": 1.0})
    """The networks of their links to what is above them (WAN): shares by name, or one name per aggregator."""
    down: Rate = 1e9
    """Rate of each to all below it together (LAN), bit/s."""
    up: Rate = 1e9
    """Rate of each from all below it together (LAN), bit/s."""
    aggregate: Rate = 24e9
    """Rate at which an aggregator handles the bytes of updates once the last has come, bit/s (assumed, as
    ``fleet.server.aggregate``)."""
    visit: Annotated[float, BeforeValidator(units.seconds), Field(ge=0)] = 0.0
    """Seconds of an aggregator's CPU for each update, beside its bytes."""
    price: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Price of a gigabyte (10^9 bytes) on the way between an aggregator and what is above it, in any currency."""
    bandwidth: ClassVar[BandwidthConfig] = BandwidthConfig()
    availability: ClassVar[AvailabilityConfig] = AvailabilityConfig()

    def fleet(self, above: ServerLink, transport: Transport, scale: Scale, seed: int | None) -> FleetConfig:
        """The aggregators as a fleet, whose server is what is above them."""
        return FleetConfig(
            devices=self.devices,
            networks=self.networks,
            seed=seed,
            jitter=0.0,
            server=above,
            transport=transport,
            scale=Scale(scale.server, scale.links),
            bandwidth=self.bandwidth,
            availability=self.availability,
        )


@dataclass(frozen=True)
class TierConfig(UpperTier):
    """Aggregators between clients and server, such as gateways that average what their clients have trained."""

    assign: Literal["turn", "place", "alike", "mixed", "file"] = "turn"
    """Which aggregator a client belongs to. turn: client k to aggregator k mod count; place: neighbouring numbers
    together, as many to each; alike: clients with like labels together; mixed: each aggregator's labels as much like
    all clients' as can be; file: as ``file`` says."""
    file: str | None = None
    """assign = file: CSV with columns client, aggregator, both from 0."""
    on_loss: Literal["wait", "move", "lost"] = "wait"
    """Clients of an aggregator that is not there when its round begins: wait until it is; move, for this round, to the
    next one by number that is there; lost: take no part in this round."""
    bandwidth: BandwidthConfig = BandwidthConfig()  # type: ignore[misc]  # constant in the tier above
    """Variation and outages of their links to what is above them; those of a tier above are constant."""
    availability: AvailabilityConfig = AvailabilityConfig()  # type: ignore[misc]
    """When they are there; those of a tier above always are."""
    above: UpperTier = UpperTier()
    """A second tier, between these aggregators and the server"""


@dataclass(frozen=True)
class Prices(FleetTable):
    """Prices of clients' data and energy, in any currency; that of aggregators' WAN is ``fleet.tiers.price``.

    A run's price has all of its bytes at ``gb``. A month's has the plans, and only what goes beyond them.
    """

    MONTH: ClassVar[float] = 30 * 86_400.0
    """Seconds"""

    gb: Money = 0.0
    """Price of a gigabyte (10^9 bytes) that clients send or receive, beyond a ``plan`` if there is one."""
    kwh: Money = 0.0
    """Price of a kilowatt hour that clients' devices spend on visits."""
    plan: Allowance | None = None
    """Bytes that each gateway, or without gateways each client, has in a month, such as "10 GB/month"."""
    monthly: Money = 0.0
    """Price of one such plan in a month."""
    every: Annotated[Seconds, Field(ge=60)] = 86_400.0
    """Time from the beginning of one run to that of the next, for what a month costs."""

    @property
    def are_known(self) -> bool:
        """Whether a byte or a joule has a price."""
        return self.gb > 0 or self.kwh > 0

    def of(self, nbytes: float, joules: float) -> float:
        """The price of bytes and joules in a run."""
        return self.gb * nbytes / 1e9 + self.kwh * joules / 3.6e6

    def month(self, nbytes: Sequence[float], joules: float) -> dict[str, float]:
        """The costs of a month, by what is paid for; ``nbytes``: of a run by each link that has a plan."""
        runs = self.MONTH / self.every
        used = [runs * each for each in nbytes]
        beyond = sum(max(0.0, each - (self.plan or 0)) for each in used)
        parts = {
            "plans": self.monthly * len(nbytes),
            "data": self.gb * beyond / 1e9,
            "energy": self.kwh * runs * joules / 3.6e6,
        }
        return {"runs": runs, **parts, "price": sum(parts.values())}


@dataclass(frozen=True)
class CarbonConfig(FleetTable):
    """Carbon intensity of the electricity that clients' devices spend on visits: of a zone, or a number. It makes CO2e
    of a run's joules, which no time and no other amount depends on."""

    zone: str | None = None
    """Zone of the electricity: a country's code (ISO 3166-1 alpha-2), EU or WORLD, with a row in carbon.toml."""
    year: int | None = None
    """Year of the zone's figure; by default its latest one."""
    grams_per_kwh: CarbonIntensity | None = None
    """In place of a zone: grams of CO2 equivalents for each kilowatt hour, a number or such as "381 g/kWh"."""


@dataclass(frozen=True)
class FleetConfig(FleetTable):
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
    trace: str | None = None
    """CSV of devices or links: FedScale's capacities, FLASH's users, FLHetBench's cases, or columns client,
    flops_per_second, down_bits_per_second, up_bits_per_second. Seconds per sample are read as relative speeds: the
    median row computes like ``devices``. With a column seconds, the rows are recorded days: each is the state of its
    client from then on, optionally with available (0 or 1)."""
    trace_assign: Literal["shuffled", "by_client"] = "shuffled"
    """How the rows of ``trace``, ``bandwidth.file`` and ``availability.file`` meet clients: ``shuffled``, each file on
    its own, series from random times on; ``by_client``: row k is client k's, all from the recording's beginning on."""
    trace_case: int = 1
    """Number of the case, for a file with several."""
    device_file: str | None = None
    """Devices of your own: TOML in the format of those that ship, or a table of boards as CSV with the columns name,
    GFLOP/s (or step (ms), model and batch), memory (GB) and watts."""
    network_file: str | None = None
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
    """The network's watts; or a part that grows with the rate, and a tail after each transfer, until the client's
    next one (Huang et al., MobiSys 2012)."""
    price: Prices = Prices()
    carbon: CarbonConfig = CarbonConfig()
    server: ServerLink = ServerLink()
    gateways: AccessLinks = AccessLinks()
    tiers: TierConfig = TierConfig()
    transport: Transport = Transport()
    scale: Scale = Scale()
    bandwidth: BandwidthConfig = BandwidthConfig()
    speed: SpeedConfig = SpeedConfig()
    availability: AvailabilityConfig = AvailabilityConfig()

    @property
    def file_names(self) -> dict[str, str]:
        """Key -> the file that it names, in the order in which a run's identity has them."""
        names = {f"fleet.{key}": attrgetter(key)(self) for key in FILE_KEYS}
        return {key: name for key, name in names.items() if name is not None}
