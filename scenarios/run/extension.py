"""Another limit for a run that there is: its rounds, its goal or its budget. Nothing that a round computes is changed.

The end of a run leaves a mark on its last round alone: a last evaluation, or visits that were refused or cut. So that
round is taken back and repeated, and the result is that of a run with the new limits from the start. The hash chain
still begins with the limits that the run began with, which ``environment.json`` keeps.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from coordinator.records.round_record import validation_score
from coordinator.records.schema import HostEvent, RoundRow
from coordinator.records.store import Ledger
from coordinator.rounds.budget import CONVERGED, EARLY, FLEET_RULES, PRICE, ROUNDS, SECONDS, TARGET, WAN_BYTES, Budget
from edge.protocol.config import TrainConfig
from edge.protocol.files import write_text
from edge.protocol.messages import VALIDATION
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.overrides import words
from scenarios.config.quantities import scenario_text
from scenarios.config.schema import Scenario
from scenarios.config.tables import TomlValue, leaves, set_value
from scenarios.config.validation import CHECKED_ROUNDS
from scenarios.run import folder_files, run_problems
from scenarios.run.folder_files import run_lock
from scenarios.run.run_folder import ENVIRONMENT, SCENARIO, RunFolder
from scenarios.run.score import score_of

ALLOWED = ("rounds.max", "stop", "budget")
"""Keys and tables that only say how long a run lasts."""
KEY_OF = {ROUNDS: "rounds.max", TARGET: "stop.target_accuracy", CONVERGED: "stop.patience"}
"""Stop rule -> its key"""


def limits(scenario: Scenario) -> dict[str, dict[str, object]]:
    """The tables and keys that say how long a run lasts."""
    return {"rounds": {"max": scenario.rounds.max}, "stop": asdict(scenario.stop), "budget": asdict(scenario.budget)}


def extend(loaded: Loaded, folder: Path, overrides: Mapping[str, TomlValue]) -> Loaded:
    """Give a run other limits: ``rounds.max``, ``stop.*`` and ``budget.*``; returns its new scenario.

    ``loaded``: its scenario until now. A run that has ended can then be resumed. ScenarioError for other keys, for
    limits that rounds of the run would have been affected by, and for a run that another process works on.
    """
    fresh = f"another run: {shlex.join(['fedbr', 'run', str(folder / SCENARIO), *words(overrides)])}"
    for key in overrides:
        if key not in ALLOWED and not key.startswith(("stop.", "budget.")):
            raise ScenarioError(f"{key}: resume changes only rounds.max, stop.* and budget.*; to start {fresh}")
    new = replace(load(str(folder / SCENARIO), overrides), name=loaded.name, began=loaded.began)
    before, now = (dict(leaves(limits(version.scenario))) for version in (loaded, new))
    changes = [f"{key} = {now[key]} instead of {before[key]}" for key in now if now[key] != before[key]]
    if not changes:
        return loaded
    train, rounds = new.scenario.train, new.scenario.rounds.max
    check_schedule(loaded.scenario.train, loaded.scenario.rounds.max, rounds)
    if train.lr_schedule == "constant" and train.lr_rounds == loaded.scenario.rounds.max:
        # a fresh run's constant schedule would span the new rounds, unless the user had said others
        new = replace(new, scenario=new.scenario.model_copy(update={"train": replace(train, lr_rounds=rounds)}))
    check_budget(loaded.scenario, new.scenario)
    with run_lock(folder), run_problems.named(folder):
        recorded = RunFolder(folder)
        if not recorded.is_begun:
            folder_files.empty(folder)
            _write(new, recorded)
            return new
        if change := recorded.source_change():
            raise ScenarioError(f"{folder}: {change}; restore the files, or start {fresh}")
        began, before_rounds = loaded.began or limits(loaded.scenario), loaded.scenario.train.lr_rounds
        if new.scenario.train.lr_rounds != before_rounds:
            began = {"train": {"lr_rounds": before_rounds}, **began}
        new = replace(new, began=began)
        with contextlib.closing(Ledger(recorded.ledger, None, loaded.method.objective.records.table)) as ledger:
            rows = ledger.rounds()
            ended = recorded.summary  # none if it was killed before it wrote one
            ended_by = ledger.stopped_by(rows[-1].round) if ended is None else str(ended["stopped_by"])
            kept = rows[:-1] if ended_by not in (None, *EARLY) else rows
            if kept and all(round != len(kept) - 1 for round, _, _ in ledger.checkpoints()):
                raise ScenarioError(
                    f"{ledger.path}: there is no checkpoint of round {len(kept)}, from which the run could go on"
                )
            if new.scenario.rounds.is_asynchronous and ended_by in FLEET_RULES:
                raise ScenarioError(
                    f"rounds.policy = {new.scenario.rounds.policy}: the budget has refused visits of several rounds "
                    "before the run's end; start another run"
                )
            if problem := _limit_in_the_past(new.scenario, ledger, kept, recorded.environment.stops_at_target):
                raise ScenarioError(f"{problem}; to start {fresh}")
            if kept:
                ledger.truncate_after(kept[-1].round)
                ledger.event(HostEvent("limits_changed", "", ", ".join(changes), time.time()))
        if not kept:
            new = replace(new, began={})
            folder_files.empty(folder)
        _write(new, recorded)
    return new


def _write(new: Loaded, recorded: RunFolder) -> None:
    """The limits that the run began with, first: with them alone, nothing has changed."""
    if (recorded.folder / ENVIRONMENT).exists():
        recorded.environment.with_limits(new.began).write(recorded.folder)
    tables = new.scenario.model_dump()
    for key, name in recorded.file_names.items():  # the scenario was read with those of the copies
        set_value(tables, key, name)
    write_text(recorded.folder / SCENARIO, scenario_text(tables))


def check_schedule(train: TrainConfig, before: int, now: int) -> None:
    """ScenarioError if the step sizes of so many rounds depend on their number."""
    if train.lr_rounds != before:  # exponential, or said by the user
        return
    longer = replace(train, lr_rounds=now)
    if any(train.lr_in(round) != longer.lr_in(round) for round in islice(range(now + 1), CHECKED_ROUNDS)):
        raise ScenarioError(
            f"rounds.max = {now}: the step sizes of train.lr_schedule = {train.lr_schedule!r} depend on it, and until "
            f"now they were those of {before} rounds; start another run"
        )


def check_budget(before: Scenario, now: Scenario) -> None:
    """ScenarioError for budgets by which visits or messages of aggregators that took place might have been refused, or
    the other way round."""
    if before.budget.client != now.budget.client:
        raise ScenarioError("budget.client: has decided who took part in the rounds so far; start another run")
    rounds, several = before.rounds, ""  # the setting by which visits outlast the round that they began in
    if rounds.is_asynchronous:
        several = f"rounds.policy = {rounds.policy}"
    elif rounds.on_late != "stop":
        several = f"rounds.on_late = {rounds.on_late}"
    if before.tiers.is_asynchronous:
        for rule in (SECONDS, WAN_BYTES, PRICE):
            if getattr(before.budget, rule) != getattr(now.budget, rule):
                raise ScenarioError(
                    f"budget.{rule}: with tiers.upwards = asynchronous each aggregator ends in a round of its own, "
                    "perhaps long before the run's last round; start another run"
                )
    for rule in (*FLEET_RULES, WAN_BYTES, PRICE):
        old, new = (getattr(scenario.budget, rule) for scenario in (before, now))
        if new != old and several:
            raise ScenarioError(
                f"budget.{rule}: {several}: visits of several rounds are under way at a time, so the budget may have "
                "refused some long before the run's last round; start another run"
            )
        if new is not None and (old is None or new < old):
            than = "where there was none" if old is None else f"smaller than {old:g}"
            raise ScenarioError(f"budget.{rule} = {new:g}: is {than}; a run goes on only with a larger one")


def _limit_in_the_past(
    scenario: Scenario, ledger: Ledger, rows: Sequence[RoundRow], stop_at_target: bool
) -> str | None:
    """The limit that would have ended the run before the last of these rounds, and how; None if none would have."""
    target = scenario.stop.goal if stop_at_target else None
    better = score_of(scenario.train).better
    budget = Budget(scenario.budget, scenario.rounds.max, target, scenario.stop.patience, scenario.fleet.price, better)
    values = ledger.evaluations(VALIDATION)
    for row in rows:
        selecting = row.judged  # the value that decides on convergence
        if scenario.eval.select is not None:
            selecting = validation_score(values.get(row.round, ()), scenario.train.score)
        rule = budget.reached(row.round + 1, row.judged, selecting)
        if rule is not None:
            limit = dict(leaves(limits(scenario)))[KEY_OF[rule]]
            return f"{KEY_OF[rule]} = {limit}: would have ended the run after round {row.round + 1}, and it went on"
        if row.end_s >= budget.ends_at:
            return f"budget.virtual_seconds = {budget.ends_at:g}: the run has lasted {row.end_s:g} s"
    return None
