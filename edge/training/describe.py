"""The profile of a model before round 0: blocks, initial vectors, FLOPs and activations per block.

Nothing is measured here: both are counted on tensors without memory, so they are the same on every machine.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge.data.atomic_cache import text_once
from edge.data.registry import DataSet, ExampleKind
from edge.models.layers import residual_units
from edge.models.registry import model
from edge.models.user_module import check_chain, make_module
from edge.protocol.config import Job, ModelConfig
from edge.protocol.operations import KINDS
from edge.protocol.options.base import Options
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    ITEM_NBYTES,
    PASS_TYPES,
    WEIGHT_GRADIENT,
    Payload,
    initial_slot,
    step_flops,
)
from edge.protocol.rng import keyed_generator
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.count_operations import operations_of

Flops = NDArray[np.float64]
Activations = NDArray[np.float64]
Shape = Sequence[int]

EXAMPLES = 2  # batch statistics need more than one


def seeded(seed: int, make: Callable[[], list[Block]], index: int = 0) -> Callable[[], list[Block]]:
    """``make`` with torch's random state set from (seed, init), and restored afterwards.

    ``index``: of further, independent initialisations, 1, 2, .. Torch's default initialisation draws from the global
    state; this is the only place that sets it.
    """
    key = (index,) if index else ()

    def build() -> list[Block]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(keyed_generator(seed, "init", *key).integers(2**62)))
            return make()

    return build


def initial(net: BlockModel, seed: int, make: Callable[[], list[Block]], count: int, draw: int = 0) -> Payload:
    """All vectors of ``count`` independent initialisations of a model (`initial_slot`), in this draw, 0, 1, ..

    The first of draw 0 is ``net`` as it is now.
    """
    payload = {}
    for index in range(count):
        number = draw * count + index
        model = BlockModel(seeded(seed, make, number), net.device, net.memory_format, net.by_layer) if number else net
        payload[initial_slot(index)] = model.dump(net.layout.sizes)
    return payload


def check_module(config: ModelConfig, dataset: DataSet) -> None:
    """ValueError if the model is a user's module whose forward is not the chain of its blocks (`check_chain`)."""
    row = model(config.name)
    if row.children:
        rng, shape = keyed_generator(0, "describe"), (EXAMPLES, *dataset.shape)
        drawn = (
            rng.standard_normal(shape, np.float32)
            if dataset.vocabulary is None
            else rng.integers(0, dataset.vocabulary, shape)
        )
        width = row.width if config.width is None else config.width
        module = make_module(row, dataset.classes, dataset.inputs, width)
        check_chain(row, module, torch.from_numpy(drawn), dataset.classes)


def check_single_examples(
    make: Callable[[], list[Block]], dataset: DataSet, job: Job, samples: NDArray[np.int64]
) -> None:
    """ValueError if a client trains on batches of one example, of which the model cannot have batch statistics.

    ``samples``: (clients,), the training examples of each.
    """
    train = job.train
    epoch = replace(train, local_epochs=1, local_steps=None)
    for client, held in enumerate(samples.tolist()):
        plans = [train.plan(held), *([epoch.plan(held)] if job.adapt_epochs else [])]
        has_short = held % train.batch == 1 and not train.drop_last
        is_reached = any(0 < plan.epoch_steps <= plan.steps for plan in plans)
        if (has_short and is_reached) or (train.batch == 1 and held):
            _check_single_example(make, dataset, f"client {client} has {held} examples", train.batch)
            return


def _check_single_example(make: Callable[[], list[Block]], dataset: DataSet, reason: str, batch: int) -> None:
    try:
        with torch.device("meta"):
            x = _examples(dataset.shape, dataset.kind)[:1]
            for _, module in make():
                x = module(x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"train.batch = {batch}: {reason}, one of them in a batch of its own, and batch statistics need two "
            "numbers per channel; choose another batch, train.drop_last = true, or model.norm = group"
        ) from None


