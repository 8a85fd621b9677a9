"""The training steps that were measured on a calibrated device, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.fleet.devices import MeasuredStep
from scenarios.report.columns import FLOPS, SECONDS, cells
from scenarios.run.environment import StepRecord

COLUMNS = ("model", "batch", "work", "CPU time", "predicted", "error")


def rows(steps: Sequence[MeasuredStep | StepRecord]) -> list[tuple[str, ...]]:
    """The steps under `COLUMNS`; both columns of seconds have one unit."""
    times = cells(SECONDS, [seconds for step in steps for seconds in (step.measured_seconds, step.predicted_seconds)])
    return list(
        zip(
            (
                step.model if step.fitted or step.width is None else f"{step.model}, width {step.width}"
                for step in steps
            ),
            (str(step.batch) for step in steps),
            cells(FLOPS, [step.flops_per_example * step.batch for step in steps]),
            times[::2],
            times[1::2],
            (f"{step.predicted_seconds / step.measured_seconds - 1:+.1%}" for step in steps),
            strict=True,
        )
    )
