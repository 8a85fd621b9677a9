"""Runs that differ in nothing but their seed, as one group, and what tells groups apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.report import labels
from scenarios.report.run_reader import RecordedRun, open_runs

MOST_UNNAMED = 6
"""Keys of a notice"""


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
    return [group for label, own in members.items() for group in _groups(label, own)]


def of_rows(rows: Mapping[str, Sequence[Path]]) -> list[RunGroup]:
    """A group per row of an experiment: its name -> the folders of its runs, one per seed. ReportError.

    Rows without a run are left out.
    """
    runs = iter(open_runs([folder for folders in rows.values() for folder in folders]))
    groups = []
    for name, folders in rows.items():
        own = [next(runs) for _ in folders]
        for run in own:
            run.group, run.label = name, name if len(own) == 1 else f"{name}, seed {run.scenario.get('seed')}"
        groups += [RunGroup(name, own)] if own else []
    return groups


def _groups(label: str, runs: Sequence[RecordedRun]) -> list[RunGroup]:
    by_seed: dict[int, RecordedRun] = {}
    for run in runs:
        by_seed.setdefault(int(run.scenario.get("seed") or 0), run)
    if len(by_seed) == 1:
        return [RunGroup(run.label, [run]) for run in runs]
    chosen = [by_seed[seed] for seed in sorted(by_seed)]
    return [RunGroup(label, chosen, [run for run in runs if run not in chosen])]


def has_seeds(groups: Sequence[RunGroup]) -> bool:
    """Whether any group has several seeds, so that means say something."""
    return any(len(group.runs) > 1 for group in groups)


def differences(groups: Sequence[RunGroup]) -> list[tuple[str, list[str]]]:
    """(key, its value in each group) for every key in which the groups' scenarios differ, seeds left out."""
    identities = _identities(groups)
    return [
        (key, [labels.value_text(each[key]) if key in each else "–" for each in identities])
        for key in labels.differing(identities)
    ]


def _identities(groups: Sequence[RunGroup]) -> list[labels.Settings]:
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
    identities = _identities(groups) if with_unnamed else []
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
