"""The commands that make several runs, or runs of their own: compare, study, reproduce, stress, check-plugin."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.options import (
    FAILED,
    FINISHED,
    Device,
    Json,
    Overrides,
    Quiet,
    ScenarioName,
    SpreadOptions,
    StudyOptions,
    call_session,
    emit,
    progress_printer,
    with_options,
)
from scenarios.cli.study_runner import estimate_of, run_study, show_estimate

if TYPE_CHECKING:
    from scenarios.run.host import Host, Piece

_METHODS = "methods, separated by commas"
several = typer.Typer(no_args_is_help=True, help="Studies over several seeds.")


def check_plugin(
    name: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="a row or spec of your own")],
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the contract of a plug-in in short runs: bytes, FLOPs, any number of workers, resume, round policies."""
    from scenarios.config.load import load
    from scenarios.run.session import Session
    from scenarios.studies import conformance as study

    base = load(study.BASE, study.settings(name, overrides or []))

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return study.check_plugin(name, overrides or [], host, launcher, stopped)

    result = call_session([base], work, Session(None, device), quiet=True)
    emit(result, as_json, lambda: study.show(result))
    raise typer.Exit(FINISHED if result["holds"] else FAILED)


@with_options(SpreadOptions)
def compare(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg,fedprox,fedmlb,fedbr",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 1,
    *,
    options: SpreadOptions,
) -> None:
    """Compare methods on the same data, fleet and seed, or over several seeds with their statistics.

    With the --run-id of an earlier comparison, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.experiment import compare as study

    planned = study.plan(scenario, overrides or [], methods, options.seed, options.run_id, seeds)
    parallel = options.parallel or (1 if seeds > 1 and not options.on else None)
    run_study(study.study(planned), options, parallel=parallel, on=options.on)


@several.command("budget")
@with_options(SpreadOptions)
def study_budget(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg,fedbr",
    nbytes: Annotated[str | None, typer.Option("--bytes", help='budgets of bytes: "1 MB,2 MB"')] = None,
    seconds: Annotated[str | None, typer.Option("--time", help='budgets of virtual time: "5 min,15 min"')] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 3,
    *,
    options: SpreadOptions,
) -> None:
    """Measure accuracy against budgets of bytes and time, with one run per method and seed.

    With the --run-id of an earlier study, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.experiment import budget as study

    budgets = study.budgets(nbytes, seconds)
    planned = study.plan(scenario, overrides or [], methods, budgets, seeds, options.seed, options.run_id)
    run_study(study.study(planned, budgets), options, parallel=options.parallel, on=options.on)


@several.command("trial")
@with_options(SpreadOptions)
def study_trial(
    scenario: ScenarioName,
    overrides: Overrides = None,
    part: Annotated[str, typer.Option("--part", help="details, calibrated, skew, bandit or map")] = "details",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 3,
    target: Annotated[
        float | None, typer.Option("--target", help="accuracy that figures show; by default the scenario's target")
    ] = None,
    targets: Annotated[str, typer.Option("--targets", help="accuracies of the tables")] = "0.25,0.3,0.35,0.4",
    only: Annotated[str | None, typer.Option("--only", help="variants and skews: fedavg,fedbr-alpha-2,eps7")] = None,
    *,
    options: SpreadOptions,
) -> None:
    """Put FedBR on trial: its open details, calibration, skews of the data, its bandit, and a map of when it pays.

    All parts share the folder trial, or that of --run-id: a part that needs runs of another finds them; finished runs
    are kept and interrupted runs are resumed.
    """
    from scenarios.papers.trial import pace, plan
    from scenarios.papers.trial import study as trial

    choice = plan.TrialChoice(scenario, overrides or [], part, seeds, options.seed, target, targets, only)
    planned = plan.plan(choice if options.run_id is None else replace(choice, run_id=options.run_id))
    if options.silent:
        run_study(trial.study(planned), options, parallel=options.parallel, on=options.on)
    pace.say_left_out(planned.left_out)
    is_in_turn = options.on is None and (options.parallel or 1) == 1  # else no pace can be told from the starts of runs
    watch = pace.announced if is_in_turn else None
    run_study(trial.study(planned, pace.say), options, watch=watch, parallel=options.parallel, on=options.on)


@several.command("tune")
@with_options(SpreadOptions)
def study_tune(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg",
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=V1,V2,..", help="values of a key; may be repeated")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 1,
    *,
    options: SpreadOptions,
) -> None:
    """Choose settings of each method on the clients' validation examples; test examples are never evaluated.

    Every combination of the values of --grid is a run per seed. An option of a method (method_options.KEY) varies for
    the methods that have it.
    """
    from scenarios.experiment import tune as study

    values = study.grid(grid or [])
    planned = study.plan(scenario, overrides or [], methods, values, seeds, options.seed, options.run_id)
    run_study(study.study(planned), options, parallel=options.parallel, on=options.on)


@with_options(StudyOptions)
def reproduce(
    name: Annotated[str | None, typer.Argument(help="a published figure or table: fedbr:fig3, fedmlb:2")] = None,
    overrides: Overrides = None,
    listed: Annotated[bool, typer.Option("--list", help="print cells, settings and published values only")] = False,
    scale: Annotated[str, typer.Option("--scale", help="tiny, small or paper")] = "tiny",
    cells: Annotated[str | None, typer.Option("--cells", help="rows, panels, settings: FedAvg,FedBR,a")] = None,
    ema: Annotated[
        str | None, typer.Option("--ema", help="start of moving averages: corrected (default) or first")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 1,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="print the expected duration on this machine, and run nothing of it")
    ] = False,
    *,
    options: StudyOptions,
) -> None:
    """Reproduce a published figure or table, with its printed values.

    With the --run-id of an earlier reproduction, finished runs are kept and interrupted runs are resumed. At scale
    paper, the expected duration is measured and printed before the first run.
    """
    from scenarios.config.load import ScenarioError
    from scenarios.papers import reproduce as study
    from scenarios.papers import tables
    from scenarios.papers.spec import PAPER

    if listed:
        rows = study.catalogue(name)
        emit(rows, options.as_json, lambda: tables.show_catalogue(rows))
        return
    if name is None:
        raise ScenarioError(f"name a published figure: {', '.join(study.FIGURES)}; --list describes them")
    planned = study.plan(name, scale, cells, overrides or [], seeds, options.seed, options.run_id, ema)
    if estimate:
        result = estimate_of(planned.run_set, options)
        emit(result, options.as_json, lambda: show_estimate(result, sys.stdout))
        return
    run_study(tables.study(planned, progress_printer(options.silent)), options, estimated=scale == PAPER)


def stress(
    clients: Annotated[int, typer.Option("--clients", min=1, max=10_000_000, help="clients in the fleet")],
    cohort: Annotated[
        int | None, typer.Option("--cohort", min=1, help="clients that take part; by default all")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="as a scenario's rounds.policy")] = "sync",
    contended: Annotated[bool, typer.Option("--contended", help="make the server's link the bottleneck")] = False,
    deadline: Annotated[str | None, typer.Option("--deadline", help='of policy deadline, for example "20 s"')] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Run the cost model alone, for one round of a large fleet."""
    from scenarios.studies import stress as study

    seconds = None if deadline is None else study.deadline_seconds(deadline)
    result = study.stress(clients, cohort or clients, policy, contended, seed=seed, deadline=seconds)
    emit(result, as_json, lambda: study.show(result))
