"""What is counted of a model before anything is trained: FLOPs, operations by kind, activations, parameters.

One counter (`OperationCounter`) looks at every operator of passes on tensors without memory. Nothing is computed or
measured here, so the counts are the same on every machine. Convolutions and matrix products have FLOPs; element-wise
work, normalisation and the rows of an embedding have none. 1 MAC = 2 FLOPs. Tokens have no gradient, so that all
gradients of a block that takes them are its weights'. A recurrent layer counts as its steps, each with calls of its
own, though libraries join them; attention as its products, those of masked places too. The loss and the step of the
optimiser are not counted, but for the number of parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from edge.data.registry import DataSet, ExampleKind
from edge.models.layers import residual_units
from edge.models.registry import model
from edge.protocol import operations
from edge.protocol.config import ModelConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    ITEM_NBYTES,
    PASS_TYPES,
    WEIGHT_GRADIENT,
    Layout,
    step_flops,
)
from edge.training.adapters import learnable, let_learn
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, method_blocks
from edge.training.exits import ExitBlock
from edge.training.slimmable import SlimBatchNorm2d, SlimGroupNorm, resized, slimmed

Flops = NDArray[np.float64]
Shape = Sequence[int]

META = torch.device("meta")
EXAMPLES, MORE_EXAMPLES = 2, 4
"""Batch sizes of the counted steps: batch statistics need more than one example, and the difference of two tells
operations per example from those per step."""
VIEWS = {
    *("view", "_unsafe_view", "t", "transpose", "detach", "expand", "permute", "slice", "squeeze", "unsqueeze"),
    *("reshape", "alias", "select", "split", "empty_like"),
}
"""Operators that move no numbers."""
POOLS = {"mean", "avg_pool2d", "_adaptive_avg_pool2d"}
"""Operators of an average pool: torch computes a global one as a mean."""
VECTOR = 16
"""Output channels that a processor works on at a time: numbers of 32 bits in 512. A convolution with fewer in its last
vector takes as long as one that fills it; convolutions in groups are computed otherwise."""
BATCHED_PRODUCTS = {"bmm", "baddbmm"}
"""Operators whose FLOPs are `operations.ATTENTION`"""
MATRIX_PRODUCTS = {"mm", "addmm", "addmv", "mv", "dot", *BATCHED_PRODUCTS}
"""All others of these have `operations.LINEAR`, whose FLOPs are counted with those of the model."""


class Product(NamedTuple):
    """One convolution or matrix product: its FLOPs are twice its weights times its places."""

    flops: int
    weights: int
    """Numbers of its second factor"""
    needs_gradient: bool
    """Whether a gradient of its first factor, the input of a layer, is needed"""


def convolution_flops(at: Tensor, weight: Tensor, passes: int) -> int:
    """Exact FLOPs of ``passes`` convolutions, or gradients of weights or input, with as many each.

    ``at``: (batch, channels, places ..), the result, or the input of a transposed convolution. Torch's own count (2.15)
    of a weight gradient is too large by the factor of the groups, which are the channels in a depthwise convolution.
    """
    return 2 * passes * at.shape[0] * math.prod(at.shape[2:]) * weight.numel()


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the operations of everything that runs under it."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # takes half a second, which cached counts do not need

        super().__init__()  # type: ignore[no-untyped-call]
        self._formulas = flop_registry
        self.counts = defaultdict[str, float](float)
        """By kind (`edge.protocol.operations`), but for `operations.LINEAR` and `operations.PARAMETERS`"""
        self.products: list[Product] = []
        self.convolution_flops = 0
        self.pooled = 0
        """Numbers that average pools take"""

    @property
    def flops(self) -> int:
        """Of convolutions, matrix products and their gradients."""
        return sum(product.flops for product in self.products)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator, and count it."""
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in VIEWS:
            return result
        self.counts[operations.CALLS] += 1
        if name in POOLS:
            self.pooled += args[0].numel()
        if name == "convolution":
            self.counts[operations.CONVOLUTIONS] += 1
            self._convolution(args[0], args[1], args[0] if args[6] else result, groups=args[8], passes=1)
        elif name == "convolution_backward":
            gradient, images, weight = args[:3]
            places = images if args[7] else gradient
            self._convolution(images, weight, places, groups=args[9], passes=sum(args[-1][:2]))
        else:
            if func.overloadpacket in self._formulas:
                flops = self._formulas[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
                first, second, *_ = (each for each in args if isinstance(each, Tensor) and each.ndim > 1)
                self.products.append(Product(int(flops), second.numel(), first.requires_grad))
                if name in BATCHED_PRODUCTS:
                    self.counts[operations.ATTENTION] += flops
            if name not in MATRIX_PRODUCTS:
                kind = operations.NORMALISED if "_norm" in name else operations.ELEMENTWISE
                self.counts[kind] += _numbers(args) + _numbers(result)
        return result

    def _convolution(self, images: Tensor, weight: Tensor, at: Tensor, *, groups: int, passes: int) -> None:
        """``at``, ``passes``: as of `convolution_flops`."""
        exact = convolution_flops(at, weight, passes)
        self.products.append(Product(exact, weight.numel(), images.requires_grad))
        self.convolution_flops += exact
        wide, narrow, flops = weight.shape[0] // groups, weight.shape[1], float(exact)
        if groups > 1 and narrow == 1:
            self.counts[operations.CHANNELWISE] += flops
            return
        kind = operations.POINTWISE if math.prod(weight.shape[2:]) == 1 else operations.CONVOLUTION
        if groups == 1:
            flops *= math.ceil(wide / VECTOR) * VECTOR / wide
        for name, fraction in operations.classes(kind, wide, narrow):
            self.counts[name] += flops * fraction


def _numbers(value: Any) -> int:
    """Numbers in all tensors of an operator's arguments or results."""
    if isinstance(value, Tensor):
        return value.numel()
    return sum(map(_numbers, value)) if isinstance(value, list | tuple) else 0


def count_flops(work: Callable[[], object]) -> int:
    """FLOPs of convolutions, matrix products and their gradients, while ``work`` runs."""
    counter = OperationCounter()
    with counter:
        work()
    return counter.flops


# --- FLOPs of blocks and residual units by type of pass ---------------------------------------------------------------


def empty_examples(shape: Shape, kind: ExampleKind, examples: int = EXAMPLES) -> Tensor:
    """(examples, ..) without memory; ``shape``: of one."""
    return torch.empty((examples, *shape), device=META, dtype=torch.int64 if kind == "tokens" else torch.float32)


def is_without_memory() -> bool:
    """Whether modules that are made now have no numbers."""
    return torch.empty(0).is_meta


def modules_without_memory(make: Callable[[], list[Block]]) -> list[nn.Module]:
    """The modules of a model's blocks, in order."""
    with META:
        return [module for _, module in make()]


def flops_per_example(make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image") -> Flops:
    """FLOPs per example of each block: (blocks, 4), a column per pass type (`edge.protocol.payload`).

    ``shape``: of an example.
    """
    modules, x = modules_without_memory(make), empty_examples(shape, kind)
    flops = np.zeros((len(modules), PASS_TYPES))
    for row, module in zip(flops, modules, strict=True):
        # What an exit computes is in no output of its block.
        row[:] = _pass_flops(module, module.branches if isinstance(module, ExitBlock) else module, x)
        x = module(x).detach()
    return flops


def unit_flops_per_example(
    make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image"
) -> tuple[NDArray[np.int64], Flops]:
    """`ModelProfile.unit_blocks` and `ModelProfile.unit_flops`, counted as by `flops_per_example`.

    The gradient for a unit's input is not counted where no layer before the unit learns, and none is computed.
    """
    blocks, inputs = dict[nn.Module, int](), dict[nn.Module, Tensor]()
    modules, x = modules_without_memory(make), empty_examples(shape, kind)
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


def _pass_flops(module: nn.Module, run: Callable[[Tensor], Tensor | tuple[Tensor, ...]], x: Tensor) -> Flops:
    """(4,): FLOPs per example of ``run``, which has parameters of ``module``, by type of pass."""

    def backward(weights: bool, inputs: bool) -> int:
        let_learn(module, weights)
        outputs = run(x.detach().requires_grad_(inputs and x.is_floating_point()))
        learnt = [y for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y.requires_grad]
        return count_flops(lambda: torch.autograd.backward(learnt, [*map(torch.empty_like, learnt)])) if learnt else 0

    both, frozen = backward(weights=True, inputs=True), backward(weights=False, inputs=True)
    branch = backward(weights=True, inputs=False)
    row = np.zeros(PASS_TYPES)
    row[FORWARD] = count_flops(lambda: run(x))
    row[WEIGHT_GRADIENT], row[INPUT_GRADIENT] = both - frozen, both - branch
    row[INNER_GRADIENT] = frozen + branch - both
    return row / EXAMPLES


# --- all counts of a model --------------------------------------------------------------------------------------------


class ModelCounts(NamedTuple):
    """What is counted of a model on the examples of one data set."""

    flops: Flops
    """`flops_per_example`"""
    activations: NDArray[np.float64]
    """(blocks,): floats per example that each block stores for its backward pass while the whole model trains.

    Counted are the tensors that autograd saves, in units of 4 bytes, without parameters and buffers. A tensor of
    several blocks counts once, for the last of them, so the sum over the last blocks is also that of training those
    alone. Tensors that do not grow with the batch (batch statistics) are counted as if they did, but not in a model
    that a method has wrapped, whose mixed weights would count per example; the loss and the libraries' workspaces are
    not counted."""
    operations: NDArray[np.float64]
    """(kinds, 2): operations of a plain training step, per example and per step, in the order of `operations.KINDS`;
    FLOPs of the step that are in no convolution and no attention are `operations.LINEAR`"""
    unit_blocks: NDArray[np.int64]
    unit_flops: Flops
    """Both: `unit_flops_per_example`"""
    pooled: NDArray[np.float64]
    """(blocks,): numbers per example that average pools take in a forward pass"""
    outputs: NDArray[np.int64]
    """(blocks,): numbers of each block's output for an example; empty where one gives anything but a tensor"""


def count_blocks(
    make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind = "image", is_wrapped: bool = False
) -> ModelCounts:
    """All counts of a model; ``shape``: of an example; ``is_wrapped``: whether a method has changed the model."""
    flops = flops_per_example(make, shape, kind)
    few, many = (_count_step(make, shape, kind, examples) for examples in (EXAMPLES, MORE_EXAMPLES))
    per_example = (many.operations - few.operations) / (MORE_EXAMPLES - EXAMPLES)
    counts = np.stack([per_example, few.operations - EXAMPLES * per_example], axis=1)
    convolutions = (many.convolution_flops - few.convolution_flops) / (MORE_EXAMPLES - EXAMPLES)
    linear, attention = (operations.KINDS.index(kind) for kind in (operations.LINEAR, operations.ATTENTION))
    counts[linear, 0] = step_flops(flops) - convolutions - counts[attention, 0]
    stored = (many.stored - few.stored) / EXAMPLES if is_wrapped else few.stored / EXAMPLES
    units = unit_flops_per_example(make, shape, kind)
    outputs = np.array([] if None in few.outputs else few.outputs, np.int64) // EXAMPLES
    return ModelCounts(flops, stored, np.maximum(counts, 0.0), *units, few.pooled / EXAMPLES, outputs)


class StepCounts(NamedTuple):
    """What is counted of one step of all blocks on a batch."""

    operations: NDArray[np.float64]
    """(kinds,), in the order of `operations.KINDS`"""
    convolution_flops: int
    stored: NDArray[np.float64]
    """(blocks,): floats that each block stores for the backward pass"""
    pooled: NDArray[np.float64]
    """(blocks,): numbers that average pools take"""
    outputs: list[int | None]
    """Numbers of each block's output; None for anything but a tensor"""


def _count_step(make: Callable[[], list[Block]], shape: Shape, kind: ExampleKind, examples: int) -> StepCounts:
    modules, x = modules_without_memory(make), empty_examples(shape, kind, examples)
    saved, pooled, outputs = list[set[torch.UntypedStorage]](), list[int](), list[int | None]()

    def keep(tensor: Tensor) -> Tensor:
        # A view keeps its whole storage alive; torch has one object per storage.
        saved[-1].add(tensor.untyped_storage())
        return tensor

    with OperationCounter() as counter:
        for module in modules:
            saved.append(set())
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                x = module(x)
            saved[-1] -= {tensor.untyped_storage() for tensor in (*module.parameters(), *module.buffers())}
            pooled.append(counter.pooled - sum(pooled))
            outputs.append(x.numel() if isinstance(x, Tensor) else None)
        torch.autograd.backward(x, torch.empty_like(x))
    counter.counts[operations.PARAMETERS] = sum(p.numel() for module in modules for p in learnable(module))
    stored, counted = np.zeros(len(modules)), set[torch.UntypedStorage]()
    for index in reversed(range(len(modules))):
        stored[index] = sum(storage.nbytes() for storage in saved[index] - counted) / ITEM_NBYTES
        counted |= saved[index]
    by_kind = np.array([counter.counts[name] for name in operations.KINDS], np.float64)
    return StepCounts(by_kind, counter.convolution_flops, stored, np.array(pooled, np.float64), outputs)


def output_shapes(make: Callable[[], list[Block]], dataset: DataSet) -> Flops:
    """(blocks, 3): channels, height and width of the output of each block; 1 x 1 for features without places.

    Zeros for outputs of other shapes.
    """
    x, shapes = empty_examples(dataset.shape, dataset.kind), []
    for module in modules_without_memory(make):
        x = module(x)
        shape = tuple(x.shape[1:])
        shapes.append({1: (*shape, 1, 1), 3: shape}.get(len(shape), (0, 0, 0)))
    return np.array(shapes, np.float64)


# --- sub-networks of slimmable models ---------------------------------------------------------------------------------


def subnetwork_flops(
    make: Callable[[], list[Block]], dataset: DataSet, flexible: bool, variants: Sequence[tuple[float, float]]
) -> Flops:
    """FLOPs per example of sub-networks on smaller images: (variants, blocks, 4), a column per type of pass.

    ``variants``: (width, factor on the images' height). The weights in use depend on the width alone and the places on
    the images alone, so each width and each height is traced once. A model that is not ``flexible``, or takes no
    images, is charged at its full size. ValueError for images that are too small, and for a model that does not run
    with fewer channels.
    """
    modules = modules_without_memory(make)
    for layer in (layer for module in modules for layer in module.modules()):
        if isinstance(layer, SlimBatchNorm2d | SlimGroupNorm):
            # Normalisation passes on what it is given: it has no FLOPs, but takes four fifths of a trace's time.
            learns = layer.weight is not None
            layer.forward = partial(_passed_on, learns)  # type: ignore[method-assign]
    by_width, by_height = {}, {}
    for width in {width for width, _ in variants}:
        try:
            by_width[width] = _forward_products(modules, empty_examples(dataset.shape, dataset.kind), width)
        except RuntimeError as error:
            raise ValueError(f"it does not run at {width:g} of its width: {error}") from None
    is_resized = flexible and dataset.kind == "image"
    for height in {1.0, *(height for _, height in variants if is_resized)}:
        shape = (dataset.shape[0], *resized(dataset.shape[1:], height)) if is_resized else dataset.shape
        try:
            by_height[height] = _forward_products(modules, empty_examples(shape, dataset.kind), 1.0)
        except RuntimeError as error:
            raise ValueError(f"images of {shape[1]}x{shape[2]} are too small for it: {error}") from None
    for height, products in by_height.items():
        if [use.weights for _, use in products] != [use.weights for _, use in by_height[1.0]]:
            rows, columns = resized(dataset.shape[1:], height)
            raise ValueError(f"a linear layer depends on the images' size, so that it takes none of {rows}x{columns}")
    counts = np.zeros((len(variants), len(modules), PASS_TYPES))
    for flops, (width, height) in zip(counts, variants, strict=True):
        sized = by_height[height] if is_resized else by_height[1.0]
        for (block, narrow), (_, full) in zip(by_width[width], sized, strict=True):
            needed = INNER_GRADIENT if narrow.needs_gradient else INPUT_GRADIENT
            per_weight = full.flops // full.weights  # 2 x places x examples
            flops[block, [FORWARD, WEIGHT_GRADIENT, needed]] += narrow.weights * per_weight / EXAMPLES
    return counts


def _passed_on(learns: bool, x: Tensor) -> Tensor:
    return x.detach().requires_grad_(learns or x.requires_grad)


def _forward_products(modules: Sequence[nn.Module], x: Tensor, width: float) -> list[tuple[int, Product]]:
    """(block, product) of all convolutions and linear layers of a forward pass at a width, in order."""
    products = list[tuple[int, Product]]()
    with OperationCounter() as counter, slimmed(modules, width):
        for index, module in enumerate(modules):
            x = module(x.detach())
            products += [(index, product) for product in counter.products[len(products) :]]
    return products


# --- a model as papers count it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountedModel:
    """The numbers of a model, as a method changes it, of which tables of FLOPs and parameters are made.

    Papers differ in what they count; which of these a table has is said where it is made.
    """

    layout: Layout
    counts: ModelCounts
    weights: int
    """Parameters of convolutions and linear layers with their biases: all but those of normalisation"""
    variants: Mapping[tuple[float, float], Flops]
    """(factor on the width, factor on the images' height) -> FLOPs per example (blocks, 4)"""
    outputs: NDArray[np.float64]
    """`output_shapes`, where there are variants"""


def count_model(
    config: ModelConfig,
    dataset: DataSet,
    wrapper: tuple[str, Options] | None = None,
    variants: Sequence[tuple[float, float]] = (),
) -> CountedModel:
    """Count a model on the images of a data set, none of which is read.

    ``wrapper``: a method's ``wrap_model`` (``module:function``) and its options; ``variants`` as a spec declares them.
    ValueError for a model that cannot be built so.
    """

    def make() -> list[Block]:
        return method_blocks(config, dataset.classes, dataset.inputs, wrapper)

    with META:
        net = BlockModel(make, META)
    layers = (list(layer.parameters(recurse=False)) for module in net.modules for layer in module.modules())
    flops, outputs = dict[tuple[float, float], Flops](), np.zeros((0, 3))
    if variants:
        each = subnetwork_flops(make, dataset, model(config.name).flexible, variants)
        flops, outputs = dict(zip(variants, each, strict=True)), output_shapes(make, dataset)
    return CountedModel(
        net.layout,
        count_blocks(make, dataset.shape, is_wrapped=wrapper is not None),
        sum(sum(p.numel() for p in own) for own in layers if any(p.ndim > 1 for p in own)),
        flops,
        outputs,
    )
