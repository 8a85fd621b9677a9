"""The commands on the folders of runs: ls, diff."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from scenarios.api.requests import DiffRequest
from scenarios.cli.options import DIFFERENT, FAILED, FINISHED, STOPPED, Json, Output, emit
from scenarios.config.errors import ScenarioError

if TYPE_CHECKING:
    from scenarios.studies.removal import Waste

RUNS = Path("runs")


def ls(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="runs, run sets, or folders of them; runs by default"),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="also the runs of comparisons, sweeps and studies, a line each")
    ] = False,
    unneeded: Annotated[
        bool, typer.Option("--unneeded", help="list what no result needs, also of decoded data in the user's cache")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="with --unneeded, what checkpoints.keep has kept of runs that ended")
    ] = False,
    rm: Annotated[
        bool, typer.Option("--rm", help="remove these runs and run sets, or what is unneeded, after asking")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="remove it without asking")] = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest last; --rm removes them.

    A comparison, sweep or study is one line, with how many of its runs are in which state. A folder that is damaged, or
    that no run has written, is listed with what is wrong in it.

    With --rm, a folder that is no run's, a link, and a run that is running are refused before anything is removed.
    Files that no run writes stay, and are named. No result needs runs that ended before their first round, folders that
    were left half made, and decoded data whose files have been replaced, or that another version has made.
    """
    from scenarios.studies import removal, run_list

    for option, is_given, other in (("--yes", yes, rm), ("--checkpoints", checkpoints, unneeded)):
        if is_given and not other:
            raise ScenarioError(f"{option}: goes with {'--rm' if option == '--yes' else '--unneeded'}")
    if unneeded:
        _show_unneeded(removal.waste(folders or ([RUNS] if RUNS.exists() else []), checkpoints), rm, yes, as_json)
        return
    if rm:
        _remove(folders or [], yes, as_json)
        return
    listed = [] if not folders and not RUNS.exists() else run_list.entries(folders or [RUNS])
    shown = [each for entry in listed for each in (entry, *(entry.runs if all_runs else ()))]
    if not listed:
        print(f"fedbr: no runs in {', '.join(map(str, folders or [RUNS]))}", file=sys.stderr)
    result = {"entries": [each.to_dict() for each in listed]}
    emit(result, as_json, lambda: run_list.show(shown) if shown else None)


def _remove(folders: list[Path], yes: bool, as_json: bool) -> None:
    """Remove runs and run sets, after showing them and asking."""
    from costmodel.units import format_bytes
    from scenarios.studies import removal, run_list

    if not folders:
        raise ScenarioError("--rm: name the folders of runs and run sets; --unneeded --rm removes what no result needs")
    going = removal.removable(folders)
    nbytes = sum(each.nbytes for each in going)
    if not as_json:
        run_list.show(going)
    if not yes and (as_json or not sys.stdin.isatty()):
        raise ScenarioError("--rm: nobody can be asked here; to remove them, add --yes")
    plural = "" if len(going) == 1 else "s"
    is_wanted = yes or _is_agreed(f"Remove {len(going)} folder{plural}, {format_bytes(nbytes)}?")
    left = [path for each in going for path in removal.remove(each)] if is_wanted else []
    result = {"folders": [str(each.folder) for each in going], "bytes": nbytes, "left": [str(path) for path in left]}
    emit(result, as_json, lambda: print(_freed(is_wanted, nbytes)))
    for path in left:
        print(f"fedbr: warning: {path} stays: no run writes it, or it cannot be removed", file=sys.stderr)


def _show_unneeded(items: list[Waste], rm: bool, yes: bool, as_json: bool) -> None:
    """Show what no result needs; with ``rm`` remove it, after asking. Where nobody can be asked, it stays."""
    from costmodel.units import format_bytes
    from scenarios.report import terminal
    from scenarios.report.tables import of_texts

    nbytes = sum(each.nbytes for each in items)
    if items and not as_json:
        rows = [[str(each.path), format_bytes(each.nbytes), each.why] for each in items]
        terminal.print_table(of_texts("what no result needs", ["folder", "size", "why"], rows), columns=3)
    can_ask = not as_json and sys.stdin.isatty() and bool(items)
    is_wanted = rm and (yes or (can_ask and _is_agreed(f"Free {format_bytes(nbytes)}?")))
    for each in items if is_wanted else ():
        try:
            each.remove()
        except (OSError, ScenarioError) as error:
            print(f"fedbr: warning: {each.path} stays: {error}", file=sys.stderr)
    result = {
        "removed": is_wanted,
        "bytes": nbytes,
        "items": [{"path": str(each.path), "bytes": each.nbytes, "why": each.why} for each in items],
    }
    emit(result, as_json, lambda: print(_freed(is_wanted, nbytes) if items else "nothing to free"))


def _is_agreed(question: str) -> bool:
    """Whether the user agrees."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _freed(is_removed: bool, nbytes: int) -> str:
    from costmodel.units import format_bytes

    if is_removed:
        return f"{format_bytes(nbytes)} freed"
    return "nothing was removed; --rm --yes removes it without a question"


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="a run folder, or a scenario: a name or a TOML file")],
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="another one")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="repeat the run A instead, and name the first round that differs, if any")
    ] = False,
    *,
    request: DiffRequest,
    output: Output,
) -> None:
    """Compare two runs or scenarios, or repeat a run.

    Keys of the scenario, environment, results, and the first round that differs; for two scenarios, or a run and a
    scenario, the keys alone. Exit code 0 if they are the same: all keys and, for two runs, every round to the bit (the
    environment may differ); 1 if not. With --again, 3 if a round differs.
    """
    if again:
        if b is not None:
            raise ScenarioError(f"{b}: does not go with --again, which compares a run with itself")
        _repeat(Path(a), request, output)
    elif b is None:
        raise ScenarioError(f"diff {a}: name another run or scenario, or add --again to repeat the run")
    for option, is_given in (("--workers", request.workers is not None), ("--device", request.device != "auto")):
        if is_given:
            raise ScenarioError(f"{option}: is for a repetition: add --again")
    from scenarios.studies import run_difference

    result = run_difference.difference(a, b)
    emit(result.to_dict(), output.as_json, lambda: run_difference.show(result))
    raise typer.Exit(FINISHED if result.same else DIFFERENT)


def _repeat(folder: Path, request: DiffRequest, output: Output) -> NoReturn:
    from scenarios.studies import verify as study

    result = output.caller().verify(folder, request)
    emit(result, output.as_json, lambda: study.show(result))
    if result.difference is not None:
        raise typer.Exit(FAILED)
    raise typer.Exit(FINISHED if result.same else STOPPED)
