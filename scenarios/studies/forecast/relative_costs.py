"""The costs of methods beside FedAvg's on one model: bytes of a visit, FLOPs of a training step, and storage.

They are those of visits in some rounds of a run that trains nothing (`scenarios.run.untrained`), with default options.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np

from coordinator.methods.registry import resolve
from coordinator.rounds.visit import PlannedVisit
from costmodel.clock import Clock
from costmodel.visits.work import Work
from edge.protocol.config import ModelProfile
from edge.protocol.payload import FORWARD, INPUT_GRADIENT, PASS_TYPES, BlockShape, Layout
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import KeyValues
from scenarios.run.setup import Setup
from scenarios.run.untrained import UntrainedRun

MODEL_NAME = "resnet18, 32x32 images of 100 classes"
LAYOUT = Layout(
    (
        BlockShape("stem", 1_856),
        BlockShape("stage1", 147_968),
        BlockShape("stage2", 525_568),
        BlockShape("stage3", 2_099_712),
        BlockShape("stage4", 8_393_728),
        BlockShape("head", 51_300),
    )
)
MACS = np.array(
    [
        [1_769_472, 1_769_472, 0, 1_769_472],
        [150_994_944, 150_994_944, 113_246_208, 37_748_736],
        [134_217_728, 134_217_728, 113_246_208, 20_971_520],
        [134_217_728, 134_217_728, 113_246_208, 20_971_520],
        [134_217_728, 134_217_728, 113_246_208, 20_971_520],
        [51_200, 51_200, 0, 51_200],
    ]
)
"""(blocks, 4): per example, a column per type of pass; counted by `edge.training.counts`."""
OUTPUTS = np.array([[64, 32, 32], [64, 32, 32], [128, 16, 16], [256, 8, 8], [512, 4, 4], [100, 1, 1]], np.float64)
"""(blocks, 3): channels, height and width of each block's output"""
UNIT_MACS = np.array(
    [
        *2 * [[75_497_472, 75_497_472, 37_748_736, 37_748_736]],
        *3 * [[56_623_104, 56_623_104, 37_748_736, 18_874_368], [75_497_472, 75_497_472, 37_748_736, 37_748_736]],
    ],
    np.float64,
)
"""(units, 4): of the bodies of its residual units, of two 3x3 convolutions each."""
CLASSES = 100
CLIENTS = 100
EXAMPLES = 100
"""Examples of a client, of which the method may hold some out of training"""
ROUNDS = 4
SETTING: KeyValues = {
    "method": "fedavg",
    "method_options": {},
    "model.norm": "group",
    "rounds.max": 1001,
    "data.clients": CLIENTS,
    "train.batch": 1,
    "train.local_epochs": 1,
}
"""A step per example, each once; the last round is after every warm-up."""


@dataclass(frozen=True)
class MethodCosts:
    extra_bytes_down: int
    """Additional bytes of a visit's message with its header; the maximum if the method chooses for each visit."""
    extra_bytes_up: int
    chosen_per_visit: bool
    """Whether the method chooses the download for each visit, so that it may be smaller."""
    relative_compute: tuple[float, float]
    """(minimum, maximum) per training step of one local epoch, in units of three forward passes, as papers count.
    Operations on parameter vectors are not counted."""
    stored_on_server: int
    """Numbers that the server stores for each client between visits, beside its models"""
    stored_on_client: int
    """Numbers that a client keeps between visits"""

    def plain(self) -> dict[str, object]:
        """For ``--json``."""
        sizes = {"model_bytes": LAYOUT.nbytes(), "model_numbers": sum(LAYOUT.sizes.values())}
        return {"model": MODEL_NAME, **sizes, **asdict(self)}


@cache
def method_costs(name: str) -> MethodCosts:
    """The costs of a method with its default options; a correction joins FedAvg."""
    setup, plain = _setup(name), _fedavg()
    visits, layout, method = _visits(setup), setup.description.layout, setup.loaded.method
    works = [visit.work for visit in visits]
    # Papers also count an input gradient of the images, which is never computed.
    compute = [
        float((work.flops / samples + MACS[0, INPUT_GRADIENT]) / (3 * MACS[:, FORWARD].sum()))
        for work, samples in zip(works, (visit.plan.samples for visit in visits), strict=True)
    ]
    kept = layout.shapes(setup.job.kept_blocks)
    return MethodCosts(
        max(work.bytes_down for work in works) - plain.bytes_down,
        works[0].bytes_up - plain.bytes_up,
        method.objective.traffic.down(setup.loaded.options) is None,
        (min(compute), max(compute)),
        sum(sum(sizes.values()) for sizes in setup.server_of_zeros().store_shapes().values()),
        sum(kept.values()) + method.state_numbers(setup.loaded.options, layout),
    )


@cache
def _fedavg() -> Work:
    """Work of a visit, with which that of every other method is compared."""
    return _visits(_setup("fedavg"))[0].work


def _visits(setup: Setup) -> list[PlannedVisit]:
    """The visits of some rounds of a run; of the first, some methods send less."""
    run = UntrainedRun(setup, Clock(setup.fleet))
    run.play(ROUNDS)
    return [visit for round in run.rounds[1:] for visit in round.visits]


def _setup(name: str) -> Setup:
    """A run with the method; a block that it adds is priced as a linear layer of as many numbers."""
    method = resolve(name)
    spec, options = method.objective, method.options()
    layout = spec.model.wrapped_layout(LAYOUT, options)
    rows = dict(zip(LAYOUT.names, MACS.tolist(), strict=True))
    added = {block.name: [block.params, block.params, 0, block.params] for block in layout.blocks}
    macs = np.array([(added | rows)[block] for block in layout.names], np.float64)
    # As convolutions scale, on average: channels in and out with the width, places with the area.
    variants = [macs * width**2 * height**2 for width, height in spec.costs.variants(options)]
    held_out = round(spec.evaluation.validation * EXAMPLES)
    description = ModelProfile(
        layout=layout,
        family="conv",
        flops=macs,
        activations=np.zeros(len(layout)),
        data_sha256="",
        data_source="",
        classes=CLASSES,
        test_count=0,
        samples=np.full(CLIENTS, EXAMPLES - held_out),
        histogram=np.zeros((CLIENTS, CLASSES), np.int64),
        test_samples=np.zeros(CLIENTS, np.int64),
        validation_samples=np.full(CLIENTS, held_out),
        variants=np.array(variants).reshape(-1, PASS_TYPES),
        outputs=OUTPUTS,
        unit_flops=UNIT_MACS,
    )
    return Setup.of(replace(_setting(), name=name, method=method, options=options), description)


@cache
def _setting() -> Loaded:
    return load("fedbr-cifar100", SETTING)
