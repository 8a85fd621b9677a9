"""One visit of one client as it is planned: what is sent, its price, and the keys of its random streams and files.

There is one price of a visit, for the round policies, the budgets, ``check`` and the replay of a run: bytes are those
of the real messages, which follow from shapes alone; FLOPs and steps are those of the method's compute plan. Nothing
here is timed or trained: seconds and joules are the clock's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Download, Models
from coordinator.methods.compute import ComputeContext, SharedContext, forward_passes, of_private_steps
from coordinator.methods.registry import Method
from coordinator.records import names
from coordinator.records.schema import LEFTOVER, Lengths, lengths
from coordinator.rounds.budget import Cost
from coordinator.rounds.split import SplitModel
from costmodel.fleet.codec_costs import codec_seconds
from costmodel.visits.work import Work, nominal_bytes, nominal_bytes_plain, nominal_flops
from edge.protocol import serialization
from edge.protocol.codecs.codecs import Codecs, unencoded
from edge.protocol.config import Job, ModelProfile, TrainConfig, TrainingPlan
from edge.protocol.messages import Choice, further_quantities
from edge.protocol.options.base import Options
from edge.protocol.payload import BASE, ITEM_NBYTES, MODEL, Shapes, step_flops
from edge.protocol.submodels import SliceMap, part_profile
from edge.protocol.variant import PLAIN, Variant

MOST_PRICES = 10_000
"""Kinds of visits whose prices are kept: a method's choices may be as many as its rounds"""


@dataclass(frozen=True)
class VisitPrice:
    """Bytes, FLOPs and local steps of one visit."""

    work: Work
    plan: TrainingPlan
    nominal_bytes: float
    """FedBR's Eq. 3"""
    nominal_flops: float
    """FedBR's Eq. 2"""
    exact: bool = True
    """Whether the worker's own count of FLOPs must be the same (`coordinator.methods.compute.Compute.exact`)"""
    down: Lengths = field(default_factory=dict)
    """Bytes of each downloaded vector"""
    up: Lengths = field(default_factory=dict)
    """Bytes of each uploaded vector, or bounds on them where a codec's lengths depend on numbers"""
    is_measured: bool = False
    """Whether these were bounds, and now are what training gave"""
    rates: Mapping[float, float] = field(default_factory=lambda: {1.0: 1.0})
    """Rate of a part of the model -> share of the visit's FLOPs; also of the client's own part, where that is 0"""

    server_flops: float = 0.0
    """FLOPs of the visit's training that the server's device executes (`coordinator.rounds.split`)"""

    @property
    def rate(self) -> float:
        """The rate of the client's own part, the widest."""
        return max(self.rates)


