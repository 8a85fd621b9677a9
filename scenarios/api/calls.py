"""The functions of ``import fedbr``: what the commands of the same names do, with objects instead of printed text.

Nothing here exits or prints a result: errors are the exceptions that the functions name. The first Ctrl-C stops runs
after their last committed round, as on the command line, and the function returns; a second one is a KeyboardInterrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from signal import Signals
from typing import Any

from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from scenarios.api import values
from scenarios.api.callbacks import CallbackObserver, Callbacks
from scenarios.api.notebook import progress_display
from scenarios.api.objects import as_names, with_names
from scenarios.api.run import Run
from scenarios.api.values import Scenario, at_least_1, check_text, place
from scenarios.cluster.ray_engine import RayEngine
from scenarios.config.errors import PYTHON, ScenarioError
from scenarios.config.load import Loaded, load, note_on_sums
from scenarios.report.live import LiveTable
from scenarios.run import builder, extension, runner
from scenarios.run.folder_files import check_room
from scenarios.run.host import KILLED, Host, Piece
from scenarios.run.observer import NotePrinter
from scenarios.run.run_folder import RunFolder
from scenarios.run.session import Session

Folder = str | PathLike[str]


def run(
    scenario: Scenario,
    *,
    out: Folder = "runs",
    run_id: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Any,
) -> Run:
    """Run a scenario in a new folder, ``<out>/<scenario>/<run id>``, and return it.

    ``scenario``: the name of a shipped scenario, the path of a TOML file, or a mapping with the keys of such a file,
    among them ``extends``. ``overrides``: values of its keys, such as ``method="fedavg"``, ``seed=1``,
    ``**{"train.lr": 0.05}`` or ``train={"lr": 0.05}``; quantities are text with a unit, such as "10 Mbit/s".
    ``workers``: processes, by default as many as the run can use; ``device``: cpu, cuda, cuda:N or auto. ``on``: a Ray
    cluster whose nodes do the work, each with so many ``workers``: "ray" for one that is started here, "auto",
    "HOST:PORT" or "ray://HOST:PORT" for one that runs. ``progress``: None shows it in a notebook and on a terminal,
    True everywhere, False nowhere. ``on_round``: callbacks (`fedbr.Callback`).

    ScenarioError for anything in these arguments that cannot be run; RunFailed if the run fails, also by a callback.
    A run that the user stopped is returned, with ``stopped_by`` "user"; KeyboardInterrupt before its first round.
    """
    with calling() as write_note:
        given = values.overrides(as_names(overrides, scenario))
        loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
        if on is not None:
            note_on_sums(loaded, write_note)
        for note in builder.fleet_notes(loaded):
            write_note(note)

        def start(host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
            return runner.run(loaded, host, launcher, stopped, stop_at_target=True)

        display, folder = progress_display([loaded.scenario.method], progress), place("out", out)
        here = session(workers, device, display, write_note, on=on, out=folder, run_id=run_id)
        return _watched(loaded, here, on_round, write_note, start)


def resume(
    folder: Folder | Run,
    *,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    progress: bool | None = None,
    on_round: Callbacks = (),
    allow_code: bool = False,
    **overrides: Any,
) -> Run:
    """Go on with a killed or stopped run after its last committed round; the result is bit-identical.

    A run that has ended is returned as it is. ``overrides``: other limits, such as ``**{"rounds.max": 200}``, with
    which a run that has ended goes on, too: ``rounds.max``, ``stop.*`` and ``budget.*``. Arguments and errors as of
    `run`.

    Modules of the user's own that the run names are imported from the script's folder, from those of ``PYTHONPATH``
    and from installed packages. With ``allow_code`` the current folder is searched, too, and that from which the run
    has imported them: only for a run that you trust.
    """
    path = path_of(folder)
    with calling() as write_note, RunFolder(path).open_scenario(device, allow_code) as (recorded, device):
        loaded = recorded
        if overrides:
            runner.ended(loaded, path)  # or refuse a run whose files have changed
            loaded = extension.extend(loaded, path, values.overrides(overrides))
        if runner.ended(loaded, path) is not None:
            return Run(path)
        check_room(path)

        def go_on(host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
            return runner.resume(loaded, host, path, launcher, stopped)

        display = progress_display([loaded.scenario.method], progress)
        here = session(workers, device, display, write_note, on=on)
        return _watched(loaded, here, on_round, write_note, go_on)


def check(scenario: Scenario, *, out: Folder = "runs", **overrides: Any) -> dict[str, Any]:
    """Validate a scenario and estimate its costs, without training: what ``fedbr check --json`` prints.

    ScenarioError for a scenario that cannot be run.
    """
    from scenarios.studies.forecast.check import run_check

    with calling():
        given = values.overrides(as_names(overrides, scenario))
        loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
        return run_check(loaded, place("out", out)).plain()


def replay(folder: Folder | Run, *, allow_code: bool = False, **overrides: Any) -> dict[str, Any]:
    """The times and energy of a recorded run on another fleet or link, without training: ``fedbr replay --json``.

    ``allow_code``: as of `resume`. ScenarioError for keys that would change the training, and where other visits would
    have been trained.
    """
    from scenarios.studies import replay as study

    with calling():
        return study.replay(path_of(folder), values.overrides(overrides), allow_code)


def verify(
    folder: Folder | Run,
    *,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    allow_code: bool = False,
) -> dict[str, Any]:
    """Repeat a run in a temporary folder and compare it round by round: what ``fedbr verify --json`` prints.

    ``same`` says whether all rounds are equal, and ``difference`` names the first one that is not; where a callback has
    stopped it, ``same`` is False without a ``difference``. ``allow_code``: as of `resume`. Other arguments and errors
    as of `run`.
    """
    from scenarios.studies import verify as study

    path = path_of(folder)
    with calling() as write_note, RunFolder(path).open_scenario(device, allow_code) as (loaded, device):

        def repeat(host: Host, launcher: WorkerLauncher, stopped: Piece) -> dict[str, Any]:
            return study.verify(loaded, path, host, launcher, stopped)

        display = progress_display([loaded.scenario.method], progress)
        here, watch = session(workers, device, display, write_note), CallbackObserver(on_round)
        result = replace(here, observers=(*here.observers, watch)).call([loaded], repeat)
        watch.check(None)
        return result


# --- how a run is watched and stopped ---------------------------------------------------------------------------------


def session(
    workers: int | None,
    device: str,
    display: LiveTable,
    write_note: NotePrinter,
    *,
    out: Path | None = None,
    run_id: str | None = None,
    on: str | None = None,
    preload: Sequence[str] | None = None,
) -> Session:
    """What runs need of this process. SIGTERM ends a script as it always does; its runs can be resumed."""
    check_text(run_id=run_id, device=device)
    if workers is not None:
        at_least_1("workers", workers)
    engine = None if on is None else RayEngine(on, workers, option="on =")
    observers, one_signal = (display, write_note), (Signals.SIGINT,)
    return Session(workers, device, observers, out, run_id, engine=engine, preload=preload, signals=one_signal)


def _watched(
    loaded: Loaded,
    here: Session,
    on_round: Callbacks,
    write_note: NotePrinter,
    work: Callable[[Host, WorkerLauncher, Callable[[], bool]], dict[str, Any]],
) -> Run:
    """The run that ``work`` makes, of which callbacks are told."""
    watch = CallbackObserver(on_round)
    try:
        result = replace(here, observers=(*here.observers, watch)).call([loaded], work)
    except Stopped:
        watch.check(None)  # the reason of the stop, if a callback failed before the first round
        raise
    for warning in result.get("warnings", []):
        write_note(warning)
    folder = Path(result["run_dir"])
    watch.check(folder, f"to resume the run: fedbr.resume({str(folder)!r})")
    return Run(result["run_dir"])


@contextmanager
def calling() -> Iterator[NotePrinter]:
    """Errors as Python has them: KeyboardInterrupt for a stop without a result, and no mention of a command line.

    It gives the function that writes all notes of this call.
    """
    try:
        yield NotePrinter()
    except ScenarioError as error:
        error.word_for_python()
        raise
    except Stopped:
        raise KeyboardInterrupt from None
    except PoolError as error:
        raise RunFailed(str(error)) from error
    except SystemExit as end:
        if end.code != KILLED:
            raise
        raise KeyboardInterrupt from None


def path_of(folder: Folder | Run) -> Path:
    """The folder of a run; ScenarioError for anything else than a run or a path."""
    if not isinstance(folder, Run | str | PathLike) or folder == "":
        raise ScenarioError(f"{folder!r}: must be a run, or the path of its folder")
    return folder.folder if isinstance(folder, Run) else Path(folder)
