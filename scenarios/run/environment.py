"""``environment.json``: machine, versions, data, model and fleet of a run, as it writes them and as they are read back.

A file that somebody else has written is refused if it has other types.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import model_validator

from edge.protocol.bounds import escaped
from edge.protocol.config import ModelProfile
from edge.protocol.files import write_text
from edge.protocol.operations import KINDS
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    PASS_TYPES,
    WEIGHT_GRADIENT,
    BlockShape,
    LayerShape,
    Layout,
)
from edge.protocol.portable import NATIVE, PORTABLE, Instructions, numpy_instructions, numpy_is_portable
from edge.runtime.numerics import difference, fingerprint
from scenarios.run.plugin_sources import SourceFile
from scenarios.run.run_records import Count, Number, Record

NAME = "environment.json"


class LayerRecord(Record):
    key: str
    params: Count
    buffers: Count = 0


class BlockRecord(Record):
    """Shape, bytes, FLOPs and activations of a block, per example."""

    name: str
    params: Count
    buffers: Count
    layers: list[LayerRecord] = []
    nbytes: Count
    flops_forward: Number = 0
    flops_weight_gradient: Number = 0
    flops_input_gradient: Number = 0
    """Of both gradients for the inputs"""
    activations: Number = 0

    @property
    def shape(self) -> BlockShape:
        layers = tuple(LayerShape(layer.key, layer.params, layer.buffers) for layer in self.layers)
        return BlockShape(self.name, self.params, self.buffers, layers)


class DataSetRecord(Record):
    name: str = ""
    sha256: str = ""
    source: str = ""
    test_examples: Count = 0


class PartitionRecord(Record):
    """The number of examples that each client has."""

    clients: Count = 0
    classes: Count = 0
    histogram: list[list[Count]] = []
    validation: list[Count] = []
    test: list[Count] = []

    @model_validator(mode="after")
    def _fit(self) -> Self:
        clients = len(self.histogram)
        if len(set(map(len, self.histogram))) > 1 or {len(self.validation), len(self.test)} - {0, clients}:
            raise ValueError("its lists are of different numbers of clients or classes")
        return self


class TierRecord(Record):
    """The aggregators of one tier, by number."""

    devices: list[str] = []
    networks: list[str] = []
    """Of their links to what is above them"""


class SubmodelRecord(Record):
    """What workers described of parts of the model (`ModelProfile`)."""

    axes: dict[str, list[list[list[int]]]] = {}
    rates: list[Number] = []
    flops: list[list[Number]] = []
    activations: list[Number] = []
    operations: list[list[Number]] = []


class Environment(Record):
    """The environment of a run. A key that does not concern a run is left out of its file."""

    started_utc: str = ""
    python: str = ""
    versions: dict[str, str] = {}
    platform: str = ""
    cores: Count = 0
    memory_bytes: Count = 0
    workers: Count = 0
    device: str | None = None
    """The device that the run began on; None if it has described nothing yet"""
    computes: dict[str, str] = {}
    """What decides about the bits of a result (`computing_parts`)"""
    processor: str | None = None
    data: DataSetRecord = DataSetRecord()
    partition: PartitionRecord = PartitionRecord()
    blocks: list[BlockRecord] = []
    calibrations: dict[str, list[list[str]]] = {}
    bases: dict[str, dict[str, dict[str, str]]] | None = None
    """The basis of the fleet's figures (`scenarios.run.visits`)"""
    refused_clients: dict[str, str] = {}
    """Client -> why it cannot take part"""
    clients_by_device: dict[str, list[Count]] = {}
    """Kind of device -> its clients, of runs that evaluate clients of several"""
    aggregator_of: list[Count] = []
    """(clients,) The aggregator of each client, of runs with tiers"""
    tiers: list[TierRecord] = []
    """The lowest first"""
    flops_plain_per_sample: Number = 0
    stops_at_target: bool = True
    asynchronous: bool = False
    files: dict[str, str] = {}
    """Key -> SHA-256 of each file that the fleet reads"""
    variants: list[list[Number]] = []
    outputs: list[list[Number]] = []
    operations: dict[str, list[Number]] = {}
    """Kind -> operations of a plain step, per example and per step"""
    unit_blocks: list[Count] = []
    """The blocks of residual units"""
    unit_flops: list[list[Number]] = []
    """FLOPs of the bodies of these units"""
    tensors: dict[str, list[list[Count]]] = {}
    """Key -> shapes of the parameters in its vector, of runs with a codec"""
    submodels: SubmodelRecord = SubmodelRecord()
    own_method: dict[str, Any] = {}
    """What reports show of a method of the user's own"""
    sources: dict[str, SourceFile] = {}
    """The user's modules -> their files"""
    began_with: dict[str, dict[str, Any]] = {}
    """The limits that the run began with, if it has been given others since (`scenarios.run.extension`)"""

    def tables(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)

    def with_limits(self, began: Mapping[str, Any]) -> Self:
        """The same of a run that has begun with these limits, none if it still has them."""
        tables = self.model_dump(exclude_unset=True, exclude={"began_with"})
        return self.model_validate(tables | ({"began_with": dict(began)} if began else {}))

    def write(self, folder: Path) -> None:
        text = io.StringIO()
        json.dump(
            escaped(self.tables()), text, indent=1
        )  # dumps would hold each number of each client as a text of its own
        write_text(folder / NAME, text.getvalue())

    def machine_change(self, device: str) -> str:
        """Differences between this machine and the run's that affect bit-identical results; empty if there are none."""
        before = self.computes
        portable = before.get("instructions") == PORTABLE
        return difference(computing_parts(device, PORTABLE if portable else NATIVE), before) if before else ""

    def profile(self, family: str) -> ModelProfile:
        """The profile that the run's workers described, without the fields that only training needs.

        ``family``: of its model. The file has both gradients for the inputs as one sum. The FLOPs of a plain step,
        which computes no gradient for the images, separate them for the first block; no method separates them for the
        other blocks. LookupError or ValueError for a file without model and data.
        """
        for record in (self, self.data, self.partition, *self.blocks):
            if lacking := NEEDED[type(record)] - record.model_fields_set:
                raise KeyError(min(lacking))
        flops = np.zeros((len(self.blocks), PASS_TYPES))
        for row, block in zip(flops, self.blocks, strict=True):
            row[FORWARD], row[WEIGHT_GRADIENT] = block.flops_forward, block.flops_weight_gradient
            row[INNER_GRADIENT] = block.flops_input_gradient
        flops[0, INPUT_GRADIENT] = flops.sum() - self.flops_plain_per_sample
        flops[0, INNER_GRADIENT] -= flops[0, INPUT_GRADIENT]
        histogram = np.array(self.partition.histogram, np.int64)
        operations = [self.operations[kind] for kind in KINDS] if self.operations else []
        parts = self.submodels
        return ModelProfile(
            layout=Layout(tuple(block.shape for block in self.blocks)),
            family=family,
            flops=flops,
            activations=np.array([block.activations for block in self.blocks], np.float64),
            data_sha256=self.data.sha256,
            data_source=self.data.source,
            classes=self.partition.classes,
            test_count=self.data.test_examples,
            samples=histogram.sum(axis=1),
            histogram=histogram,
            test_samples=np.zeros(len(histogram), np.int64),
            variants=np.array(self.variants, np.float64).reshape(-1, PASS_TYPES),
            operations=np.array(operations, np.float64).reshape(-1, 2),
            outputs=np.array(self.outputs, np.float64).reshape(-1, 3),
            tensors={key: tuple(map(tuple, shapes)) for key, shapes in self.tensors.items()},
            unit_blocks=np.array(self.unit_blocks, np.int64),
            unit_flops=np.array(self.unit_flops, np.float64).reshape(-1, PASS_TYPES),
            axes={
                key: tuple(tuple((size, channel) for size, channel in axes) for axes in tensors)
                for key, tensors in parts.axes.items()
            },
            rates=tuple(map(float, parts.rates)),
            part_flops=np.array(parts.flops, np.float64).reshape(-1, PASS_TYPES),
            part_activations=np.array(parts.activations, np.float64),
            part_operations=np.array(parts.operations, np.float64).reshape(-1, 2),
        )


NEEDED: Mapping[type[Record], frozenset[str]] = {
    Environment: frozenset({"data", "partition", "blocks", "flops_plain_per_sample"}),
    DataSetRecord: frozenset({"sha256", "source", "test_examples"}),
    PartitionRecord: frozenset({"classes", "histogram"}),
    BlockRecord: frozenset({"flops_forward", "flops_weight_gradient", "flops_input_gradient", "activations"}),
}
"""Keys without which a run cannot be replayed"""


def computing_parts(device: str, instructions: Instructions) -> dict[str, str]:
    """What decides about the bits of workers, and of this process, whose NumPy computes times and server steps."""
    parts = fingerprint(device, instructions)
    if instructions == PORTABLE:
        parts["instructions"] = PORTABLE
        if not numpy_is_portable(os.environ):
            parts["NumPy"] = " ".join(("native", *numpy_instructions()))
    return parts
