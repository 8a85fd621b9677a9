"""Whether a plug-in keeps its contract: short real runs with it, compared with each other (``fedbr check-plugin``).

Nothing is judged by reading the plug-in: each line of the result is what runs did, in a temporary folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from edge.protocol import plugins
from edge.protocol.codecs.registry import smallest_chain
from edge.protocol.scratch import scratch
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.overrides import KeyValues
from scenarios.config.plugin_points import PLUGIN_POINTS, PluginPoint
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import InnerRun, RunObserver
from scenarios.run.run_folder import RunFolder
from scenarios.studies.codec_conformance import codec_findings

BASE = "digits"
ROUNDS = 4
SHORT: KeyValues = {
    "rounds.max": ROUNDS,
    "rounds.participants": 3,
    "data.clients": 6,
    "train.local_steps": 2,
    "train.instructions": "native",  # of any processor
    "stop.target_accuracy": 1.0,
}
"""Fewer participants than clients, so that each client misses rounds."""
ASYNCHRONOUS = ("fedasync", "fedbuff")


class Finding(Struct, frozen=True):
    name: str
    holds: bool
    detail: str


class Conformance(Struct, frozen=True):
    """The output of ``check-plugin --json``."""

    plugin: str
    key: str
    """Of scenarios, which names it"""
    holds: bool
    findings: list[Finding]


@dataclass
class Examination:
    """The runs of one plug-in. ``overrides``: `settings`."""

    overrides: KeyValues
    host: Host
    launcher: WorkerLauncher
    stopped: Callable[[], bool]
    findings: list[Finding] = field(default_factory=list)

    def examine(self, folder: Path) -> None:
        """All lines of the contract; later ones are left out if a codec's frames or the first run fail."""
        loaded = load(BASE, self.overrides)
        if loaded.scenario.codec.up:
            self.findings += [Finding(*line) for line in codec_findings(loaded.scenario.codec.up)]
            if not all(finding.holds for finding in self.findings):
                return
        first = self._tried("1 worker", lambda: self._run(loaded, folder, "one", 1), self._costs)
        if first is None:
            return
        self._tried("3 workers", lambda: self._run(loaded, folder, "three", 3), lambda run: self._same(first, run))

        def resumed(run: Path) -> tuple[bool, str]:
            holds, detail = self._same(first, run)
            condition = ", stopped after each" if holds else " if the run is stopped after each round"
            return holds, f"{detail}{condition}"

        self._tried("resume", lambda: self._interrupted(loaded, folder), resumed)
        self.findings.append(Finding("absence", *self._absence(first)))
        if "rounds.policy" not in self.overrides:
            for policy in ASYNCHRONOUS:
                self._variant(policy, folder, {"rounds.policy": policy})
        self._variant("fixed_point", folder, {"aggregate.sum": "fixed_point"})

    def _tried(self, name: str, make: Callable[[], Path], judge: Callable[[Path], tuple[bool, str]]) -> Path | None:
        """Note what a run gives; its folder, or None if it failed."""
        try:
            run = make()
        except (RunFailed, PoolError) as error:
            self.findings.append(Finding(name, False, str(error).partition("\nrun folder:")[0]))
            return None
        self.findings.append(Finding(name, *judge(run)))
        return run

    def _run(self, loaded: Loaded, folder: Path, name: str, workers: int) -> Path:
        host = replace(self.host, out=folder, run_id=name, workers=workers)
        return self._ended(runner.run(loaded, host, self.launcher, self.stopped, True))

    def _ended(self, result: Mapping[str, object]) -> Path:
        """The folder of a run; Stopped if the user has stopped it, since nothing of it can be judged."""
        if self.stopped():
            raise Stopped
        return Path(str(result["run_dir"]))

    def _interrupted(self, loaded: Loaded, folder: Path) -> Path:
        """A run that is stopped after each of its rounds, and resumed: a state that is lost may be back at its start
        after some of them."""
        whole = replace(self.host, out=folder, run_id="cut", workers=2)
        cut = replace(whole, observers=(*whole.observers, _AfterEachRound()))
        run = self._ended(runner.run(loaded, cut, self.launcher, self.stopped, True))
        for stops in range(1, ROUNDS):
            host = cut if stops < ROUNDS - 1 else whole  # with the user's rounds.max it may be longer
            with RunFolder(run).open_scenario("auto", allow_code=True) as (stored, device):  # it was made here just now
                if runner.ended(stored, run) is None:
                    self._ended(runner.resume(stored, replace(host, device=device), run, self.launcher, self.stopped))
        return run

    def _variant(self, name: str, folder: Path, setting: KeyValues) -> None:
        """A setting under which a plug-in works, or is refused with a reason before anything runs."""
        try:
            loaded = load(BASE, {**self.overrides, **setting})
        except ScenarioError as error:
            self.findings.append(Finding(name, True, f"refused: {error}"))
            return
        self._tried(name, lambda: self._run(loaded, folder, name, 2), self._costs)

    @staticmethod
    def _costs(run: Path) -> tuple[bool, str]:
        """The costs of a run. A message of other shapes than priced, or other FLOPs than foreseen, ends it."""
        query = "SELECT COUNT(*), SUM(bytes_down), SUM(bytes_up), SUM(flops) FROM visits"
        ((visits, down, up, flops),) = _rows(run, query)
        return True, f"{visits} visits cost what was priced: {down:,} bytes down, {up:,} up, {flops:.4g} FLOPs"

    @staticmethod
    def _same(first: Path, second: Path) -> tuple[bool, str]:
        chains = [_rows(run, "SELECT round, chain FROM rounds ORDER BY round") for run in (first, second)]
        differing = [one[0] for one, other in zip(*chains, strict=False) if one != other]
        if chains[0] == chains[1]:
            return True, f"{len(chains[0])} rounds with the same hashes"
        if differing:
            return False, f"round {differing[0] + 1} differs"
        return False, f"{len(chains[1])} rounds of {len(chains[0])}"

    @staticmethod
    def _absence(run: Path) -> tuple[bool, str]:
        """Files of a round are those of clients that were visited in it."""
        tables = {"states": "states", "client_vectors": "stored vectors"}
        kept = {noun: set(_rows(run, f"SELECT client, round FROM {table}")) for table, noun in tables.items()}
        visited = set(_rows(run, "SELECT client, round FROM visits"))
        for noun, rows in kept.items():
            strangers = sorted(rows - visited)
            if strangers:
                client, round = strangers[0]
                return False, f"round {round + 1}: {noun} of client {client} changed without a visit"
        names = [f"{noun} of {len({client for client, _ in rows})} clients" for noun, rows in kept.items() if rows]
        return True, ", ".join(names) + " change with visits alone" if names else "keeps nothing per client"


