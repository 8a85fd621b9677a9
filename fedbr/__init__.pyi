"""Types of ``import fedbr``, written by ``python -m tests.python_stub``."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from coordinator.rounds.run import RunFailed as RunFailed
from costmodel.units import Quantity
from edge.data.arrays import dataset as dataset
from edge.data.registry import DataError as DataError
from fedbr import flower as flower
from scenarios.api.callbacks import Callback as Callback
from scenarios.api.callbacks import Callbacks
from scenarios.api.callbacks import CommittedRound as CommittedRound
from scenarios.api.calling import Folder
from scenarios.api.calls import RunList as RunList
from scenarios.api.calls import check as check
from scenarios.api.calls import diff as diff
from scenarios.api.calls import explain as explain
from scenarios.api.calls import list_rows as list
from scenarios.api.calls import ls as ls
from scenarios.api.calls import measure as measure
from scenarios.api.calls import replay as replay
from scenarios.api.experiments import RunCollection as RunCollection
from scenarios.api.experiments import audit as audit
from scenarios.api.experiments import open_folder as open
from scenarios.api.experiments import report as report
from scenarios.api.figures import DrawnFigure as DrawnFigure
from scenarios.api.keys import Keys, KeysButSeed
from scenarios.api.mlflow import MLflow as MLflow
from scenarios.api.run import Run as Run
from scenarios.api.tensorboard import TensorBoard as TensorBoard
from scenarios.api.values import Scenario
from scenarios.config.errors import ReportError as ReportError
from scenarios.config.errors import ScenarioError as ScenarioError
from scenarios.studies.run_difference import RunDifference as RunDifference
from scenarios.studies.run_list import RunEntry as RunEntry

__version__: str
__all__ = [
    "Callback",
    "CommittedRound",
    "DataError",
    "DrawnFigure",
    "MLflow",
    "ReportError",
    "Run",
    "RunCollection",
    "RunDifference",
    "RunEntry",
    "RunFailed",
    "RunList",
    "ScenarioError",
    "TensorBoard",
    "__version__",
    "audit",
    "check",
    "compare",
    "dataset",
    "decide",
    "diff",
    "explain",
    "flower",
    "list",
    "ls",
    "measure",
    "open",
    "replay",
    "report",
    "reproduce",
    "resume",
    "run",
    "stress",
    "sweep",
]
_HOMES: dict[str, str]
_MODULES: set[str]
_OTHER_NAMES: dict[str, str]

def main() -> None: ...
def resume(
    folder: Folder | Run,
    *,
    allow_code: bool = False,
    on: str | None = None,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[Keys],
) -> Run:
    """Go on with a killed or stopped run after its last committed round; the result is bit-identical.

    A run that has ended is returned as it is. Overrides are other limits, such as ``**{"rounds.max": 200}``, with
    which a run that has ended goes on, too: ``rounds.max``, ``stop.*`` and ``budget.*``. Errors as of `run`.

    Modules of the user's own that the run names are imported from the script's folder, from those of ``PYTHONPATH``
    and from installed packages. With ``allow_code`` the current folder is searched, too, and that from which the run
    has imported them: only for a run that you trust.

    Args:
        allow_code: import the run's modules also from the current folder and from where they were
        on: a Ray cluster whose nodes do the work: one that is started here, or that runs; ``workers`` is per node: ray,
            auto, HOST:PORT or ray://HOST:PORT
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def run(
    scenario: Scenario,
    *,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    on: str | None = None,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[Keys],
) -> Run:
    """Run a scenario in a new folder, ``<out>/<scenario>/<run id>``, and return it.

    ``scenario``: the name of a shipped scenario, the path of a TOML file, or a mapping with the keys of such a file,
    among them ``extends``. Overrides are values of its keys, such as ``method="fedavg"``, ``seed=1``,
    ``**{"train.lr": 0.05}`` or ``train={"lr": 0.05}``; quantities are text with a unit, such as "10 Mbit/s".

    ScenarioError for anything in these arguments that cannot be run; RunFailed if the run fails, also by a callback.
    A run that the user stopped is returned, with ``stopped_by`` "user"; KeyboardInterrupt before its first round.

    Args:
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        on: a Ray cluster whose nodes do the work: one that is started here, or that runs; ``workers`` is per node: ray,
            auto, HOST:PORT or ray://HOST:PORT
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def stress(
    scenario: Scenario,
    *,
    clients: int | None = None,
    participants: int | None = None,
    rounds: int | None = None,
    out: Folder | None = None,
    allow_code: bool = False,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Any,
) -> dict[str, Any]:
    """Make a run at scale whose workers answer at once: what ``fedbr stress --json`` prints.

    It says what a visit costs this machine. ``clients`` and ``participants`` of a round are by default those of the
    scenario; clients beyond those of the data repeat these. Overrides are other keys, such as
    ``**{"rounds.policy": "fedbuff"}``. Errors as of `run`.

    Args:
        clients: clients of the fleet; those of the data are repeated
        participants: clients that take part in a round
        rounds: rounds; 5 by default
        out: new folder for ledger, logs, stress.json and a page; by default none stays
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def compare(
    scenario: Scenario,
    methods: Sequence[str] = ("fedavg", "fedprox", "fedmlb", "fedbr"),
    *,
    baseline: str | None = None,
    measured: str | None = None,
    on: str | None = None,
    seed: int | None = None,
    seeds: int | None = 1,
    parallel: int | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[KeysButSeed],
) -> RunCollection:
    """Run each of the methods on the same data, fleet and seeds, each to its limit, in one folder.

    ``methods``: their names, also as one text with commas between them. ``result`` is that of a `sweep` over
    ``method``, with the accuracies at the smallest bytes and virtual time that all runs have spent, and under
    ``measured`` the rounds of real devices beside those of the runs. With the ``run_id`` of an earlier comparison,
    finished runs are kept and interrupted ones resumed. Errors as of `sweep`.

    Args:
        baseline: number or name of the row that others are compared with
        measured: rounds of real devices beside the runs: CSV with round and seconds, or a run folder
        on: a Ray cluster whose nodes make the runs, each with ``workers`` cores: ray, auto, HOST:PORT or
            ray://HOST:PORT
        seed: the same as seed=N
        seeds: number of seeds, counted up from the scenario's
        parallel: runs at a time, which share the ``workers``; with ``on``, at most so many
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def decide(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | None = None,
    target: float | str | None = None,
    cost: str | None = None,
    budgets: Mapping[str, Quantity] | Sequence[str] = (),
    candidates: str | Sequence[Mapping[str, Any]] | None = None,
    draws: int | None = None,
    robust: bool = False,
    on: str | None = None,
    seed: int | None = None,
    parallel: int | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[KeysButSeed],
) -> RunCollection:
    """Decide which candidate reaches a ``target`` for the least ``cost``, or is the best within ``budgets``.

    Candidates are all combinations of ``grid``, each with one of ``candidates``: mappings of dotted keys to values, or
    "starter". ``budgets``: name of an amount -> its limit, text with a unit or a number in SI units.
    ``result["chosen"]`` names the candidate, and ``recommended.toml`` in the folder is its scenario. Errors as of
    `sweep`.

    Args:
        seeds: number of seeds, counted up from the scenario's; 3 by default
        target: score to reach, on clients' validation examples: 0.9, 90 %, or rmse=4
        cost: what is to be low until the target: seconds, bytes, joules, joules_per_device, bytes_per_device, rounds,
            wan_bytes, price or co2e_grams; by default what the first budget limits, or seconds
        budgets: a limit of such an amount: bytes="2 GB"
        candidates: starter: about twenty that make sense for most scenarios, beside those of a grid
        draws: draws of uncertain figures for the probability of the answer, 50 by default; 0: no replays
        robust: also train the two best without a fifth of the clients, without those of a gateway, and on half the
            links or speed where replays leave that open, with the first seed
        on: a Ray cluster whose nodes make the runs, each with ``workers`` cores: ray, auto, HOST:PORT or
            ray://HOST:PORT
        seed: the same as seed=N
        parallel: runs at a time, which share the ``workers``; with ``on``, at most so many
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def reproduce(
    name: str,
    cells: Mapping[str, Sequence[str]] | None = None,
    *,
    scale: str = "tiny",
    ema: str | None = None,
    on: str | None = None,
    seed: int | None = None,
    seeds: int | None = 1,
    parallel: int | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
) -> RunCollection:
    """Reproduce a published figure or table beside its values: ``fedbr reproduce``.

    ``name``: such as "fedbr:fig3" or "fedmlb:1a"; ``cells``: those to make, by ``row``, ``panel`` and ``setting``, such
    as ``{"row": ["FedAvg", "FedBR"]}``; by default all. Errors as of `sweep`.

    Args:
        scale: tiny, small or paper
        ema: start of moving averages: corrected (default) or first
        on: a Ray cluster whose nodes make the runs, each with ``workers`` cores: ray, auto, HOST:PORT or
            ray://HOST:PORT
        seed: the same as seed=N
        seeds: number of seeds, counted up from the scenario's
        parallel: runs at a time, which share the ``workers``; with ``on``, at most so many
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """

