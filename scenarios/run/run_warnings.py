"""Runs that end without an error and yet cannot show what was asked for: foreseen before they start, or found after.

Warnings change no run. They go to the author, into the summary and into the report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.records.schema import NO_TRAINING
from coordinator.rounds.budget import CLIENTS, EARLY, FLEET_RULES, SECONDS
from costmodel import units
from edge.protocol.config import ModelProfile
from edge.protocol.portable import PORTABLE, numpy_is_portable
from edge.runtime.numerics import lacking
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import quantities
from scenarios.run import builder, evaluated_clients
from scenarios.run.host import default_workers

MOST_THREADS_PER_CORE = 16
"""Above it a step of training hardly ends: threads wait for each other in turn."""


def check_threads(loaded: Loaded, device: str) -> None:
    """ScenarioError for so many threads per worker that no round would end."""
    threads, cores = loaded.scenario.train.threads, default_workers()
    if device == "cpu" and threads > MOST_THREADS_PER_CORE * cores:
        raise ScenarioError(
            f"{loaded.name}: train.threads = {threads}: no round would end on {_cores(cores)}; choose at most {cores}"
        )


def check_instructions(loaded: Loaded) -> None:
    """ScenarioError for portable numerics on a processor that does not have them."""
    if loaded.scenario.train.instructions == PORTABLE and (lacks := lacking()):
        raise ScenarioError(
            f"{loaded.name}: train.instructions = portable: needs an x86-64 processor with AVX2 and FMA, and {lacks}; "
            "choose native"
        )


def foreseen(loaded: Loaded, description: ModelProfile, device: str) -> list[str]:
    """Warnings before a run on a device starts: of threads, of NumPy, and of blocks that nobody exchanges.

    NumPy of this process computes times and the server's steps, and a Python program has imported it already.
    """
    warnings: list[str] = []
    train, cores = loaded.scenario.train, default_workers()
    if device == "cpu" and train.threads > cores:
        only = f"there are only {_cores(cores)}, so that rounds take longer than with {cores}"
        warnings.append(f"train.threads = {train.threads}: {only}")
    if train.instructions == PORTABLE and not numpy_is_portable(os.environ):
        warnings.append(
            "train.instructions = portable: workers train with portable numerics, but this process has imported NumPy "
            "with this processor's own, so that last bits of the virtual record may differ on other processors; the "
            "command fedbr limits NumPy, too"
        )
    asked, (down, up) = loaded.scenario.travels, builder.travels(loaded, description.layout)
    if not loaded.method.objective.traffic.contacts_server:
        return warnings
    if not down and not up and (asked.down or asked.up):
        none = "no block is downloaded or uploaded, so that clients train on their own, as method = local"
        warnings.append(f"travels: {none}")
    elif not up and asked.up:
        warnings.append(f"travels.up = {asked.up}: no block is uploaded, so that the global model stays as it began")
    return warnings


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def notes(loaded: Loaded, description: ModelProfile) -> list[str]:
    """Clients without training examples, those left out of means over clients, and what the method says of the model.

    None of them is a warning: the run can show what was asked for.
    """
    notes, without = [], np.flatnonzero(description.samples == 0).tolist()
    if without:
        which = ", ".join(map(str, without[:5])) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        are = f"client {which} has" if len(without) == 1 else f"clients {which} have"
        verb = "takes" if len(without) == 1 else "take"
        notes.append(f"data.partition: {are} no training examples, and never {verb} part")
    if count := evaluated_clients.left_out(loaded, description):
        of, verb, split = len(description.samples), "has" if count == 1 else "have", loaded.scenario.eval.split
        notes.append(f"{count} of {of} clients {verb} no {split} examples, left out of means over clients")
    return [*notes, *builder.method_notes(loaded, description)]


def found(loaded: Loaded, rounds: int, visits: Mapping[str, int], stopped_by: str) -> list[str]:
    """Warnings of a run that has ended after so many rounds. ``visits``: their number by kind."""
    tried = {kind: number for kind, number in visits.items() if kind not in NO_TRAINING and number}
    if rounds == 0 and stopped_by not in EARLY:
        return [f"no round has ended: {_too_small(loaded, stopped_by)}"]
    if tried and not tried.get("train"):
        how = ", ".join(f"{number} {kind}" for kind, number in tried.items())
        return [f"no visit has counted ({how}), so that the model is the one that the run began with"]
    return []


def of_cut_round(cut: Mapping[str, Any] | None) -> list[str]:
    """The mark of a run whose last step was made by fewer clients, since a budget left no more."""
    if cut is None:
        return []
    rule = "lack of clients" if cut["cut_by"] == CLIENTS else f"budget.{cut['cut_by']}"
    who = "1 client has" if cut["participants"] == 1 else f"{cut['participants']} clients have"
    accuracy = "" if cut["accuracy"] is None else f", and gave {100 * cut['accuracy']:.2f} %"
    return [f"{rule} cut round {cut['round']}, the last: {who} made it (rounds.min_fraction){accuracy}"]


def _too_small(loaded: Loaded, rule: str) -> str:
    if rule in (*FLEET_RULES, SECONDS):
        key = f"budget.{rule}"
        amount = units.exact(getattr(loaded.scenario.budget, rule), quantities()[key].parse)
        return f"{key} = {amount} is too small for one"
    return "no client could take part" if rule == CLIENTS else f"the run was stopped by {rule}"
