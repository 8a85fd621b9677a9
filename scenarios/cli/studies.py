"""The commands that make several runs, or runs of their own: compare, study, reproduce, stress, check-plugin."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scenarios.api.requests import (
    CompareRequest,
    DecideRequest,
    MachineRequest,
    ReproduceRequest,
    StressRequest,
    SweepRequest,
)
from scenarios.cli.options import (
    FAILED,
    FINISHED,
    STOPPED,
    ExperimentOutput,
    Output,
    Overrides,
    ScenarioName,
    Seed,
    emit,
    exit_with_error,
    report_or_warning,
)

if TYPE_CHECKING:
    from scenarios.api.requests import ExperimentRequest
    from scenarios.experiment.experiment import Experiment
    from scenarios.experiment.run_set import RunSet
    from scenarios.run.host import Host, Piece
    from scenarios.studies.forecast.duration import StudyDuration


def run_experiment(
    experiment: Experiment, request: ExperimentRequest, output: ExperimentOutput, estimated: bool = False
) -> NoReturn:
    """Run or resume the runs of an experiment that are not finished, write its files, and exit with its code.

    ``estimated``: the expected duration is measured and printed first. With --estimate nothing of it is run.
    """
    from msgspec import to_builtins

    from scenarios.experiment import run_set
    from scenarios.experiment.experiment import write
    from scenarios.run.host import piece_seconds
    from scenarios.studies.forecast import duration

    planned, expected = experiment.run_set, None
    piece_seconds(request.time_limit)  # refused before minutes are spent on an estimate
    if output.estimate:
        only = estimate_of(planned, request, output)
        emit(only, output.as_json, lambda: show_estimate(only, sys.stdout))
        raise typer.Exit(FINISHED)
    if estimated and run_set.pending(planned, request.out, planned.device(request.device)):
        expected = estimate_of(planned, request, output)
        if not output.silent:
            show_estimate(expected, sys.stderr)
    experiment, _, result = output.caller().experiment(experiment, request)
    planned = experiment.run_set
    if expected is not None:
        estimate = to_builtins(expected.estimate)
        result |= {"estimate": estimate, "estimated_seconds": expected.estimated_seconds}
    stopped, folder = run_set.is_interrupted(result, planned), run_set.folder_of(result)
    if stopped:
        begun = replace(planned, run_id=folder.name)
        on = begun.device(request.device)
        left = duration.runs_left(begun, request.out, on, expected.estimate.durations if expected else ())
        result["left"] = asdict(left)
    page = report_or_warning(lambda: write(experiment, result, output.report and not stopped)) or folder
    emit(result, output.as_json, lambda: experiment.show(result, page), in_files=True)
    for line in run_set.warning_lines(result):
        print(f"fedbr: warning: {line}", file=sys.stderr)
    if stopped and not output.silent:
        again = "" if request.run_id is None and planned.run_id else f" with --run-id {folder.name}"
        print(f"fedbr: {left}; to go on: the same command{again}", file=sys.stderr)
    if result.get("failed"):
        raise typer.Exit(exit_with_error(run_set.failures(result["failed"]), FAILED))
    raise typer.Exit(STOPPED if stopped else FINISHED)


def estimate_of(planned: RunSet, request: ExperimentRequest, output: ExperimentOutput) -> StudyDuration:
    """The expected duration of runs on this machine (`duration.result`), measured in short runs."""
    from scenarios.api.caller import Caller
    from scenarios.run.session import Session
    from scenarios.studies.forecast import duration

    def work(host: Host, launcher: Any, stopped: Piece) -> StudyDuration:
        host = replace(host, out=request.out)
        return duration.result(planned, host, duration.forecast(planned, host, launcher, stopped, output.tell))

    return Caller(quiet=True).call(Session(request.workers, request.device), [run.loaded for run in planned.runs], work)


def show_estimate(found: StudyDuration, stream: IO[str]) -> None:
    from scenarios.report import terminal
    from scenarios.studies.forecast import duration

    terminal.print_table(duration.table(found), stream=stream)


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=V1,V2,..]...", help="a key's values; one value is an override of all runs"),
]


def check_plugin(
    name: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="a row or spec of your own")],
    overrides: Overrides = None,
    *,
    request: MachineRequest,
    output: Output,
) -> None:
    """Check the contract of a plug-in in short runs: bytes, FLOPs, any number of workers, resume, round policies."""
    from scenarios.api.caller import Caller
    from scenarios.config.overrides import parsed
    from scenarios.studies import conformance as study

    result = Caller(quiet=True).check_plugin(name, parsed(overrides or []), request)
    emit(result, output.as_json, lambda: study.show(result))
    raise typer.Exit(FINISHED if result.holds else FAILED)


def compare(scenario: ScenarioName, words: Words = None, *, request: CompareRequest, output: ExperimentOutput) -> None:
    """Compare methods, method=fedavg,fedprox,fedmlb,fedbr if none are named, on the same data, fleet and seeds.

    With the --run-id of an earlier comparison, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.experiment.grid import grid_of

    run_experiment(request.plan(grid_of(scenario, words or [])), request, output)


