"""What commands and functions that train take: a class each, from whose fields the command line has its options.

A field is an argument of the Python function of the same name. Values are checked when a request is made, and errors
name the argument as the caller writes it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from costmodel.units import Quantity
from scenarios.config.errors import Argument, ScenarioError

if TYPE_CHECKING:
    from coordinator.workers.sockets import RemoteAccess
    from scenarios.cluster.ray_engine import RayEngine, RayRuns
    from scenarios.experiment.experiment import Experiment
    from scenarios.experiment.grid import Grid


@dataclass(frozen=True)
class Option:
    """How a field of a request is given on the command line."""

    help: str
    metavar: str | None = None
    least: int | None = None
    name: str = ""
    """Of the option, where it is not the field's"""


@dataclass(frozen=True)
class RequestField:
    """A field that callers give."""

    kind: Any
    """Its type, without the option"""
    option: Any
    """`Option`, or one of typer's where the command line alone has it"""
    default: Any
    annotation: str
    """As the class has it"""

    @property
    def text(self) -> str:
        """The type as a signature of Python has it, where paths may be text: ``int | None``."""
        annotated = ast.parse(self.annotation, mode="eval").body
        assert isinstance(annotated, ast.Subscript) and isinstance(annotated.slice, ast.Tuple), self.annotation
        return re.sub(r"\bPath\b", "Folder", ast.unparse(annotated.slice.elts[0]))


def options_of(group: type[Any]) -> dict[str, RequestField]:
    """Name -> field of a request or of outputs, a dataclass; those that it inherits last."""
    hints, bases = get_type_hints(group, include_extras=True), list(group.__mro__)
    written = {name: (base, text) for base in reversed(bases) for name, text in inspect.get_annotations(base).items()}
    found = {}
    for each in sorted(fields(group), key=lambda field: bases.index(written[field.name][0])):
        kind, option = get_args(hints[each.name])[:2]
        found[each.name] = RequestField(kind, option, each.default, written[each.name][1])
    return found


OUT = Option("folder for run folders")
SEEDS = Option("number of seeds, counted up from the scenario's", least=1)
TARGETS = Option(
    "score whose costs are told, by default the scenario's: an accuracy as 0.9 or 90 %, or rmse=4",
    "SCORE",
    name="target",
)
ALLOW_CODE = Option("import the run's modules also from the current folder and from where they were")
ALLOW_SCENARIO = Option("run modules and apps that a scenario outside of the current folder brings with it")
BASELINE = Option("number or name of the row that others are compared with", "ROW")
CLUSTER = "ray|auto|HOST:PORT|ray://HOST:PORT"


@dataclass(frozen=True)
class MachineRequest:
    """This machine's part in a call that trains."""

    workers: Annotated[int | None, Option("worker processes; by default one per core, on GPUs by memory", least=1)] = (
        None
    )
    device: Annotated[str, Option("cpu, cuda (all GPUs), cuda:N or auto", "NAME")] = "auto"

    def __post_init__(self) -> None:
        """ScenarioError for a value that its argument cannot have."""
        hints = get_type_hints(type(self), include_extras=True)
        for name in (field.name for field in fields(self)):
            (kind, option), value = get_args(hints[name])[:2], getattr(self, name)
            argument = Argument(name, repr(value), option.name)
            if kind == int | None and value is not None:
                least = option.least or 0
                if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                    raise ScenarioError(argument, f": must be an integer of at least {least}")
                object.__setattr__(self, name, int(value))
            elif kind in (str, str | None) and not isinstance(value, kind):
                raise ScenarioError(argument, ": must be text")


@dataclass(frozen=True)
class RecordedRequest(MachineRequest):
    """Of `diff` and `replay --measure`, which train for a run that there is."""

    allow_code: Annotated[bool, ALLOW_CODE] = False


@dataclass(frozen=True)
class DiffRequest(RecordedRequest):
    allow_code: Annotated[
        bool, Option("import modules also from the current folder, where a run had them, and beside a scenario")
    ] = False


