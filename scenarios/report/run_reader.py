"""Recorded runs as a report has them: run folders (`scenarios.run.run_folder`) with their labels.

Runs that differ in nothing but their seed are one group.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coordinator.rounds.policy import POLICIES, RoundPolicy
from coordinator.rounds.split import STEP_SLOTS
from edge.protocol.config import EvalSplit
from edge.protocol.payload import BUFFERS
from edge.protocol.plugins import FLOWER_APP, is_own
from edge.protocol.portable import PORTABLE
from scenarios.config.errors import ReportError
from scenarios.config.tables import leaves
from scenarios.report import labels
from scenarios.run import own_method
from scenarios.run.progress import is_cut_step
from scenarios.run.run_folder import ENVIRONMENT, RunFolder

UNFINISHED = "unfinished"
CUT = ", last round cut"
"""Ending of the label of a run whose last step was made by fewer clients; it marks all figures and tables"""
NO_BLOCKS = ("header", "cut")
"""Keys of the table ``transfers`` that name no block."""
MOST_UNNAMED = 6
"""Keys of a notice"""
NONE: Mapping[Path, str] = MappingProxyType({})
_STOPS = {
    "target": "target reached",
    "converged": "converged",
    "rounds": "round limit",
    "app": "end of the app",
    "clients": "too few clients left",
    "user": "stopped by user",
    "time_limit": "stopped at its time limit",
    "budgets": "no need for more",
}


def stop_text(rule: str) -> str:
    """A rule that ended a run, in words."""
    return _STOPS.get(rule, f"budget: {rule.replace('_', ' ')}")


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


class RecordedRun(RunFolder):
    """A run in a report. ReportError for a ledger that cannot be read, too."""

    label: str = ""
    """The run's name in the report: that of its group, with seed and run id where that is ambiguous."""
    group: str = ""
    """The name that it shares with the runs that differ in nothing but their seed (`labels.labels`)."""
    ended_by: str = ""
    """What ended it in the experiment that it is of, where that is not what its folder says."""

    @cached_property
    def own_method(self) -> own_method.OwnMethod | None:
        """What the run has recorded of a method of the user's own; None for a shipped one. ReportError."""
        if not is_own(self.method):
            return None
        try:
            return own_method.read(self.environment.own_method)
        except ValueError as error:
            raise ReportError(f"{self.folder / ENVIRONMENT} is damaged: {error}") from None

    @property
    def seed(self) -> int:
        """That of its scenario; 0 if it has none."""
        return int(self.scenario.get("seed") or 0)

    @property
    def shows_nominal(self) -> bool:
        """Whether reports show its nominal costs."""
        own = self.own_method
        return own_method.shows_nominal([self.method]) if own is None else own.nominal

    @property
    def is_app(self) -> bool:
        """Whether its method is a Flower app."""
        return self.method.startswith(FLOWER_APP)

    @property
    def is_asynchronous(self) -> bool:
        """Whether its round policy has no barrier."""
        policy = (self.scenario.get("rounds") or {}).get("policy")
        return RoundPolicy(policy).is_asynchronous if policy in POLICIES else self.environment.asynchronous

    @property
    def is_portable(self) -> bool:
        """Whether its result is that of every processor with portable numerics (`edge.protocol.portable`)."""
        computes = self.environment.computes
        return computes.get("instructions") == PORTABLE and "NumPy" not in computes

    @property
    def histogram(self) -> Sequence[Sequence[int]]:
        """Training examples (clients, classes); empty if the environment lacks them."""
        histogram = self.environment.partition.histogram
        return histogram if any(histogram) else []

    def client_name(self, client: int) -> str:
        """Who a client is; its number where the data give no names."""
        return _name(self.environment.partition.client_names, client)

    def class_name(self, label: int) -> str:
        """The label of a class; its number where the data give no names."""
        return _name(self.environment.partition.class_names, label)

    def examples(self, split: EvalSplit) -> Sequence[int]:
        """(clients,) examples in a split; empty if the environment lacks them."""
        partition = self.environment.partition
        if split == "train":
            return list(map(sum, partition.histogram))
        return partition.validation if split == "validation" else partition.test

    @property
    def left_out(self) -> int:
        """The clients that are left out of means over clients, since they have no examples of ``eval.split``."""
        counts = self.examples((self.scenario.get("eval") or {}).get("split", "test"))
        return sum(count == 0 for count in counts)

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of the ledger."""
        try:
            return super().query(sql, arguments)
        except sqlite3.Error as error:
            raise ReportError(f"{self.ledger} cannot be read: {error}") from error

    @property
    def guarantee(self) -> str | None:
        """What its epsilon is about, in words; None without differential privacy, or before it has ended."""
        spent = (self.summary or {}).get("privacy")
        return str(spent["guarantee"]) if isinstance(spent, dict) and "guarantee" in spent else None

    def stopped_by(self) -> str:
        """Which rule ended the run, in words."""
        if self.summary is None:
            return UNFINISHED
        return stop_text(self.ended_by or str(self.summary.get("stopped_by", "unknown")))

    def traffic(self) -> list[BlockTraffic]:
        """Bytes per block in model order, then what the steps of a cut model send, headers, and transfers cut short."""
        blocks = self.environment.blocks
        share = sum(block.nbytes for block in blocks) / len(blocks) if blocks else math.nan
        real, sent = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in self.query(
            "SELECT direction, slot, key, COUNT(*) n, SUM(nbytes) b FROM transfers GROUP BY direction, slot, key"
        ):
            is_of_steps = row["slot"] in STEP_SLOTS
            name = str(row["slot"] if is_of_steps else row["key"]).removesuffix(BUFFERS)
            real[name, row["direction"]] += row["b"]
            # A block's buffers are sent with its parameters, so they are not counted as another transfer of it.
            is_block = row["key"] == name and name not in NO_BLOCKS and not is_of_steps
            sent[name, row["direction"]] += row["n"] if is_block else 0
        present = {name for name, _ in real}
        order = [block.name for block in blocks if block.name in present]
        order += sorted(present - {*order, *NO_BLOCKS}) + [name for name in NO_BLOCKS if name in present]
        return [
            BlockTraffic(
                name, real[name, "down"], real[name, "up"], sent[name, "down"] * share, sent[name, "up"] * share
            )
            for name in order
        ]


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def open_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """Open run folders in the given order, each with its own label; ReportError for a folder that is not a run."""
    if not folders:
        raise ReportError("there is no run to report")
    runs = [RecordedRun(folder) for folder in folders]
    for run in runs:
        run.check()
    groups = _groups(runs)
    cut = {group for group, run in zip(groups, runs, strict=True) if run.rounds and is_cut_step(run.rounds[-1])}
    for run, group in zip(runs, groups, strict=True):
        run.group = f"{group}{CUT}" if group in cut else group
    # The group's label, with the seed where the group has several runs, and the run id where that is ambiguous.
    keys = [(run.group, run.scenario.get("seed")) for run in runs]
    several, repeats = Counter(run.group for run in runs), Counter(keys)
    ids = Counter((key, run.folder.name) for key, run in zip(keys, runs, strict=True))
    for key, run in zip(keys, runs, strict=True):
        run.label = run.group if several[run.group] == 1 else f"{run.group}, seed {key[1]}"
        if repeats[key] > 1:
            run.label += f", {run.folder.name if ids[key, run.folder.name] == 1 else run.folder}"
    return runs


def _groups(runs: Sequence[RecordedRun]) -> list[str]:
    """The label of each run's group."""
    identities = labels.identities([dict(leaves(run.scenario)) for run in runs])
    if any(identity != identities[0] for identity in identities):  # resolving them takes some time
        identities = labels.identities([run.settings for run in runs])
    distinct = [identity for index, identity in enumerate(identities) if identity not in identities[:index]]
    names = labels.labels(distinct)
    return [names[distinct.index(identity)] for identity in identities]


