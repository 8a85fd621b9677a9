"""Types of a scenario's quantities: parsed with units, stored in SI."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from costmodel import units

LARGEST_INTEGER = 2**53
"""Largest integer up to which float64 is exact"""

NBytes = Annotated[int, BeforeValidator(units.nbytes), Field(gt=0, le=LARGEST_INTEGER)]
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Flops = Annotated[float, BeforeValidator(units.flops), Field(gt=0)]
Joules = Annotated[float, BeforeValidator(units.joules), Field(gt=0)]
