"""Methods whose compute plans are not the same for every visit, or have more than one phase.

Their client sides are in `tests.plugins.drawn_client`.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, forward_passes, trained
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.base import Options

CLIENT = "tests.plugins.drawn_client"
MOST_FORWARDS = 3


def drawn(context: ComputeContext) -> Compute:
    """The draws of the client side, in its order: further forward passes of each batch."""
    rng = context.rng("drawn")
    further = sum(int(rng.integers(MOST_FORWARDS)) * examples for examples in context.batches)
    plain = trained(context, fedavg_passes(context.blocks))
    return replace(plain, passes=plain.passes + forward_passes(context.blocks, further))


def expected(context: ComputeContext) -> Compute:
    """The mean of the draws."""
    mean = (MOST_FORWARDS - 1) / 2
    passes = fedavg_passes(context.blocks) + forward_passes(context.blocks, mean)
    return replace(trained(context, passes), exact=False)


def too_little(context: ComputeContext) -> Compute:
    """Less than a tenth of what is executed."""
    return replace(trained(context, fedavg_passes(context.blocks) / 100), exact=False)


def two_phases(context: ComputeContext) -> Compute:
    """Twice the local epochs."""
    return replace(trained(context, 2 * fedavg_passes(context.blocks)), steps=2 * context.plan.steps)


def spec(name: str, client: str, **fields: object) -> ObjectiveSpec:
    """A spec of this client side."""
    made = ObjectiveSpec(name, name, "a test", Options, "none", client=f"{CLIENT}:{client}")
    return replace(made, **fields)  # type: ignore[arg-type]


DRAWN = spec("drawn", "DrawnForwards", costs=Costs(compute=drawn))
EXPECTED = spec("expected", "DrawnForwards", costs=Costs(compute=expected))
TOO_LITTLE = spec("too-little", "DrawnForwards", costs=Costs(compute=too_little))
TWO_PHASES = spec("two-phases", "TwoPhases", costs=Costs(compute=two_phases))
ONE_FORESEEN = spec(
    "one-foreseen",
    "TwoPhases",
    costs=Costs(compute=lambda context: replace(two_phases(context), steps=context.plan.steps)),
)
