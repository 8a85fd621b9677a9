"""The measurements in a calibrated device's file: written as comments above its row, read for a run's environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.fleet.devices import own_devices
from scenarios.config import fleet_files
from scenarios.config.schema import Scenario
from scenarios.report.columns import FLOPS, SECONDS, cells

COLUMNS = ("model", "batch", "work", "CPU time", "predicted", "error")
TITLES = (
    "One training step by the row below (step_seconds + operations / operations_per_second) and as it was measured.",
    "The row was fitted to reference networks; shipped models, which are not fitted, show how far it holds.",
)


def comments(measurements: list[dict[str, Any]]) -> str:
    """The comments above a calibrated device's row: its measurements as an aligned table."""
    lines = [COLUMNS, *rows(measurements)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    return "".join(f"# {line}".rstrip() + "\n" for line in (*TITLES, "", *padded))


def rows(measurements: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The measurements under `COLUMNS`; both columns of seconds have one unit."""
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


def calibration_of(path: Path) -> list[list[str]]:
    """The table in the comments of a calibrated device's file, names of columns first; empty if there is none."""
    comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    lines = [re.split(r" {2,}", line.strip()) for line in comments]
    head = list(COLUMNS)
    return [line for line in lines[lines.index(head) :] if len(line) == len(head)] if head in lines else []


def calibrations(scenario: Scenario) -> dict[str, list[list[str]]]:
    """Device -> `calibration_of` its file, for the fleet's devices that ``fedbr doctor --calibrate`` made."""
    return dict(_calibrations(scenario))


def _calibrations(scenario: Scenario) -> Iterator[tuple[str, list[list[str]]]]:
    own = fleet_files.own_rows(scenario)[0]
    for name in sorted(own.keys() & set(scenario.fleet.devices)):
        path = fleet_files.calibrated(name)
        # A file that the scenario names may have a device of the same name, which then is the fleet's.
        if path is not None and own_devices(path).get(name) == own[name] and (lines := calibration_of(path)):
            yield name, lines
