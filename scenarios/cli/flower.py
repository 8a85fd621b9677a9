"""The commands of ``fedbr flower``: apps of Flower on a fleet, and scenarios as apps of Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.api.requests import RunRequest
from scenarios.cli.completion import complete_scenarios
from scenarios.cli.options import AllowScenario, Json, Overrides, ReportOutput, ScenarioName, Seed, emit
from scenarios.cli.runs import finish, with_seed


def run(
    app: Annotated[Path, typer.Argument(metavar="APP", help="the folder of a Flower app, with its pyproject.toml")],
    overrides: Overrides = None,
    fleet: Annotated[
        str,
        typer.Option(
            help="the scenario whose fleet, budgets and number of clients are taken", autocompletion=complete_scenarios
        ),
    ] = "digits",
    run_config: Annotated[
        list[str] | None, typer.Option("--run-config", help="as of flwr run: 'num-server-rounds=5 lr=0.1'")
    ] = None,
    seed: Seed = None,
    *,
    request: RunRequest,
    output: ReportOutput,
) -> None:
    """Run a Flower app, unchanged, on the clock of a fleet."""
    from scenarios.api.flower import of_app

    loaded = of_app(app, fleet, " ".join(run_config or []), with_seed(overrides, seed))
    finish(loaded, output.caller().run(loaded, request), output)


def export(
    scenario: ScenarioName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="new folder for the app")],
    overrides: Overrides = None,
    allow_code: AllowScenario = False,
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
    result = {"folder": str(folder), "files": [str(file) for file in files]}
    emit(result, as_json, lambda: print("\n".join(f"wrote {file}" for file in files)))
