"""The commands that look something up: list, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.options import Json, emit


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods (with corrections), servers, selections, policies, schedules, models, datasets, partitions, "
            "metrics, devices, networks, scenarios",
        ),
    ],
    assumed: Annotated[bool, typer.Option("--assumed", help="only rows with assumed figures")] = False,
    as_json: Json = False,
) -> None:
    """List the names that a scenario can use."""
    from scenarios.cli import listing

    rows = listing.rows(kind, assumed)
    emit(rows, as_json, lambda: listing.show(kind, rows, assumed=assumed))


def doctor(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure training steps, and save a device for fleets")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="name of the calibrated device")] = "this-host",
    passes: Annotated[int, typer.Option("--passes", help="repetitions of a calibration")] = 3,
    as_json: Json = False,
) -> None:
    """Show this machine: cores, memory, GPUs, versions, data sets."""
    from scenarios.studies import doctor as checks

    if calibrate:
        result = checks.calibrate(name, quiet=as_json, passes=passes)
        emit(result, as_json, lambda: checks.show_calibration(result))
        return
    result = checks.examine()
    emit(result, as_json, lambda: checks.show(result))
