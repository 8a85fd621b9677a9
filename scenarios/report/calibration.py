"""The measurements in a calibrated device's file, written as comments above its row; `run.metadata` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.report.columns import FLOPS, SECONDS, cells
from scenarios.run.metadata import CALIBRATION

TITLES = (
    "One training step by the row below (step_seconds + operations / operations_per_second) and as it was measured.",
    "The row was fitted to reference networks; shipped models, which are not fitted, show how far it holds.",
)


def comments(measurements: list[dict[str, Any]]) -> str:
    """The comments above a calibrated device's row: its measurements as an aligned table."""
    lines = [CALIBRATION, *rows(measurements)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    return "".join(f"# {line}".rstrip() + "\n" for line in (*TITLES, "", *padded))


def rows(measurements: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The measurements under `CALIBRATION`; both columns of seconds have one unit."""
    seconds = [each[key] for key in ("seconds", "predicted_seconds") for each in measurements]
    times = cells(SECONDS, seconds)
    return list(
        zip(
            map(_model, measurements),
            (str(each["batch"]) for each in measurements),
            cells(FLOPS, [each["flops"] * each["batch"] for each in measurements]),
            times[: len(measurements)],
            times[len(measurements) :],
            (f"{each['relative_error']:+.1%}" for each in measurements),
            strict=True,
        )
    )


def _model(measurement: Mapping[str, Any]) -> str:
    fitted, width = measurement["fitted"], measurement["width"]
    return str(measurement["model"]) + ("" if fitted or width is None else f", width {width}")
