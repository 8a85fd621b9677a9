"""``environment.json``: machine, versions, data, model and fleet of a run, as it writes them and as they are read back.

A file that somebody else has written is refused if it has other types.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from costmodel.fleet.carbon import Intensity
from edge.protocol.bounds import escaped
from edge.protocol.files import write_text
from edge.protocol.portable import NATIVE, PORTABLE, Instructions, numpy_instructions, numpy_is_portable
from edge.runtime.numerics import difference, fingerprint
from scenarios.run.plugin_sources import SourceFile
from scenarios.run.run_records import Count, Number, Record

NAME = "environment.json"


class BlockRecord(Record):
    """Bytes of a block, and its FLOPs per example."""

    name: str
    params: Count
    buffers: Count
    nbytes: Count
    flops_forward: Number = 0
    flops_weight_gradient: Number = 0
    flops_input_gradient: Number = 0
    """FLOPs of both gradients for the inputs"""


class StepRecord(Record):
    """As `costmodel.fleet.devices.MeasuredStep`."""

    model: str
    fitted: bool
    batch: Count
    flops_per_example: Number
    measured_seconds: Number
    predicted_seconds: Number
    width: Count | None = None


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
    client_names: list[str] = []
    """Who client 0, 1, .. is, and the labels of classes, where the data say so"""
    class_names: list[str] = []

    @model_validator(mode="after")
    def _fit(self) -> Self:
        clients = len(self.histogram)
        counts = {len(self.validation), len(self.test), len(self.client_names)}
        if len(set(map(len, self.histogram))) > 1 or counts - {0, clients}:
            raise ValueError("its lists are of different numbers of clients or classes")
        return self


class TierRecord(Record):
    """The aggregators of one tier, by number."""

    devices: list[str] = []
    networks: list[str] = []
    """The networks of their links to what is above them"""


class CarbonRecord(Record):
    """The carbon intensity that the joules of a run are multiplied with, as it was when the run began."""

    grams_per_kwh: Number
    zone: str | None = None
    """None: a number of the user's"""
    year: Count | None = None
    source: str
    counts: str = ""

    @property
    def intensity(self) -> Intensity:
        return Intensity(self.grams_per_kwh, self.zone, self.year, self.source, self.counts)


class ScoreRecord(Record):
    """The metric by which a run is judged, where that or the loss is the user's own."""

    metric: str
    better: Literal["higher", "lower"]
    is_share: bool = False


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
    """The facts that decide about the bits of a result (`computing_parts`)"""
    processor: str | None = None
    data: DataSetRecord = DataSetRecord()
    partition: PartitionRecord = PartitionRecord()
    blocks: list[BlockRecord] = []
    calibrations: dict[str, list[StepRecord]] = {}
    """Device of the fleet -> the steps that were measured on it, by calibration or in the source of its row"""
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
    stops_at_target: bool = True
    asynchronous: bool = False
    score: ScoreRecord | None = None
    files: dict[str, str] = {}
    """Key -> SHA-256 of each file that the fleet reads"""
    carbon: CarbonRecord | None = None
    """Of runs with one"""
    own_method: dict[str, object] = {}
    """The fields that reports show of a method of the user's own"""
    sources: dict[str, SourceFile] = {}
    """The user's modules -> their files"""
    began_with: dict[str, dict[str, object]] = {}
    """The limits that the run began with, if it has been given others since (`scenarios.run.extension`)"""

    def tables(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)

    def with_limits(self, began: Mapping[str, Mapping[str, object]]) -> Self:
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


def computing_parts(device: str, instructions: Instructions) -> dict[str, str]:
    """The facts that decide about the bits of workers, and of this process, whose NumPy computes times and server
    steps."""
    parts = fingerprint(device, instructions)
    if instructions == PORTABLE:
        parts["instructions"] = PORTABLE
        if not numpy_is_portable(os.environ):
            parts["NumPy"] = " ".join(("native", *numpy_instructions()))
    return parts
