"""Run folders, opened for reading; nothing is written.

An unfinished or running run is read up to its last committed round; how a run ended is in the ledger's summary.
"""

from __future__ import annotations

import math
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from coordinator.records import foreign
from coordinator.records.schema import EvaluationRow, LoggedRow, RoundRow
from coordinator.records.store import evaluations, logged, read
from coordinator.rounds.policy import POLICIES, RoundPolicy
from edge.protocol.config import EvalSplit
from edge.protocol.home import expanded
from edge.protocol.payload import BUFFERS
from edge.protocol.plugins import is_own
from edge.protocol.portable import PORTABLE
from scenarios.config.errors import one_paragraph
from scenarios.config.load import ScenarioError, load
from scenarios.config.quantities import scenario_text
from scenarios.report import labels, nominal_cost, own_method, progress
from scenarios.run import run_records
from scenarios.run.plugin_sources import not_imported

PARTS = ("scenario.toml", "environment.json", "ledger.sqlite")
UNFINISHED = "unfinished"
CUT = ", last round cut"
"""Ending of the label of a run whose last step was made by fewer clients; it marks all figures and tables"""
NO_BLOCKS = ("header", "cut")
"""Keys of the table ``transfers`` that name no block."""
_STOPS = {
    "target": "target reached",
    "converged": "converged",
    "rounds": "round limit",
    "clients": "too few clients left",
    "user": "stopped by user",
    "time_limit": "stopped at its time limit",
}


def stop_text(rule: str) -> str:
    """A rule that ended a run, in words."""
    return _STOPS.get(rule, f"budget: {rule.replace('_', ' ')}")


class ReportError(ValueError):
    """A folder that is not a run, or cannot be read as one. Control characters of names are escaped."""

    def __init__(self, text: str) -> None:
        super().__init__(one_paragraph(text))


@dataclass(frozen=True)
class BlockTraffic:
    """Bytes of one block over all clients and rounds of a run."""

    name: str
    """The block, its buffers counted with it, or ``header``."""
    down: float
    up: float
    nominal_down: float
    """The same at the nominal size of a block, 1/M of the model; 0 for headers."""
    nominal_up: float