class VisitPricing:
    """Prices the visits of one run. ``up_shapes``: shapes of an upload."""

    def __init__(
        self,
        job: Job,
        method: Method,
        options: Options,
        description: ModelProfile,
        up_shapes: Shapes,
        codecs: Codecs,
        split: SplitModel | None = None,
    ) -> None:
        self._job, self._method, self._options, self._description = job, method, options, description
        self._split = split
        if split is not None:
            up_shapes = split.charged(up_shapes)
        self._spec = method.objective
        self._rate = 1.0
        self._of_rates: dict[float, VisitPricing] = {}
        """Prices of visits that have parts of the model"""
        self._variants = dict(zip(job.variants, description.variant_flops, strict=True))
        self._codecs, self._up_shapes, self._bounds = codecs, up_shapes, codecs.up.codecs.lengths(up_shapes)
        self.is_fixed_length = codecs.up.is_fixed_length(up_shapes)
        """Whether lengths of uploads follow from shapes alone"""
        stages, fed_back = codecs.up_stages(up_shapes)
        self._encoding_seconds = codec_seconds(stages, "encode") + codec_seconds(fed_back, "decode")
        self._plain_flops = step_flops(description.flops)
        """FLOPs of an ordinary training step per example"""
        self._shared: dict[Hashable, VisitPrice | None] = {}
        """(choice, variant, shapes and frames of the download, examples, local epochs) -> price of all such visits;
        None if each has its own"""

    def of_visit(self, variant: Variant) -> VisitPricing:
        """The prices of visits of this variant, which may have a part of the model."""
        rate = variant.share
        if rate in (1, self._rate):
            return self
        if rate not in self._of_rates:
            slices = SliceMap(self._description.axes, rate)
            up = {slot: slices.of(sizes) for slot, sizes in self._up_shapes.items()}
            part = part_profile(self._description, rate)
            codecs = self._codecs.of(Variant(rate))
            self._of_rates[rate] = VisitPricing(self._job, self._method, self._options, part, up, codecs)
            self._of_rates[rate]._rate = rate
        return self._of_rates[rate]

    def train(
        self,
        choice: Choice,
        down: Shapes,
        samples: int,
        client: int,
        rng_round: int,
        encoded: Lengths | None = None,
        variant: Variant = PLAIN,
    ) -> VisitPrice:
        """A training visit to a client with ``samples`` examples, whose download has ``choice`` and shapes ``down``.

        ``encoded``: bytes of the vectors of it that a codec has encoded. ``rng_round`` is the key of the visit's random
        streams, as of `PlannedVisit`.
        """
        part = self if variant.rate is None else self.of_visit(variant)
        if part is not self:
            return part.train(choice, down, samples, client, rng_round, encoded, variant)
        train = self._job.train.of_visit(self._job.seed, rng_round, client)
        sent = tuple((slot, tuple(sizes.items())) for shapes in (down, encoded or {}) for slot, sizes in shapes.items())
        alike = tuple(choice.items()), variant, sent, samples, train.local_epochs
        price = self._shared.get(alike)
        if price is None:
            kind = ComputeContext if alike in self._shared else SharedContext
            context = self._context(choice, variant, train, samples, client, rng_round, kind)
            price = self._price(context, down, encoded or {})
            if isinstance(context, SharedContext):
                if len(self._shared) >= MOST_PRICES:
                    self._shared.clear()
                self._shared[alike] = None if context.is_individual else price
        return price

    def with_base(self, price: VisitPrice) -> VisitPrice:
        """The price of a visit with which the frozen base comes: the first of a client, until one has downloaded it."""
        nbytes = ITEM_NBYTES * int(self._description.frozen.sum())
        work = replace(price.work, bytes_down=price.work.bytes_down + nbytes)
        return replace(price, work=work, down={**price.down, BASE: {"frozen": nbytes}})

    def sent(self, visit: PlannedVisit, encoded: Lengths) -> PlannedVisit:
        """A visit with the real lengths of the frames of its upload, in place of bounds on them.

        ``encoded`` may have the lengths of vectors that travel as they are, too.
        """
        return replace(visit, price=self.of_visit(visit.dispatch.variant)._measured(visit.price, encoded))

    def _measured(self, price: VisitPrice, encoded: Lengths) -> VisitPrice:
        encoded = {
            slot: {key: frames[key] for key in bounds if key in frames}
            for slot, bounds in self._bounds.items()
            if (frames := encoded.get(slot))
        }
        raw = unencoded(self._up_shapes, encoded)
        nbytes = serialization.update_nbytes(self._job.run_id, self._job.reports, raw, encoded)
        work, up = replace(price.work, bytes_up=nbytes), lengths(self._up_shapes, encoded)
        return replace(price, work=work, up=up, is_measured=True)

    def _price(self, context: ComputeContext, down: Shapes, encoded: Lengths) -> VisitPrice:
        spec, choice, layout = self._spec, context.choice, self._description.layout
        compute, plan = spec.costs.compute(context), context.plan
        if self._job.privacy.unit == "example":
            compute = of_private_steps(compute, context, sum(block.params for block in layout.blocks))
        if self._split is not None:
            down = self._split.charged(down)
        alpha = spec.costs.nominal_alpha(len(layout), self._options, choice)
        tau = spec.costs.nominal_period(self._options)
        names, variant = (*choice, *context.variant.named()), context.variant
        bytes_down = serialization.train_nbytes(self._job.run_id, names, unencoded(down, encoded), encoded)
        encoded_up = self._codecs.of(variant).up.codecs.lengths(self._up_shapes)
        raw_up = unencoded(self._up_shapes, encoded_up)
        bytes_up = serialization.update_nbytes(self._job.run_id, self._job.reports, raw_up, encoded_up)
        model = layout.nbytes()
        nominal = nominal_bytes_plain(model) if tau is None else nominal_bytes(alpha, len(layout), tau, model)
        if not spec.traffic.contacts_server:
            bytes_down, bytes_up, nominal = 0, 0, 0.0
        seconds = self._encoding_seconds + codec_seconds(self._codecs.down.stages(encoded, down), "decode")
        work = Work(bytes_down, bytes_up, compute.flops(self._description.flops), compute.steps, seconds)
        flops = nominal_flops(alpha, len(layout), plan.samples, self._plain_flops)
        sent = lengths(down, encoded), lengths(self._up_shapes, encoded_up)
        if self._split is not None:
            exchange, *more = self._split.exchange(self._job.run_id, context, compute)
            work = replace(
                work,
                bytes_down=bytes_down + exchange.bytes_down,
                bytes_up=bytes_up + exchange.bytes_up,
                flops=self._split.client_flops(compute),
                codec_seconds=self._split.codec_seconds(context),
                exchange=exchange,
            )
            sent = {**sent[0], **more[0]}, {**sent[1], **more[1]}
            server_flops = compute.flops(self._description.flops) - work.flops
            return VisitPrice(work, plan, nominal, flops, compute.exact, *sent, server_flops=server_flops)
        rates = {rate: narrower / work.flops for rate, narrower in compute.narrower_flops.items() if narrower}
        rates[self._rate] = 1.0 - sum(rates.values())
        return VisitPrice(work, plan, nominal, flops, compute.exact, *sent, rates=rates)

    def download_only(self) -> VisitPrice:
        """A visit that downloads the whole model and trains nothing."""
        layout = self._description.layout
        model = {MODEL: layout.shapes(layout.keys())}
        nbytes = serialization.train_nbytes(self._job.run_id, self._spec.numbers_down, model)
        work, nothing = Work(nbytes, 0, 0.0), TrainingPlan(0, 0, 0)
        return VisitPrice(work, nothing, float(layout.nbytes()), 0.0, down=lengths(model))

    def evaluation(self, down: Shapes, examples: int, samples: int) -> VisitPrice:
        """A visit that evaluates a client's model, of which shapes ``down`` are sent, in ``examples`` forward passes.

        An adaptation before it (``eval.adapt``) trains on its ``samples`` training examples; only that takes steps. The
        method may choose the model by forward passes over these. The values go up, beside vectors of some methods.
        The nominal cost is 0: papers charge training alone.
        """
        job, description = self._job, self._description
        forwards = examples + samples * self._spec.costs.evaluation_forwards(self._options)
        passes, plan = forwards * forward_passes(len(description.layout)), TrainingPlan(0, 0, 0)
        steps, further_flops = 0, 0.0
        if job.adapt_epochs:
            train = replace(job.train, local_epochs=job.adapt_epochs, local_steps=None)
            context = self._context({}, PLAIN, train, samples)
            compute, plan = self._spec.costs.adaptation(context), context.plan
            passes = passes + compute.passes
            steps, further_flops = compute.steps, compute.further_flops
        up = self._spec.costs.evaluation_up(description.layout, self._options)
        numbers = (*job.reports, *(quantity.name for quantity in further_quantities(job)))
        work = Work(
            serialization.train_nbytes(job.run_id, self._spec.numbers_down, down),
            serialization.update_nbytes(job.run_id, numbers, up),
            float((passes * description.flops).sum()) + further_flops,
            steps,
        )
        return VisitPrice(work, plan, 0.0, 0.0, down=lengths(down), rates={self._rate: 1.0})

    def _context(
        self,
        choice: Choice,
        variant: Variant,
        train: TrainConfig,
        samples: int,
        client: int | None = None,
        round: int = 0,
        kind: type[ComputeContext] = ComputeContext,
    ) -> ComputeContext:
        """The context of ``client``, or of no client in particular, with ``samples`` training examples."""
        description, held_out = self._description, self._description.validation_samples
        return kind(
            layout=description.layout,
            options=self._options,
            choice=choice,
            variant=variant,
            train=train,
            plan=train.plan(samples),
            samples=samples,
            flops=description.flops,
            seed=self._job.seed,
            variants=self._variants,
            outputs=description.outputs,
            part_flops=description.flops_by_rate,
            unit_flops=description.unit_flops,
            client=client or 0,
            round=round,
            validation=0 if client is None or client >= len(held_out) else int(held_out[client]),
        )


