"""The costs of a method relative to FedAvg on one model: bytes of a visit, FLOPs of a training step, and storage.

A visit is one of a client that has been visited before, like many others: the server has stored vectors of each.
Costs follow from a method's spec and server side with default options; nothing is trained, and torch is not loaded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import ServerContext, ServerStrategy
from coordinator.methods.compute import ComputeContext
from coordinator.methods.registry import Method, resolve
from coordinator.methods.spec import Options
from edge.protocol import codec
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Choice
from edge.protocol.payload import FORWARD, INPUT_GRADIENT, BlockShape, Layout, Vector, initial_slot

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
"""(blocks, 4): per example, a column per type of pass; counted by `edge.training.describe`."""
OUTPUTS = np.array([[64, 32, 32], [64, 32, 32], [128, 16, 16], [256, 8, 8], [512, 4, 4], [100, 1, 1]])
"""(blocks, 3): channels, height and width of each block's output"""
UNIT_MACS = np.array(
    [
        *2 * [[75_497_472, 75_497_472, 37_748_736, 37_748_736]],
        *3 * [[56_623_104, 56_623_104, 37_748_736, 18_874_368], [75_497_472, 75_497_472, 37_748_736, 37_748_736]],
    ]
)
"""(units, 4): of the bodies of its residual units, of two 3x3 convolutions each."""
RUN_ID = "0123456789abcdef"
CLASSES = 100
CLIENTS = 100
EXAMPLES = 100
"""Examples of a client, of which the method may hold some out of training"""
STEPS = TrainConfig(batch=1)
"""Training with a step per example, each once"""
NO_FILE = ""
LATE = 1000
"""A round after every warm-up."""


@dataclass(frozen=True)
class MethodCosts:
    """The costs of a method relative to FedAvg on `MODEL_NAME`."""

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

    def plain(self) -> dict[str, Any]:
        """For ``--json``."""
        sizes = {"model_bytes": LAYOUT.nbytes(), "model_numbers": sum(LAYOUT.sizes.values())}
        return {"model": MODEL_NAME, **sizes, **asdict(self)}


def method_costs(name: str) -> MethodCosts:
    """The costs of a method with its default options; a correction joins FedAvg."""
    method = resolve(name)
    spec, options, server_side = method.objective, method.options(), _server(method)
    plain = resolve("fedavg")
    plain_down, plain_up = _message_nbytes(plain, _server(plain))
    down, up = _message_nbytes(method, server_side)
    choices = server_side.possible_choices() or [server_side.choose(0, LATE)]
    compute = [_compute(method, options, choice) for choice in choices]
    return MethodCosts(
        down - plain_down,
        up - plain_up,
        spec.down(options) is None,
        (min(compute), max(compute)),
        sum(sum(named.values()) for named in server_side.store_shapes().values()),
        _stored_on_client(method, options, server_side.setup),
    )


def _layout(method: Method) -> Layout:
    """The model's layout as the method changes it."""
    return method.objective.wrapped_layout(LAYOUT, method.options())


def _macs(layout: Layout) -> NDArray[np.float64]:
    """`MACS` of a layout's blocks; a block that the method adds is priced as a linear layer of as many numbers."""
    rows = dict(zip(LAYOUT.names, MACS.tolist(), strict=True))
    added = {block.name: [block.params, block.params, 0, block.params] for block in layout.blocks}
    return np.array([(added | rows)[name] for name in layout.names], np.float64)


def _stored_on_client(method: Method, options: Options, setup: ServerContext) -> int:
    kept = method.objective.kept_blocks(setup.layout, setup.down, options)
    return sum(setup.layout.shapes(kept).values()) + method.state_numbers(options, setup.layout)


def _compute(method: Method, options: Options, choice: Choice) -> float:
    """FLOPs in units of three forward passes; papers also count an input gradient of the images, never computed."""
    spec, layout = method.objective, _layout(method)
    macs = _macs(layout)
    validation = round(spec.validation * EXAMPLES)
    samples = EXAMPLES - validation
    # As convolutions scale, on average: channels in and out with the width, places with the area.
    variants = {(width, height): macs * width**2 * height**2 for width, height in spec.variants(options)}
    context = ComputeContext(
        layout,
        options,
        choice,
        STEPS,
        STEPS.plan(samples),
        samples=samples,
        flops=macs,
        validation=validation,
        variants=variants,
        outputs=OUTPUTS,
        unit_flops=UNIT_MACS,
    )
    flops = spec.compute(context).flops(macs) / samples
    return float((flops + MACS[0, INPUT_GRADIENT]) / (3 * MACS[:, FORWARD].sum()))


def _message_nbytes(method: Method, server_side: ServerStrategy) -> tuple[int, int]:
    """(downloaded, uploaded) bytes of the messages of one visit."""
    if not method.objective.contacts_server:
        return 0, 0
    choice = server_side.download(0, LATE).choice
    down = server_side.download_shapes(0, LATE, choice)
    return (
        codec.train_nbytes(RUN_ID, tuple(choice), down),
        codec.update_nbytes(RUN_ID, method.reports, server_side.up_shapes()),
    )


def _server(method: Method) -> ServerStrategy:
    """The method's server side with models of zeros, and with vectors of each of its clients."""
    options, objective, layout = method.options(), method.objective, _layout(method)
    down, up = method.travels(options, layout, None, None)
    zeros = {key: Vector(np.zeros(size, np.float32)) for key, size in layout.sizes.items()}
    setup = ServerContext(
        layout=layout,
        initial={initial_slot(index): zeros for index in range(objective.initial_models(options))},
        options=method.options_of(options, objective),
        weights=objective.weights,
        down=down,
        up=up,
        seed=0,
        samples=np.ones(CLIENTS, np.int64),
        histogram=np.zeros((CLIENTS, CLASSES), np.int64),
    )
    parts = [
        spec.server(replace(setup, options=method.options_of(options, spec)))
        for spec in method.corrections
        if spec.server
    ]
    server_side = objective.server(setup, parts)
    slots = server_side.store_shapes()
    # Prices need shapes alone, so that no file is read.
    server_side.store.restore({(client, slot): NO_FILE for client in range(CLIENTS) for slot in slots})
    return server_side
