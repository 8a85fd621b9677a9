"""Counts a model without a data set: its layout, FLOPs, average pools, and the parameters of its weight layers.

Papers differ in what they count. The numbers here are those that tables of FLOPs and parameters are made of; which of
them a table has is said where it is made. All are counted on tensors without memory, none is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge.data.registry import DataSet
from edge.models.registry import model
from edge.protocol.config import ModelConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import Layout
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, method_blocks
from edge.training.count_operations import OperationCounter
from edge.training.describe import EXAMPLES, flops_per_example, unit_flops_per_example
from edge.training.slimmable import output_shapes, subnetwork_flops

META = torch.device("meta")


@dataclass(frozen=True)
class PassCosts:
    """The costs of a model's passes, per example."""

    flops: NDArray[np.float64]
    """(blocks, 4): a column per pass type (`edge.protocol.payload`); 1 MAC = 2 FLOPs"""
    pooled: NDArray[np.float64]
    """(blocks,): numbers that average pools take in a forward pass"""


@dataclass(frozen=True)
class CountedModel:
    """The numbers of a model, as a method changes it."""

    layout: Layout
    costs: PassCosts
    weights: int
    """Parameters of convolutions and linear layers with their biases: all but those of normalisation"""
    variants: Mapping[tuple[float, float], PassCosts]
    """(factor on the width, factor on the images' height) -> costs"""
    units: PassCosts
    """(units, ..): of the bodies of residual units, as part of ``costs``"""
    outputs: NDArray[np.float64]
    """(blocks, 3): channels, height and width of each block's output, where there are variants"""


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
    costs, outputs = _of_variants(make, dataset, model(config.name).flexible, variants)
    return CountedModel(
        net.layout,
        _costs(make, dataset.shape),
        sum(_weights(module) for module in net.modules),
        variants=costs,
        units=_without_pools(unit_flops_per_example(make, dataset.shape)[1]),
        outputs=outputs,
    )


def _of_variants(
    make: Callable[[], list[Block]], dataset: DataSet, flexible: bool, variants: Sequence[tuple[float, float]]
) -> tuple[dict[tuple[float, float], PassCosts], NDArray[np.float64]]:
    """(costs of each variant, `output_shapes`); average pools in variants are not counted."""
    if not variants:
        return {}, np.zeros((0, 3))
    counted = subnetwork_flops(make, dataset, flexible, variants)
    costs = {variant: _without_pools(flops) for variant, flops in zip(variants, counted, strict=True)}
    return costs, output_shapes(make, dataset)


def _without_pools(flops: NDArray[np.float64]) -> PassCosts:
    return PassCosts(flops, np.zeros(len(flops)))


def _weights(module: nn.Module) -> int:
    layers = (list(layer.parameters(recurse=False)) for layer in module.modules())
    return sum(sum(p.numel() for p in own) for own in layers if any(p.ndim > 1 for p in own))


def _costs(make: Callable[[], list[Block]], shape: Sequence[int]) -> PassCosts:
    pooled = []
    with META:
        x = torch.empty((EXAMPLES, *shape))
        for _, module in make():
            with OperationCounter() as counter:
                x = module(x)
            pooled.append(counter.pooled / EXAMPLES)
    return PassCosts(flops_per_example(make, shape), np.array(pooled))