def flops_per_example(make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image") -> Flops:
    """FLOPs per example of each block: (blocks, 4), a column per pass type (`edge.protocol.payload`).

    ``shape``: of an example. Counted on tensors without memory; convolutions and matrix products are counted,
    element-wise work, normalisation and the rows of an embedding are not. 1 MAC = 2 FLOPs. Tokens have no gradient, so
    that all gradients of a block that takes them are its weights'.
    """
    with torch.device("meta"):
        modules = [module for _, module in make()]
        x = _examples(shape, kind)
    flops = np.zeros((len(modules), PASS_TYPES))
    for row, module in zip(flops, modules, strict=True):
        row[:] = _pass_flops(module, module, x)
        x = module(x).detach()
    return flops


def unit_flops_per_example(
    make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image"
) -> tuple[NDArray[np.int64], Flops]:
    """`ModelProfile.unit_blocks` and `ModelProfile.unit_flops`, counted as by `flops_per_example`.

    The gradient for a unit's input is not counted where no layer before the unit learns, and none is computed.
    """
    blocks, inputs = dict[nn.Module, int](), dict[nn.Module, torch.Tensor]()
    with torch.device("meta"):
        modules = [module for _, module in make()]
        x = _examples(shape, kind)
    for index, module in enumerate(modules):
        for unit in residual_units([module]):
            blocks[unit] = index
            unit.register_forward_pre_hook(lambda unit, args: inputs.update({unit: args[0]}))
        x = module(x)
    flops = np.zeros((len(blocks), PASS_TYPES))
    for row, unit in zip(flops, residual_units(modules), strict=True):
        row[:] = _pass_flops(unit, unit.residual, inputs[unit].detach())
        row[INPUT_GRADIENT] *= inputs[unit].requires_grad
    return np.array([*blocks.values()], np.int64), flops


def _pass_flops(module: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Flops:
    """(4,): FLOPs per example of ``run``, which has parameters of ``module``, by type of pass."""
    both = _backward(module, run, x, weights=True, inputs=True)
    frozen = _backward(module, run, x, weights=False, inputs=True)
    branch = _backward(module, run, x, weights=True, inputs=False)
    row = np.zeros(PASS_TYPES)
    row[FORWARD] = count_flops(lambda: run(x))
    row[WEIGHT_GRADIENT], row[INPUT_GRADIENT] = both - frozen, both - branch
    row[INNER_GRADIENT] = frozen + branch - both
    return row / EXAMPLES


def _examples(shape: Shape, kind: ExampleKind, examples: int = EXAMPLES) -> torch.Tensor:
    return torch.empty((examples, *shape), dtype=torch.int64 if kind == "tokens" else torch.float32)


def _backward(
    module: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, weights: bool, inputs: bool
) -> int:
    module.requires_grad_(weights)
    y = run(x.detach().requires_grad_(inputs and x.is_floating_point()))
    return count_flops(lambda: torch.autograd.backward(y, torch.empty_like(y))) if y.requires_grad else 0


def count_flops(work: Callable[[], object]) -> int:
    """FLOPs of convolutions, matrix products and their gradients, while ``work`` runs."""
    from torch.utils.flop_counter import FlopCounterMode  # takes half a second, which cached counts do not need

    mapping = {torch.ops.aten.convolution_backward: _convolution_gradients}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        work()
    return int(counter.get_total_flops())


def _convolution_gradients(grad: Shape, images: Shape, weight: Shape, *more: Any, **_: Any) -> int:
    """FLOPs of a convolution's gradients, each with the FLOPs of the forward pass.

    Torch's count (2.15) of a weight gradient is too large by the factor of the groups, which are the channels in a
    depthwise convolution. The arguments are those of ``aten::convolution_backward``, with shapes for tensors.
    """
    *_others, transposed, _output_padding, _groups, (for_images, for_weights, _for_bias) = more
    places = math.prod((images if transposed else grad)[2:])
    return 2 * grad[0] * places * math.prod(weight) * (int(for_images) + int(for_weights))


def activations_per_example(
    make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image", is_wrapped: bool = False
) -> Activations:
    """Floats per example that each block stores for its backward pass while the whole model trains: (blocks,).

    ``shape``: of an example. Counted are the tensors that autograd saves, in units of 4 bytes, without
    parameters and buffers. A tensor of several blocks counts once, for the last of them, so the sum over the last
    blocks is also that of training those alone. Tensors that do not grow with the batch (batch statistics) are counted
    as if they did, but not in a model that a method has wrapped, whose mixed weights would count per example; the loss
    and the libraries' workspaces are not counted.
    """
    if is_wrapped:
        few, many = (_stored_floats(make, shape, kind, examples) for examples in (EXAMPLES, 2 * EXAMPLES))
        return (many - few) / EXAMPLES
    return _stored_floats(make, shape, kind, EXAMPLES) / EXAMPLES


def _stored_floats(make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind, examples: int) -> Activations:
    """(blocks,): floats that each block stores for the backward pass of a batch."""
    with torch.device("meta"):
        modules = [module for _, module in make()]
        x = _examples(shape, kind, examples)
    saved = []
    for module in modules:
        x, storages = _saved(module, x)
        saved.append(storages)
    floats, counted = np.zeros(len(modules)), set[torch.UntypedStorage]()
    for index in reversed(range(len(modules))):
        floats[index] = sum(storage.nbytes() for storage in saved[index] - counted) / ITEM_NBYTES
        counted |= saved[index]
    return floats


def _saved(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, set[torch.UntypedStorage]]:
    """(output, storages of the tensors that autograd saves, without parameters and buffers)."""
    model_storages = {tensor.untyped_storage() for tensor in (*module.parameters(), *module.buffers())}
    storages: set[torch.UntypedStorage] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # A view keeps its whole storage alive; torch has one object per storage.
        storages.add(tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = module(x)
    return y, storages - model_storages


class ModelCounts(NamedTuple):
    """What is counted of a model on the examples of one data set."""

    flops: Flops
    """`flops_per_example`"""
    activations: Activations
    """`activations_per_example`"""
    operations: NDArray[np.float64]
    """`operations_of`"""
    unit_blocks: NDArray[np.int64]
    unit_flops: Flops
    """Both: `unit_flops_per_example`"""


def cached_counts(
    config: ModelConfig,
    make: Callable[[], list[Block]],
    dataset: DataSet,
    cache: Path,
    wrapper: tuple[str, Options] | None = None,
) -> ModelCounts:
    """The counts of a model, which are kept in `cached_path`."""
    path = cached_path(config, dataset, cache, wrapper)

    def counted() -> str:
        example = (make, dataset.shape, dataset.kind)
        flops = flops_per_example(*example)
        stored = activations_per_example(*example, is_wrapped=wrapper is not None)
        counts = ModelCounts(
            flops, stored, operations_of(*example, step_flops(flops)), *unit_flops_per_example(*example)
        )
        return json.dumps([count.tolist() for count in counts])

    flops, activations, operations, blocks, units = map(np.array, json.loads(text_once(path, counted)))
    unit_blocks, unit_flops = blocks.astype(np.int64), units.astype(np.float64).reshape(-1, PASS_TYPES)
    return ModelCounts(flops, activations, operations, unit_blocks, unit_flops)


def cached_path(
    config: ModelConfig,
    dataset: DataSet,
    cache: Path,
    wrapper: tuple[str, Options] | None = None,
    more: Sequence[Any] = (),
) -> Path:
    """The file of counts of a model on a data set.

    Its name is the model's configuration, the source of its module and of those of its package that it imports from,
    the examples' shape, the classes, torch's version and the kinds of operations; beyond shipped models of images, what
    else the counts depend on; with a ``wrapper`` (``module:function``, options) of the model's blocks also its name,
    options and sources; and ``more`` facts.
    """
    row, built_by = model(config.name), _imported_module(config)
    facts = [
        asdict(config),
        _sources(built_by, built_by.__package__),
        dataset.shape,
        dataset.classes,
        torch.__version__,
        KINDS,
    ]
    if row.children or dataset.kind != "image":
        facts += [dataset.kind, dataset.vocabulary, row.width, row.blocks, row.children]
    if wrapper is not None:
        function, options = wrapper
        module = importlib.import_module(function.partition(":")[0])
        facts += [function, options.model_dump(), _sources(module, module.__name__.partition(".")[0])]
    name = hashlib.sha256(json.dumps([*facts, *more]).encode()).hexdigest()[:32]
    return cache / "flops" / "v6" / f"{name}.json"


def _sources(module: ModuleType, package: str | None) -> list[str]:
    """The source of a module, and of those below a package that it imports functions or classes from."""
    imported = {str(getattr(value, "__module__", "")) for value in vars(module).values()}
    beside = {name for name in imported if package and name.startswith(f"{package}.")}
    return [inspect.getsource(sys.modules[name]) for name in sorted(beside | {module.__name__})]


def _imported_module(config: ModelConfig) -> ModuleType:
    """The module that builds a model."""
    return importlib.import_module(model(config.name).stages.partition(":")[0])
