"""Prices of visits in bytes and FLOPs, for round policies, budgets, ``check`` and replays.

Bytes are those of the real messages, which follow from shapes; FLOPs are the method's pass counts times the model's
FLOPs. The clock adds seconds and joules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from coordinator.methods.registry import Method
from coordinator.methods.spec import ChosenBlocks, Options
from costmodel.visits.work import Work, nominal_bytes, nominal_bytes_plain, nominal_flops
from edge.protocol import codec
from edge.protocol.config import Job, ModelProfile, TrainingPlan
from edge.protocol.payload import INPUT_GRADIENT, MODEL, Shapes


@dataclass(frozen=True)
class VisitPrice:
    """Bytes, FLOPs and local steps of one visit."""

    work: Work
    plan: TrainingPlan
    nominal_bytes: float
    """FedBR's Eq. 3"""
    nominal_flops: float
    """FedBR's Eq. 2"""


class VisitPricing:
    """Prices the visits of one run. ``up_shapes``: shapes of an upload."""

    def __init__(
        self, job: Job, method: Method, options: Options, description: ModelProfile, up_shapes: Shapes
    ) -> None:
        self._job, self._spec, self._options, self._description = job, method.objective, options, description
        self._bytes_up = codec.update_nbytes(job.run_id, job.reports, up_shapes)

    def train(self, choice: ChosenBlocks, down: Shapes, samples: int) -> VisitPrice:
        """A training visit to a client with ``samples`` examples, whose download has ``choice`` and shapes ``down``."""
        spec, options, layout = self._spec, self._options, self._description.layout
        blocks, plan = len(layout), self._job.train.plan(samples)
        passes = spec.pass_counts(blocks, options, choice) * plan.samples
        passes = passes + spec.once_per_visit_pass_counts(blocks, options, choice) * samples
        work = Work(
            codec.train_nbytes(self._job.run_id, tuple(choice), down),
            self._bytes_up,
            float((passes * self._description.flops).sum()),
            plan.steps,
        )
        alpha, tau, model = spec.nominal_alpha(blocks, options, choice), spec.nominal_period(options), layout.nbytes()
        return VisitPrice(
            work,
            plan,
            nominal_bytes_plain(model) if tau is None else nominal_bytes(alpha, blocks, tau, model),
            nominal_flops(alpha, blocks, plan.samples, self._plain_flops),
        )

    def download_only(self) -> VisitPrice:
        """A visit that downloads the whole model and trains nothing."""
        layout = self._description.layout
        nbytes = codec.train_nbytes(self._job.run_id, self._spec.choices, {MODEL: layout.shapes(layout.keys())})
        return VisitPrice(Work(nbytes, 0, 0.0), TrainingPlan(0, 0, 0), float(layout.nbytes()), 0.0)

    @cached_property
    def _plain_flops(self) -> float:
        """FLOPs of an ordinary training step per example."""
        flops = self._description.flops
        return float(flops.sum() - flops[0, INPUT_GRADIENT])
