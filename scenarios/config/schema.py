"""What a scenario may say: typed, frozen, every field with its unit and default. Unknown keys are refused.

Quantities take units (``"50 GB"``, ``"20 Mbit/s"``, ``"15 min"``) and are kept in SI: bytes, bit/s, seconds, FLOPs,
joules.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Field

from costmodel import units

LARGEST_INTEGER = 2**53
"""As far as float64 counts exactly; no integer of a scenario needs more."""

NBytes = Annotated[int, BeforeValidator(units.nbytes), Field(gt=0, le=LARGEST_INTEGER)]
Rate = Annotated[float, AllowInfNan(True), BeforeValidator(units.bits_per_second), Field(ge=1)]
"""inf is a link that is never a bottleneck."""
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Flops = Annotated[float, BeforeValidator(units.flops), Field(gt=0)]
Joules = Annotated[float, BeforeValidator(units.joules), Field(gt=0)]
Share = Annotated[float, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=5)]
Names = Annotated[list[str], Field(fail_fast=True)]
"""Perhaps a million: what is wrong with each of them would fill gigabytes."""


class Section(BaseModel):
    """A table of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def also(*names: str) -> dict[str, Any]:
    """Names that other tools use for a key, so that a message can name ours."""
    return {"also": list(names)}


class PartitionSection(Section):
    """How the training examples are shared among clients (``fedbr list partitions``)."""

    kind: Literal["iid", "dirichlet", "dirichlet-unbalanced", "epsilon", "natural", "file"] = "iid"
    alpha: float = 0.3
    """Concentration of both Dirichlet partitions; smaller is more uneven."""
    epsilon: int = 7
    """FedBR's non-IID level, 0..9."""
    min_samples: int = Field(default=10, ge=0)
    """dirichlet-unbalanced: drawn again while a client holds fewer examples."""
    max_tries: int = Field(default=1000, ge=1)
    """dirichlet-unbalanced: draws before giving up with an error; fewer where there are very many clients."""
    file: str | None = None
    """JSON {client: [indices]} for kind = "file"."""
    seed: int = Field(default=0, ge=0)
    """Seed of the partition alone, so that runs with different seeds can share one."""


class DataSection(Section):
    """Which data set, and who holds what of it."""

    name: str = Field(default="digits", json_schema_extra=also("dataset"))
    root: str | None = None
    """Folder searched first; if it is named and lacks the set, that is an error."""
    clients: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=also("num_clients", "n_clients"))
    """How many clients there are."""
    partition: PartitionSection = PartitionSection()
    augment: str = "default"
    """``default``: the set's own profile; ``none``: normalisation alone; or a profile's name."""
    download: bool = True
    """Whether torchvision may fetch a set that is found nowhere."""


class ModelSection(Section):
    """Which model, how wide, cut into which blocks."""

    name: str = Field(default="digits-cnn", json_schema_extra=also("arch", "net"))
    width: int | None = Field(default=None, ge=1, le=4096)
    """Channels of the first stage; by default the model's own."""
    blocks: str = "stages"
    """``stages``: the model's own; ``balanced:M``: M blocks of as equal bytes as the order of its units allows."""


class TrainSection(Section):
    """Local SGD."""

    lr: float = Field(default=0.1, ge=0, le=1e6, json_schema_extra=also("learning_rate", "eta", "step_size"))
    """Learning rate of round 0."""
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on the learning rate per round."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0, json_schema_extra=also("l2", "wd"))
    """L2 decay, added to the gradient after clipping."""
    clip: float = Field(default=0.0, ge=0, json_schema_extra=also("max_grad_norm", "grad_clip"))
    """Joint L2 norm that gradients are scaled down to; 0 is off."""
    batch: int = Field(default=50, ge=1, json_schema_extra=also("batch_size"))
    """Examples per step."""
    local_epochs: int = Field(default=1, ge=0, json_schema_extra=also("epochs"))
    """Passes over a client's examples per visit."""
    local_steps: int | None = Field(default=None, ge=0, json_schema_extra=also("steps", "iterations"))
    """Exactly so many steps per visit instead of local_epochs."""
    drop_last: bool = False
    """Whether a short last batch is left out."""
    precision: Literal["fp32", "bf16", "tf32"] | None = Field(default=None, json_schema_extra=also("dtype", "amp"))
    """What training computes in: fp32; bf16 (layers in bfloat16; fast on GPUs, and on CPUs with AVX512-BF16 or AMX);
    tf32 (CUDA devices only). By default fp32. Models are kept, sent and evaluated in fp32 in any case."""
    memory_format: Literal["contiguous", "channels_last"] | None = None
    """How images lie in memory; by default what is fastest for the model on the device in use."""
    pathways: Literal["each", "sweep"] | None = None
    """How the hybrid pathways of FedMLB and FedBR are run: each, one after the other; sweep, all that stand before a
    block together as one larger batch. By default what is fastest for the model on the device in use."""
    graphs: bool = False
    """CUDA devices only: capture a step in a graph and replay it, which spares launches. Not yet run on any GPU."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Threads of one CPU worker; part of the result, since it changes the order of sums."""


