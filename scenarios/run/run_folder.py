"""The folder of a recorded run, opened for reading; nothing in it is written.

A file is read when something in it is asked for, and once. An unfinished or running run is read up to its last
committed round. The folder may come from anyone: what no run writes is refused, and no module that it names is imported
but by `RunFolder.open_scenario` and `RunFolder.modules`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from coordinator.records import foreign
from coordinator.records.schema import (
    AGGREGATORS,
    EVALUATIONS,
    LOGGED,
    STEPS,
    AggregatorRow,
    EvaluationRow,
    LoggedRow,
    RoundRow,
    StepsRow,
)
from coordinator.records.store import has_rounds, read
from costmodel.config import Prices
from costmodel.fleet.carbon import Intensity
from edge.protocol.better import LOWER
from edge.protocol.config import ModelProfile
from edge.protocol.files import opened
from edge.protocol.serialization import unpack_description
from scenarios.config import fleet_files
from scenarios.config.errors import Argument, ReportError, ScenarioError
from scenarios.config.load import Loaded, load
from scenarios.config.plugin_points import own_names
from scenarios.config.quantities import scenario_text
from scenarios.config.schema import Scenario
from scenarios.config.tables import TomlValue, leaves, value_at
from scenarios.run import folder_files, plugin_sources, progress, run_records
from scenarios.run.aggregators import LinkTotals, by_link, by_round
from scenarios.run.client_values import BestRound, ByDevice, best_round, by_device
from scenarios.run.environment import Environment
from scenarios.run.score import RunScore, recorded_score, score_in

MOST_DESCRIPTION_NBYTES = 8 * run_records.MOST_NBYTES
"""8 bytes for each class of each client, for which an environment has at least one"""
SCENARIO, ENVIRONMENT, LEDGER = PARTS = ("scenario.toml", "environment.json", "ledger.sqlite")


class RunFolder:
    """One recorded run. ReportError for a file that cannot be read; sqlite3.Error for a ledger that cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / LEDGER

    # --- scenario -----------------------------------------------------------------------------------------------------

    @property
    def scenario_text(self) -> str:
        return self._scenario[0]

    @property
    def scenario(self) -> Mapping[str, Any]:
        """The tables of its scenario, as the file has them."""
        return self._scenario[1]

    @cached_property
    def _scenario(self) -> tuple[str, dict[str, Any]]:
        try:
            return run_records.read_scenario(self.folder / SCENARIO)
        except ValueError as error:
            raise ReportError(f"{self.folder / SCENARIO} cannot be read: {error}") from error

    @property
    def method(self) -> str:
        return str(self.scenario.get("method", "unknown"))

    def keys(self) -> Mapping[str, TomlValue]:
        """Dotted key -> value of the scenario as this version of fedbr resolves it, so that older runs compare.

        One that names a plug-in of the user's own, which is not imported to read a run, as the file has it.
        ReportError for one that cannot be resolved any more.
        """
        if own_names(self.scenario):
            return dict(leaves(self.scenario))
        file = self.folder / SCENARIO
        try:
            return {**_resolved(file, self.scenario_text), **self.file_names}
        except (OSError, ValueError) as error:
            raise ReportError(f"{file} cannot be read: {error}") from None

    @property
    def file_names(self) -> Mapping[str, TomlValue]:
        """Key -> name of each file that its scenario names, as the file has it: not that of the run's copy."""
        named = {key: value_at(self.scenario, key) for key in fleet_files.KEYS}
        return {key: name for key, name in named.items() if name is not None}

    @cached_property
    def settings(self) -> Mapping[str, TomlValue]:
        """`keys`, to compare runs by; as the file has them where they cannot be resolved any more."""
        try:
            return self.keys()
        except ReportError:
            return dict(leaves(self.scenario))

    @contextlib.contextmanager
    def modules(self, allow_code: bool) -> Iterator[None]:
        """For a body that imports the user's own modules which the run names, from where `of_run` allows it.

        A run whose record is missing or damaged, which others refuse, has recorded none.
        """
        sources: Mapping[str, plugin_sources.SourceFile] = {}
        with contextlib.suppress(ReportError):
            sources = self.environment.sources
        with plugin_sources.of_run(self.folder, sources, allow_code):
            yield

    @contextlib.contextmanager
    def open_scenario(self, device: str, allow_code: bool = False) -> Iterator[tuple[Loaded, str]]:
        """The scenario, and the device to go on with: by default (``auto``) the device that the run began on.

        Modules that the run names are imported in the body, too, so that workers are started there: from the user's own
        places, or with ``allow_code`` also from those of the record. ScenarioError for a folder without a run, for
        modules that are not allowed, and for a device of another type: results would not be bit-identical.
        """
        file = self.folder / SCENARIO
        if not file.exists():
            raise ScenarioError(f"{self.folder}: not a run folder: there is no {SCENARIO} in it")
        folder_files.check(self.folder)
        if device == "auto":
            device = self.environment.device or device
        self.check_device(device)
        with self.modules(allow_code):
            try:
                loaded = load(str(file))
            except ScenarioError as error:
                # A module that has changed is possibly the cause.
                change = "" if plugin_sources.ALLOW in str(error) else self.source_change()
                raise ScenarioError(f"{error}; {change}" if change else str(error)) from None
            began = self.environment.began_with
            yield replace(loaded, name=self.folder.resolve().parent.name, began=began), device

    # --- environment --------------------------------------------------------------------------------------------------

    @cached_property
    def environment(self) -> Environment:
        """The run's record of its machine, data and model; an empty one before there is any.

        ReportError, too, for one that is missing although rounds have been committed.
        """
        path = self.folder / ENVIRONMENT
        try:
            if path.exists():
                return run_records.checked(run_records.read_json(path), Environment)
        except ValueError as error:
            raise ReportError(f"{path} cannot be read: {error}") from None
        with contextlib.suppress(sqlite3.DatabaseError):  # another check names a damaged ledger
            if has_rounds(self.ledger):
                raise ReportError(f"{path} is missing, and without it the run cannot be resumed")
        return Environment()

    @cached_property
    def description(self) -> ModelProfile:
        """Its model and data as a worker has described them. ReportError for a run that has none, or a damaged one."""
        path = self.folder / folder_files.DESCRIPTION
        try:
            with opened(path) as file:
                packed = file.read(MOST_DESCRIPTION_NBYTES + 1)
            if len(packed) > MOST_DESCRIPTION_NBYTES:
                raise ValueError(f"larger than {MOST_DESCRIPTION_NBYTES:,} bytes")
            return unpack_description(packed)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ReportError(f"{path} does not describe the run's model and data: {why}") from None

    def check_device(self, device: str) -> None:
        """ScenarioError for a device of another type than that which the run began on."""
        before = self.environment.device or device
        if device.partition(":")[0] != before.partition(":")[0]:
            raise ScenarioError(
                Argument("device", device),
                f": the run began on {before}, and would not be bit-identical on {device}",
            )

    def source_change(self) -> str:
        """Differences of the user's own modules from those that the run began with; empty if there are none."""
        return plugin_sources.change(self.environment.sources, self.folder)

    # --- ledger -------------------------------------------------------------------------------------------------------

    def app_sha256(self) -> str:
        """The hash of the Flower app that has made the run, or its last rounds if it has changed since it failed."""
        changes = self.query("SELECT detail FROM host_events WHERE kind = 'app_changed' ORDER BY rowid DESC LIMIT 1")
        return str(changes[0]["detail"]) if changes else self.environment.data.sha256

    @property
    def has_app_failed(self) -> bool:
        """Whether its Flower app has ended the run since the app was last changed, and so may have been mended."""
        changed = "SELECT COALESCE(MAX(rowid), 0) FROM host_events WHERE kind = 'app_changed'"
        return bool(self.query(f"SELECT 1 FROM host_events WHERE kind = 'app_failed' AND rowid > ({changed}) LIMIT 1"))

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        return read(self.ledger, sql, arguments)

    @property
    def is_begun(self) -> bool:
        """Whether a round has been committed."""
        return has_rounds(self.ledger)

    @cached_property
    def meta(self) -> Mapping[str, str]:
        """The ledger's metadata; empty without a ledger, or if its creation was interrupted."""
        if not self.ledger.exists():
            return {}
        try:
            return {row["key"]: row["value"] for row in self.query("SELECT key, value FROM meta")}
        except sqlite3.OperationalError:
            if self.is_begun:  # raises for a damaged file
                raise
            return {}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it is unfinished. ReportError for a summary that no run has written."""
        try:
            text = self.meta.get("summary")
            return None if text is None else run_records.parsed(text, run_records.SummaryRecord)
        except ValueError as error:
            raise ReportError(f"{self.ledger} is damaged: summary: {error}") from None

    @cached_property
    def rounds(self) -> Sequence[RoundRow]:
        """As committed. The last row may be no round: one that was cut, or a score after the last round."""
        return [RoundRow._make(row) for row in self.query(progress.ROUNDS)]

    @cached_property
    def evaluations(self) -> Sequence[EvaluationRow]:
        """The values of all evaluations beside the accuracy and loss of rounds; empty in most runs."""
        return [EvaluationRow._make(row) for row in self._optional(EVALUATIONS)]

    @cached_property
    def logged(self) -> Sequence[LoggedRow]:
        """The numbers that its method has logged; empty in most runs."""
        return [LoggedRow._make(row) for row in self._optional(LOGGED)]

    @cached_property
    def steps(self) -> Sequence[StepsRow]:
        """What visits of a model that is cut exchanged while they trained; empty where clients train whole models."""
        return [StepsRow._make(row) for row in self._optional(STEPS)]

    @cached_property
    def seconds_of_steps(self) -> Mapping[int, float]:
        """Visit -> seconds of its computing in which its device did not compute, of a model that is cut."""
        return {row.visit: row.seconds for row in self.steps}

    @cached_property
    def has_tiers(self) -> bool:
        """Whether aggregators have exchanged messages with what is above them."""
        return self._has_table(AGGREGATORS)

    @cached_property
    def links(self) -> Sequence[LinkTotals]:
        """The totals of the messages of each tier and direction; empty without tiers."""
        return by_link(self.query) if self.has_tiers else []

    @property
    def aggregators(self) -> Sequence[AggregatorRow]:
        """The messages between aggregators and what is above them; empty without tiers."""
        return [AggregatorRow._make(row) for row in self._optional(AGGREGATORS)]

    def _has_table(self, table: str) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)))

    def _optional(self, table: str) -> list[sqlite3.Row]:
        """The rows of a table that not every run has."""
        return self.query(f"SELECT * FROM {table} ORDER BY rowid") if self._has_table(table) else []

    @cached_property
    def trail(self) -> progress.Trail:
        """The progress curve: running totals and accuracy after each round."""
        above = by_round(self.query) if self.has_tiers else None
        return progress.accumulated(self.rounds, above, self.prices, self.carbon, self.score.better)

    @property
    def score(self) -> RunScore:
        """The metric by which the run is judged."""
        known = recorded_score(self.scenario)
        if known is not None:
            return known
        own = self.environment.score
        return RunScore("score", LOWER, False) if own is None else score_in(own.model_dump())

    @property
    def target(self) -> float | None:
        """The score that it had to reach; None without a target."""
        stop = self.scenario.get("stop") or {}
        given = stop.get("target") or {}
        value = given.get("below", given.get("above", stop.get("target_accuracy")))
        return None if value is None else float(value)

    @property
    def prices(self) -> Prices:
        """The prices of what its clients spend."""
        table = (self.scenario.get("fleet") or {}).get("price") or {}
        return Prices(gb=float(table.get("gb", 0.0)), kwh=float(table.get("kwh", 0.0)))

    @property
    def carbon(self) -> Intensity | None:
        """The carbon intensity of its electricity, as it was when the run began; None without one."""
        table = (self.scenario.get("fleet") or {}).get("carbon") or {}
        record = self.environment.carbon if table else None  # the file is read where it has one
        return None if record is None else record.intensity

    @cached_property
    def device_trail(self) -> progress.Trail:
        """The same with what the clients that have spent the most have spent, which reads all visits."""
        spent = self.query(
            "SELECT round, client, SUM(joules), SUM(bytes_down + bytes_up) FROM visits GROUP BY round, client"
        )
        return progress.with_devices(self.trail, ((row[0], row[1], row[2], row[3]) for row in spent))

    @cached_property
    def best_round(self) -> BestRound | None:
        """The best round so far; None before the first evaluation."""
        return best_round(self.rounds, self.evaluations, self.completed, self.score)

    @cached_property
    def by_device(self) -> ByDevice:
        """The scores of clients by kind of device; empty unless clients of several were evaluated."""
        return by_device(self.evaluations, self.environment.clients_by_device, self.score)

    @property
    def completed(self) -> int:
        """Completed rounds, also those in which no visit counted; a round that was cut is not one."""
        return len(self.rounds) if self.summary is None else int(self.summary["rounds"])

    def final(self) -> float | None:
        """The last accuracy that was evaluated; None if none was."""
        return self.trail.final

    def best(self) -> float | None:
        """The best accuracy of any round; None if none was evaluated."""
        return self.trail.best

    def total(self, column: str) -> float:
        return float(sum(getattr(row, column) for row in self.rounds))

    def wall_seconds(self) -> float:
        """Wall-clock seconds of the run, start-up included once it has finished."""
        if self.summary and self.summary.get("wall_seconds") is not None:
            return float(self.summary["wall_seconds"])
        return float(self.query("SELECT TOTAL(wall_s) AS wall_s FROM host_rounds")[0]["wall_s"])

    # --- the whole folder ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """ReportError unless it has the files of a run, and all of them are such as a run writes."""
        check_folder(self.folder)
        missing = [name for name in PARTS if not (self.folder / name).exists()]
        if missing:
            raise ReportError(f"{self.folder} is not a run folder: it has no {', no '.join(missing)}")
        _ = self.scenario, self.environment
        if (self.folder / folder_files.DESCRIPTION).exists():
            _ = self.description
        try:
            foreign.check(self.ledger)
            _ = self.rounds, self.summary
        except sqlite3.Error as error:
            raise ReportError(f"{self.ledger} cannot be read: {error}") from error


def check_folder(folder: Path) -> None:
    """ReportError for a path that is no folder."""
    if not folder.is_dir():
        problem = "it is a file" if folder.is_file() else "there is no such folder"
        raise ReportError(f"{folder} is not a run folder: {problem}")


@lru_cache(maxsize=1024)
def _resolved(file: Path, text: str) -> Mapping[str, TomlValue]:
    """`resolved_keys` of a run's scenario. ``text``: of the file, which may change."""
    with plugin_sources.not_imported():
        return resolved_keys(load(str(file)).scenario)


def resolved_keys(scenario: Scenario) -> dict[str, TomlValue]:
    """Dotted key -> value of a scenario, as its file in a run folder has them."""
    return dict(leaves(tomllib.loads(scenario_text(scenario.model_dump()))))
