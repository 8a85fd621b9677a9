"""Method specs. Torch-free: the client side is named by a dotted string.

A spec names a method's client side and server side, its options, its block exchange, its compute plan, its evaluation,
and its own ledger table, live-table column and figure. `ObjectiveSpec` stands alone; `CorrectionSpec` joins any
objective (``fedmlb+fedprox``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator.aggregation import block_exchange
from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.methods.compute import Compute, ComputeContext, SizeFactors, fedavg_compute
from coordinator.records.schema import MethodTable
from edge.protocol.config import ModelProfile, TrainConfig
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options
from edge.protocol.payload import Layout, Shapes
from edge.protocol.variant import Variant, expect_other_names


def everything(options: Any) -> str:
    """The whole model is sent."""
    return block_exchange.EVERYTHING


def keys_not_downloaded(layout: Layout, down: tuple[str, ...], options: Any) -> tuple[str, ...]:
    """The keys that a client must keep because it does not download them."""
    return tuple(key for key in layout.sizes if key not in down)


def numbers_of_model(layout: Layout, options: Any) -> int:
    """Numbers in one model."""
    return sum(layout.sizes.values())


@dataclass(frozen=True)
class ProgressColumn:
    """A column of the method's table; the live table shows the number of visits per value."""

    column: str
    values: Callable[[int], range]
    """number of blocks -> values that are shown"""


@dataclass(frozen=True)
class MethodFigure:
    """A figure of the report, drawn from the method's table, with two panels per run over its rounds."""

    title: str
    text: str
    """Caption"""
    counted: str
    """Left: number of clients per value of this column, stacked"""
    symbol: str
    """Symbol of that value in the legend"""
    counted_title: str
    averaged: Mapping[str, str]
    """Right: column -> name in the legend; means over clients"""
    averaged_title: str
    marked: tuple[str, str] | None = None
    """(column, name in the legend): rounds in which the column is not 0 are marked on the left"""


@dataclass(frozen=True)
class MethodMap:
    """A figure of the report, drawn from the method's table: a map of clients by what they chose or were given."""

    title: str
    text: str
    """Caption"""
    across: tuple[str, ...]
    """Columns of the table whose values, together, are the columns of the map"""
    across_title: str
    value: str
    """Column whose mean is the colour of a cell; a cell without rows is empty"""
    value_title: str
    periods: int = 3
    """Panels per run: the rounds of each are so many consecutive parts of the run"""
    is_kind: bool = False
    """Whether the value is a number of a thing, such as a cluster, and no amount"""


@dataclass(frozen=True)
class Traffic:
    """The vectors that the visits of a method send, and the blocks that stay with clients. By default the whole model
    goes both ways."""

    down: Callable[[Any], str | None] = everything
    """options -> downloaded blocks (`coordinator.aggregation.block_exchange`); None if the server side chooses per
    visit, so that a scenario cannot override them"""
    up: Callable[[Any], str] = everything
    """options -> uploaded blocks"""
    kept_blocks: Callable[[Layout, tuple[str, ...], Any], tuple[str, ...]] = keys_not_downloaded
    """(layout, downloaded keys, options) -> keys of the model that a client keeps"""
    by_layer: Callable[[Any], bool] = lambda options: False
    """options -> whether vectors are sent and weighted layer by layer, with keys ``block/layer``"""
    choices: tuple[str, ...] = ()
    """Names of the method's own numbers in a download"""
    possible_choices: Callable[[int, int, Any], Sequence[Choice]] = lambda blocks, clients, options: ()
    """(blocks, clients, options) -> all numbers that a download may have, for ``check``; empty if visits of one round
    are alike"""
    decides_without_updates: Callable[[Any], bool] | None = None
    """options -> whether downloads follow from rounds, times and reported numbers, which a ledger has; only such runs
    can be replayed without training. None: if the server side overrides no decision"""
    contacts_server: bool = True
    """Whether a visit has messages. False: neither direction has vectors, clients train without the server, and a visit
    costs no bytes"""

    def __post_init__(self) -> None:
        for name, text in (("down", self.down), ("up", self.up)):
            if not callable(text):
                raise TypeError(f"Traffic: {name} = {text!r} must be a function: lambda options: {text!r}")
        expect_other_names(self.choices)


