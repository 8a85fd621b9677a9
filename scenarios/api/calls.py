"""The functions of ``import fedbr``: what the commands of the same names do, with objects instead of printed text.

Nothing here exits or prints a result: errors are the exceptions that the functions name. The first Ctrl-C stops runs
after their last committed round, as on the command line, and the function returns; a second one is a KeyboardInterrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from signal import Signals
from typing import Any

from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError, Stopped
from scenarios.api import values
from scenarios.api.callbacks import CallbackObserver, Callbacks
from scenarios.api.caller import Caller
from scenarios.api.notebook import UpdatedLine, in_notebook
from scenarios.api.objects import as_names, with_names
from scenarios.api.requests import MeasureRequest, RecordedRequest, ResumeRequest, RunRequest
from scenarios.api.run import Run
from scenarios.api.values import Scenario, listed, place
from scenarios.config.errors import PYTHON, ScenarioError
from scenarios.config.load import load
from scenarios.run.host import KILLED

Folder = str | PathLike[str]


def run(
    scenario: Scenario,
    *,
    out: Folder = "runs",
    run_id: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    time_limit: str | None = None,
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
    "HOST:PORT" or "ray://HOST:PORT" for one that runs. ``time_limit``: a duration such as "2 h", after which the run
    stops at a round's end, to be resumed later. ``progress``: None shows it in a notebook and on a terminal,
    True everywhere, False nowhere. ``on_round``: callbacks (`fedbr.Callback`).

    ScenarioError for anything in these arguments that cannot be run; RunFailed if the run fails, also by a callback.
    A run that the user stopped is returned, with ``stopped_by`` "user"; KeyboardInterrupt before its first round.
    """
    with calling(progress, on_round) as caller:
        request = RunRequest(
            workers=workers, device=device, on=on, time_limit=time_limit, out=place("out", out), run_id=run_id
        )
        given = values.overrides(as_names(overrides, scenario))
        loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
        return _made(caller, caller.run(loaded, request))


def resume(
    folder: Folder | Run,
    *,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    time_limit: str | None = None,
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
    with calling(progress, on_round) as caller:
        request = ResumeRequest(workers=workers, device=device, on=on, time_limit=time_limit, allow_code=allow_code)
        return _made(caller, caller.resume(path, values.overrides(overrides), request)[1])


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
    path = path_of(folder)
    with calling(progress, on_round) as caller:
        return caller.verify(path, RecordedRequest(workers=workers, device=device, allow_code=allow_code))


def measure(
    folder: Folder | Run,
    metrics: Sequence[str],
    *,
    round: int | None = None,
    clients: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    allow_code: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Measure metrics of a stored checkpoint's models: what ``fedbr measure --json`` prints; nothing is written.

    ``metrics``: names of ``fedbr list metrics``; ``round``: of a kept checkpoint, from 1, by default the newest;
    ``clients``: "local" models after the next visit, "evaluated" as evaluations use them, or "none"; ``options``: of
    metrics, such as ``**{"eval.metric_options.hessian.pairs": "distinct"}``. Other arguments as of `resume`.
    ScenarioError for what cannot be measured.
    """
    path = path_of(folder)
    with calling() as caller:
        names = metrics if isinstance(metrics, str) else ",".join(map(str, listed("metrics", metrics, "['hessian']")))
        request = MeasureRequest(workers=workers, device=device, allow_code=allow_code, round=round, clients=clients)
        return caller.measure(path, names, values.overrides(options), request)


# --- how Python calls ------------------------------------------------------------------------------------------------


@contextmanager
def calling(progress: bool | None = None, on_round: Callbacks = ()) -> Iterator[Caller]:
    """A caller whose errors are as Python has them: KeyboardInterrupt for a stop without a result, and no mention of a
    command line. SIGTERM ends a script as it always does; its runs can be resumed.

    ``progress``: None shows it where a person sees it, in a notebook or on a terminal, True anywhere.
    """
    stream = UpdatedLine() if progress is not False and in_notebook() else None
    is_shown = stream is not None or progress or (progress is None and sys.stderr.isatty())
    try:
        yield Caller(not is_shown, stream, (Signals.SIGINT,), CallbackObserver(on_round))
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


def _made(caller: Caller, result: dict[str, Any]) -> Run:
    """The run with this result, of whose warnings the caller is told."""
    for warning in result.get("warnings", []):
        caller.note(warning)
    return Run(result["run_dir"])


def path_of(folder: Folder | Run) -> Path:
    """The folder of a run; ScenarioError for anything else than a run or a path."""
    if not isinstance(folder, Run | str | PathLike) or folder == "":
        raise ScenarioError(f"{folder!r}: must be a run, or the path of its folder")
    return folder.folder if isinstance(folder, Run) else Path(folder)
