"""``fedbr flower``: apps of Flower on a modelled fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.completion import complete_scenarios
from scenarios.cli.options import Overrides, ReportOutput, Seed
from scenarios.cli.remote import RunOptions
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
    request: RunOptions,
    output: ReportOutput,
) -> None:
    """Run a Flower app, unchanged, on the clock of a fleet."""
    from scenarios.api.flower import of_app

    loaded = of_app(app, fleet, " ".join(run_config or []), with_seed(overrides, seed))
    finish(loaded, output.caller().run(loaded, request), output)