@dataclass(frozen=True)
class ModelChange:
    """The change that a method makes to the scenario's model. By default it takes one, as it is."""

    initial_models: Callable[[Any], int] = lambda options: 1
    """options -> independent initialisations of the model that the server side begins with"""
    wrap_model: Callable[[Any], str | None] = lambda options: None
    """options -> ``module:function`` of (blocks, options, classes, width) -> blocks, lists of (name, torch module): it
    adds a projection head, branches, other layers. ``width`` is ``model.width`` or the model's own. None: the model as
    it is"""
    wrapped_blocks: Callable[[tuple[str, ...], Any], tuple[str, ...]] = lambda names, options: names
    """(names of the model's blocks, options) -> names of the blocks that ``wrap_model`` makes"""
    wrapped_layout: Callable[[Layout, Any], Layout] = lambda layout, options: layout
    """(layout of the model, options) -> layout of what ``wrap_model`` makes, for ``list methods``, which loads no
    torch; runs ask a worker"""


@dataclass(frozen=True)
class SubmodelRules:
    """How the clients of a method hold parts of the model, as the table ``submodel`` says."""

    by: Literal["width", "depth", "rank"] = "width"
    """The dimension in which a part is smaller: channels of every hidden layer, blocks, or the rank of adapters"""
    rolls: bool = False
    """Whether parts are windows of channels that move by one each round; else they are the first channels"""
    trains_narrower: bool = False
    """Whether visits also train the narrower parts within their own, of which all are evaluated"""
    is_scaled: Callable[[Any], bool | None] = lambda options: False
    """options -> whether a part divides the outputs of its hidden layers by its rate in training; None: in models with
    normalisation"""
    is_static: Callable[[Any], bool] = lambda options: False
    """options -> whether running statistics do not travel, but are computed for each evaluation by a pass over the
    training examples (HeteroFL's static BatchNorm)"""
    has_own_statistics: Callable[[Any], bool] = lambda options: False
    """options -> whether BatchNorm has running statistics for each rate, which parts of at least that rate hold; else
    those of the model's first channels"""
    masks_classes: Callable[[Any], bool] = lambda options: False
    """options -> whether rows of the last layer count for clients with examples of their class alone"""

    @property
    def variant(self) -> Variant:
        """That of the whole model, with the fields that visits of the method have."""
        return Variant(rate=1.0, window=0 if self.rolls else None)


@dataclass(frozen=True)
class Costs:
    """The computation of a method's visits and evaluations. By default as FedAvg's."""

    compute: Callable[[ComputeContext], Compute] = fedavg_compute
    """The compute plan of a visit (`coordinator.methods.compute`)"""
    variants: Callable[[Any], tuple[SizeFactors, ...]] = lambda options: ()
    """options -> variants of the model whose FLOPs are counted beforehand, for ``compute`` and for the client side"""
    adaptation: Callable[[ComputeContext], Compute] = fedavg_compute
    """The compute plan of an adaptation before an evaluation (``eval.adapt``), with its ``train`` and ``plan``"""
    evaluation_forwards: Callable[[Any], float] = lambda options: 0.0
    """options -> forward passes over a client's training examples that precede an evaluation of its model"""
    evaluation_up: Callable[[Layout, Any], Shapes] = lambda layout, options: {}
    """(layout, options) -> shapes of what a charged evaluation sends to the server beside its values"""
    nominal_alpha: Callable[[int, Any, Choice], int] = lambda blocks, options, choice: 0
    """The alpha that FedBR's Eq. 2 would charge; 0 without pathways"""
    nominal_period: Callable[[Any], int | None] = lambda options: None
    """tau of FedBR's Eq. 3; None if the whole model is downloaded in every round"""


@dataclass(frozen=True)
class ModelEvaluation:
    """Which models of a method are evaluated, and the examples that it holds out. By default one global model."""

    on: Literal["global", "clients"] = "global"
    """The global model is evaluated, or each client's own model, as a mean over clients"""
    has_global_model: bool = True
    """Whether the server side has a model for the global test set (`ServerStrategy.global_evaluation_model`)"""
    validation: float = 0.0
    """Fraction of clients' training examples that are held out where the scenario does not say (``data.validation``);
    above 0, the method needs validation examples, and a scenario without any is refused"""
    uses_validation: Callable[[Any], bool] = lambda options: True
    """options -> whether it does need them, if ``validation`` is above 0; else a scenario may have none"""

    def __post_init__(self) -> None:
        if not self.has_global_model and self.on == "global":
            raise TypeError("ModelEvaluation: a method without a global model must be evaluated on clients")
        if not 0 <= self.validation < 1:
            raise TypeError(f"ModelEvaluation: validation = {self.validation!r} must be at least 0, and below 1")


