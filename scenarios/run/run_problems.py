"""Errors and warnings of runs in words for their users: what ends a run, and what leaves it without what was asked for.

Errors name the run folder, or the scenario that caused them; `scenarios.run.runner` decides what is left of the run.
Warnings, foreseen before a run or found after it, change none: they go to the author, the summary and the report.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import numpy as np

from coordinator.records.schema import NO_TRAINING, HostEvent
from coordinator.rounds.budget import CLIENTS, EARLY, FLEET_RULES, PRICE, SECONDS, WAN_BYTES, Lacking
from coordinator.rounds.run import RunFailed
from coordinator.workers.scheduler import TRIES
from coordinator.workers.task import PoolError
from costmodel import units
from edge.protocol.portable import PORTABLE
from edge.runtime.numerics import lacking
from scenarios.config.error_messages import known_keys
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import quantities
from scenarios.config.schema import Scenario
from scenarios.run import evaluated_clients
from scenarios.run.folder_files import HeldFolder
from scenarios.run.host import default_workers
from scenarios.run.run_summary import RunSummary
from scenarios.run.setup import Setup

MOST_THREADS_PER_CORE = 16
"""Above it a step of training hardly ends: threads wait for each other in turn."""
GIVEN_UP = f": given up after {TRIES} workers; the last: "
PLACE = re.compile(r" \(\S[^()]*, line \d+\)$")
"""In a user's own code (`edge.protocol.plugins.error_place`)"""
USERS_ERRORS = ("DataError", "PartitionError", "CacheError")
"""Errors of workers that the user's data, and no defect, cause"""


# --- errors -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def named(folder: Path, held: HeldFolder | None = None) -> Iterator[None]:
    """Turn errors that end the run into RunFailed, which names the run folder and the file of an OSError.

    If the folder is no longer where it was (``held``), the error says that instead of what followed from it.
    """
    try:
        yield
    except (PoolError, RunFailed, OSError, sqlite3.Error) as error:
        if held is not None:
            held.check()
        text = str(error)
        if isinstance(error, sqlite3.Error):  # a run opens no other database
            text = f"{folder / 'ledger.sqlite'}: {error}"
        elif isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        elif isinstance(error, PoolError) and (message := _of_own_code(text.partition("\n")[0])):
            text = message  # the worker's log has no more to say
        raise RunFailed(f"{text}\nrun folder: {folder}") from error


def _of_own_code(text: str) -> str:
    """The first line of a task's failure without how often it was tried, if it is an error of the user's; '' if not."""
    task, is_given_up, last = text.partition(GIVEN_UP)
    error = _users_error(text) or (last if PLACE.search(last) else "")
    return error and (f"{task}: {error.partition(': ')[2] if error == last else error}" if is_given_up else error)


def _users_error(text: str) -> str:
    """An error of data, or one that begins with a key of the scenario, out of a worker's report; '' for any other."""
    error = re.search(r"(?:^|: )(\w+Error): (\S*)(.*)", text, re.DOTALL)
    is_users = error is not None and (error[1] in USERS_ERRORS or error[2].rstrip(":") in known_keys(Scenario))
    return f"{error[2]}{error[3]}" if error is not None and is_users else ""


def user_error_hook(loaded: Loaded) -> Callable[[HostEvent], None]:
    """A handler of a pool's events that raises ScenarioError for the first error of the user's.

    Such an error is one of data, or begins with a key of the scenario; it would recur in every worker.
    """

    def on_event(event: HostEvent) -> None:
        if event.kind in ("task_failed", "worker_died") and (error := _users_error(event.detail)):
            raise ScenarioError(f"{loaded.name}: {error}")

    return on_event


# --- warnings ---------------------------------------------------------------------------------------------------------


def check_machine(loaded: Loaded, device: str | None = None) -> None:
    """ScenarioError for portable numerics on a processor that does not have them, and on a device for so many threads
    per worker that no round would end."""
    threads, cores = loaded.scenario.train.threads, default_workers()
    if device == "cpu" and threads > MOST_THREADS_PER_CORE * cores:
        raise ScenarioError(
            f"{loaded.name}: train.threads = {threads}: no round would end on {_cores(cores)}; choose at most {cores}"
        )
    if loaded.scenario.train.instructions == PORTABLE and (lacks := lacking()):
        raise ScenarioError(
            f"{loaded.name}: train.instructions = portable: needs an x86-64 processor with AVX2 and FMA, and {lacks}; "
            "choose native"
        )