class _AfterEachRound(RunObserver):
    """Ends a run after a round."""

    def on_round(self, progress: RoundFinished) -> bool:
        return True


def _rows(run: Path, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in read(run / "ledger.sqlite", query)]


def plugin_point(name: str) -> PluginPoint:
    """The plug-in point whose row this is. ScenarioError if it cannot be loaded or is no row."""
    if not plugins.is_own(name):
        raise ScenarioError(f"{name!r}: write MODULE:NAME, the module and its row, such as my_method:SPEC")
    try:
        row = plugins.load(name)
    except ValueError as error:
        raise ScenarioError(str(error)) from error.__cause__
    for point in PLUGIN_POINTS:
        if point.is_row(row):
            return point
    kinds = ", ".join(sorted(kind for point in PLUGIN_POINTS for kind in point.row_types))
    raise ScenarioError(f"{name!r} is a {type(row).__name__}, not a row of a plug-in point: {kinds}")


def settings(name: str, overrides: KeyValues) -> dict[str, object]:
    """The overrides of `BASE` for short runs with a plug-in, the user's own last; ScenarioError as `plugin_point`."""
    point = plugin_point(name)
    value: object = ["accuracy", "loss", name] if point.takes_several else name
    if point.stage_keys:
        stage, *more = smallest_chain(name)
        value = [stage, *more] if more else stage
    return {**SHORT, point.key: value, **overrides}


def check_plugin(
    name: str, overrides: KeyValues, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> Conformance:
    """The lines of the contract, and whether each holds. ScenarioError, Stopped."""
    host = replace(host, observers=(InnerRun(host.observers),))
    with scratch() as folder:
        launcher.adopt(folder)
        examination = Examination(settings(name, overrides), host, launcher, stopped)
        examination.examine(folder)
    findings = examination.findings
    return Conformance(name, plugin_point(name).key, all(finding.holds for finding in findings), findings)


def show(result: Conformance) -> None:
    print(f"{result.plugin} as {result.key}")
    for finding in result.findings:
        print(f"  {'holds' if finding.holds else 'FAILS':6} {finding.name:12} {finding.detail}")
