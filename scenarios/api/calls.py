"""The functions of ``import fedbr``: what the commands of the same names do, with objects instead of printed text.

Nothing here exits or prints a result: errors are the exceptions that the functions name. The first Ctrl-C stops runs
after their last committed round, as on the command line, and the function returns; a second one is a KeyboardInterrupt.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from os import PathLike
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec import to_builtins

from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError, Stopped
from scenarios.api import values
from scenarios.api.callbacks import CallbackObserver, Callbacks
from scenarios.api.caller import Caller
from scenarios.api.keys import Keys, KeysButSeed
from scenarios.api.notebook import of_rows
from scenarios.api.object_modules import in_cells
from scenarios.api.objects import as_names, plugin_name, with_names
from scenarios.api.requests import MachineRequest, MeasureRequest, RecordedRequest, ResumeRequest, RunRequest
from scenarios.api.run import Run
from scenarios.api.tables import data_frame
from scenarios.api.values import Scenario, listed, place, shown
from scenarios.config import search_path
from scenarios.config.errors import PYTHON, ScenarioError
from scenarios.config.load import Source, load
from scenarios.run.host import KILLED
from scenarios.studies import run_difference, run_list
from scenarios.studies.run_difference import RunDifference
from scenarios.studies.run_list import RunEntry

if TYPE_CHECKING:
    import pandas

Folder = str | PathLike[str]
RequestType = TypeVar("RequestType", bound=MachineRequest)
COLUMNS = ("folder", "kind", "scenario", "method", "seed", "state", "stopped_by", "rounds", "accuracy", "bytes")


class RunList(list[RunEntry]):
    """The runs and run sets that `fedbr.ls` has found, the newest last."""

    def __repr__(self) -> str:
        newest = f", the newest {self[-1].folder}" if self else ""
        return f"<fedbr.RunList: {len(self)} runs and run sets{newest}>"

    def _repr_html_(self) -> str:
        rows = [(str(top.folder), top.kind, top.method or "", str(top.state), str(len(top.runs) or 1)) for top in self]
        return of_rows(("folder", "kind", "method", "state", "runs"), rows)

    def to_pandas(self) -> pandas.DataFrame:
        """A row per run, those of run sets among them, whose folder is in the column ``run_set``.

        ``modified`` is a time with its zone, ``problem`` empty for a folder with nothing wrong. ImportError without
        pandas.
        """
        rows = []
        for top in self:
            for run in top.runs if top.is_set else (top,):
                record = run.to_dict()
                ends = {"modified": run.modified, "run_set": str(top.folder) if top.is_set else None}
                rows.append({key: record[key] for key in COLUMNS} | ends | {"problem": run.problem})
        return data_frame("RunList.to_pandas", rows, [*COLUMNS, "modified", "run_set", "problem"])


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
    allow_code: bool = False,
    **overrides: Unpack[Keys],
) -> Run:
    """Run a scenario in a new folder, ``<out>/<scenario>/<run id>``, and return it.

    ``scenario``: the name of a shipped scenario, the path of a TOML file, or a mapping with the keys of such a file,
    among them ``extends``. ``overrides``: values of its keys, such as ``method="fedavg"``, ``seed=1``,
    ``**{"train.lr": 0.05}`` or ``train={"lr": 0.05}``; quantities are text with a unit, such as "10 Mbit/s".
    ``workers``: processes, by default as many as the run can use; ``device``: cpu, cuda, cuda:N or auto. ``on``: a Ray
    cluster whose nodes do the work, each with so many ``workers``: "ray" for one that is started here, "auto",
    "HOST:PORT" or "ray://HOST:PORT" for one that runs. ``time_limit``: a duration such as "2 h", after which the run
    stops at a round's end, to be resumed later. ``progress``: None shows it in a notebook and on a terminal,
    True everywhere, False nowhere. ``on_round``: callbacks (`fedbr.Callback`). ``allow_code``: modules that the
    scenario names may come from beside its file outside of the current folder, and a Flower app that the file names,
    too.

    ScenarioError for anything in these arguments that cannot be run; RunFailed if the run fails, also by a callback.
    A run that the user stopped is returned, with ``stopped_by`` "user"; KeyboardInterrupt before its first round.
    """
    with calling(progress, on_round, allow_code) as caller:
        request = request_of(RunRequest, locals())
        given = values.overrides(as_names(overrides, scenario))
        loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
        return made(caller, caller.run(loaded, request))


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
    **overrides: Unpack[Keys],
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
        request = request_of(ResumeRequest, locals())
        return made(caller, caller.resume(path, values.overrides(overrides), request)[1])


def check(
    scenario: Scenario, *, out: Folder = "runs", allow_code: bool = False, **overrides: Unpack[Keys]
) -> dict[str, Any]:
    """Validate a scenario and estimate its costs, without training: what ``fedbr check --json`` prints.

    ``allow_code``: as of `run`. ScenarioError for a scenario that cannot be run.
    """
    from scenarios.studies.forecast.check import run_check

    with calling(allow_code=allow_code):
        given = values.overrides(as_names(overrides, scenario))
        loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
        return run_check(loaded, place("out", out)).plain()


def replay(
    folder: Folder | Run | Sequence[Folder | Run],
    *,
    draws: int | None = None,
    seed: int | None = None,
    allow_code: bool = False,
    **overrides: Unpack[KeysButSeed],
) -> dict[str, Any]:
    """The times and energy of a recorded run on another fleet or link, without training: ``fedbr replay --json``.

    With ``draws`` also of several runs, a comparison or a sweep: intervals of their times in so many draws of uncertain
    figures, and the probability that one method is faster. ``scope`` says of how many seeds, or "given this training";
    ``seed`` is that of the draws, by default 0. Without overrides they are kept in the runs' folders, for reports.

    ``allow_code``: as of `resume`. ScenarioError for keys that would change the training, and where other visits would
    have been trained.
    """
    from scenarios.studies import replay as study
    from scenarios.studies import uncertainty

    named = [folder] if isinstance(folder, str | PathLike | Run) else folder
    if draws is None and (seed is not None or not isinstance(folder, str | PathLike | Run)):
        raise ScenarioError("several runs, and a seed, are those of draws: add draws=100")
    with calling() as caller:
        given = values.overrides(overrides)
        if draws is None:
            once: dict[str, Any] = to_builtins(study.replay(path_of(named[0]), given, allow_code))
            return once
        found = uncertainty.replay_in_draws(
            list(map(path_of, named)), given, uncertainty.Draws(draws, seed or 0), allow_code
        )
        try:
            found.keep()
        except OSError as error:  # the result is returned all the same
            caller.note(f"the draws are not kept for reports: {error}")
        result: dict[str, Any] = to_builtins(found.result())
        return result


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
        result: dict[str, Any] = to_builtins(caller.verify(path, request_of(RecordedRequest, locals())))
        return result


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
        request = request_of(MeasureRequest, locals())
        result: dict[str, Any] = to_builtins(caller.measure(path, names, values.overrides(options), request))
        return result


def check_plugin(
    plugin: Any,
    *,
    key: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    **overrides: Unpack[Keys],
) -> dict[str, Any]:
    """Check the contract of a plug-in in short runs: what ``fedbr check-plugin --json`` prints.

    ``plugin``: a row or spec, a bare class or function, or ``"module:ROW"``. ``key``: the key that names such plug-ins,
    where a function could be of several kinds, such as "train.lr_schedule". ``overrides``: its options and any other
    keys of the runs, as of `run`. ``holds`` says whether all ``findings`` hold; each has a ``name``, whether it
    ``holds``, and a ``detail``. ScenarioError for what is no plug-in, and for runs that cannot be made.
    """
    with calling() as caller:
        request = request_of(MachineRequest, locals())
        given = values.overrides(as_names(overrides))
        result: dict[str, Any] = to_builtins(caller.check_plugin(plugin_name(plugin, key, given), given, request))
        return result


def ls(*folders: Folder) -> RunList:
    """The runs, comparisons, sweeps and studies that these folders are, or that are below them; by default ``runs``.

    Each is a `RunEntry`; a folder that is damaged, or that no run has written, has a ``problem``. Nothing is imported
    or written. ScenarioError for a folder that is not there.
    """
    with calling():
        return RunList(run_list.entries([place("folder", folder) for folder in folders or ("runs",)]))


def diff(a: Folder | Run | Scenario, b: Folder | Run | Scenario, *, allow_code: bool = False) -> RunDifference:
    """The difference of two runs, of two scenarios, or of a run and a scenario: what ``fedbr diff --json`` prints.

    Runs are objects or folders, scenarios names, files or mappings. ``same`` says whether their keys and, for two runs,
    all their rounds are the same to the bit. ``allow_code``: as of `run`. ScenarioError and ReportError for what is
    neither.
    """
    with calling(allow_code=allow_code):
        return run_difference.difference(_side(a), _side(b))


def _side(side: Folder | Run | Scenario) -> Source:
    """The folder of a run, or a scenario."""
    if not isinstance(side, Run | str | PathLike | Mapping):
        raise ScenarioError(f"{shown(side)}: must be a run, its folder, or a scenario")
    if isinstance(side, str | PathLike) and side == "":
        raise ScenarioError("'': must be a run, its folder, or a scenario")
    return values.named(Path(side.folder) if isinstance(side, Run) else side)


# --- how Python calls ------------------------------------------------------------------------------------------------


@contextmanager
def calling(progress: bool | None = None, on_round: Callbacks = (), allow_code: bool = False) -> Iterator[Caller]:
    """A caller whose errors are as Python has them: KeyboardInterrupt for a stop without a result, and no mention of a
    command line. SIGTERM ends a script as it always does; its runs can be resumed.

    ``progress``: None shows it where a person sees it, in a notebook or on a terminal, True anywhere; ``allow_code``:
    as of `run`.
    """
    stream = UpdatedLine() if progress is not False and in_notebook() else None
    is_shown = stream is not None or progress or (progress is None and sys.stderr.isatty())
    try:
        with search_path.allowing(allow_code):
            yield Caller(not is_shown, stream, (Signals.SIGINT,), CallbackObserver(on_round))
    except ScenarioError as error:
        error.word_for_python()
        error.reword(in_cells)
        _show_in_one_line(error)
        raise
    except Stopped:
        raise KeyboardInterrupt from None
    except RunFailed as error:
        error.args = (in_cells(str(error)),)
        _show_in_one_line(error)
        raise
    except PoolError as error:
        raise RunFailed(str(error)) from error
    except SystemExit as end:
        if end.code != KILLED:
            raise
        raise KeyboardInterrupt from None


def request_of(kind: type[RequestType], arguments: Mapping[str, Any]) -> RequestType:
    """The request of a function's call, whose fields are among its ``arguments``."""
    given = {field.name: arguments[field.name] for field in fields(kind) if field.name in arguments}
    if "out" in given:
        given["out"] = place("out", given["out"])
    if "targets" in given:
        given["targets"] = tuple(listed("targets", given["targets"], "[0.9]"))
    return kind(**given)


def made(caller: Caller, result: dict[str, Any]) -> Run:
    """The run with this result, of whose warnings the caller is told."""
    for warning in result.get("warnings", []):
        caller.note(warning)
    return Run(result["run_dir"])


def path_of(folder: Folder | Run) -> Path:
    """The folder of a run; ScenarioError for anything else than a run or a path."""
    if not isinstance(folder, Run | str | PathLike) or folder == "":
        raise ScenarioError(f"{folder!r}: must be a run, or the path of its folder")
    return folder.folder if isinstance(folder, Run) else Path(folder)


def _show_in_one_line(error: ScenarioError | RunFailed) -> None:
    """Have IPython print the text of an error that its user can correct, in place of this product's frames."""
    if "IPython" in sys.modules:
        error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[union-attr]


def in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class UpdatedLine(io.StringIO):
    """A stream whose last line is shown in the cell's output, in the place of the one before."""

    _shown: Any = None

    def write(self, text: str) -> int:
        from IPython import display as output

        display: Any = output.display
        lines = text.split("\n")
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None and self._shown is None:
            self._shown = display({"text/plain": last}, raw=True, display_id=True)
        elif last is not None:
            self._shown.update({"text/plain": last}, raw=True)
        return len(text)