def foreseen(setup: Setup, device: str) -> list[str]:
    """Warnings before a run on a device starts: of threads, and of blocks that nobody exchanges."""
    warnings: list[str] = []
    train, cores = setup.scenario.train, default_workers()
    if device == "cpu" and train.threads > cores:
        only = f"there are only {_cores(cores)}, so that rounds take longer than with {cores}"
        warnings.append(f"train.threads = {train.threads}: {only}")
    asked, (down, up) = setup.scenario.travels, setup.travels
    if not setup.loaded.method.objective.traffic.contacts_server:
        return warnings
    if not down and not up and (asked.down or asked.up):
        none = "no block is downloaded or uploaded, so that clients train on their own, as method = local"
        warnings.append(f"travels: {none}")
    elif not up and asked.up:
        warnings.append(f"travels.up = {asked.up}: no block is uploaded, so that the global model stays as it began")
    return warnings


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def notes(setup: Setup) -> list[str]:
    """What was done to the data, clients without training examples or steps, those left out of means over clients, and
    what the method says.

    None of them is a warning: the run can show what was asked for.
    """
    samples = setup.description.samples
    notes, without = [], np.flatnonzero(samples == 0).tolist()
    if without:
        which = ", ".join(map(str, without[:5])) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        are = f"client {which} has" if len(without) == 1 else f"clients {which} have"
        verb = "takes" if len(without) == 1 else "take"
        notes.append(f"data.partition: {are} no training examples, and never {verb} part")
    held, clients = np.unique(samples[samples > 0], return_counts=True)
    is_idle = np.array([setup.scenario.train.plan(examples).steps == 0 for examples in held.tolist()], bool)
    if count := int(clients[is_idle].sum()):
        of, verb = len(samples), "has" if count == 1 else "have"
        trains = "and never trains" if count == 1 else "and never train"
        notes.append(f"{count} of {of} clients {verb} fewer examples than a batch (train.drop_last), {trains}")
    if count := evaluated_clients.left_out(setup):
        of, verb, split = len(samples), "has" if count == 1 else "have", setup.scenario.eval.split
        notes.append(f"{count} of {of} clients {verb} no {split} examples, left out of means over clients")
    return [*(f"data: {note}" for note in setup.description.data_notes), *notes, *setup.method_notes]


def check_budget(loaded: Loaded, summary: RunSummary, lacking: Lacking | None) -> None:
    """ScenarioError for a run in which a budget has allowed no round at all; ``lacking``: what a round takes."""
    rule, limits = summary["stopped_by"], loaded.scenario.budget
    of_client = rule == CLIENTS and lacking is not None and lacking.key.startswith("client.")
    if summary["rounds"] or not (of_client or rule in (*FLEET_RULES, SECONDS, WAN_BYTES, PRICE)):
        return
    key = lacking.key if of_client and lacking is not None else rule

    def shown(amount: float) -> str:
        parse = quantities().get(f"budget.{key}")
        return f"{amount:g}" if parse is None else units.exact(amount, parse.parse)

    kind = "visit" if of_client else "round"
    text = f"budget.{key} = {shown(attrgetter(key)(limits))} is too small for one {kind}"
    if lacking is not None and lacking.key == key:
        takes = "which takes" if of_client else f"whose {lacking.visits} visits take"
        if key == SECONDS:
            takes = "which lasts for"
        elif lacking.visits == 1 and not of_client:
            takes = "of which a visit takes"
        text += f", {takes} {'' if key == SECONDS else 'at most '}{shown(float(f'{lacking.amount:.3g}'))}"
    raise TooSmallError(f"{loaded.name}: {text}; choose more, or leave it out")


class TooSmallError(ScenarioError):
    """A budget that allows no round."""


def found(loaded: Loaded, summary: RunSummary) -> list[str]:
    """Warnings of a run that has ended, from its summary.

    One is that its last step was made by fewer clients, since a budget left no more.
    """
    warnings: list[str] = []
    rule = summary["stopped_by"]
    tried = {kind: number for kind, number in summary["visits"].items() if kind not in NO_TRAINING and number}
    if summary["rounds"] == 0 and rule not in EARLY:
        reason = "no client could take part" if rule == CLIENTS else f"the run was stopped by {rule}"
        warnings.append(f"no round has ended: {reason}")
    elif tried and not tried.get("train"):
        how = ", ".join(f"{number} {kind}" for kind, number in tried.items())
        warnings.append(f"no visit has counted ({how}), so that the model is the one that the run began with")
    if (cut := summary["cut_round"]) is not None:
        by = "lack of clients" if cut["cut_by"] == CLIENTS else f"budget.{cut['cut_by']}"
        who = "1 client has" if cut["participants"] == 1 else f"{cut['participants']} clients have"
        accuracy = "" if cut["accuracy"] is None else f", and gave {100 * cut['accuracy']:.2f} %"
        warnings.append(f"{by} cut round {cut['round']}, the last: {who} made it (rounds.min_fraction){accuracy}")
    metric, best = summary["metric"], summary["best_score"]
    for name, values in summary["baselines"].items():
        if best is not None and metric in values and best >= values[metric]:
            better = f"{metric} {values[metric]:.4g} against {best:.4g} at its best"
            warnings.append(f"the model loses to a forecast that needs none, {name}: {better}")
    return warnings
