"""The command ``sweep``: a scenario over a grid of values and several seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.options import SpreadOptions, with_options
from scenarios.cli.study_runner import run_study

Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's; 3 by default")
]


@with_options(SpreadOptions)
def sweep(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO|FILE", help="a scenario, or a TOML file of a sweep (docs/sweeps.md)")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=V1,V2,..]...", help="a key's values; one value is an override of all runs"),
    ] = None,
    seeds: Seeds = None,
    zipped: Annotated[bool, typer.Option("--zip", help="lists side by side instead of all combinations")] = False,
    targets: Annotated[
        list[float] | None,
        typer.Option("--target", metavar="A", help="an accuracy, by default the scenario's; may be repeated"),
    ] = None,
    *,
    options: SpreadOptions,
) -> None:
    """Run a grid of settings, method=fedavg,fedbr train.lr=0.05,0.1, each over several seeds, with statistics.

    The same command, also with more seeds or values, makes only the runs that are missing: the folder's name follows
    from the scenario, the keys of the grid and what all runs have in common.
    """
    from scenarios.experiment import sweep as study
    from scenarios.experiment import sweep_page as page
    from scenarios.experiment.sweep_file import requested

    asked = requested(scenario, words or [])
    planned = study.plan(
        asked.scenario,
        asked.axes,
        asked.overrides,
        seeds or asked.seeds,
        options.seed,
        zipped or asked.zipped,
        targets or asked.targets,
        options.run_id,
    )
    parallel = options.parallel or asked.parallel or (None if options.on else 1)
    run_study(page.study(planned), options, parallel=parallel, on=options.on)
