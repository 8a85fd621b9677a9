"""The commands of ``fedbr flower``: scenarios as apps of Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.cli.options import Json, Overrides, ScenarioName, emit


def export(
    scenario: ScenarioName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="new folder for the app")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write a scenario as a Flower app that runs on real devices.

    Its server is a run like every other, with a run folder, whose times are measured. README.md in the folder says how
    server and devices are started.
    """
    from scenarios.config.load import load
    from scenarios.config.overrides import parsed
    from scenarios.flower import export as app

    files = app.export(load(scenario, parsed(overrides or [])), folder)
    result: dict[str, Any] = {"folder": str(folder), "files": [str(file) for file in files]}
    emit(result, as_json, lambda: print("\n".join(f"wrote {file}" for file in files)))
