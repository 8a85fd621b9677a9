"""The model of a job, as its method changes it: its blocks, and its profile before round 0. Never an example.

Nothing is measured here: FLOPs and activations are counted on tensors without memory, and cached.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from edge.data.atomic_cache import text_once
from edge.data.registry import DataSet
from edge.models.registry import model
from edge.protocol.config import Job, ModelConfig, ModelProfile
from edge.protocol.options.base import Options
from edge.protocol.payload import PASS_TYPES, Layout, Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, method_blocks
from edge.training.describe import Flops, cached_counts, cached_path, initial, seeded
from edge.training.slimmable import is_slimmable, output_shapes, resized, subnetwork_flops

MOST_PARAMETERS = 300_000_000
"""Largest model: 1.2 GB, of which a worker holds several copies."""
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class JobModel:
    """The model of one job on the examples of one data set."""

    def __init__(self, job: Job, dataset: DataSet) -> None:
        self.job, self.dataset = job, dataset
        self.row, self.cache = model(job.model.name), Path(job.cache)
        self.memory_format = MEMORY_FORMATS[job.train.memory_format or "contiguous"]

    def blocks(self, config: ModelConfig | None = None) -> list[Block]:
        """Its blocks, initialised from torch's current random state; ``config``: of a variant of the model."""
        return method_blocks(config or self.job.model, self.dataset.classes, self.dataset.inputs, self._wrapper)

    @property
    def _wrapper(self) -> tuple[str, Options] | None:
        """The method's ``wrap_model`` and its options."""
        return None if self.job.wrap_model is None else (self.job.wrap_model, self.job.options)

    def made(self, device: torch.device) -> BlockModel:
        """The model, initialised from the job's seed; ValueError for one that is too large for any worker."""
        with torch.device("meta"):  # takes no memory
            parameters = sum(tensor.numel() for _, module in self.blocks() for tensor in module.parameters())
        if parameters > MOST_PARAMETERS:
            raise ValueError(
                f"model.name = {self.row.name!r}: of width {self.job.model.width} it has {parameters:,} parameters; "
                f"the most is {MOST_PARAMETERS:,}"
            )
        net = BlockModel(seeded(self.job.seed, self.blocks), device, self.memory_format, self.job.by_layer)
        net.frozen_statistics = self.job.train.frozen_statistics
        return net

    def initial(self, net: BlockModel, draw: int) -> Payload:
        """All initial models of one independent draw, 0, 1, ..; ``net`` is the first of draw 0."""
        return initial(net, self.job.seed, self.blocks, self.job.initial_models, draw)

    # --- counts -------------------------------------------------------------------------------------------------------

    def profile(self, layout: Layout) -> ModelProfile:
        """Its profile without the data: FLOPs, activations, variants and residual units."""
        counts = cached_counts(self.job.model, self.blocks, self.dataset, self.cache, self._wrapper)
        empty = np.zeros(0, dtype=np.int64)
        return ModelProfile(
            layout=layout,
            family=self.row.family,
            flops=counts.flops,
            activations=counts.activations,
            data_sha256="",
            data_source="",
            classes=self.dataset.classes,
            test_count=0,
            samples=empty,
            histogram=np.zeros((0, self.dataset.classes), dtype=np.int64),
            test_samples=empty,
            variants=np.array([*self.variant_flops.values()]).reshape(-1, PASS_TYPES),
            operations=counts.operations,
            outputs=output_shapes(self.blocks, self.dataset) if self.job.variants else np.zeros((0, 3)),
            unit_blocks=counts.unit_blocks,
            unit_flops=counts.unit_flops,
        )

    @cached_property
    def variant_flops(self) -> dict[tuple[float, float], Flops]:
        """FLOPs per example of the variants of the model that the method declares.

        Those of a model with slimmable layers are its sub-networks'; else those of a model of that width.
        """
        variants = self.job.variants
        if variants and self._is_slimmable():
            return dict(zip(variants, self._subnetwork_flops(), strict=True))
        return {variant: self._flops_at(*variant) for variant in variants}

    def _is_slimmable(self) -> bool:
        with torch.device("meta"):
            return is_slimmable(module for _, module in self.blocks())

    def _subnetwork_flops(self) -> Flops:
        variants, flexible = self.job.variants, self.row.flexible
        path = cached_path(self.job.model, self.dataset, self.cache, self._wrapper, [variants, flexible])

        def counted() -> str:
            return json.dumps(subnetwork_flops(self.blocks, self.dataset, flexible, variants).tolist())

        try:
            return np.array(json.loads(text_once(path, counted)))
        except ValueError as error:
            raise ValueError(f"model.name = {self.row.name!r}: {error}") from None

    def _flops_at(self, factor: float, share: float) -> Flops:
        """``share``: of the images' height. ValueError for a variant that the model or the data set does not have."""
        row = self.row
        if self.dataset.kind != "image":
            raise ValueError(
                f"data.name = {self.dataset.name!r}: the method needs images, at {share:g} of their height"
            )
        channels, rows, columns = self.dataset.shape
        height, across = resized((rows, columns), share)
        width = row.width if self.job.model.width is None else self.job.model.width
        if height != rows and not row.flexible:
            raise ValueError(f"model.name = {row.name!r}: the method needs one that takes images of height {height}")
        if factor != 1 and width is None:
            raise ValueError(f"model.name = {row.name!r}: the method needs one that has a width")
        if width is not None:
            width = max(1, round(width * factor / row.width_multiple)) * row.width_multiple
        config = replace(self.job.model, width=width)
        images = replace(self.dataset, shape=(channels, height, across))
        return cached_counts(config, lambda: self.blocks(config), images, self.cache, self._wrapper).flops