@dataclass(frozen=True)
class MeasureRequest(RecordedRequest):
    round: Annotated[int | None, Option("of a checkpoint to measure, from 1; by default the newest", least=1)] = None
    clients: Annotated[
        str | None, Option("models to measure: local (after the next visit), evaluated (as evaluations use) or none")
    ] = None


@dataclass(frozen=True)
class AuditRequest:
    """Of `audit`, which makes no run."""

    target: Annotated[
        float | None,
        Option("score to compare at; by default the best that a run and its twin reach", "SCORE"),
    ] = None
    twin: Annotated[
        str | None, Option("label, method, name or folder of the run that all others are compared with", "RUN")
    ] = None


@dataclass(frozen=True)
class TrainRequest(MachineRequest):
    """Of calls whose training lasts until its end."""

    on: Annotated[
        str | None,
        Option(
            "a Ray cluster whose nodes do the work: one that is started here, or that runs; --workers is per node",
            CLUSTER,
        ),
    ] = None
    time_limit: Annotated[
        str | None,
        Option('stop at a round\'s end after so long, to go on later: "2 h"', "DURATION", name="for"),
    ] = None

    @property
    def works_elsewhere(self) -> bool:
        """Whether all visits are trained by node agents."""
        return self.on is not None

    def engine(self) -> RayEngine | None:
        """The cluster that does the work. ScenarioError for arguments that do not go with it."""
        from scenarios.cluster.ray_engine import RayEngine

        return None if self.on is None else RayEngine(self.on, self.workers)

    def remote_access(self) -> RemoteAccess | None:
        """The port that remote workers join, if there is one."""
        return None


@dataclass(frozen=True)
class CheckRequest(MachineRequest):
    out: Annotated[Path | None, replace(OUT, help=f"{OUT.help}; runs by default")] = None
    allow_code: Annotated[bool, ALLOW_SCENARIO] = False


@dataclass(frozen=True)
class StressRequest(MachineRequest):
    """Of `stress`, whose workers answer at once."""

    clients: Annotated[int | None, Option("clients of the fleet; those of the data are repeated", "N", least=1)] = None
    participants: Annotated[int | None, Option("clients that take part in a round", "M", least=1)] = None
    rounds: Annotated[int | None, Option("rounds; 5 by default", "R", least=1)] = None
    out: Annotated[
        Path | None, Option("new folder for ledger, logs, stress.json and a page; by default none stays", "FOLDER")
    ] = None
    allow_code: Annotated[bool, ALLOW_SCENARIO] = False


@dataclass(frozen=True)
class ResumeRequest(TrainRequest):
    allow_code: Annotated[bool, ALLOW_CODE] = False


@dataclass(frozen=True)
class RunRequest(TrainRequest):
    out: Annotated[Path, OUT] = Path("runs")
    run_id: Annotated[str | None, Option("name of the run folder", "NAME")] = None
    allow_code: Annotated[bool, ALLOW_SCENARIO] = False


@dataclass(frozen=True)
class ExperimentRequest(RunRequest):
    """Of calls that make several runs in one folder, here or each as a whole on a node of a cluster."""

    on: Annotated[
        str | None,
        Option("a Ray cluster whose nodes make the runs, each with --workers cores", CLUSTER),
    ] = None
    seed: Annotated[int | None, Option("the same as seed=N")] = None
    seeds: Annotated[int | None, SEEDS] = 1
    parallel: Annotated[
        int | None,
        Option("runs at a time, which share the --workers; with --on, at most so many", least=1),
    ] = None

    def cluster(self, note: Callable[[str], None]) -> RayRuns | None:
        """The cluster whose nodes make the runs; it is connected when it is entered. ScenarioError."""
        from scenarios.cluster.ray_engine import RayRuns

        return None if self.on is None else RayRuns(self.on, self.workers, self.parallel, note)


@dataclass(frozen=True)
class CompareRequest(ExperimentRequest):
    baseline: Annotated[str | None, BASELINE] = None
    measured: Annotated[
        str | None,
        Option("rounds of real devices beside the runs: CSV with round and seconds, or a run folder", "PATH"),
    ] = None

    def plan(self, grid: Grid) -> Experiment:
        """The comparison over the methods of the grid."""
        from scenarios.experiment.compare import plan
        from scenarios.studies import measured

        compared = plan(grid, self.seeds or 1, self.seed, self.run_id).with_baseline(self.baseline)
        return compared if self.measured is None else measured.beside_runs(compared, Path(self.measured))


