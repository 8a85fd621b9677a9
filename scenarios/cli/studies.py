"""The commands beside run and resume: compare, study, reproduce, replay, verify, measure, stress, check-plugin.

Like all commands, these import slow modules only when they run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scenarios.cli.options import (
    FAILED,
    FINISHED,
    STOPPED,
    Device,
    Json,
    Overrides,
    Quiet,
    ScenarioName,
    StudyOptions,
    Workers,
    emit,
    exit_with_error,
    report_or_warning,
    with_options,
    with_workers,
)

if TYPE_CHECKING:
    from scenarios.host import Host, Piece
    from scenarios.studies.sweep import Study, Sweep

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
    from scenarios.studies import conformance as study

    key = study.key_of(name)
    base = load(study.BASE, [*study.SHORT, *(overrides or [])] if key == "method" else list(study.SHORT))

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return study.check_plugin(name, overrides or [], host, launcher, stopped)

    result = with_workers([base], None, None, None, device, True, work)
    emit(result, as_json, lambda: study.show(result))
    raise typer.Exit(FINISHED if result["holds"] else FAILED)


@with_options(StudyOptions)
def compare(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg,fedprox,fedmlb,fedbr",
    *,
    options: StudyOptions,
) -> None:
    """Compare methods on the same data, fleet and seed.

    With the --run-id of an earlier comparison, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.studies import compare as study

    planned = study.plan(scenario, overrides or [], methods, options.seed, options.run_id)
    _run_study(study.study(planned), options)


@several.command("budget")
@with_options(StudyOptions)
def study_budget(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg,fedbr",
    nbytes: Annotated[str | None, typer.Option("--bytes", help='budgets of bytes: "1 MB,2 MB"')] = None,
    seconds: Annotated[str | None, typer.Option("--time", help='budgets of virtual time: "5 min,15 min"')] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 3,
    *,
    options: StudyOptions,
) -> None:
    """Measure accuracy against budgets of bytes and time, with one run per method and seed.

    With the --run-id of an earlier study, finished runs are kept and interrupted runs are resumed.
    """
    from scenarios.studies import budget as study

    budgets = study.budgets(nbytes, seconds)
    planned = study.plan(scenario, overrides or [], methods, budgets, seeds, options.seed, options.run_id)
    _run_study(study.study(planned, budgets), options)


@several.command("trial")
@with_options(StudyOptions)
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
    options: StudyOptions,
) -> None:
    """Put FedBR on trial: its open details, calibration, skews of the data, its bandit, and a map of when it pays.

    All parts share the folder trial, or that of --run-id: a part that needs runs of another finds them; finished runs
    are kept and interrupted runs are resumed.
    """
    from scenarios.studies.trial import pace, plan
    from scenarios.studies.trial import study as trial

    choice = plan.TrialChoice(scenario, overrides or [], part, seeds, options.seed, target, targets, only)
    planned = plan.plan(choice if options.run_id is None else replace(choice, run_id=options.run_id))
    if options.silent:
        _run_study(trial.study(planned), options)
    pace.say_left_out(planned.left_out)
    _run_study(trial.study(planned, pace.say), options, watch=pace.announced)


@several.command("tune")
@with_options(StudyOptions)
def study_tune(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option("--methods", help=_METHODS)] = "fedavg",
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=V1,V2,..", help="values of a key; may be repeated")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="number of seeds, counted up from the scenario's")] = 1,
    *,
    options: StudyOptions,
) -> None:
    """Choose settings of each method on the clients' validation examples; test examples are never evaluated.

    Every combination of the values of --grid is a run per seed. An option of a method (method_options.KEY) varies for
    the methods that have it.
    """
    from scenarios.studies import tune as study

    values = study.grid(grid or [])
    planned = study.plan(scenario, overrides or [], methods, values, seeds, options.seed, options.run_id)
    _run_study(study.study(planned), options)


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
        result = _estimate(planned.sweep, options)
        emit(result, options.as_json, lambda: _show_estimate(result, sys.stdout))
        return
    _run_study(tables.study(planned, _telling(options)), options, estimated=scale == PAPER)