class BlockExchangeSection(Section):
    """Which blocks travel; by default what the method says."""

    down: str | None = None
    """``everything``, ``nothing``, ``without:BLOCK,..`` or ``last:ALPHA``."""
    up: str | None = None
    """Likewise."""


class AggregateSection(Section):
    """How the server sums updates."""

    weights: Literal["size", "uniform"] | None = None
    """By number of examples, or all alike; by default what the method's paper does."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """client_order: the coordinator adds updates up in client order. fixed_point: each worker adds up those of its own
    clients, in integers, so that far fewer bytes pass between processes; models agree with client_order's within 1e-6.
    In both the result depends neither on the number of workers nor on who is fastest."""


class FaultsSection(Section):
    """What becomes of updates that cannot be used, and of clients that no worker can train."""

    on_bad_update: Literal["stop", "reject", "zero"] = "stop"
    """An update of wrong shape, with NaN or Inf, or beyond ``max_norm``: ends the run; does not count; or counts as one
    that changed nothing."""
    max_norm: float | None = Field(default=None, gt=0)
    """How far an update may be from the model that the visit began with (L2); by default any distance."""
    max_growth: float = Field(default=1000.0, gt=0)
    """And how far in any case, as a multiple of the norm of the initial model plus that of the visit's steps along
    gradients of which each number is 1: no honest training comes near to it, but finite rubbish does."""
    on_bad_client: Literal["stop", "skip"] = "stop"
    """A visit that ended three workers in a row: ends the run; or does not count."""


class RoundsSection(Section):
    """Who takes part, and for how long."""

    policy: Literal["sync", "over_select", "deadline", "fedasync", "fedbuff"] = "sync"
    """Who is waited for: everyone; the first ``participants`` of more; those in time; or nobody."""
    participants: int = Field(default=10, ge=1, json_schema_extra=also("cohort", "clients_per_round"))
    """Clients per round; in fedasync and fedbuff, visits under way at a time."""
    max: int = Field(default=100, ge=1, json_schema_extra=also("num_rounds", "n_rounds", "rounds"))
    """The run ends after so many rounds; in fedasync a round is ``participants`` updates."""
    over_select: float = Field(default=1.3, ge=1, le=1e6, json_schema_extra=also("overcommit", "over_commit"))
    """over_select: so many times ``participants`` begin."""
    deadline: Seconds = Field(default=270.0, json_schema_extra=also("timeout"))
    """deadline: from the beginning of the visits until they are broken off."""
    min_fraction: float = Field(default=0.0, ge=0, le=1)
    """deadline: a round in which a smaller share of the visits is done changes nothing."""
    mixing: float = Field(default=0.6, gt=0, le=1)
    """fedasync: share of a fresh update in the new global model."""
    buffer: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=also("buffer_size"))
    """fedbuff: updates per server step."""
    server_lr: float = Field(default=1.0, gt=0, le=1e6)
    """fedbuff: factor on the mean of the buffered changes."""
    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    """fedasync, fedbuff: how an update counts that was made from a model of s server steps ago."""
    staleness_power: float = Field(default=0.5, ge=0, le=1e6)
    """a of (s + 1)^-a, and of the hinge's 1 / (a (s - b) + 1)."""
    staleness_from: int = Field(default=4, ge=0)
    """b of the hinge: up to there an update counts in full."""