@dataclass(frozen=True)
class PlannedVisit:
    """One visit before it starts."""

    number: int
    """In the order in which visits start"""
    rng_round: int
    """Key of the client's random streams and of its state's file, beside the client: the round, or in asynchronous
    policies the visit's number, since a client may be visited twice in a round"""
    round: int
    """Server steps before it starts"""
    lr: float
    dispatch: Download
    kind: str
    """``train``, ``listen``, ``evaluate`` or ``leftover``"""
    price: VisitPrice
    down: Shapes
    """Shapes of its download"""
    start: Models | None = None
    """The models that it starts from, once it has begun in an asynchronous policy; else the server has them"""

    def numbered(self, number: int) -> PlannedVisit:
        """The same with another number; rounds have many visits, and this takes a fifth of `replace`."""
        more = self.dispatch, self.kind, self.price, self.down, self.start
        return PlannedVisit(number, self.rng_round, self.round, self.lr, *more)

    def priced(self, price: VisitPrice) -> PlannedVisit:
        """The same at another price."""
        more = self.dispatch, self.kind, price, self.down, self.start
        return PlannedVisit(self.number, self.rng_round, self.round, self.lr, *more)

    @property
    def client(self) -> int:
        """The visited client."""
        return self.dispatch.client

    @property
    def work(self) -> Work:
        """Bytes, FLOPs and steps."""
        return self.price.work

    @property
    def plan(self) -> TrainingPlan:
        """Amount of local training."""
        return self.price.plan

    @property
    def state_name(self) -> str:
        """The file of its client's state after it."""
        return names.of_visit(self.client, self.rng_round)


def upper_bounds(
    visits: Sequence[PlannedVisit], joules: NDArray[np.float64], seconds: NDArray[np.float64]
) -> list[Cost]:
    """Costs of visits with these energies and durations, (visits,) each."""
    return [
        Cost(visit.work.bytes_down, visit.work.bytes_up, visit.work.flops, *both)
        for visit, *both in zip(visits, joules.tolist(), seconds.tolist(), strict=True)
    ]


def begins(visits: Sequence[PlannedVisit]) -> list[PlannedVisit]:
    """The visits among these that begin, and are not what is left of a late visit."""
    return [visit for visit in visits if visit.kind != LEFTOVER]
