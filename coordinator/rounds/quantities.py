"""Types of a scenario's quantities: read with units, kept in SI."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from costmodel import units

LARGEST_INTEGER = 2**53
"""As far as float64 counts exactly; no integer of a scenario needs more."""

NBytes = Annotated[int, BeforeValidator(units.nbytes), Field(gt=0, le=LARGEST_INTEGER)]
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Flops = Annotated[float, BeforeValidator(units.flops), Field(gt=0)]
Joules = Annotated[float, BeforeValidator(units.joules), Field(gt=0)]
