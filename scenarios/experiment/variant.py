"""A method with settings of its own, as one row of a study; its runs differ in the seed alone."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A method and its overrides of the scenario, ``KEY=VALUE`` each."""

    method: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For names of folders: ``fedmlb``, ``fedavg-server-fedadam-lr-0.01``."""
        pairs = (override.partition("=") for override in self.overrides)
        words = [f"{key.rpartition('.')[2]} {value}".lower() for key, _, value in pairs]
        return "-".join([self.method, *(re.sub(r"[^a-z0-9.]+", "-", word).strip("-") for word in words)])
