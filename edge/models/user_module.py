"""A user's torch module as a model: made from its row, cut into its children, and compared with their chain.

Parameters lie in one flat vector per block, so each must be in exactly one block; and methods run blocks one by one, so
that the module's own forward must be nothing else than that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from edge.data.registry import DataSet
from edge.models.registry import INPUTS, ModelRow, model
from edge.protocol.config import ModelConfig
from edge.protocol.plugins import definition_place, error_place, error_text, load
from edge.protocol.rng import keyed_generator
from edge.protocol.spelling import nearest

EXAMPLES = 2  # batch statistics need more than one
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Largest difference of outputs that counts as the order of sums."""


def make_module(row: ModelRow, classes: int, inputs: int, width: int | None) -> nn.Module:
    """The module of a row, initialised by torch's defaults from its current random state; ValueError if it fails."""
    try:
        factory = load(row.stages)
    except ValueError as error:
        raise _error(row, str(error).removeprefix(f"cannot load {row.stages!r}: ")) from None
    if isinstance(factory, nn.Module) or not callable(factory):
        raise _error(row, "must be a class or function that makes the module, not a module: each run initialises it")
    offered = {"classes": classes, INPUTS[row.kind]: inputs}
    if width is not None:
        offered["width"] = width
    arguments = _arguments(row, factory, offered)
    try:
        module = factory(**arguments)
    except Exception as error:  # a user's class may raise anything
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        raise _error(row, f"called with {given}, it raised {error_text(error)}") from error
    if not isinstance(module, nn.Module):
        raise _error(row, f"must give a torch.nn.Module, not {type(module).__name__}")
    lazy = [name for name, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise _error(row, f"the size of {', '.join(lazy)} is not known before its first use; give it")
    return module


def _arguments(row: ModelRow, factory: Callable[..., Any], offered: Mapping[str, int]) -> dict[str, int]:
    """Those of the offered arguments that the factory has; ValueError for others that it needs."""
    parameters = inspect.signature(factory).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for parameter in parameters:
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        is_needed = parameter.default is parameter.empty and not variadic
        if is_needed and (parameter.name not in offered or parameter.kind is parameter.POSITIONAL_ONLY):
            raise _error(row, f"needs {parameter.name!r}; arguments are {', '.join(offered)}. Give it a default")
    taken = {name: value for name, value in offered.items() if takes_any or any(name == p.name for p in parameters)}
    if "width" in offered and "width" not in taken:
        raise _error(row, "has no argument width, but its row has a width")
    return taken


def own_blocks(row: ModelRow, classes: int, inputs: int) -> list[str]:
    """Blocks of a module's children, in order, for `edge.models.registry.module_row`; ValueError as of `make_module`.

    Each child with weights of two or more dimensions begins a block; others (normalisation, activations) join the block
    before them, or the first. The random state of this process stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        module = make_module(row, classes, inputs, row.width)
    blocks: list[list[str]] = []
    begun = False
    for name, child in module.named_children():
        has_weights = any(value.dim() > 1 for value in child.parameters())
        if not blocks or (has_weights and begun):
            blocks.append([])
        blocks[-1].append(name)
        begun = begun or has_weights
    if not blocks:
        raise _error(row, "has no children, which its blocks are made of; make its layers attributes of it")
    return ["+".join(block) for block in blocks]


def stages_of(row: ModelRow, module: nn.Module) -> list[tuple[str, list[nn.Module]]]:
    """The children of each block. ValueError unless each parameter is in exactly one block, and each block has any."""
    stages: list[tuple[str, list[nn.Module]]] = []
    for block, names_of_children in zip(row.blocks, row.children, strict=True):
        stages.append((block, []))
        for name in names_of_children:
            try:
                stages[-1][1].append(module.get_submodule(name))
            except AttributeError:
                others = [other for other, _ in module.named_children()]
                raise _error(row, f"has no child {name!r}; {nearest(name, others)}") from None
    names = {id(value): name for name, value in module.named_parameters()}
    home: dict[int, str] = {}
    for block, children in stages:
        own = {id(value) for child in children for value in child.parameters()}
        if not own:
            raise _error(row, f"block {block} has no parameters; join it to another, as in '{block}+next'")
        for key in own:
            if key in home:
                raise _error(row, f"blocks {home[key]} and {block} share the parameter {names[key]}")
            home[key] = block
    outside = [name for key, name in names.items() if key not in home]
    if outside:
        raise _error(row, f"no block holds the parameters {', '.join(outside)}")
    return stages


def check_module(config: ModelConfig, dataset: DataSet) -> None:
    """ValueError if the model is a user's module whose forward is not the chain of its blocks (`check_chain`)."""
    row = model(config.name)
    if row.children:
        rng, shape = keyed_generator(0, "describe"), (EXAMPLES, *dataset.shape)
        vocabulary = dataset.vocabulary
        drawn = rng.standard_normal(shape, np.float32) if vocabulary is None else rng.integers(0, vocabulary, shape)
        width = row.width if config.width is None else config.width
        module = make_module(row, dataset.classes, dataset.inputs, width)
        output = (*(dataset.shape if dataset.targets.continues else ()), dataset.classes)
        check_chain(row, module, torch.from_numpy(drawn), output)


def check_chain(row: ModelRow, module: nn.Module, x: Tensor, output: tuple[int, ...]) -> None:
    """ValueError unless the module maps ``x`` to (batch, *output), as its children do one after another.

    ValueError also for running statistics that need a count of batches, an integer, which does not travel. Both are
    compared in evaluation and in training mode, with the same random numbers. ``module`` is changed where it has batch
    statistics.
    """
    chain = nn.Sequential(*(child for _, children in stages_of(row, module) for child in children))
    order = ", ".join(child for block in row.children for child in block)
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            raise _error(row, f"{name} has momentum = None, and its count of batches does not travel; give it 0.1")
    for training in (False, True):
        module.train(training)
        whole = _output(module, x)
        if isinstance(whole, Exception):
            raise _error(
                row, f"cannot take examples of shape {tuple(x.shape[1:])}: {whole}{error_place(whole)}"
            ) from whole
        if not isinstance(whole, Tensor) or whole.shape != (len(x), *output):
            what = tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
            raise _error(row, f"gives {what} for {len(x)} examples, not {(len(x), *output)}")
        chained = _output(chain, x)
        is_like = isinstance(chained, Tensor) and (chained.shape, chained.dtype) == (whole.shape, whole.dtype)
        if not is_like or not torch.allclose(whole, chained, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True):
            why = f" ({chained})" if isinstance(chained, Exception) else ""
            raise _error(
                row,
                f"its forward{definition_place(type(module).forward)} is not its children {order} one after "
                f"another{why}; make layers that it calls as functions (ReLU, Flatten, pooling) children, and list all "
                "in the order of use",
            )


def _output(module: nn.Module, x: Tensor) -> Any:
    """The output, or the exception that the module raises."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            return module(x)
        except Exception as error:  # a user's forward may raise anything
            return error


def _error(row: ModelRow, why: str) -> ValueError:
    return ValueError(f"model.name = {row.name!r}: {row.stages}: {why}")