# --- groups over seeds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunGroup:
    """Runs of one scenario with different seeds."""

    label: str
    runs: Sequence[RecordedRun]
    """One per seed, by seed"""
    repeats: Sequence[RecordedRun] = ()
    """Further runs of these seeds, which count in no mean"""

    @property
    def first(self) -> RecordedRun:
        """The run that stands for the group in figures of single runs."""
        return self.runs[0]


def grouped(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """The groups of these runs, in the order of their first runs.

    A group of one seed that has several runs is a group per run, so that repeats of one run can be compared.
    """
    members: dict[str, list[RecordedRun]] = {}
    for run in runs:
        members.setdefault(run.group, []).append(run)
    groups: list[RunGroup] = []
    for label, own in members.items():
        by_seed: dict[int, RecordedRun] = {}
        for run in own:
            by_seed.setdefault(run.seed, run)
        if len(by_seed) == 1:
            groups += [RunGroup(run.label, [run]) for run in own]
        else:
            chosen = [by_seed[seed] for seed in sorted(by_seed)]
            groups.append(RunGroup(label, chosen, [run for run in own if run not in chosen]))
    return groups


def of_rows(rows: Mapping[str, Sequence[Path]], ended_by: Mapping[Path, str] = NONE) -> list[RunGroup]:
    """A group per row of an experiment: its name -> the folders of its runs, one per seed. ReportError.

    Rows without a run are left out. ``ended_by``: folder -> `RecordedRun.ended_by`.
    """
    runs = iter(open_runs([folder for folders in rows.values() for folder in folders]))
    groups = []
    for name, folders in rows.items():
        own = [next(runs) for _ in folders]
        for run in own:
            run.group, run.label = name, name if len(own) == 1 else f"{name}, seed {run.scenario.get('seed')}"
            run.ended_by = ended_by.get(run.folder, "")
        groups += [RunGroup(name, own)] if own else []
    return groups


def has_seeds(groups: Sequence[RunGroup]) -> bool:
    """Whether any group has several seeds, so that means say something."""
    return any(len(group.runs) > 1 for group in groups)


def differences(groups: Sequence[RunGroup]) -> list[tuple[str, list[str]]]:
    """(key, its value in each group) for every key in which the groups' scenarios differ, seeds left out."""
    identities = settings_of(groups)
    return [
        (key, [labels.value_text(each[key]) if key in each else "–" for each in identities])
        for key in labels.differing(identities)
    ]


def settings_of(groups: Sequence[RunGroup]) -> list[labels.Settings]:
    """The scenario of each group without its seeds."""
    every = labels.identities([run.settings for group in groups for run in group.runs])
    starts = [sum(len(group.runs) for group in groups[:index]) for index in range(len(groups))]
    return [every[start] for start in starts]


def notices(groups: Sequence[RunGroup], with_unnamed: bool = True) -> list[str]:
    """What a reader must know before comparing these groups: other data, models or targets, and repeated runs.

    ``with_unnamed``: and differences that the names of groups do not say.
    """
    found = []
    for key, name, why in _COMMON:
        common = {group.first.settings.get(key): None for group in groups}
        if len(common) > 1:
            found.append(f"{name} differ: {', '.join(map(labels.value_text, common))}. {why}")
    identities = settings_of(groups) if with_unnamed else []
    keys = [key for key in labels.unnamed(identities) if key not in {key for key, _, _ in _COMMON}]
    if keys:
        shown = []
        for key in keys[:MOST_UNNAMED]:
            values = dict.fromkeys(labels.value_text(each[key]) for each in identities if key in each)
            shown.append(f"{key} ({', '.join(values)})")
        rest = len(keys) - MOST_UNNAMED
        more = f" and {rest} more, in the table of what differs" if rest > 0 else ""
        found.append(f"These differ, too, which the names of groups do not say: {', '.join(shown)}{more}.")
    repeats = [run for group in groups for run in group.repeats]
    if repeats:
        ids = ", ".join(run.folder.name for run in repeats)
        found.append(f"Runs that repeat a seed of their group are in no mean and no figure: {ids}.")
    return found


_COMMON = (
    ("data.name", "Data sets", "Accuracies on different data are not comparable."),
    ("model.name", "Models", "Bytes and FLOPs differ by the model, too."),
    ("data.clients", "Numbers of clients", "The partitions differ with them."),
    ("stop.target_accuracy", "Targets", "Times and bytes to the target are read at the first run's."),
)
"""(key, what differs, what follows for the reader)"""
