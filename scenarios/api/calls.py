"""The functions of ``import fedbr``: what the commands of the same names do, with objects instead of printed text.

Nothing here exits or prints a result: errors are the exceptions that the functions name. The first Ctrl-C stops runs
after their last committed round, as on the command line, and the function returns; a second one is a KeyboardInterrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from scenarios.api import listing, values
from scenarios.api.callbacks import Callbacks
from scenarios.api.calling import Call, Folder, calling, made, path_of, plain, request_of, takes
from scenarios.api.explained import explained
from scenarios.api.keys import Keys, KeysButSeed
from scenarios.api.notebook import of_rows
from scenarios.api.objects import as_names, plugin_name, with_names
from scenarios.api.requests import DiffRequest, MachineRequest, MeasureRequest, ResumeRequest, RunRequest, StressRequest
from scenarios.api.run import Run
from scenarios.api.tables import data_frame
from scenarios.api.values import Scenario, listed, place, shown
from scenarios.config.errors import PYTHON, ScenarioError
from scenarios.config.load import Source, load
from scenarios.studies import run_difference, run_list
from scenarios.studies.run_difference import RunDifference
from scenarios.studies.run_list import RunEntry

if TYPE_CHECKING:
    import pandas

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


@takes(RunRequest, Keys)
def run(call: Call[RunRequest], scenario: Scenario) -> Run:
    """Run a scenario in a new folder, ``<out>/<scenario>/<run id>``, and return it.

    ``scenario``: the name of a shipped scenario, the path of a TOML file, or a mapping with the keys of such a file,
    among them ``extends``. Overrides are values of its keys, such as ``method="fedavg"``, ``seed=1``,
    ``**{"train.lr": 0.05}`` or ``train={"lr": 0.05}``; quantities are text with a unit, such as "10 Mbit/s".

    ScenarioError for anything in these arguments that cannot be run; RunFailed if the run fails, also by a callback.
    A run that the user stopped is returned, with ``stopped_by`` "user"; KeyboardInterrupt before its first round.
    """
    given = values.overrides(as_names(call.overrides, scenario))
    loaded = load(values.named(with_names(scenario)), given, origin=PYTHON)
    return made(call.caller, call.caller.run(loaded, call.request))


@takes(ResumeRequest, Keys)
def resume(call: Call[ResumeRequest], folder: Folder | Run) -> Run:
    """Go on with a killed or stopped run after its last committed round; the result is bit-identical.

    A run that has ended is returned as it is. Overrides are other limits, such as ``**{"rounds.max": 200}``, with
    which a run that has ended goes on, too: ``rounds.max``, ``stop.*`` and ``budget.*``. Errors as of `run`.

    Modules of the user's own that the run names are imported from the script's folder, from those of ``PYTHONPATH``
    and from installed packages. With ``allow_code`` the current folder is searched, too, and that from which the run
    has imported them: only for a run that you trust.
    """
    return made(call.caller, call.caller.resume(path_of(folder), values.overrides(call.overrides), call.request)[1])


def check(
    scenario: Scenario | None = None,
    *,
    plugin: Any = None,
    key: str | None = None,
    out: Folder = "runs",
    workers: int | None = None,
    device: str = "auto",
    allow_code: bool = False,
    **overrides: Unpack[Keys],
) -> dict[str, Any]:
    """Validate a scenario and estimate its costs, without training: what ``fedbr check --json`` prints.

    ``allow_code``: as of `run`. ScenarioError for a scenario that cannot be run.

    Or, with ``plugin`` in the place of a scenario, check the contract of a plug-in in short runs: what
    ``fedbr check --plugin --json`` prints. It is a row or spec, a bare class or function, or ``"module:ROW"``. ``key``:
    the key that names such plug-ins, where a function could be of several kinds, such as "train.lr_schedule".
    ``overrides``: its options and any other keys of the runs, as of `run`. ``holds`` says whether all ``findings``
    hold; each has a ``name``, whether it ``holds``, and a ``detail``. ScenarioError for what is no plug-in, and for
    runs that cannot be made.
    """
    from scenarios.studies.forecast.check import run_check

    if (scenario is None) == (plugin is None):
        raise ScenarioError("check: takes a scenario, or plugin=ROW in its place")
    with calling(allow_code=allow_code) as caller:
        if plugin is not None:
            given = values.overrides(as_names(overrides))
            request = MachineRequest(workers=workers, device=device)
            return plain(caller.check_plugin(plugin_name(plugin, key, given), given, request))
        if key is not None or workers is not None or device != "auto":
            raise ScenarioError("key, workers and device are those of a plug-in's runs: add plugin=ROW")
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
            return plain(study.replay(path_of(named[0]), given, allow_code))
        found = uncertainty.replay_in_draws(
            list(map(path_of, named)), given, uncertainty.Draws(draws, seed or 0), allow_code
        )
        try:
            found.keep()
        except OSError as error:  # the result is returned all the same
            caller.note(f"the draws are not kept for reports: {error}")
        return plain(found.result())


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
    """Measure metrics of a stored checkpoint's models: what ``fedbr replay --measure --json`` prints.

    ``metrics``: names of ``fedbr list metrics``; ``round``: of a kept checkpoint, from 1, by default the newest;
    ``clients``: "local" models after the next visit, "evaluated" as evaluations use them, or "none"; ``options``: of
    metrics, such as ``**{"eval.metric_options.hessian.pairs": "distinct"}``. Other arguments as of `resume`.
    Nothing is written. ScenarioError for what cannot be measured.
    """
    path = path_of(folder)
    with calling() as caller:
        names = metrics if isinstance(metrics, str) else ",".join(map(str, listed("metrics", metrics, "['hessian']")))
        request = request_of(MeasureRequest, locals())
        return plain(caller.measure(path, names, values.overrides(options), request))


@takes(StressRequest, Any)
def stress(call: Call[StressRequest], scenario: Scenario) -> dict[str, Any]:
    """Make a run at scale whose workers answer at once: what ``fedbr stress --json`` prints.

    It says what a visit costs this machine. ``clients`` and ``participants`` of a round are by default those of the
    scenario; clients beyond those of the data repeat these. Overrides are other keys, such as
    ``**{"rounds.policy": "fedbuff"}``. Errors as of `run`.
    """
    from scenarios.studies.stress import StressPlan

    given, source = values.overrides(as_names(call.overrides, scenario)), values.named(with_names(scenario))
    scale = call.request.clients, call.request.participants, call.request.rounds
    return asdict(call.caller.stress(StressPlan.of(source, given, *scale, PYTHON), call.request))


def list_rows(kind: str | None = None, *, assumed: bool = False) -> list[dict[str, Any]]:
    """The names that a scenario can use, or its keys: what ``fedbr list --json`` prints.

    ``kind``: such as "methods", "devices" or "keys"; without it the kinds. ``assumed``: only devices and networks with
    assumed figures. ScenarioError for an unknown kind.
    """
    with calling():
        return listing.topics() if kind is None else listing.rows(kind, assumed)


def explain(name: str) -> dict[str, Any]:
    """The explanation of a key, a table of keys, an option or a row: what ``fedbr explain --json`` prints.

    The nearest one is in the ScenarioError for a name that there is not. `Run.explain` explains a visit.
    """
    with calling():
        return explained(name)


def ls(*folders: Folder) -> RunList:
    """The runs, comparisons, sweeps and studies that these folders are, or that are below them; by default ``runs``.

    Each is a `RunEntry`; a folder that is damaged, or that no run has written, has a ``problem``. Nothing is imported
    or written. ScenarioError for a folder that is not there.
    """
    with calling():
        return RunList(run_list.entries([place("folder", folder) for folder in folders or ("runs",)]))


@overload
def diff(a: Folder | Run | Scenario, b: Folder | Run | Scenario, *, allow_code: bool = ...) -> RunDifference: ...
@overload
def diff(
    a: Folder | Run,
    *,
    again: Literal[True],
    workers: int | None = ...,
    device: str = ...,
    progress: bool | None = ...,
    on_round: Callbacks = ...,
    allow_code: bool = ...,
) -> dict[str, Any]: ...
def diff(
    a: Folder | Run | Scenario,
    b: Folder | Run | Scenario | None = None,
    *,
    again: bool = False,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    allow_code: bool = False,
) -> RunDifference | dict[str, Any]:
    """The difference of two runs, of two scenarios, or of a run and a scenario: what ``fedbr diff --json`` prints.

    Runs are objects or folders, scenarios names, files or mappings. ``same`` says whether their keys and, for two runs,
    all their rounds are the same to the bit. ``allow_code``: as of `run`. ScenarioError and ReportError for what is
    neither.

    With ``again`` and without ``b``, the run is repeated in a temporary folder and compared round by round: what
    ``fedbr diff --again --json`` prints. ``same`` says whether all rounds are equal, and ``difference`` names the first
    one that is not; where a callback has stopped it, ``same`` is False without a ``difference``. ``allow_code``: as of
    `resume`. Other arguments and errors as of `run`.
    """
    if again == (b is not None):
        raise ScenarioError("diff: takes two runs or scenarios, or one run and again=True")
    if b is None:
        if isinstance(a, Mapping):
            raise ScenarioError(f"{shown(a)}: again repeats a run, not a scenario")
        path = path_of(a)
        with calling(progress, on_round) as caller:
            return plain(caller.verify(path, request_of(DiffRequest, locals())))
    with calling(allow_code=allow_code):
        return run_difference.difference(_side(a), _side(b))


def _side(side: Folder | Run | Scenario) -> Source:
    """The folder of a run, or a scenario."""
    if not isinstance(side, Run | str | PathLike | Mapping):
        raise ScenarioError(f"{shown(side)}: must be a run, its folder, or a scenario")
    if isinstance(side, str | PathLike) and side == "":
        raise ScenarioError("'': must be a run, its folder, or a scenario")
    return values.named(Path(side.folder) if isinstance(side, Run) else side)
