"""The commands that make several runs, or runs of their own: compare, study, reproduce, stress, check-plugin."""

from __future__ import annotations

import sys
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
from scenarios.cli.study_runner import estimate_of, run_experiment, show_estimate

if TYPE_CHECKING:
    from scenarios.run.host import Host, Piece

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=V1,V2,..]...", help="a key's values; one value is an override of all runs"),
]
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
    from scenarios.config.overrides import parsed
    from scenarios.run.session import Session
    from scenarios.studies import conformance as study

    given = parsed(overrides or [])
    base = load(study.BASE, study.settings(name, given))

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return study.check_plugin(name, given, host, launcher, stopped)

    result = call_session([base], work, Session(None, device), quiet=True)
    emit(result, as_json, lambda: study.show(result))
    raise typer.Exit(FINISHED if result["holds"] else FAILED)


Seeds = Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")]
Targets = Annotated[
    list[float] | None,
    typer.Option("--target", metavar="A", help="an accuracy, by default the scenario's; may be repeated"),
]

Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="ROW", help="number or name of the row that others are compared with"),
]


@with_options(SpreadOptions)
def compare(
    scenario: ScenarioName,
    words: Words = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    *,
    options: SpreadOptions,
) -> None:
    """Compare methods, method=fedavg,fedprox,fedmlb,fedbr if none are named, on the same data, fleet and seeds.

    With the --run-id of an earlier comparison, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.experiment.compare import plan
    from scenarios.experiment.grid import grid_of

    experiment = plan(grid_of(scenario, words or []), seeds, options.seed, options.run_id).with_baseline(baseline)
    parallel = options.parallel or (1 if seeds > 1 and not options.on else None)
    run_experiment(experiment, options, parallel=parallel, on=options.on)


@with_options(SpreadOptions)
def sweep(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO|FILE", help="a scenario, or a TOML file of a sweep (docs/sweeps.md)")
    ],
    words: Words = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's; 3 by default")
    ] = None,
    zipped: Annotated[bool, typer.Option("--zip", help="lists side by side instead of all combinations")] = False,
    targets: Targets = None,
    baseline: Baseline = None,
    *,
    options: SpreadOptions,
) -> None:
    """Run a grid of settings, method=fedavg,fedbr train.lr=0.05,0.1, each over several seeds, with statistics.

    The same command, also with more seeds or values, makes only the runs that are missing: the folder's name follows
    from the scenario, the keys of the grid and what all runs have in common.
    """
    from scenarios.experiment.sweep import plan
    from scenarios.experiment.sweep_file import requested

    asked = requested(scenario, words or [], zipped)
    experiment = plan(asked.grid, seeds or asked.seeds, options.seed, targets or asked.targets, options.run_id)
    experiment = experiment.with_baseline(baseline)
    parallel = options.parallel or asked.parallel or (None if options.on else 1)
    run_experiment(experiment, options, parallel=parallel, on=options.on)


@several.command("budget")
@with_options(SpreadOptions)
def study_budget(
    scenario: ScenarioName,
    words: Words = None,
    nbytes: Annotated[str | None, typer.Option("--bytes", help='budgets of bytes: "1 MB,2 MB"')] = None,
    seconds: Annotated[str | None, typer.Option("--time", help='budgets of virtual time: "5 min,15 min"')] = None,
    seeds: Seeds = 3,
    *,
    options: SpreadOptions,
) -> None:
    """Measure accuracy against budgets of bytes and time, with one run per method and seed.

    method=fedavg,fedbr if none are named. With the --run-id of an earlier study, finished runs are kept and
    interrupted runs are resumed.
    """
    from scenarios.experiment import budget
    from scenarios.experiment.grid import grid_of

    budgets = budget.budgets_of(nbytes, seconds)
    experiment = budget.plan(grid_of(scenario, words or []), budgets, seeds, options.seed, options.run_id)
    run_experiment(experiment, options, parallel=options.parallel, on=options.on)


@several.command("trial")
@with_options(SpreadOptions)
def study_trial(
    scenario: ScenarioName,
    words: Words = None,
    part: Annotated[str, typer.Option("--part", help="details, calibrated, skew, bandit or map")] = "details",
    seeds: Seeds = 3,
    targets: Annotated[
        list[float] | None,
        typer.Option(
            "--target", metavar="A", help="an accuracy of the tables; figures show the first; may be repeated"
        ),
    ] = None,
    *,
    options: SpreadOptions,
) -> None:
    """Put FedBR on trial: its open details, calibration, skews of the data, its bandit, and a map of when it pays.

    variant=fedavg,fedbr-alpha-2 and skew=eps7 choose from what a part runs. All parts share the folder trial, or that
    of --run-id: a part that needs runs of another finds them; finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.experiment.grid import grid_of
    from scenarios.papers.trial import pace
    from scenarios.papers.trial.plan import TrialRequest, plan

    grid = grid_of(scenario, words or [])
    request = TrialRequest(grid, part, seeds, options.seed, targets or (), options.run_id)
    trial = plan(request) if options.silent else plan(request, pace.say)
    watch = None
    if not options.silent:
        pace.say_left_out(trial.left_out)
        is_in_turn = options.on is None and (options.parallel or 1) == 1  # else starts of runs tell no pace
        watch = pace.announced if is_in_turn else None
    run_experiment(trial, options, watch=watch, parallel=options.parallel, on=options.on)