@dataclass(frozen=True)
class RecordedRun:
    """One run folder, opened for reading."""

    folder: Path
    label: str
    """The run's name in the report: that of its group, with seed and run id where that is ambiguous."""
    scenario: Mapping[str, Any]
    scenario_text: str
    environment: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    """How the run ended; None while it is unfinished."""
    rounds: Sequence[RoundRow]
    """As committed. The last row may be no round: one that was cut, or a score after the last round."""
    group: str
    """The name that it shares with the runs that differ in nothing but their seed (`labels.labels`)."""

    @property
    def method(self) -> str:
        """The method's name, as the scenario writes it."""
        return str(self.scenario.get("method", "unknown"))

    @cached_property
    def own_method(self) -> own_method.OwnMethod | None:
        """What the run has recorded of a method of the user's own; None for a shipped one. ReportError."""
        if not is_own(self.method):
            return None
        try:
            return own_method.read(self.environment)
        except ValueError as error:
            raise ReportError(f"{self.folder / PARTS[1]} is damaged: {error}") from None

    @property
    def shows_nominal(self) -> bool:
        """Whether reports show its nominal costs."""
        own = self.own_method
        return nominal_cost.is_shown([self.method]) if own is None else own.nominal

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Dotted key -> value as this version of fedbr resolves the scenario (`settings`), to compare runs by."""
        return settings(self.folder, self.scenario_text, self.scenario)

    @property
    def is_asynchronous(self) -> bool:
        """Whether its round policy has no barrier."""
        policy = (self.scenario.get("rounds") or {}).get("policy")
        if policy in POLICIES:
            return RoundPolicy(policy).is_asynchronous
        return bool(self.environment.get("asynchronous"))

    @property
    def is_portable(self) -> bool:
        """Whether its result is that of every processor with portable numerics (`edge.protocol.portable`)."""
        computes = self.environment.get("computes") or {}
        return computes.get("instructions") == PORTABLE and "NumPy" not in computes

    @property
    def completed(self) -> int:
        """Completed rounds, also those in which no visit counted; a round that was cut is not one."""
        return len(self.rounds) if self.summary is None else int(self.summary["rounds"])

    @property
    def histogram(self) -> Sequence[Sequence[int]]:
        """Training examples (clients, classes); empty if the environment lacks them."""
        return self.partition.get("histogram") or []

    @property
    def partition(self) -> Mapping[str, Any]:
        """Numbers of examples as the environment has them; empty if it lacks them."""
        return self.environment.get("partition") or {}

    def examples(self, split: EvalSplit) -> Sequence[int]:
        """(clients,) examples in a split; empty if the environment lacks them."""
        return list(map(sum, self.histogram)) if split == "train" else self.partition.get(split) or []

    @property
    def left_out(self) -> int:
        """The clients that are left out of means over clients, since they have no examples of ``eval.split``."""
        counts = self.examples((self.scenario.get("eval") or {}).get("split", "test"))
        return sum(count == 0 for count in counts)

    @cached_property
    def trail(self) -> progress.Trail:
        """The progress curve: running totals and accuracy after each round."""
        return progress.accumulated(self.rounds)

    def total(self, column: str) -> float:
        """Sum of one column over all rounds."""
        return float(sum(getattr(row, column) for row in self.rounds))

    def final(self) -> float | None:
        """The last accuracy that was evaluated; None if none was."""
        return progress.final(self.trail)

    def best(self) -> float | None:
        """The best accuracy of any round; None if none was evaluated."""
        return progress.best(self.trail)

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of the ledger; ReportError if it cannot be read."""
        return _query(self.folder, sql, arguments)

    @cached_property
    def evaluations(self) -> list[EvaluationRow]:
        """The values of all evaluations beside the accuracy and loss of rounds; empty in most runs."""
        return [EvaluationRow._make(row) for row in self._read(evaluations)]

    @cached_property
    def logged(self) -> list[LoggedRow]:
        """The numbers that its method has logged; empty in most runs."""
        return [LoggedRow._make(row) for row in self._read(logged)]

    def _read(self, table: Callable[[Path], list[sqlite3.Row]]) -> list[sqlite3.Row]:
        try:
            return table(self.folder / PARTS[2])
        except sqlite3.Error as error:
            raise _unreadable(self.folder, error) from error

    def wall_seconds(self) -> float:
        """Wall-clock seconds of the run, start-up included once it has finished."""
        if self.summary and self.summary.get("wall_seconds") is not None:
            return float(self.summary["wall_seconds"])
        return float(self.query("SELECT TOTAL(wall_s) AS wall_s FROM host_rounds")[0]["wall_s"])

    def stopped_by(self) -> str:
        """Which rule ended the run, in words."""
        return UNFINISHED if self.summary is None else stop_text(str(self.summary.get("stopped_by", "unknown")))

    def traffic(self) -> list[BlockTraffic]:
        """Bytes per block in model order, then headers and transfers that were cut."""
        blocks = self.environment.get("blocks") or []
        share = sum(block["nbytes"] for block in blocks) / len(blocks) if blocks else math.nan
        real, sent = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in self.query(
            "SELECT direction, key, COUNT(*) n, SUM(nbytes) b FROM transfers GROUP BY direction, key"
        ):
            name = str(row["key"]).removesuffix(BUFFERS)
            real[name, row["direction"]] += row["b"]
            # A block's buffers are sent with its parameters, so they are not counted as another transfer of it.
            sent[name, row["direction"]] += row["n"] if row["key"] == name and name not in NO_BLOCKS else 0
        present = {name for name, _ in real}
        order = [block["name"] for block in blocks if block["name"] in present]
        order += sorted(present - {*order, *NO_BLOCKS}) + [name for name in NO_BLOCKS if name in present]
        return [
            BlockTraffic(
                name, real[name, "down"], real[name, "up"], sent[name, "down"] * share, sent[name, "up"] * share
            )
            for name in order
        ]


def open_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """Open run folders in the given order, each with its own label; ReportError for a folder that is not a run."""
    if not folders:
        raise ReportError("there is no run to report")
    parts = [read_parts(folder) for folder in folders]
    ledgers = [_checked(folder) for folder in folders]
    rounds = [rows for rows, _ in ledgers]
    groups = _groups(folders, parts)
    cut = {group for group, rows in zip(groups, rounds, strict=True) if rows and is_cut_step(rows[-1])}
    groups = [f"{group}{CUT}" if group in cut else group for group in groups]
    runs = []
    labelled = _run_labels(folders, groups, [scenario for _, scenario, _ in parts])
    for folder, (text, scenario, environment), (rows, ended), group, label in zip(
        folders, parts, ledgers, groups, labelled, strict=True
    ):
        runs.append(RecordedRun(folder, label, scenario, text, environment, ended, rows, group))
    return runs


def _checked(folder: Path) -> tuple[list[RoundRow], dict[str, Any] | None]:
    """Rounds and `summary` of a ledger all of whose rows are such as a run writes; ReportError for any other."""
    try:
        foreign.check(folder / PARTS[2])
        return [RoundRow._make(row) for row in read(folder / PARTS[2], progress.ROUNDS)], summary(folder)
    except sqlite3.Error as error:
        raise _unreadable(folder, error) from error


def is_cut_step(row: RoundRow) -> bool:
    """Whether a budget cut this round, and the clients that were left still made a step (``rounds.min_fraction``)."""
    return bool(row.cut_by) and row.participants > 0


def summary(folder: Path) -> dict[str, Any] | None:
    """How the run of a folder ended; None while it is unfinished.

    ReportError for a summary that no run has written, and sqlite3.Error for a ledger that cannot be read.
    """
    found = read(folder / PARTS[2], "SELECT value FROM meta WHERE key = 'summary'")
    try:
        return run_records.parsed(found[0]["value"], run_records.SummaryRecord) if found else None
    except ValueError as error:
        raise ReportError(f"{folder / PARTS[2]} is damaged: summary: {error}") from None


