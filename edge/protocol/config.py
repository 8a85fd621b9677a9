"""What a worker is told, and what it answers before round 0: plain frozen records, no torch.

`Job` travels once, in the welcome; `ModelProfile` is the answer to describe. Both are validated on receipt.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from edge.protocol.payload import Layout

T = TypeVar("T")

CPU = "cpu"


class _Strict:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ModelConfig(_Strict):
    """Which model, how wide, and how it is cut into blocks."""

    name: str
    width: int | None = None
    """Channels of the first stage, for models that have a width; None is the model's own."""
    blocks: str = "stages"
    """``stages``: the model's own blocks; ``balanced:M``: its units cut into M blocks of as equal bytes as possible."""


@dataclass(frozen=True)
class PartitionConfig(_Strict):
    """How the training examples are shared among clients."""

    kind: Literal["iid", "dirichlet", "dirichlet-unbalanced", "epsilon", "natural", "file"] = "iid"
    alpha: float = 0.3
    """Concentration of both Dirichlet partitions."""
    epsilon: int = 7
    """FedBR's non-IID level, 0..9."""
    min_samples: int = 10
    """Unbalanced Dirichlet: drawn again while a client holds fewer."""
    max_tries: int = 1000
    """Unbalanced Dirichlet: draws before giving up with an error."""
    file: str | None = None
    """JSON ``{client: [indices]}`` for kind = file."""
    seed: int = 0
    """Seed of the partition alone, so that runs with different seeds can share one."""


@dataclass(frozen=True)
class DataConfig(_Strict):
    """Which data set, where it may be, and how it is shared among clients."""

    name: str
    root: str | None = None
    """Folder searched first; if named and the set is not in it, that is an error."""
    clients: int = 10
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    augment: str = "default"
    """``default``: what the set's profile says; ``none``; or a profile by name."""
    download: bool = True
    """Whether torchvision may fetch a set that is found nowhere."""


@dataclass(frozen=True)
class TrainingPlan:
    """How much a visit trains."""

    steps: int
    samples: int
    """Examples that pass through the model, an example counted each time."""
    epoch_steps: int
    """Steps of one local epoch (the last may be cut short by ``local_steps``)."""


@dataclass(frozen=True)
class TrainConfig(_Strict):
    """Local SGD."""

    lr: float = 0.1
    lr_decay: float = 1.0
    """Factor per round, applied at dispatch."""
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float = 0.0
    """Joint L2 norm that gradients are scaled down to; 0 is off."""
    batch: int = 50
    local_epochs: int = 1
    local_steps: int | None = None
    """If set, exactly so many steps, over as many epochs as it takes; it replaces ``local_epochs``."""
    drop_last: bool = False
    precision: Literal["fp32", "bf16", "tf32"] = "fp32"
    """In what training computes (`edge.training.sgd`); tf32 is for CUDA devices. Part of the result, as the next two
    are."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """How images lie in memory; it changes the order of sums."""
    pathways: Literal["each", "sweep"] = "each"
    """How hybrid pathways are run (`edge.training.pathways`); it changes the order of sums."""
    graphs: bool = False
    """Whether steps are captured in CUDA graphs and replayed (`edge.training.cuda_graphs`)."""
    threads: int = 1

    def lr_in(self, round: int) -> float:
        """The step size of visits that begin after so many server steps."""
        return self.lr * self.lr_decay**round

    def step_sum(self, steps: int) -> float:
        """How many times lr a visit moves along a gradient that stays the same: the number of steps without momentum.

        With momentum ρ, step j moves by (1 − ρ^j)/(1 − ρ); their sum is FedNova's normaliser of a visit (Wang et al.,
        NeurIPS 2020). With Nesterov's, step j moves by 1 + ρ(1 − ρ^j)/(1 − ρ).
        """
        rho = self.momentum
        if rho == 0:
            return float(steps)
        plain = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return steps + rho * plain if self.nesterov else plain

    def plan(self, samples: int) -> TrainingPlan:
        """Steps and examples of one visit to a client that holds ``samples`` examples."""
        if self.drop_last:
            per_epoch, usable = samples // self.batch, samples // self.batch * self.batch
        else:
            per_epoch, usable = math.ceil(samples / self.batch), samples
        if per_epoch == 0:
            return TrainingPlan(0, 0, 0)
        if self.local_steps is None:
            return TrainingPlan(self.local_epochs * per_epoch, self.local_epochs * usable, per_epoch)
        epochs, rest = divmod(self.local_steps, per_epoch)
        return TrainingPlan(self.local_steps, epochs * usable + min(rest * self.batch, usable), per_epoch)


@dataclass(frozen=True)
class ComponentConfig(_Strict):
    """A client side (objective or correction) by dotted name, with its options."""

    component: str
    """``module:Class``"""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job(_Strict):
    """All that a worker must know to serve any client of one run."""

    run_id: str
    seed: int
    device: str
    """``cpu``; ``cuda:N``; or ``cuda``, which for workers means all GPUs there are (`edge.runtime.gpu_share`)."""
    cache: str
    """Folder for decoded data and partitions, shared by all workers."""
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    objective: ComponentConfig
    corrections: tuple[ComponentConfig, ...] = ()
    up: tuple[str, ...] = ()
    """Keys of slot ``model`` that a client sends."""
    kept_blocks: tuple[str, ...] = ()
    """Keys of the model that a client keeps between its visits."""
    reports: tuple[str, ...] = ()
    """Names of the numbers that ride in an update, beside the vectors."""
    eval_batch: int = 500
    eval_subset: int | None = None
    """Examples of the global test set that a score uses, drawn once by the seed; None is all."""
    flops: tuple[tuple[float, float, float, float], ...] = ()
    """`ModelProfile.flops`, so that it is counted once and not by every worker."""
    data_sha256: str = ""
    """`ModelProfile.data_sha256`, by which workers that bring their own data show that it is the run's."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What computes where the run is (`edge.runtime.numerics`), which a worker elsewhere must have as well; empty:
    anything."""
    worker_slot: int = 0
    """This worker's place among ``workers``, 0, 1 ..; the one that replaces it takes it over."""
    workers: int = 1

    def scored(self, test_count: int) -> int:
        """How many of the global test set's examples a score uses."""
        return test_count if self.eval_subset is None else min(self.eval_subset, test_count)


@dataclass(frozen=True)
class ModelProfile:
    """A worker's answer to describe.

    ``flops`` has shape (blocks, 4): FLOPs per example of each kind of pass (`edge.protocol.payload`); 1 MAC = 2 FLOPs.
    ``activations`` (blocks,) are floats per example that training keeps for the backward pass, each counted once, with
    the last block that keeps it.
    ``samples`` (clients,) and ``histogram`` (clients, classes) count training examples; ``test_samples`` (clients,)
    the local test examples, for methods that are evaluated client by client.
    """

    layout: Layout
    family: str
    """Model family, which a device's throughput may depend on."""
    flops: NDArray[np.float64]
    activations: NDArray[np.float64]
    data_sha256: str
    data_source: str
    classes: int
    test_count: int
    """Examples of the global test set."""
    samples: NDArray[np.int64]
    histogram: NDArray[np.int64]
    test_samples: NDArray[np.int64]


def plain(record: Any) -> dict[str, Any]:
    """A frozen record as nested dicts and lists, for a header."""
    return asdict(record)


def parse(kind: type[T], plain: Any) -> T:
    """Build a record of ``kind`` from `plain` output; pydantic.ValidationError if anything does not fit."""
    named: Any = kind
    adapter: TypeAdapter[T] = _adapter(named)
    return adapter.validate_python(plain)


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # to build one takes milliseconds
