"""The commands on the folders of runs: ls, diff, rm, gc, pack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.options import DIFFERENT, FINISHED, AllowScenario, Json, emit

RUNS = Path("runs")
Folders = Annotated[
    list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="runs, run sets, or folders of them; runs by default")
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def ls(
    folders: Folders = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="also the runs of comparisons, sweeps and studies, a line each")
    ] = False,
    as_json: Json = False,
) -> None:
    """List runs: method, rounds, accuracy, size, age and state, the newest last.

    A comparison, sweep or study is one line, with how many of its runs are in which state. A folder that is damaged, or
    that no run has written, is listed with what is wrong in it.
    """
    from scenarios.studies import run_list

    listed = [] if not folders and not RUNS.exists() else run_list.entries(folders or [RUNS])
    shown = [each for entry in listed for each in (entry, *(entry.runs if all_runs else ()))]
    if not listed:
        print(f"fedbr: no runs in {', '.join(map(str, folders or [RUNS]))}", file=sys.stderr)
    result = {"entries": [each.to_dict() for each in listed]}
    emit(result, as_json, lambda: run_list.show(shown) if shown else None)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="a run folder, or a scenario: a name or a TOML file")],
    b: Annotated[str, typer.Argument(metavar="B", help="another one")],
    allow_code: AllowScenario = False,
    as_json: Json = False,
) -> None:
    """Compare two runs: keys of the scenario, environment, results, and the first round that differs.

    Of two scenarios, or a run and a scenario, the keys alone. Exit code 0 if they are the same: all keys and, for two
    runs, every round to the bit (the environment may differ); 1 if not.
    """
    from scenarios.studies import run_difference

    result = run_difference.difference(a, b)
    emit(result.to_dict(), as_json, lambda: run_difference.show(result))
    raise typer.Exit(FINISHED if result.same else DIFFERENT)


def rm(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="the folders of runs and run sets")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove runs, comparisons, sweeps and studies, after showing them and asking.

    A folder that is no run's, a link, and a run that is running are refused before anything is removed. Files that no
    run writes stay, and are named.
    """
    from costmodel.units import format_bytes
    from scenarios.config.errors import ScenarioError
    from scenarios.studies import removal, run_list

    going = removal.removable(runs)
    nbytes = sum(each.nbytes for each in going)
    if not as_json:
        run_list.show(going)
    if not yes and (as_json or not sys.stdin.isatty()):
        raise ScenarioError("rm: nobody can be asked here; to remove them, add --yes")
    plural = "" if len(going) == 1 else "s"
    is_wanted = yes or _asked(f"Remove {len(going)} folder{plural}, {format_bytes(nbytes)}?")
    left = [path for each in going for path in removal.remove(each)] if is_wanted else []
    result = {"folders": [str(each.folder) for each in going], "bytes": nbytes, "left": [str(path) for path in left]}
    emit(result, as_json, lambda: print(_removed(is_wanted, nbytes)))
    for path in left:
        print(f"fedbr: warning: {path} stays: no run writes it, or it cannot be removed", file=sys.stderr)


def gc(
    folders: Folders = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="also what checkpoints.keep has kept of runs that have ended")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Free what no result needs, after showing it and asking; where nobody can be asked, only show it.

    That is runs that ended before their first round, folders that were left half made, and decoded data in the user's
    cache whose files have been replaced, or that another version has made.
    """
    from costmodel.units import format_bytes
    from scenarios.config.errors import ScenarioError
    from scenarios.report import terminal
    from scenarios.report.tables import of_texts
    from scenarios.studies import removal

    found = removal.waste(folders or ([RUNS] if RUNS.exists() else []), checkpoints)
    nbytes = sum(each.nbytes for each in found)
    if found and not as_json:
        rows = [[str(each.path), format_bytes(each.nbytes), each.why] for each in found]
        terminal.print_table(of_texts("what no result needs", ["folder", "size", "why"], rows), columns=3)
    is_wanted = yes or (not as_json and sys.stdin.isatty() and bool(found) and _asked(f"Free {format_bytes(nbytes)}?"))
    for each in found if is_wanted else ():
        try:
            each.remove()
        except (OSError, ScenarioError) as error:
            print(f"fedbr: warning: {each.path} stays: {error}", file=sys.stderr)
    result = {
        "removed": is_wanted,
        "bytes": nbytes,
        "items": [{"path": str(each.path), "bytes": each.nbytes, "why": each.why} for each in found],
    }
    emit(result, as_json, lambda: print(_removed(is_wanted, nbytes) if found else "nothing to free"))


def _asked(question: str) -> bool:
    """Whether the user agrees."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _removed(is_removed: bool, nbytes: int) -> str:
    from costmodel.units import format_bytes

    return f"{format_bytes(nbytes)} freed" if is_removed else "nothing was removed; --yes removes it without a question"


def pack(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run, comparison, sweep or study")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="by default SCENARIO-RUN.tar.gz in the current folder"),
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="with checkpoints, which resume needs")] = False,
    as_json: Json = False,
) -> None:
    """Write an archive for readers: what a run or run set has, its report, and a README that says how to repeat it.

    No file in it has the path of a home folder, and the same run gives the same bytes.
    """
    from costmodel.units import format_bytes
    from scenarios.studies import archive

    result = archive.pack(folder, output, checkpoints)
    text = f"{result['archive']}: {len(result['files'])} files, {format_bytes(result['bytes'])}"
    emit(result, as_json, lambda: print(text))
    for note in result["notes"]:
        print(f"fedbr: note: {note}", file=sys.stderr)
