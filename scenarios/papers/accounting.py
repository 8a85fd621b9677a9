"""The costs of a method, as FedAlign's Table 5 counts it, and in full. Nothing is trained here.

Mendieta et al., Local Learning Matters, CVPR 2022. The table has the multiply-accumulates (MACs) of a training step's
forward passes, which it calls FLOPs, of convolutions, linear layers and average pools, per example; and the parameters
of convolutions and linear layers of all models that a client stores while it trains. Beside these stand all passes of
the step and all parameters. Both follow from a method's compute plan, so that a new method needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coordinator.methods.compute import ComputeContext, SizeFactors
from coordinator.methods.registry import Method, resolve
from edge.data.registry import dataset
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import FORWARD
from edge.training.counts import CountedModel, count_model
from scenarios.config.overrides import KeyValues

TRAIN = TrainConfig(batch=64)
STEPS, VISITS = 200, 100
"""Steps of a visit; visits that an account is the mean of where the plan follows random draws"""
FLOPS_PER_MAC = 2
OPTION = "method_options."
Costs = NDArray[np.float64]
"""(blocks, 4): FLOPs per example of each type of pass"""


@dataclass(frozen=True)
class MethodAccount:
    """The costs of one method on one model."""

    forward_macs: float
    """MACs of the forward passes of a training step, per example, as the paper counts"""
    training_macs: float
    """MACs of all passes, and of what the method computes beside them, per example"""
    stored_weights: int
    """Parameters of convolutions and linear layers, of all stored models, as the paper counts"""
    stored_parameters: int
    """All parameters of these models, with those of normalisation"""


def of_row(name: str, overrides: KeyValues, model: str, data: str, models: int) -> MethodAccount:
    """The account of a method with a row's overrides, on a model and on the images of a data set; none is read."""
    method = resolve(name)
    given = {key.removeprefix(OPTION): each for key, each in overrides.items() if key.startswith(OPTION)}
    options = method.options.model_validate(given)
    spec = method.objective
    wrapper = spec.model.wrap_model(options)
    given_wrapper = None if wrapper is None else (wrapper, options)
    return account(method, options, _counted(model, data, given_wrapper, spec.costs.variants(options)), models)


@cache
def _counted(
    model: str, data: str, wrapper: tuple[str, Options] | None, variants: tuple[SizeFactors, ...]
) -> CountedModel:
    return count_model(ModelConfig(model), dataset(data), wrapper, variants)


def account(method: Method, options: Options, counted: CountedModel, models: int) -> MethodAccount:
    """The account of a method with these options on a model, as the method wraps it.

    ``models``: how many a client stores while it trains: its own, and frozen ones.
    """
    parameters = sum(block.params for block in counted.layout.blocks)
    return MethodAccount(
        forward_macs(method, options, counted),
        training_macs(method, options, counted),
        models * counted.weights,
        models * parameters,
    )


def forward_macs(method: Method, options: Options, counted: CountedModel) -> float:
    """MACs of the forward passes of training, per example, as the paper counts.

    Other models are counted whole, even where their classifiers never run. What a method computes beside convolutions,
    linear layers and pools (matrices, norms) is left out.
    """
    with_nothing = _flops(method, options, counted, np.zeros_like)
    return (_flops(method, options, counted, _forward) - with_nothing) / FLOPS_PER_MAC


def training_macs(method: Method, options: Options, counted: CountedModel) -> float:
    """MACs of all that a training step computes by the method's plan, per example."""
    return _flops(method, options, counted, lambda costs: costs) / FLOPS_PER_MAC


def _forward(costs: Costs) -> Costs:
    flops = np.zeros_like(costs)
    flops[:, FORWARD] = costs[:, FORWARD]
    return flops


def _flops(method: Method, options: Options, counted: CountedModel, read: Callable[[Costs], Costs]) -> float:
    """FLOPs per example of the plan, with blocks and variants priced by ``read``; the mean over visits."""
    visits: list[float] = []
    for client in range(VISITS):
        context = _context(method, options, counted, read, client)
        compute = method.objective.costs.compute(context)
        passes = compute.passes / context.samples
        if read is _forward:  # passes of other models run through all blocks, as the paper counts them
            most = passes.max(axis=0)
            passes = np.where(most > 1, most, passes)
        visits.append(float((passes * context.flops).sum()) + compute.further_flops / context.samples)
        if visits[-2:] == [visits[-1]] * 2:
            break  # nothing is drawn
    return float(np.mean(visits))


def _context(
    method: Method, options: Options, counted: CountedModel, read: Callable[[Costs], Costs], client: int
) -> ComputeContext:
    spec = method.objective
    flops = read(counted.counts.flops)
    if read is _forward:
        flops[:, FORWARD] += FLOPS_PER_MAC * counted.counts.pooled
    return ComputeContext(
        counted.layout,
        options,
        dict.fromkeys(spec.traffic.choices, len(counted.layout) - 1),
        TRAIN,
        TRAIN.plan(STEPS * TRAIN.batch),
        samples=STEPS * TRAIN.batch,
        flops=flops,
        client=client,
        variants={variant: read(costs) for variant, costs in counted.variants.items()},
        outputs=counted.outputs,
        unit_flops=read(counted.counts.unit_flops),
    )