def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder; with --draws also several")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|KEY=VALUE]...", help='for example fleet.server.down="10 Mbit/s"'),
    ] = None,
    draws: Annotated[
        int | None, typer.Option("--draws", help="draws of uncertain figures, for intervals; 100 are enough for most")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="of the draws; 0 by default")] = None,
    sigma: Annotated[
        list[str] | None, typer.Option("--sigma", metavar="BASIS=SIGMA", help="of the figures of a basis: assumed=0.5")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute a run's times and energy on another fleet or link.

    With --draws, compute intervals of the times under the uncertainty of devices, links and single visits, and for
    several runs the probability that one is faster. Without KEY=VALUE they are kept in RUN/uncertainty.json, for the
    report; nothing else is written.
    """
    from scenarios.config.load import ScenarioError
    from scenarios.studies import replay as study

    # Keys have no slash, and a run folder's path may have "=".
    overrides = [word for word in words or [] if "=" in word and "/" not in word.partition("=")[0]]
    folders = [folder, *(Path(word) for word in words or [] if word not in overrides)]
    if draws is not None:
        _replay_in_draws(folders, overrides, draws, seed or 0, sigma or [], as_json)
        return
    if seed is not None or sigma:
        raise ScenarioError("--seed and --sigma are those of draws: add --draws 100")
    if len(folders) > 1:
        raise ScenarioError(f"{folders[1]}: only with --draws several runs are replayed, for example --draws 100")
    result = study.replay(folder, overrides)
    emit(result, as_json, lambda: study.show(result))


def _replay_in_draws(
    folders: list[Path], overrides: list[str], draws: int, seed: int, settings: list[str], as_json: bool
) -> None:
    from scenarios.studies import uncertainty as study

    drawn = study.replay_in_draws(folders, overrides, study.Draws(draws, seed, study.sigmas(settings)))
    kept: list[Path] = []
    try:
        kept = drawn.keep()
    except OSError as error:  # the result must be printed all the same
        print(f"fedbr: warning: the draws are not kept for reports: {error}", file=sys.stderr)
    result = drawn.result()
    emit(result, as_json, lambda: study.show(result, kept))


def verify(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    workers: Workers = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a run and name the first round that differs, if any."""
    from scenarios import runner
    from scenarios.studies import verify as study

    loaded, device = runner.open_existing(folder, device)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return study.verify(loaded, folder, host, launcher, stopped)

    result = with_workers([loaded], None, None, workers, device, quiet or as_json, work)
    emit(result, as_json, lambda: study.show(result))
    if result["difference"] is not None:
        raise typer.Exit(FAILED)
    raise typer.Exit(FINISHED if result["same"] else STOPPED)


def measure(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="for example eval.metric_options.hessian.pairs=distinct"),
    ] = None,
    metrics: Annotated[str, typer.Option("--metrics", help="names (fedbr list metrics), separated by commas")] = "",
    round: Annotated[
        int | None, typer.Option("--round", min=1, help="of a kept checkpoint, from 1; by default the newest")
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option("--clients", help="local (models after the next visit), evaluated (as evaluations use) or none"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="the JSON file; by default RUN/measure.json")] = None,
    workers: Workers = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure metrics of a stored checkpoint's models.

    Of the global model, and of clients' models: by default the local models after the visit that would follow, or,
    for methods without a global model, those that evaluations use. Nothing is charged, and no ledger is written.
    """
    from scenarios import run_folder, runner
    from scenarios.config.load import ScenarioError
    from scenarios.studies import measure as study

    if not metrics:
        raise ScenarioError("--metrics: name what to measure, for example hessian (fedbr list metrics)")
    loaded, device = runner.open_existing(folder, device)
    asked = study.plan(loaded, folder, metrics, overrides or [], round, clients)
    path = out or folder / run_folder.MEASURED

    def say(text: str) -> None:
        if not (quiet or as_json):
            print(f"fedbr: {text}", file=sys.stderr, flush=True)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return study.measure(asked, folder, host, launcher, stopped, study.progress_lines(say))

    result = with_workers([loaded], None, None, workers, device, True, work)
    study.write(result, path)
    emit(result, as_json, lambda: study.show(result, path))


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


def _run_study(
    study: Study,
    options: StudyOptions,
    estimated: bool = False,
    watch: Callable[[Host, int, int], Host] | None = None,
) -> NoReturn:
    """Run or resume the runs of a study that are not finished, write its files, and exit with its code.

    ``estimated``: the expected duration is measured and printed first; ``watch``: (host, planned runs, runs to be
    made) -> the host, with what is to be said while they work.
    """
    from scenarios.host import choose_device, piece_seconds
    from scenarios.studies import sweep

    planned, piece = study.sweep, options.piece
    piece_seconds(piece)  # refused before minutes are spent on an estimate
    missing = sweep.pending(planned, options.out, choose_device(options.device))
    loaded = [run.loaded for run in missing or planned.runs[:1]]
    expected: dict[str, Any] = {}
    if estimated and missing:
        expected = _estimate(planned, options)
        if not options.silent:
            _show_estimate(expected, sys.stderr)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        watched = host if watch is None else watch(host, len(planned.runs), len(missing))
        made = sweep.run_all(planned, watched, launcher, stopped)
        if study.complete is not None and not sweep.is_interrupted(made, planned):
            study.complete(made, host, launcher, stopped)
        return made

    made = with_workers(loaded, options.out, None, options.workers, options.device, options.silent, work, piece=piece)
    _finish_study(study, study.read_off(made), options, expected)


def _telling(options: StudyOptions) -> Callable[[str], None]:
    """A function that prints lines of progress to stderr, unless the command is to be silent."""

    def tell(text: str) -> None:
        if not options.silent:
            print(f"fedbr: {text}", file=sys.stderr, flush=True)

    return tell


def _finish_study(study: Study, result: dict[str, Any], options: StudyOptions, expected: dict[str, Any]) -> NoReturn:
    """Write and print what a study found, and say what is left of one that was stopped; exit with its code."""
    from scenarios.host import choose_device
    from scenarios.studies import sweep, wall_time

    result |= {key: expected[key] for key in ("estimate", "estimated_seconds") if key in expected}
    stopped, folder = sweep.is_interrupted(result, study.sweep), sweep.folder_of(result)
    if stopped:
        begun = replace(study.sweep, run_id=folder.name)
        on = choose_device(options.device)
        result["left"] = wall_time.left(begun, options.out, on, wall_time.durations(expected))
    page = report_or_warning(lambda: sweep.write(study, result, with_report=not stopped)) or folder
    emit(result, options.as_json, lambda: study.show(result, page))
    if stopped and not options.silent:
        text = wall_time.left_text(result["left"])
        print(f"fedbr: {text}; to go on: the same command with --run-id {folder.name}", file=sys.stderr)
    if result.get("failed"):
        raise typer.Exit(exit_with_error(sweep.failures(result["failed"]), FAILED))
    raise typer.Exit(STOPPED if stopped else FINISHED)


def _estimate(planned: Sweep, options: StudyOptions) -> dict[str, Any]:
    """The expected duration of a study on this machine (`duration.result`), measured in short runs."""
    from scenarios.studies import duration

    tell = _telling(options)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        host = replace(host, out=options.out)
        return duration.result(planned, host, duration.foreseen(planned, host, launcher, stopped, tell))

    runs = [run.loaded for run in planned.runs]
    return with_workers(runs, None, None, options.workers, options.device, True, work)


def _show_estimate(found: dict[str, Any], stream: IO[str]) -> None:
    from scenarios.report import terminal
    from scenarios.studies import duration

    terminal.print_table(duration.table(found), stream=stream)
