"""FedPer, sent and weighted layer by layer: a user's method made of a shipped one."""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.fedper import SPEC

LAYERS = replace(SPEC, name="fedper-layers", traffic=replace(SPEC.traffic, by_layer=lambda options: True))
