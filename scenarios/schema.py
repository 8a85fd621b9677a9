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
Rate = Annotated[float, AllowInfNan(True), BeforeValidator(units.bits_per_second), Field(gt=0)]
"""inf is a link that is never a bottleneck."""
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Flops = Annotated[float, BeforeValidator(units.flops), Field(gt=0)]
Joules = Annotated[float, BeforeValidator(units.joules), Field(gt=0)]
Share = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def also(*names: str) -> dict[str, Any]:
    """Names that other tools use for a key, so that a message can name ours."""
    return {"also": list(names)}


class Partition(Section):
    """How the training examples are shared among clients (``fedbr list partitions``)."""

    kind: Literal["iid", "dirichlet", "dirichlet-unbalanced", "epsilon", "natural", "file"] = "iid"
    alpha: float = 0.3
    """Concentration of both Dirichlet partitions; smaller is more uneven."""
    epsilon: int = 7
    """FedBR's non-IID level, 0..9."""
    min_samples: int = Field(default=10, ge=0)
    """dirichlet-unbalanced: drawn again while a client holds fewer examples."""
    max_tries: int = Field(default=1000, ge=1)
    """dirichlet-unbalanced: draws before giving up with an error."""
    file: str | None = None
    """JSON {client: [indices]} for kind = "file"."""
    seed: int = Field(default=0, ge=0)
    """Seed of the partition alone, so that runs with different seeds can share one."""


class Data(Section):
    """Which data set, and who holds what of it."""

    name: str = Field(default="digits", json_schema_extra=also("dataset"))
    root: str | None = None
    """Folder searched first; if it is named and lacks the set, that is an error."""
    clients: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=also("num_clients", "n_clients"))
    """How many clients there are."""
    partition: Partition = Partition()
    augment: str = "default"
    """``default``: the set's own profile; ``none``: normalisation alone; or a profile's name."""
    download: bool = True
    """Whether torchvision may fetch a set that is found nowhere."""


class Model(Section):
    """Which model, how wide, cut into which blocks."""

    name: str = Field(default="digits-cnn", json_schema_extra=also("arch", "net"))
    width: int | None = Field(default=None, ge=1, le=4096)
    """Channels of the first stage; by default the model's own."""
    blocks: str = "stages"
    """``stages``: the model's own; ``balanced:M``: M blocks of as equal bytes as the order of its units allows."""


class Train(Section):
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
    precision: Literal["fp32"] = "fp32"
    memory_format: Literal["contiguous", "channels_last"] | None = None
    """How images lie in memory; by default what is fastest for the model on the device in use."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Threads of one CPU worker; part of the result, since it changes the order of sums."""


class Travels(Section):
    """Which blocks travel; by default what the method says."""

    down: str | None = None
    """``everything``, ``nothing``, ``without:BLOCK,..`` or ``last:ALPHA``."""
    up: str | None = None
    """Likewise."""


class Aggregate(Section):
    """How the server sums updates."""

    weights: Literal["size", "uniform"] | None = None
    """By number of examples, or all alike; by default what the method's paper does."""
    sum: Literal["client_order"] = "client_order"
    """Updates are added in client order, so that the result does not depend on who is fastest."""


class Rounds(Section):
    """Who takes part, and for how long."""

    policy: Literal["sync"] = "sync"
    participants: int = Field(default=10, ge=1, json_schema_extra=also("cohort", "clients_per_round"))
    """Clients per round."""
    max: int = Field(default=100, ge=1, json_schema_extra=also("num_rounds", "n_rounds", "rounds"))
    """The run ends after so many rounds."""


class Stop(Section):
    """The goal."""

    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """``run`` stops when the test accuracy reaches it; in ``compare`` it is a yardstick."""


class Budget(Section):
    """What may be spent; never overspent."""

    virtual_seconds: Seconds | None = Field(default=None, json_schema_extra=also("time", "seconds"))
    bytes: NBytes | None = Field(default=None, json_schema_extra=also("bandwidth", "traffic"))
    """Down and up of all clients together."""
    flops: Flops | None = None
    """Of all devices together."""
    joules: Joules | None = Field(default=None, json_schema_extra=also("energy"))
    """Of all devices together."""


class ServerLink(Section):
    """The server's link, shared by all clients at work, as clients see it."""

    down: Rate = 1e9
    """From the server to clients, bit/s."""
    up: Rate = 1e9
    """From clients to the server, bit/s."""


class Fleet(Section):
    """Devices and networks of the clients (``fedbr list devices``, ``fedbr list networks``)."""

    devices: dict[str, Share] | list[str] = {"raspberry-pi-4": 1.0}
    """Shares by name, or one name per client."""
    networks: dict[str, Share] | list[str] = {"wifi-4": 1.0}
    """Likewise."""
    compute_spread: float = Field(default=1.0, ge=1, le=1e6)
    """Each client's device is slower by a fixed factor, log-uniform in 1 .. compute_spread."""
    bandwidth_spread: float = Field(default=1.0, ge=1, le=1e6)
    """Likewise for both directions of its link."""
    redraw: float = Field(default=0.0, ge=0, lt=1)
    """In each round, speed and rates vary by a factor uniform in 1 - redraw .. 1 + redraw."""
    server: ServerLink = ServerLink()


class Eval(Section):
    """How often the model is scored."""

    every: int = Field(default=1, ge=1)
    """Rounds between evaluations; the last round always is."""
    batch: int = Field(default=500, ge=1)
    """Examples per shard of the test set; part of the result, since losses are summed shard by shard."""


class Scenario(Section):
    """All that a run is made of."""

    method: str = "fedavg"
    """A method's name (``fedbr list methods``), joined with ``+`` (``fedmlb+fedprox``), or ``module:ROW``."""
    method_options: dict[str, Any] = {}
    """The method's hyperparameters."""
    server: str = Field(default="plain", json_schema_extra=also("server_optimizer", "strategy"))
    """Server optimiser."""
    seed: int = Field(default=0, ge=0)
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    travels: Travels = Travels()
    aggregate: Aggregate = Aggregate()
    rounds: Rounds = Rounds()
    stop: Stop = Stop()
    budget: Budget = Budget()
    fleet: Fleet = Fleet()
    eval: Eval = Eval()
