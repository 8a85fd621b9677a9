"""The scenarios that ``benchmarks/gpu.py`` trains, of data that every machine has. Never torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_parts import images
from benchmarks.engine_parts.tools import NEVER

IMAGES = "images"
"""Random images of 3 x 32 x 32, as many as the clients need; the others are scikit-learn's."""


@dataclass(frozen=True)
class Workload:
    """A scenario of alike clients with equally many examples each, without stragglers."""

    model: str
    data: str
    clients: int
    samples: int
    """Per client; of random images alone, others are divided equally"""
    steps: int
    """Of one visit, on full batches"""
    batch: int = 20
    width: int | None = None
    method: str = "fedavg"

    @property
    def name(self) -> str:
        """For tables."""
        width = "" if self.width is None else f" of width {self.width}"
        return f"{self.model}{width}"

    @property
    def toml(self) -> str:
        """As a scenario file; every client takes part in every round."""
        data = images.named(self.clients * self.samples) if self.data == IMAGES else self.data
        width = "" if self.width is None else f"width = {self.width}\n"
        return (
            f'method = "{self.method}"\n'
            f'[data]\nname = "{data}"\nclients = {self.clients}\naugment = "none"\n'
            f'[model]\nname = "{self.model}"\n{width}'
            f"[train]\nlr = 0.05\nbatch = {self.batch}\nlocal_steps = {self.steps}\ndrop_last = true\n"
            f"[rounds]\nparticipants = {self.clients}\nmax = {NEVER}\n"
            f"[eval]\nevery = {NEVER}\n"
            "[fleet]\njitter = 0.0\n"
        )

    def written(self, folder: Path, name: str) -> str:
        """The path of the scenario file."""
        path = folder / f"gpu-{name}-{self.model}-{self.clients}.toml"
        path.write_text(self.toml)
        return str(path)
