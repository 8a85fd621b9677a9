"""Candidates of a decision: settings of a scenario, which of them share their training, and what they would cost."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.rounds.amounts import BY_NAME
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import CPU
from edge.protocol.plugins import display_name
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.config.overrides import KeyValues
from scenarios.config.quantities import scenario_text
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.grid import Grid, Point
from scenarios.run.host import StopFlag
from scenarios.run.run_folder import resolved_keys
from scenarios.run.setup import Setup
from scenarios.studies import replay
from scenarios.studies.decide.objective import Objective, shown
from scenarios.studies.forecast.forecast import PlayedRounds
from scenarios.studies.forecast.profiles import Profiles

STARTER = "starter"
MARGIN = 2.0
"""Factor on a budget below which an uncertain amount may still be wrong"""


@dataclass(frozen=True)
class Candidate:
    row: ExperimentRow
    loaded: Loaded
    """Its scenario with the first seed, judged on validation examples"""
    like: str
    """Name of the candidate whose training it shares: its own, or that of one which differs in time alone"""
    refusal: str = ""
    """Why it is not trained at all, if it is not"""
    overrides: Mapping[int, KeyValues] = field(default_factory=dict)
    """Seed -> with which a run of ``like`` is replayed as one of its own; none where it is trained itself"""

    @property
    def rounds(self) -> int:
        return self.loaded.scenario.rounds.max

    @property
    def every(self) -> int:
        """Rounds from one evaluation to the next."""
        return self.loaded.scenario.eval.every


MEMBERSHIP = tuple(f"fleet.tiers.{key}" for key in ("count", "assign", "file", "on_loss", "above.count"))
"""Keys that say which clients an aggregator trains with, which replays do not change"""


def is_replayable(key: str) -> bool:
    """Whether a replay takes this key of a scenario: it does not change how a visit is trained."""
    return key.split(".")[0] in replay.TABLES or key in replay.KEYS or key.startswith(f"{replay.POLICY_OPTIONS}.")


def training_of(loaded: Loaded) -> str:
    """Everything that the training of a scenario depends on, as long as the same visits count; equal texts share it."""
    scenario = loaded.scenario
    keys = resolved_keys(scenario)
    # The order of an asynchronous policy's updates depends on times, and so does that of steps to one server part.
    in_order_of_arrival = scenario.rounds.is_asynchronous or scenario.tiers.is_asynchronous or scenario.split.is_shared
    depends_on_times = in_order_of_arrival or scenario.eval.charged
    if not depends_on_times and loaded.method.app is None:
        keys = {key: value for key, value in keys.items() if key in MEMBERSHIP or not is_replayable(key)}
    return json.dumps(keys, sort_keys=True, default=str)


def overrides_of(loaded: Loaded, trained: Loaded) -> KeyValues:
    """Key -> value with which a run of ``trained`` is replayed as one of ``loaded``: what differs between them."""
    now, before = resolved_keys(loaded.scenario), resolved_keys(trained.scenario)
    differing = {key for key in {*now, *before} if now.get(key) != before.get(key)}
    whole = tomllib.loads(scenario_text(loaded.scenario.model_dump()))
    tables = {key.split(".")[0] for key in differing} & {*replay.TABLES}
    return {name: whole.get(name, {}) for name in sorted(tables)} | {
        key: now[key] for key in sorted(differing) if key in now and key.split(".")[0] not in tables
    }


def share_training(rows: Sequence[ExperimentRow], scenarios: Sequence[Loaded]) -> list[Candidate]:
    """The candidates of these rows, each with the first one whose training it shares."""
    first: dict[str, str] = {}
    candidates = []
    for row, loaded in zip(rows, scenarios, strict=True):
        candidates.append(Candidate(row, loaded, first.setdefault(training_of(loaded), row.name)))
    return candidates


# --- the shipped set --------------------------------------------------------------------------------------------------


def starter(grid: Grid, tell: Callable[[str], None]) -> list[Point]:
    """About twenty candidates that make sense for most scenarios; those that this one refuses are left out, told why.

    They vary one thing each around FedAvg: method, server, codec, work per visit, clients a round, policy, parts of the
    model, and aggregators.
    """
    base = grid.load({"method": "fedavg"}).scenario
    participants, clients = base.rounds.participants, base.data.clients
    work = "train.local_steps" if base.train.local_steps else "train.local_epochs"
    amount = base.train.local_steps or base.train.local_epochs
    quantized: Point = {"codec.up": {"kind": "quantize", "bits": 4}}
    points: list[Point] = [
        {},
        {"method": "fedprox"},
        {"method": "scaffold"},
        {"method": "fednova"},
        {"method": "fedmlb"},
        {"method": "fedbr"},
        {"server": "fedadam"},
        {"codec.up": {"kind": "quantize", "bits": 8}},
        quantized,
        {**quantized, "codec.down": {"kind": "quantize", "bits": 8}},
        {"codec.up": {"kind": "topk", "ratio": 0.1}},
        {"codec.up": {"kind": "sign"}},
        {"method": "fedbr", **quantized},
        {work: 2 * amount},
        {work: max(1, amount // 2)},
        {"rounds.participants": max(1, participants // 2)},
        {"rounds.participants": min(clients, 2 * participants)},
        {"rounds.policy": "over_select"},
        {"rounds.policy": "fedbuff", "rounds.buffer": max(1, participants // 2)},
        {"method": "heterofl", "submodel.rate": "memory"},
        {"fleet.tiers.count": max(2, math.isqrt(clients)), "tiers.interval": 2},
    ]
    kept: list[Point] = []
    for point in points:
        whole = {"method": "fedavg", **point}
        try:
            grid.load(whole)
        except ScenarioError as error:
            words = display_name(" ".join(f"{key}={value}" for key, value in whole.items()))
            tell(f"left out: {words}: {error}")
        else:
            if whole not in kept:
                kept.append(whole)
    return kept


# --- before anything is trained ---------------------------------------------------------------------------------------


def forecasts(candidates: Sequence[Candidate], objective: Objective) -> dict[str, str]:
    """Name of a candidate -> why it cannot keep a budget, or take part at all, of those that a forecast refuses.

    A candidate is refused if its rounds until the first evaluation exceed a budget: by `MARGIN` where they may take
    other amounts than forecast, since they depend on learning or were not played. ScenarioError, RunFailed.
    """
    reasons: dict[str, str] = {}
    interrupt, first = StopFlag(), candidates[0].loaded.scenario.train.instructions
    with interrupt.watching(), WorkerLauncher(instructions=first) as launcher:
        profiles = Profiles(CPU, launcher, interrupt)
        for candidate in candidates:
            played = PlayedRounds(Setup.of(candidate.loaded, profiles.of(candidate.loaded)))
            rounds = min(candidate.every, candidate.rounds)
            spent, margin = played.until(rounds), 1.0 if played.is_certain(rounds) else MARGIN
            for name, limit in objective.budgets.items():
                least = spent.get(BY_NAME[name].key, 0.0)
                if least > limit * margin:
                    what = "one round takes" if rounds == 1 else f"{rounds} rounds take"
                    reasons[candidate.row.name] = (
                        f"until it is first evaluated, {what} {shown(name, least)} of {shown(name, limit)} (forecast)"
                    )
                    break
    return reasons