def settings(folder: Path, text: str, scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    """Dotted key -> value of a run's scenario with the keys and units of this version, so that older runs compare.

    ``text`` and ``scenario``: of its file. As the file has them where the scenario cannot be resolved any more, and
    where it names a plug-in of the user's, which is not imported to read a run.
    """
    return _resolved(folder / PARTS[0], text) or flat(scenario)


@lru_cache(maxsize=1024)
def _resolved(file: Path, text: str) -> Mapping[str, Any]:
    """Dotted key -> value; empty if the scenario cannot be resolved. ``text``: of the file, which may change."""
    try:
        with not_imported():
            return flat(tomllib.loads(scenario_text(load(str(file)).scenario.model_dump())))
    except (OSError, ValueError, ScenarioError):
        return {}


def _groups(folders: Sequence[Path], parts: Sequence[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[str]:
    """The label of each run's group."""
    identities = labels.identities([flat(scenario) for _, scenario, _ in parts])
    if any(identity != identities[0] for identity in identities):  # resolving them takes some time
        resolved = [settings(folder, text, raw) for folder, (text, raw, _) in zip(folders, parts, strict=True)]
        identities = labels.identities(resolved)
    distinct = [identity for index, identity in enumerate(identities) if identity not in identities[:index]]
    names = labels.labels(distinct)
    return [names[distinct.index(identity)] for identity in identities]


def _run_labels(
    folders: Sequence[Path], groups: Sequence[str], scenarios: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The group's label, with the seed where the group has several runs, and the run id where that is ambiguous."""
    seeds = [scenario.get("seed") for scenario in scenarios]
    runs, repeats = Counter(groups), Counter(zip(groups, seeds, strict=True))
    ids = Counter(zip(groups, seeds, [folder.name for folder in folders], strict=True))
    for folder, group, seed in zip(folders, groups, seeds, strict=True):
        label = group if runs[group] == 1 else f"{group}, seed {seed}"
        place = folder.name if ids[group, seed, folder.name] == 1 else str(folder)
        yield label if repeats[group, seed] == 1 else f"{label}, {place}"


def find(folder: Path) -> tuple[list[Path], Mapping[str, Any] | None]:
    """The run folders under a run or compare folder, and the comparison if it is one; ReportError if it is neither.

    A compare folder that was moved is searched for its runs by their folders' names.
    """
    file = folder / "compare.json"
    if not file.exists():
        return [folder], None
    try:
        comparison = run_records.read_json(file, run_records.ComparisonRecord)
        named = [expanded(run["run_dir"]) for run in comparison["runs"]]
    except ValueError as error:
        raise ReportError(
            f"{file} does not name the runs that were compared: {error}; make the comparison again with --run-id "
            f"{folder.resolve().name}, or name the folder of one of its runs"
        ) from error
    return [run if run.is_dir() else folder / run.name for run in named], comparison


def rows(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """One row per run and round: the virtual columns of ``rounds``, with running totals of the bytes."""
    table = []
    for run in runs:
        head = {"run": run.folder.name, "method": run.method, "seed": run.scenario.get("seed")}
        for row, point in zip(run.rounds, run.trail, strict=True):
            totals = {"bytes_so_far": point.nbytes, "nominal_bytes_so_far": point.nominal_nbytes}
            table.append(head | row._asdict() | totals | {"group": run.group})
    return table


def value_rows(runs: Sequence[RecordedRun], table: Literal["evaluations", "logged"]) -> list[dict[str, Any]]:
    """One row per run and row of one of these tables."""
    return [
        {"run": run.folder.name, "method": run.method, "seed": run.scenario.get("seed"), **row._asdict()}
        for run in runs
        for row in getattr(run, table)
    ]


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    keys: dict[str, Any] = {}
    for key, value in tables.items():
        keys |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return keys


def read_parts(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Scenario text, scenario and environment of a run folder; ReportError if it is not one."""
    check_folder(folder)
    missing = [name for name in PARTS if not (folder / name).exists()]
    if missing:
        raise ReportError(f"{folder} is not a run folder: it has no {', no '.join(missing)}")
    name = PARTS[0]
    try:
        text, scenario = run_records.read_scenario(folder / name)
        name = PARTS[1]
        return text, scenario, run_records.read_json(folder / name, run_records.EnvironmentRecord)
    except ValueError as error:
        raise ReportError(f"{folder / name} cannot be read: {error}") from error


def check_folder(folder: Path) -> None:
    """ReportError for a path that is no folder."""
    if not folder.is_dir():
        why = "it is a file" if folder.is_file() else "there is no such folder"
        raise ReportError(f"{folder} is not a run folder: {why}")


def _query(folder: Path, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
    try:
        return read(folder / PARTS[2], sql, arguments)
    except sqlite3.Error as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: sqlite3.Error) -> ReportError:
    return ReportError(f"{folder / PARTS[2]} cannot be read: {error}")