@several.command("tune")
@with_options(SpreadOptions)
def study_tune(
    scenario: ScenarioName,
    words: Words = None,
    seeds: Seeds = 1,
    *,
    options: SpreadOptions,
) -> None:
    """Choose settings of each method on the clients' validation examples; test examples are never evaluated.

    Every combination of the values, method=fedavg,fedprox train.lr=0.01,0.1, is a run per seed. An option of a method
    (method_options.KEY) varies for the methods that have it.
    """
    from scenarios.experiment import tune
    from scenarios.experiment.grid import grid_of

    experiment = tune.plan(grid_of(scenario, words or []), seeds, options.seed, options.run_id)
    run_experiment(experiment, options, parallel=options.parallel, on=options.on)


@with_options(StudyOptions)
def reproduce(
    name: Annotated[str | None, typer.Argument(help="a published figure or table: fedbr:fig3, fedmlb:2")] = None,
    words: Words = None,
    listed: Annotated[bool, typer.Option("--list", help="print cells, settings and published values only")] = False,
    scale: Annotated[str, typer.Option("--scale", help="tiny, small or paper")] = "tiny",
    ema: Annotated[
        str | None, typer.Option("--ema", help="start of moving averages: corrected (default) or first")
    ] = None,
    seeds: Seeds = 1,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="print the expected duration on this machine, and run nothing of it")
    ] = False,
    *,
    options: StudyOptions,
) -> None:
    """Reproduce a published figure or table, with its printed values.

    row=FedAvg,FedBR, panel=a and setting=cifar10 choose cells. With the --run-id of an earlier reproduction, finished
    runs are kept and interrupted runs are resumed. At scale paper, the expected duration is measured and printed before
    the first run.
    """
    from scenarios.config.errors import ScenarioError
    from scenarios.experiment.grid import grid_of
    from scenarios.papers import registry, tables
    from scenarios.papers.reproduce import plan
    from scenarios.papers.spec import PAPER

    if listed:
        rows = registry.catalogue(name)
        emit(rows, options.as_json, lambda: tables.show_catalogue(rows))
        return
    if name is None:
        raise ScenarioError(f"name a published figure: {', '.join(registry.FIGURES)}; --list describes them")
    grid, tell = grid_of(name, words or []), progress_printer(options.silent)
    experiment = plan(name, scale, grid, seeds, options.seed, options.run_id, ema, tell)
    if estimate:
        result = estimate_of(experiment.run_set, options)
        emit(result, options.as_json, lambda: show_estimate(result, sys.stdout))
        return
    run_experiment(experiment, options, estimated=scale == PAPER)


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
