"""The command ``check``: what can be known before a run, of a scenario, a plug-in, or this machine.

It trains nothing but the short runs that try a plug-in, and a few rounds where the wall time is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from scenarios.api.requests import CheckRequest
from scenarios.cli.completion import complete_scenarios
from scenarios.cli.options import (
    FAILED,
    FINISHED,
    USAGE,
    Output,
    Overrides,
    Seed,
    emit,
    exit_with_error,
)
from scenarios.cli.runs import with_seed
from scenarios.config.errors import ScenarioError

SCENARIO, PLUGIN, MACHINE = "of a scenario", "--plugin", "without a scenario"


def check(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO|MODULE:NAME]",
            help="a shipped scenario (fedbr list scenarios) or a TOML file; with --plugin a row or spec of your own; "
            "without any, this machine: cores, memory, GPUs, versions, data sets",
            autocompletion=complete_scenarios,
        ),
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    keys: Annotated[bool, typer.Option("--all-keys", help="also print every key of the resolved scenario")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="measure the wall time here, in a few rounds of a scratch run")
    ] = False,
    plugin: Annotated[
        bool,
        typer.Option(
            "--plugin",
            help="try MODULE:NAME in short runs: its bytes, FLOPs, workers, resume and round policies",
        ),
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure training steps of this machine, and save a device for fleets")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the calibrated device; this-host by default")
    ] = None,
    passes: Annotated[int | None, typer.Option("--passes", help="repetitions of a calibration; 3 by default")] = None,
    *,
    request: CheckRequest,
    output: Output,
) -> None:
    """Validate a scenario and estimate its costs.

    Exit code 2 if the run cannot work: without data, without clients that can take part, or without the memory; 3 if
    a plug-in does not keep its contract.
    """
    if scenario is None and plugin:
        raise ScenarioError("check --plugin: name the row or spec, MODULE:NAME")
    form = PLUGIN if plugin else MACHINE if scenario is None else SCENARIO
    device = None if request.device == "auto" else request.device
    uses: dict[str, dict[str, object]] = {
        SCENARIO: {"--all-keys": keys, "--measure": measure, "--seed": seed, "--out": request.out},
        PLUGIN: {"--workers": request.workers, "--device": device},
        MACHINE: {"--calibrate": calibrate, "--name": name, "--passes": passes},
    }
    for use, option, value in ((use, *pair) for use, options in uses.items() for pair in options.items()):
        if value is not None and value is not False and use != form:
            raise ScenarioError(f"{option}: belongs to check {use}")
    if scenario is None:
        _machine(calibrate, name or "this-host", 3 if passes is None else passes, output)
    elif plugin:
        _plugin(scenario, overrides, request, output)
    else:
        _scenario(scenario, overrides, seed, request.out or Path("runs"), keys, measure, output)


def _scenario(
    scenario: str, overrides: list[str] | None, seed: int | None, out: Path, keys: bool, measure: bool, output: Output
) -> None:
    from scenarios.api.caller import Caller
    from scenarios.config.load import load
    from scenarios.studies.forecast import check_text
    from scenarios.studies.forecast.check import run_check

    loaded = load(scenario, with_seed(overrides, seed))
    caller = Caller()
    caller.notes(loaded)
    outcome = run_check(loaded, out)
    for note in outcome.notes:  # and those that need the data
        caller.note(note)
    if measure and outcome.data.found is not None and not outcome.refusals:
        from scenarios.studies.forecast import duration

        outcome = outcome.with_pace(*duration.measure_here(loaded))
    emit(outcome.plain(), output.as_json, lambda: check_text.print_check(outcome, keys=keys))
    if outcome.refusals:
        for text in outcome.refusals[:-1]:
            exit_with_error(f"{loaded.name}: {text}", USAGE)
        raise typer.Exit(exit_with_error(f"{loaded.name}: {outcome.refusals[-1]}", USAGE))


def _plugin(name: str, overrides: list[str] | None, request: CheckRequest, output: Output) -> NoReturn:
    from scenarios.api.caller import Caller
    from scenarios.config.overrides import parsed
    from scenarios.studies import conformance as study

    result = Caller(quiet=True).check_plugin(name, parsed(overrides or []), request)
    emit(result, output.as_json, lambda: study.show(result))
    raise typer.Exit(FINISHED if result.holds else FAILED)


def _machine(calibrate: bool, name: str, passes: int, output: Output) -> None:
    from scenarios.studies import doctor

    if calibrate:
        result = doctor.calibrate(name, quiet=output.as_json, passes=passes)
        emit(result, output.as_json, lambda: doctor.show_calibration(result))
        return
    facts = doctor.examine()
    emit(facts, output.as_json, lambda: doctor.show(facts))