class StopSection(Section):
    """The goal."""

    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """``run`` stops when the test accuracy reaches it; in ``compare`` it is a yardstick."""


class ClientBudgetSection(Section):
    """What one client may spend in the whole run; who has no more takes part no more."""

    virtual_seconds: Seconds | None = None
    """In which it is at work."""
    bytes: NBytes | None = None
    """Down and up."""
    bytes_down: NBytes | None = None
    bytes_up: NBytes | None = None
    flops: Flops | None = None
    joules: Joules | None = None


class BudgetSection(Section):
    """What may be spent; never overspent."""

    virtual_seconds: Seconds | None = Field(default=None, json_schema_extra=also("time", "seconds"))
    bytes: NBytes | None = Field(default=None, json_schema_extra=also("bandwidth", "traffic"))
    """Down and up of all clients together."""
    bytes_down: NBytes | None = None
    """From the server to all clients together."""
    bytes_up: NBytes | None = None
    """From all clients together to the server."""
    flops: Flops | None = None
    """Of all devices together."""
    joules: Joules | None = Field(default=None, json_schema_extra=also("energy"))
    """Of all devices together."""
    client: ClientBudgetSection = ClientBudgetSection()


class ServerLinkSection(Section):
    """The server's link, shared by all clients at work, as clients see it."""

    down: Rate = 1e9
    """From the server to clients, bit/s."""
    up: Rate = 1e9
    """From clients to the server, bit/s."""
    aggregate: Rate = 24e9
    """How fast the server adds updates up, bit/s (assumed: 3 GB/s)."""


class AccessLinksSection(Section):
    """Links between some clients each and the server's link, such as a building's."""

    count: int = Field(default=0, ge=0, le=1000)
    """How many there are; clients are spread over them in turn. 0: clients reach the server's link directly."""
    down: Rate = 1e9
    """To the clients of one site, bit/s."""
    up: Rate = 1e9
    """From the clients of one site, bit/s."""


class TransportSection(Section):
    """How messages travel beside their share of the links."""

    security: Literal["none", "curve"] = "none"
    """What a new connection agrees on: 3.5 or 5.5 round trips."""
    slow_start: bool = True
    """Whether a connection that has been idle starts slowly again, as Linux does by default."""
    noise: float = Field(default=0.0, ge=0, le=2)
    """Sigma of a lognormal factor of mean 1 on each message: what TCP does beyond fair shares (about 0.1)."""


class BandwidthSection(Section):
    """How clients' own links vary in time."""

    kind: Literal["constant", "ou", "trace"] = "constant"
    """``ou``: the logarithm is an Ornstein-Uhlenbeck process; ``trace``: recorded factors, repeated."""
    cv: float = Field(default=0.37, ge=0, le=3)
    """Of each client's rate over time, where ``fleet.trace`` does not tell (0.37: FLASH's users, WWW 2021)."""
    tau: Seconds = Field(default=30.0, le=1e6)
    """After which a deviation has decayed to 1/e (assumed: 30 s on Wi-Fi, 10 s in cellular networks)."""
    step: Seconds = Field(default=10.0, ge=1e-3)
    """Between changes of the rate; at least a thousandth of tau."""
    file: str | None = None
    """CSV with columns seconds, factor and perhaps client."""


