"""The command ``fedbr``: words in, exit codes out. What the commands do lives beside this file.

0 finished; 2 bad usage or scenario; 3 the run failed; 4 stopped early by the user; 130 on a second Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.load import Loaded, ScenarioError, load

FINISHED, USAGE, FAILED, STOPPED, KILLED = 0, 2, 3, 4, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Simulate federated learning on heterogeneous edge fleets: real training, a virtual clock, every byte counted.",
)

ScenarioName = Annotated[str, typer.Argument(help="a shipped scenario (fedbr list scenarios) or a TOML file")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="for example train.lr=0.05")]
Out = Annotated[Path, typer.Option("--out", help="folder for run folders")]
RunId = Annotated[str | None, typer.Option("--run-id", help="name of the run folder")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="worker processes; one per core by default")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="the same as seed=N")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, nothing else there")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]


def main() -> None:
    """Entry point; turns every expected failure into one message and an exit code."""
    sys.exit(guarded(lambda: app(standalone_mode=False) or FINISHED))


def guarded(work: Callable[[], int]) -> int:
    """The exit code of ``work``, with one clear message on stderr where it failed."""
    import click

    from coordinator.federation import RunFailed
    from coordinator.pool import PoolError, Stopped
    from scenarios.report import ReportError

    try:
        return work()
    except (ScenarioError, ReportError) as error:
        return _say(error, USAGE)
    except (RunFailed, PoolError) as error:
        return _say(error, FAILED)
    except Stopped:
        return STOPPED
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return KILLED


def _say(error: Exception, code: int) -> int:
    print(f"fedbr: {error}", file=sys.stderr)
    return code


def _loaded(name: str, overrides: list[str] | None, seed: int | None = None) -> Loaded:
    return load(name, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])


@app.command()
def run(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    run_id: RunId = None,
    workers: Workers = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a scenario: live table, run folder, report, summary."""
    from scenarios import report, runner, tables

    loaded = _loaded(scenario, overrides, seed)
    result = _working(loaded, out, run_id, workers, device, quiet or as_json, lambda host, nursery, interrupt: runner.run(
        loaded, host, nursery, interrupt, stop_at_target=True))  # fmt: skip
    folder = Path(result["run_dir"])
    page = report.build([folder], folder / "report.html", f"{loaded.name}: {loaded.scenario.method}")
    if as_json:
        print(json.dumps(result))
    else:
        tables.print_summary(result, page)
    return STOPPED if result["stopped_by"] == "user" else FINISHED


@app.command()
def compare(
    scenario: ScenarioName,
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option("--methods", help="methods, separated by commas")
    ] = "fedavg,fedprox,fedmlb,fedbr",
    out: Out = Path("runs"),
    run_id: RunId = None,
    workers: Workers = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run several methods on the same data, fleet and seed, and put them side by side."""
    from scenarios import tables
    from scenarios.studies import compare as study

    runs = study.variants(scenario, overrides or [], methods, seed)
    result = _working(runs[0], out, run_id, workers, device, quiet or as_json, lambda host, nursery, interrupt: (
        study.compare(runs, host, nursery, interrupt)))  # fmt: skip
    page = study.write(result, runs[0].name)
    if as_json:
        print(json.dumps(result))
    else:
        tables.print_comparison(result, page)
    return STOPPED if any(one["stopped_by"] == "user" for one in result["runs"]) else FINISHED


def _working(
    loaded: Loaded,
    out: Path,
    run_id: str | None,
    workers: int | None,
    device: str,
    quiet: bool,
    work: Callable[..., Any],
) -> dict[str, Any]:
    """Do ``work`` with a nursery, a live table, and Ctrl-C listened to."""
    from coordinator.pool import Nursery
    from scenarios import runner
    from scenarios.live import Show

    show, interrupt = Show(quiet=quiet), runner.Interrupt()
    host = runner.Host(
        out, workers or runner.default_workers(), runner.choose_device(device), run_id, show.on_start, show.on_round
    )
    with interrupt.watching(), Nursery() as nursery, show.showing():
        result: dict[str, Any] = work(host, nursery, interrupt)
    return result


@app.command()
def check(scenario: ScenarioName, overrides: Overrides = None, as_json: Json = False) -> int:
    """Validate a scenario and say what it will cost, without training or downloading."""
    from scenarios import tables
    from scenarios.studies import check as study

    result = study.run_check(_loaded(scenario, overrides))
    if as_json:
        print(json.dumps(result))
    else:
        tables.print_check(result)
    return FINISHED


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a run folder, or the folder of a comparison")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="the HTML file")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="also write one row per round as CSV")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="also write one row per round as Parquet")] = None,
) -> int:
    """One self-contained HTML file of a run or a comparison."""
    from scenarios import report as reports

    print(reports.from_folder(folder, output, csv, parquet))
    return FINISHED


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets, partitions, devices, networks, scenarios")],
    assumed: Annotated[bool, typer.Option("--assumed", help="only rows that rest on an assumption")] = False,
    as_json: Json = False,
) -> int:
    """What can be named in a scenario."""
    from scenarios import catalogue

    catalogue.show(what, assumed, as_json)
    return FINISHED


@app.command()
def doctor(as_json: Json = False) -> int:
    """What this machine has: cores, memory, GPUs, versions, data sets found."""
    from scenarios import doctor as checks

    checks.show(as_json)
    return FINISHED