@dataclass(frozen=True)
class SweepRequest(ExperimentRequest):
    seeds: Annotated[int | None, replace(SEEDS, help=f"{SEEDS.help}; 3 by default")] = None
    targets: Annotated[Sequence[float | str], TARGETS] = ()
    baseline: Annotated[str | None, BASELINE] = None
    at: Annotated[
        Mapping[str, Quantity | Sequence[Quantity]] | Sequence[str],
        Option('what that much buys: bytes="1 MB,2 MB"; runs go to the largest', "NAME=AMOUNTS"),
    ] = ()
    judge: Annotated[
        Literal["test", "validation"] | None,
        Option("test (default), or validation: choose settings on the clients' validation examples"),
    ] = None

    def plan(self, grid: Grid) -> Experiment:
        """The sweep over the cells of the grid."""
        from scenarios.experiment.judged import TEST
        from scenarios.experiment.sweep import plan

        swept = plan(grid, self.seeds, self.seed, self.targets, self.run_id, self.at or (), self.judge or TEST)
        return swept.with_baseline(self.baseline)


@dataclass(frozen=True)
class DecideRequest(ExperimentRequest):
    seeds: Annotated[int | None, replace(SEEDS, help=f"{SEEDS.help}; 3 by default")] = None
    target: Annotated[
        float | str | None,
        Option("score to reach, on clients' validation examples: 0.9, 90 %, or rmse=4", "SCORE"),
    ] = None
    cost: Annotated[
        str | None,
        Option(
            "what is to be low until the target: seconds, bytes, joules, joules_per_device, "
            "bytes_per_device, rounds, wan_bytes, price or co2e_grams; by default what the first budget limits, or "
            "seconds"
        ),
    ] = None
    budgets: Annotated[
        Mapping[str, Quantity] | Sequence[str],
        Option('a limit of such an amount: bytes="2 GB"', "NAME=AMOUNT", name="budget"),
    ] = ()
    candidates: Annotated[
        str | Sequence[Mapping[str, Any]] | None,
        Option("starter: about twenty that make sense for most scenarios, beside those of a grid"),
    ] = None
    draws: Annotated[
        int | None,
        Option("draws of uncertain figures for the probability of the answer, 50 by default; 0: no replays"),
    ] = None

    robust: Annotated[
        bool,
        Option(
            "also train the two best without a fifth of the clients, without those of a gateway, and on half the links "
            "or speed where replays leave that open, with the first seed"
        ),
    ] = False

    def plan(self, grid: Grid, say: Callable[[str], None] = lambda text: None) -> Experiment:
        """The decision between the points of the grid; ``say``: told of what is left out."""
        from scenarios.studies.decide import candidates, decision, objective

        if isinstance(self.candidates, str):
            if self.candidates != candidates.STARTER:
                argument = Argument("candidates", repr(self.candidates))
                raise ScenarioError(argument, f": must be {candidates.STARTER}")
            grid = replace(grid, listed=tuple(candidates.starter(grid, say)))
        elif self.candidates:
            grid = replace(grid, listed=tuple(dict(each) for each in self.candidates))
        budgets = objective.budgets_of(self.budgets or ())
        sought = objective.objective_of(self.target, self.cost, budgets, grid.score(self.seed))
        draws = decision.DRAWS if self.draws is None else self.draws
        return decision.plan(grid, sought, self.seeds, self.seed, self.run_id, draws, self.robust)


@dataclass(frozen=True)
class ReproduceRequest(ExperimentRequest):
    scale: Annotated[str, Option("tiny, small or paper")] = "tiny"
    ema: Annotated[str | None, Option("start of moving averages: corrected (default) or first")] = None

    def plan(self, name: str, grid: Grid, say: Callable[[str], None]) -> Experiment:
        """The runs that the cells of a published figure or table need."""
        from scenarios.papers.reproduce import plan

        return plan(name, self.scale, grid, self.seeds or 1, self.seed, self.run_id, self.ema, say)