class AvailabilitySection(Section):
    """When clients are there."""

    kind: Literal["always", "renewal", "diurnal", "trace"] = "always"
    """``renewal``: lognormal intervals of presence and absence; ``diurnal``: once a day; ``trace``: recorded
    windows."""
    on_loss: Literal["abort", "pause"] = "abort"
    """What becomes of a visit whose client goes away."""
    on: Seconds = Field(default=3600.0, ge=1e-3, le=1e9)
    """renewal: median of a presence."""
    off: Seconds = Field(default=3600.0, ge=1e-3, le=1e9)
    """renewal: median of an absence."""
    sigma: float = Field(default=1.0, ge=0, le=5)
    """renewal: of both lognormal distributions; diurnal: of the length of the daily presence."""
    hour: float = Field(default=23.0, ge=0, lt=24)
    """diurnal: when the presence begins, on average."""
    hours: float = Field(default=7.0, ge=0.01, le=23)
    """diurnal: median of its length."""
    spread_hours: float = Field(default=2.0, ge=0, le=12)
    """diurnal: by how much clients differ in the hour (standard deviation)."""
    jitter_hours: float = Field(default=0.5, ge=0, le=12)
    """diurnal: by how much the days of one client differ."""
    start_hour: float = Field(default=0.0, ge=0, lt=24)
    """diurnal, trace: time of day at which the run begins."""
    file: str | None = None
    """trace: CSV with columns device, start_s, end_s."""
    repeat: bool = True
    """trace: whether windows come again when the recording is over."""


class FleetSection(Section):
    """Devices and networks of the clients (``fedbr list devices``, ``fedbr list networks``)."""

    devices: dict[str, Share] | Names = {"raspberry-pi-4": 1.0}
    """Shares by name, or one name per client."""
    networks: dict[str, Share] | Names = {"wifi-4": 1.0}
    """Likewise."""
    compute_spread: float = Field(default=1.0, ge=1, le=1e6)
    """Each client's device is slower by a fixed factor, log-uniform in 1 .. compute_spread."""
    bandwidth_spread: float = Field(default=1.0, ge=1, le=1e6)
    """Likewise for both directions of its link."""
    compute_sigma: float = Field(default=0.0, ge=0, le=5)
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
    redraw: float = Field(default=0.0, ge=0, lt=1)
    """In each round, speed and rates vary by a factor uniform in 1 - redraw .. 1 + redraw."""
    jitter: float = Field(default=0.1, ge=0, le=2)
    """Sigma of a lognormal factor of median 1 on the computing time of each visit."""
    mode_rounds: int = Field(default=0, ge=0)
    """Every so many rounds clients draw a power mode of their device, and ``rates`` anew (20: the USTC testbeds)."""
    crashes_per_hour: float = Field(default=0.0, ge=0, le=1e6)
    """Of being at work."""
    battery: Joules | None = None
    """What each client may spend, waiting included, until it is lost for good; by default mains."""
    compute_energy: Literal["power", "kappa"] = "power"
    """The device's watts; or kappa f^2 per cycle, which makes slower power modes cheaper."""
    radio_energy: Literal["power", "rate"] = "power"
    """The network's watts; or a part that grows with the rate, and a tail after each transfer."""
    server: ServerLinkSection = ServerLinkSection()
    sites: AccessLinksSection = AccessLinksSection()
    transport: TransportSection = TransportSection()
    bandwidth: BandwidthSection = BandwidthSection()
    availability: AvailabilitySection = AvailabilitySection()


class EvalSection(Section):
    """How often the model is scored."""

    every: int = Field(default=1, ge=1)
    """Rounds between evaluations; the last round always is."""
    batch: int = Field(default=500, ge=1)
    """Examples per shard of the test set; part of the result, since losses are summed shard by shard."""
    subset: int | None = Field(default=None, ge=1)
    """Score on so many examples of the test set, drawn once by the seed; by default on all of it."""


class Scenario(Section):
    """All that a run is made of."""

    method: str = "fedavg"
    """A method's name (``fedbr list methods``), joined with ``+`` (``fedmlb+fedprox``), or ``module:ROW``."""
    method_options: dict[str, Any] = {}
    """The method's hyperparameters."""
    server: str = Field(default="plain", json_schema_extra=also("server_optimizer", "strategy"))
    """Server optimiser (``fedbr list servers``)."""
    server_options: dict[str, Any] = {}
    """The server optimiser's hyperparameters."""
    seed: int = Field(default=0, ge=0)
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    travels: BlockExchangeSection = BlockExchangeSection()
    aggregate: AggregateSection = AggregateSection()
    faults: FaultsSection = FaultsSection()
    rounds: RoundsSection = RoundsSection()
    stop: StopSection = StopSection()
    budget: BudgetSection = BudgetSection()
    fleet: FleetSection = FleetSection()
    eval: EvalSection = EvalSection()