@dataclass(frozen=True)
class Records:
    """The figures of a method that users see beside those of every one. By default none."""

    table: MethodTable | None = None
    """Own ledger table, with the rows that the server side's `feedback` returns"""
    progress: ProgressColumn | None = None
    """Column of that table in the live table"""
    figure: MethodFigure | MethodMap | None = None
    """Figure of that table in the report"""
    note: Callable[[ModelProfile, Any], str | None] = lambda profile, options: None
    """(described model, options) -> a sentence that a user should read before the run, such as that the model has not
    the layers that the method acts on; None: nothing to say"""


@dataclass(frozen=True)
class Refusals:
    """Scenarios that a method refuses. Functions give the reason as a sentence, or None if they refuse nothing."""

    privacy: Callable[[Any, TrainConfig], str | None] | None = None
    """(options, local training) -> why the server side would learn more of clients than a noisy mean
    (``privacy.unit = "client"``); by default single updates, if it needs any (`MethodPart.individual_updates`)"""
    corrections: Mapping[str, str] = field(default_factory=dict)
    """Name of an incompatible correction -> reason"""
    server_optimizers: tuple[str, ...] | None = None
    """Accepted server optimizers, if the method makes a server step of its own; None: all"""
    kinds: tuple[str, ...] = ()
    """Kinds of examples that it takes (``DataSet.kind``); empty: any"""
    asynchronous: Callable[[Any], str | None] = lambda options: None
    """options -> why asynchronous policies are refused; the reason names the key"""
    single_updates: Callable[[Any], str | None] = lambda options: None
    """The same for asynchronous policies whose server steps have one update each, such as fedasync"""
    tiers: str | None = None
    """Why there can be no aggregators between clients and server (``fleet.tiers``)"""
    partial_models: Callable[[Any], str | None] = lambda options: None
    """options -> why the whole model must be sent in both directions in every visit"""


@dataclass(frozen=True)
class MethodPart:
    """The fields that objectives and corrections have in common."""

    name: str
    title: str
    source: str
    """Authors, venue, year"""
    options: type[Options]
    neutral: str
    """Options that give FedAvg, or with a correction the objective alone"""
    client: str
    """Client side, ``module:Class``"""
    server: type[ServerStrategy] | type[ServerExtension] | None = None
    client_state: Callable[[Layout, Any], int] | None = None
    """(layout, options) -> numbers in the slots that the client side keeps between visits (`numbers_of_model`); None:
    it keeps none"""
    reports: tuple[str, ...] = ()
    """Names of the numbers in an update, beside those of every method"""
    individual_updates: Callable[[Any], bool] = lambda options: False
    """options -> whether the server side needs single updates beyond their weighted mean"""
    takes_losses: Callable[[Any], bool] = lambda options: False
    """options -> whether it takes other losses than the cross-entropy of classifiers (``train.loss``): its client side
    has no loss of its own, or that of `edge.training.block_model.BlockModel.criterion`"""
    needs_step_sum: bool = False
    """Whether it divides by how far a visit's steps go along one gradient (`TrainConfig.step_sum`), which is known of
    SGD alone: other optimizers (``train.optimizer``) are refused"""
    refusals: Refusals = Refusals()


@dataclass(frozen=True)
class ObjectiveSpec(MethodPart):
    """A method by its local objective and server side. What it leaves out is FedAvg's."""

    client: str = "edge.training.client_update:ClientUpdate"
    server: type[ServerStrategy] = ServerStrategy
    weights: Literal["size", "uniform"] = "size"
    """Default aggregation weights"""
    traffic: Traffic = Traffic()
    model: ModelChange = ModelChange()
    submodels: SubmodelRules | None = None
    """None: every client holds the whole model"""
    costs: Costs = Costs()
    evaluation: ModelEvaluation = ModelEvaluation()
    records: Records = Records()
    gathers_data: bool = False
    """Whether one client has the examples of all, whatever clients and partition the scenario names"""

    @property
    def numbers_down(self) -> tuple[str, ...]:
        """Names of the numbers in a download: the method's own, and those of its visits' variants."""
        return (*self.traffic.choices, *(() if self.submodels is None else self.submodels.variant.named()))


@dataclass(frozen=True)
class CorrectionSpec(MethodPart):
    """A correction that joins an objective: a client side that corrects gradients, and perhaps a server extension."""

    server: type[ServerExtension] | None = None
