"""A model as M consecutive blocks over flat vectors.

All parameters of a `BlockModel` are views into one flat vector, all gradients into another and all float buffers into a
third, block after block, so that a download is one copy per block, an upload is a view, and an optimiser step is a few
operations on whole vectors. `BlockModel.scratch` has further vectors of that length for a visit. Vectors that are sent
have their numbers in torch's order. In ``channels_last``, the flat vectors have the weights of a convolution in the
memory format of its images, which saves each step a conversion; so the flat vectors are for arithmetic among
themselves, and `load`, `views` and `dump` convert. A `BlockModel` also counts its passes: the examples of each block
that went through forward, weight gradient and input gradient; FLOPs beside them are added by `BlockModel.add_flops`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edge.models.layers import residual_units
from edge.protocol.payload import (
    BUFFERS,
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    LAYER,
    PASS_TYPES,
    WEIGHT_GRADIENT,
    BlockShape,
    Floats,
    LayerShape,
    Layout,
    Vector,
    block_of,
    merged_key,
)
from edge.training.adapters import is_frozen, learnable, let_learn, merge
from edge.training.blocks import Block
from edge.training.criterion import Criterion, CrossEntropy
from edge.training.own_state import OwnState

UNLOADED = 0x7FC0F00D
"""The bits of numbers that no visit has loaded: a NaN that arithmetic does not make, and passes on"""


class BlockModel:
    """M blocks whose numbers are in flat vectors. Made once per worker and reused for every client."""

    def __init__(
        self,
        make: Callable[[], list[Block]],
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
        by_layer: bool = False,
        is_own: bool = False,
    ) -> None:
        """``by_layer``: whether each layer has a key of its own; ``is_own``: whether a user's code works with it."""
        self._make, self._is_own = make, is_own
        self.memory_format, self.by_layer = memory_format, by_layer
        self._frozen: dict[str, BlockModel] = {}
        self._of: BlockModel | None = None  # the model that this one is a frozen copy of
        self.device = device
        blocks = make()
        self.modules = [module.to(device) for _, module in blocks]
        self.layout = Layout(tuple(_shape(name, module, by_layer) for name, module in blocks))
        self.flat = torch.empty(sum(shape.params for shape in self.layout.blocks), device=device)
        self.grad = torch.zeros_like(self.flat)
        self.buffers = torch.empty(sum(shape.buffers for shape in self.layout.blocks), device=device)
        self.slices: dict[str, slice] = {}
        self._homes: dict[str, Tensor] = {}
        self._permuted: dict[str, list[tuple[slice, Tensor]]] = {}
        self._bound: list[tuple[Tensor, Tensor, Tensor, str]] = []
        """Each parameter, its numbers and gradient as views of the flat vectors, and its block"""
        self._flatten()
        self._scratch: dict[str, Tensor] = {}
        self._learns = [shape.params > 0 for shape in self.layout.blocks]
        self._trains = True
        self.executed: NDArray[np.int64] = np.zeros((len(self.modules), PASS_TYPES), dtype=np.int64)
        self.further_flops = 0.0
        self.frozen_statistics: Literal["running", "batch"] = "running"
        """`TrainConfig.frozen_statistics`, of frozen copies"""
        self.cuts: Mapping[int, Callable[[Tensor], Tensor]] = {}
        """Index of a block whose outputs travel in this visit -> what the next block gets, if not these"""
        self.own_statistics: Literal["running", "batch"] | None = None
        """Of a frozen copy, in place of ``frozen_statistics``; None: as that says"""
        self.logit_shifts: tuple[Tensor, ...] = ()
        """Vectors (classes,) that are added to logits, also of frozen copies; set within training losses alone"""
        self.criterion: Criterion = CrossEntropy()
        """The loss of the run"""
        self._initial_buffers = self.buffers.clone()
        counts = [buffer for module in self.modules for buffer in module.buffers() if not buffer.is_floating_point()]
        self._counts = [(buffer, buffer.clone()) for buffer in counts]
        kept = (self.flat, self.grad, self.buffers)
        self._layers = OwnState(self.modules, kept) if is_own else None
        self._is_reset = False
        """Whether it serves one visit after another"""
        self._attributes = frozenset([*vars(self), "_attributes"])

    def _flatten(self) -> None:
        start = buffers_start = 0
        for shape, module in zip(self.layout.blocks, self.modules, strict=True):
            self.slices[shape.name] = slice(start, start + shape.params)
            for part, (parameters, buffers) in zip(shape.parts, _parts(module, self.by_layer).values(), strict=True):
                self.slices[part.key] = slice(start, start + part.params)
                self._homes[part.key] = self.flat[self.slices[part.key]]
                homes, grads = (
                    _pieces(flat[self.slices[part.key]], parameters, self.memory_format)
                    for flat in (self.flat, self.grad)
                )
                place = 0
                for parameter, home, grad in zip(parameters, homes, grads, strict=True):
                    parameter.data, parameter.grad = home.copy_(parameter.data), grad
                    self._bound.append((parameter, home, grad, shape.name))
                    if not home.is_contiguous():
                        taken = slice(place, place + home.numel())
                        self._permuted.setdefault(part.key, []).append((taken, home))
                    place += home.numel()
                start += part.params
                if part.buffers:
                    vector = self.buffers[buffers_start : buffers_start + part.buffers]
                    self._homes[part.key + BUFFERS] = vector
                    for buffer, piece in zip(buffers, _pieces(vector, buffers), strict=True):
                        buffer.data = piece.copy_(buffer.data)
                    buffers_start += part.buffers

    def reset(self) -> None:
        """Forget what a visit has left: all but the numbers is as it was made, and the numbers are `UNLOADED`.

        So a visit cannot depend on the one that this worker happened to have before. Buffers, gradients and scratch are
        as they were made, too; frozen copies are reset like this model.
        """
        self._is_reset = True
        for name in vars(self).keys() - self._attributes:
            delattr(self, name)
        if self._layers is not None:
            self._layers.restore()
            for parameter, home, grad, block in self._bound:
                if parameter.data_ptr() != home.data_ptr() or parameter.dtype != home.dtype:
                    parameter.data = home
                parameter.grad, parameter._backward_hooks = grad, None
                parameter.requires_grad_(self._learns[self.layout.names.index(block)])
            for module in self.modules:
                module.train(self._trains)
        self.flat.view(torch.int32).fill_(UNLOADED)
        self.grad.zero_()
        self.buffers.copy_(self._initial_buffers)
        for buffer, initial in self._counts:
            buffer.copy_(initial)
        for vector in self._scratch.values():
            vector.zero_()
        self.logit_shifts = ()
        for frozen in self._frozen.values():
            frozen.reset()

    def unloaded(self) -> list[str]:
        """The blocks of which any number is `UNLOADED` since `reset`."""
        is_unloaded = self.flat.view(torch.int32) == UNLOADED
        if not bool(is_unloaded.any()):
            return []
        return [name for name in self.layout.names if bool(is_unloaded[self.slices[name]].any())]

    def __len__(self) -> int:
        return len(self.modules)

    def frozen_numbers(self, index: int) -> int:
        """Numbers of the base in a block."""
        return sum(parameter.numel() for parameter in self.modules[index].parameters() if is_frozen(parameter))

    @property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """key -> shapes of the parameters in its vector, in their order."""
        named = named_tensors(self.layout, self.modules, self.by_layer)
        return {
            key: tuple(tuple(tensor.shape) for tensor in tensors)
            for key, tensors in named.items()
            if not key.endswith(BUFFERS)
        }

    def load(self, named: Mapping[str, Vector], into: Tensor | None = None) -> None:
        """Copy vectors into the model, by key; or ``into`` a vector like ``flat``, which has no buffers."""
        for key, vector in named.items():
            _copy(self._view(key, into), vector.data)
            for place, weight in self._permuted.get(key, ()):
                _copy(_same_place(weight, into), vector.data[place].reshape(weight.shape))
        if into is None:
            self._settle_statistics()

    def views(self, keys: Iterable[str], of: Tensor | None = None) -> dict[str, Vector]:
        """The numbers of these keys, as views: valid until the model is next loaded or trained.

        For the upload and the state of a visit, which are sent before the next visit begins. Blocks with convolutions
        in channels_last are copied to scratch, and all blocks of a model on a GPU to the host. With ``of``, the numbers
        of a vector like ``flat`` in place of the model's; they are views of it, or copies.
        """
        vectors = {}
        for key in keys:
            numbers = self._read(key, of)
            if numbers.is_cuda:  # to pinned memory, which torch keeps for the next visit
                numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers)
            vectors[key] = Vector(numbers.numpy())
        return vectors

    def dump(self, keys: Iterable[str]) -> dict[str, Vector]:
        """The numbers of these keys, as copies that later training does not change."""
        return {key: Vector(self._read(key).to("cpu", copy=True).numpy()) for key in keys}

    def homes(self, blocks: Container[str]) -> list[Tensor]:
        """All numbers of these blocks, parameters and buffers, where the model has them."""
        of_blocks = [home for key, home in self._homes.items() if block_of(key) in blocks]
        named = zip(self.layout.names, self.modules, strict=True)
        buffers = [buffer for name, module in named if name in blocks for buffer in module.buffers()]
        return of_blocks + [buffer for buffer in buffers if not buffer.is_floating_point()]

    def merge(self, products: Mapping[str, Vector]) -> None:
        """Let the base have taken up these products of adapters, by `merged_key`; nothing without any."""
        if not products:
            return
        for name, module in zip(self.layout.names, self.modules, strict=True):
            keys = (merged_key(key) for key in self.layout.keys([name]))
            merge(module, [products[key].data for key in keys if key in products])

    def _view(self, key: str, flat: Tensor | None) -> Tensor:
        return self._homes[key] if flat is None else flat[self.slices[key]]

    def _read(self, key: str, of: Tensor | None = None) -> Tensor:
        home = self._view(key, of)
        if key not in self._permuted:
            return home
        numbers = self.scratch("in torch's order")[self.slices[key]].copy_(home) if of is None else home.clone()
        for place, weight in self._permuted[key]:
            numbers[place].view(weight.shape).copy_(_same_place(weight, of))
        return numbers

    def scratch(self, name: str) -> Tensor:
        """A vector like ``flat``, allocated at its first use under this name, with the numbers of its last use.

        A visit writes to it before it reads.
        """
        if name not in self._scratch:
            self._scratch[name] = torch.zeros_like(self.flat)
        return self._scratch[name]

    def logit_scratch(self, name: str, numbers: NDArray[np.float64]) -> Tensor:
        """A vector on the device with these numbers, one per class, at an address that is fixed for this name."""
        if name not in self._scratch:
            self._scratch[name] = torch.zeros(len(numbers), device=self.device)
        return self._scratch[name].copy_(torch.from_numpy(numbers))

    def run(self, x: Tensor, start: int = 0, stop: int | None = None, counted: bool = True) -> Tensor:
        """Through blocks ``start`` (counted from 0) up to, not including, ``stop``.

        Logits are float32, in whatever precision the blocks compute, with `logit_shifts` added. Passes that are not
        ``counted`` are for `add_flops`, such as those of narrower sub-networks.
        """
        stop = len(self) if stop is None else stop
        for index in range(start, stop):
            if counted:
                self._count(index, x)
            x = self.modules[index](x)
            if index in self.cuts:
                x = self.cuts[index](x)
        return self._logits(x) if stop == len(self) else x

    def run_through(self, modules: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Logits of other modules, such as narrower ones over numbers of this model; counted by `add_flops`."""
        for module in modules:
            x = module(x)
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        x = x.float()
        for shift in (self if self._of is None else self._of).logit_shifts:
            x = x + shift
        return x

    def features(self, x: Tensor) -> list[Tensor]:
        """The outputs of all blocks, first to last; the last are the logits."""
        outputs = []
        for index in range(len(self)):
            x = self.run(x, index, index + 1)
            outputs.append(x)
        return outputs

    def _count(self, index: int, x: Tensor) -> None:
        row, examples = self.executed[index], x.shape[0]
        row[FORWARD] += examples
        if torch.is_grad_enabled():
            trains, passes_on = self._learns[index], x.requires_grad
            row[WEIGHT_GRADIENT] += examples if trains else 0
            row[INNER_GRADIENT] += examples if trains or passes_on else 0
            row[INPUT_GRADIENT] += examples if passes_on else 0

    def add_flops(self, flops: float) -> None:
        """Count FLOPs that are not passes of whole blocks through `run`, such as those of a narrower model.

        Negative: FLOPs of passes through `run` that were not executed, such as those of a residual unit without its
        body.
        """
        self.further_flops += flops

    def uses_batch_stats(self, index: int) -> bool:
        """Whether a block's output for one example depends on the others of its batch (batch statistics)."""
        norms = (layer for layer in self.modules[index].modules() if isinstance(layer, _BatchNorm))
        return any(norm.training or not norm.track_running_stats for norm in norms)

    def _settle_statistics(self) -> None:
        """Let the blocks of a frozen copy normalise with the statistics that they have.

        Those of each batch where ``frozen_statistics`` or the copy's own say so, or no update has changed the running
        ones, which stay as they are; else the running ones.
        """
        if self._of is None or not len(self.buffers):
            return
        statistics = self.own_statistics or self._of.frozen_statistics
        for index, module in enumerate(self.modules):
            by_batch = statistics == "batch" or self._is_unvisited(index)
            for norm in _with_running(module):
                norm.train(by_batch)
                norm.track_running_stats = not by_batch

    @property
    def statistics_in_use(self) -> tuple[tuple[bool, ...], ...]:
        """Whether each block of each frozen copy normalises with the statistics of its batches."""
        return tuple(
            tuple(frozen.uses_batch_stats(index) for index in range(len(frozen))) for frozen in self._frozen.values()
        )

    def _is_unvisited(self, index: int) -> bool:
        """Whether a block has running statistics, all of which are still as initialised: means 0, variances 1."""
        norms = _with_running(self.modules[index])
        return bool(norms) and not any(norm.running_mean.any() or (norm.running_var != 1).any() for norm in norms)

    def _may_not_run(self, index: int) -> bool:
        """Whether all running statistics of a block are in bodies that every step so far may have left out."""
        units = [unit for unit in residual_units([self.modules[index]]) if unit.keep_probability < 1]
        bodies = sum(len(_with_running(unit)) - len(_with_running(unit.shortcut)) for unit in units)
        return 0 < bodies == len(_with_running(self.modules[index]))

    def check_statistics(self, up: Container[str]) -> None:
        """ValueError for a block whose running statistics no update has changed, while others' have been.

        Also for one whose running statistics no update can change: its keys of buffers are not among ``up``.
        """
        places = [index for index in range(len(self)) if self._is_unvisited(index) and not self._may_not_run(index)]
        unvisited = [self.layout.names[index] for index in places]
        are_kept = any(key.endswith(BUFFERS) and key not in up for key in self.layout.keys(unvisited))
        if are_kept or 0 < len(unvisited) < sum(bool(_with_running(module)) for module in self.modules):
            raise ValueError(
                f"model.norm: the running statistics of {', '.join(unvisited)} were never updated, so that the model "
                "cannot be evaluated; upload these blocks (travels.up), or choose group or none"
            )

    def reset_statistics(self) -> None:
        """Running statistics as initialised: means 0, variances 1."""
        for module in self.modules:
            for norm in _with_running(module):
                norm.reset_running_stats()

    def collect_statistics(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Set the running statistics to the means over these batches of the statistics of each; evaluation mode after.

        HeteroFL's static BatchNorm (Diao, Ding and Tarokh, ICLR 2021, section 4): a batch of one example is left out.
        """
        norms = [norm for module in self.modules for norm in _with_running(module)]
        momenta = [norm.momentum for norm in norms]
        self.reset_statistics()
        self.train_mode(False)
        for norm in norms:  # these alone: what else differs in training, such as a scaler, does not in an evaluation
            norm.train(True)
            norm.momentum = None  # torch then keeps the mean over batches
        with torch.no_grad():
            for x, _ in batches:
                if len(x) > 1:
                    self.run(x, counted=False)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.train(False)
            norm.momentum = momentum

    def train_mode(self, training: bool) -> None:
        """Set the mode of all blocks, which matters to batch statistics and dropout."""
        if training != self._trains:
            for module in self.modules:
                module.train(training)
            self._trains = training

    def train_only(self, names: Iterable[str] | None = None) -> None:
        """Let only these blocks receive gradients (default: all)."""
        trained = set(self.layout.names if names is None else names)
        for index, (shape, module) in enumerate(zip(self.layout.blocks, self.modules, strict=True)):
            learns = shape.name in trained and shape.params > 0
            if learns != self._learns[index]:
                let_learn(module, learns)
                self._learns[index] = learns

    def frozen_copy(self, name: str = "global", statistics: Literal["running", "batch"] | None = None) -> BlockModel:
        """Another model of the same shape that never learns; gradients flow through it, never into it.

        There is one per name (the received model, the previous local one, a teacher ...), each with parameters,
        gradients and buffers of its own. It is made at its first use, counts into this model's ``executed``, runs in
        evaluation mode (FedMLB's G) but for batch statistics (``statistics``, by default ``frozen_statistics``), and
        has the numbers of its last use: a visit loads it before it runs it.
        """
        if name not in self._frozen:
            frozen = BlockModel(self._make, self.device, self.memory_format, self.by_layer, self._is_own)
            if self._is_reset:
                frozen.reset()
            frozen.train_only(())
            frozen.train_mode(False)
            frozen.executed = self.executed
            frozen._of = self
            self._frozen[name] = frozen
        self._frozen[name].own_statistics = statistics
        return self._frozen[name]

    def freeze(self, name: str = "global", statistics: Literal["running", "batch"] | None = None) -> BlockModel:
        """The `frozen_copy` of this name, with the present numbers of this model."""
        frozen = self.frozen_copy(name, statistics)
        frozen.flat.copy_(self.flat)
        frozen.buffers.copy_(self.buffers)
        frozen._settle_statistics()
        return frozen


def named_tensors(layout: Layout, modules: Sequence[nn.Module], by_layer: bool) -> dict[str, list[Tensor]]:
    """key -> the tensors that lie one after another in its vector, of the modules of these blocks."""
    named: dict[str, list[Tensor]] = {}
    for shape, module in zip(layout.blocks, modules, strict=True):
        for part, (parameters, buffers) in zip(shape.parts, _parts(module, by_layer).values(), strict=True):
            named |= {
                key: tensors for key, tensors in ((part.key, parameters), (part.key + BUFFERS, buffers)) if tensors
            }
    return named


def _with_running(module: nn.Module) -> list[Any]:
    """The layers of batch normalisation that have running statistics."""
    norms = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return [norm for norm in norms if norm.running_mean is not None]


def _shape(name: str, module: nn.Module, by_layer: bool) -> BlockShape:
    layers = tuple(
        LayerShape(f"{name}{LAYER}{path}" if path else name, _count(parameters), _count(buffers))
        for path, (parameters, buffers) in _parts(module, by_layer).items()
    )
    params, buffers = sum(layer.params for layer in layers), sum(layer.buffers for layer in layers)
    return BlockShape(name, params, buffers, layers if by_layer else ())


def _count(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _parts(module: nn.Module, by_layer: bool) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Path of a layer in its block -> (parameters, float buffers); with all in one part, '', unless ``by_layer``.

    A layer is a module with tensors of its own. The order is that of ``module.parameters()``; frozen ones are left out.
    """
    if not by_layer:
        return {"": (list(learnable(module)), _float_buffers(module.buffers()))}
    parts = {
        path: (list[Tensor](learnable(layer, recurse=False)), _float_buffers(layer.buffers(recurse=False)))
        for path, layer in module.named_modules()
    }
    return {path: tensors for path, tensors in parts.items() if any(tensors)} or {"": ([], [])}


def _float_buffers(buffers: Iterable[Tensor]) -> list[Tensor]:
    return [buffer for buffer in buffers if buffer.is_floating_point()]


def _pieces(
    vector: Tensor, tensors: Sequence[Tensor], memory_format: torch.memory_format = torch.contiguous_format
) -> list[Tensor]:
    """A flat vector as views of the shapes of ``tensors``; those of four dimensions in ``memory_format``."""
    pieces = []
    for tensor, piece in zip(tensors, torch.split(vector, [tensor.numel() for tensor in tensors]), strict=True):
        if tensor.dim() == 4 and memory_format == torch.channels_last:
            outputs, inputs, height, width = tensor.shape
            pieces.append(piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
        else:
            pieces.append(piece.view_as(tensor))
    return pieces


def _same_place(view: Tensor, flat: Tensor | None) -> Tensor:
    """The view of ``flat`` at the place of ``view`` in its own vector; ``view`` itself without ``flat``."""
    return view if flat is None else flat.as_strided(view.shape, view.stride(), view.storage_offset())


def _copy(target: Tensor, numbers: Floats) -> None:
    """Copy flat ``numbers`` to ``target``. Frames of a socket are read-only: numpy can copy from them, torch cannot."""
    if target.device.type == "cpu":
        np.copyto(target.numpy(), numbers)
    else:
        target.copy_(torch.from_numpy(numbers.copy()))