def sweep(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO|FILE", help="a scenario, or a TOML file of a sweep (docs/sweeps.md)")
    ],
    words: Words = None,
    zipped: Annotated[bool, typer.Option("--zip", help="lists side by side instead of all combinations")] = False,
    *,
    request: SweepRequest,
    output: ExperimentOutput,
) -> None:
    """Run a grid of settings, method=fedavg,fedbr train.lr=0.05,0.1, each over several seeds, with statistics.

    The same command, also with more seeds or values, makes only the runs that are missing: the folder's name follows
    from the scenario, the keys of the grid and what all runs have in common.
    """
    from scenarios.config.errors import ScenarioError
    from scenarios.experiment.sweep_file import requested

    file = requested(scenario, words or [], zipped)
    if file.decide:
        raise ScenarioError(f"{scenario}: decide: is a table for fedbr decide")
    request = replace(
        request,
        seeds=request.seeds or file.seeds,
        targets=request.targets or file.targets,
        parallel=request.parallel or file.parallel,
        at=request.at or file.at,
        judge=request.judge or file.judge,
    )
    run_experiment(request.plan(file.grid), request, output)


def decide(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO|FILE", help="a scenario, or a TOML file of a decision (docs/decide.md)")
    ],
    words: Words = None,
    *,
    request: DecideRequest,
    output: ExperimentOutput,
) -> None:
    """Decide which candidate reaches a target for the least, or is the best within budgets, training little.

    Candidates are all combinations of the values, method=fedavg,fedbr codec.up.bits=4,8, or --candidates starter. The
    worse half of them is left out as evidence comes in; the same command goes on after an interruption.
    """
    from scenarios.experiment.sweep_file import requested

    file = requested(scenario, words or [])
    limits = [f"{name}={amount}" for name, amount in file.decide.get("budget", {}).items()]
    own = {key: file.decide.get(key) for key in ("target", "cost", "candidates", "draws")}
    own |= {"budgets": limits, "seeds": file.seeds, "parallel": file.parallel}
    given = {key: value for key in own if (value := getattr(request, key)) not in (None, (), [])}
    request = replace(request, **{**own, **given})
    run_experiment(request.plan(file.grid, output.tell), request, output)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="a published figure or table: fedbr:fig3, fedmlb:2")] = None,
    words: Words = None,
    listed: Annotated[bool, typer.Option("--list", help="print cells, settings and published values only")] = False,
    *,
    request: ReproduceRequest,
    output: ExperimentOutput,
) -> None:
    """Reproduce a published figure or table, with its printed values.

    row=FedAvg,FedBR, panel=a and setting=cifar10 choose cells. With the --run-id of an earlier reproduction, finished
    runs are kept and interrupted runs are resumed. At scale paper, the expected duration is measured and printed before
    the first run.
    """
    from scenarios.config.errors import ScenarioError
    from scenarios.experiment.grid import grid_of
    from scenarios.papers import tables
    from scenarios.papers.spec import PAPER

    if listed:
        rows = tables.catalogue(name)
        emit(rows, output.as_json, lambda: tables.show_catalogue(rows))
        return
    if name is None:
        raise ScenarioError(f"name a published figure: {', '.join(tables.FIGURES)}; --list describes them")
    experiment = request.plan(name, grid_of(name, words or []), output.tell)
    run_experiment(experiment, request, output, estimated=request.scale == PAPER)


def stress(
    scenario: ScenarioName, overrides: Overrides = None, seed: Seed = None, *, request: StressRequest, output: Output
) -> None:
    """Make a run at scale whose workers answer at once: the real coordinator, sockets, ledger and clock.

    Prints what a visit costs this machine. Nothing is trained; clients beyond those of the data repeat these.
    """
    from coordinator.rounds.budget import USER
    from scenarios.cli.runs import with_seed
    from scenarios.studies import stress as study

    scale = request.clients, request.participants, request.rounds
    result = output.caller().stress(study.StressPlan.of(scenario, with_seed(overrides, seed), *scale), request)
    out = request.out
    page = None if out is None else report_or_warning(lambda: study.write_page(result, out))
    emit(asdict(result), output.as_json, lambda: study.show(result, page))
    raise typer.Exit(STOPPED if result.stopped_by == USER else FINISHED)