def sweep(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]],
    *,
    zipped: bool = False,
    seeds: int | None = None,
    targets: Sequence[float | str] = (),
    baseline: str | None = None,
    at: Mapping[str, Quantity | Sequence[Quantity]] | Sequence[str] = (),
    judge: Literal["test", "validation"] | None = None,
    on: str | None = None,
    seed: int | None = None,
    parallel: int | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[KeysButSeed],
) -> RunCollection:
    """Run a scenario over a grid of values and several seeds, each run to its limit, in one folder.

    ``grid``: dotted key -> its values, all combinations of which are run, or with ``zipped`` the lists side by side.
    Amounts of ``at`` are text with units or numbers in SI units, such as ``{"bytes": ["1 MB", 5e6]}``.

    ``result`` has ``rows``, a cell each with mean, deviation and interval over seeds, ``tests`` of all pairs, ``at``
    with the accuracies at each amount, and ``chosen``, the best settings of each method, where that was asked; the
    folder has them as sweep.md, sweep.csv and sweep.tex. The folder's name follows from grid and overrides, so that the
    same call with more seeds or values makes only what is missing. Overrides as of `fedbr.run`.

    ScenarioError for anything that cannot be run in any cell; a run that fails is in ``failed``, beside those that did
    not; RunFailed if all did, or if a callback fails. If the user or a callback stops it, the runs so far are returned;
    KeyboardInterrupt if there are none.

    Args:
        seeds: number of seeds, counted up from the scenario's; 3 by default
        targets: score whose costs are told, by default the scenario's: an accuracy as 0.9 or 90 %, or rmse=4
        baseline: number or name of the row that others are compared with
        at: what that much buys: bytes="1 MB,2 MB"; runs go to the largest
        judge: test (default), or validation: choose settings on the clients' validation examples
        on: a Ray cluster whose nodes make the runs, each with ``workers`` cores: ray, auto, HOST:PORT or
            ray://HOST:PORT
        seed: the same as seed=N
        parallel: runs at a time, which share the ``workers``; with ``on``, at most so many
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """
