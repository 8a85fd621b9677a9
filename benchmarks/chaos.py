"""Runs under fire: workers, node agents and coordinators are killed at random moments, and the result must not change.

``python benchmarks/chaos.py`` plays each method once undisturbed, and once while faults strike. With local workers
(``--drills local``): SIGKILL of a worker, SIGSTOP of a worker (which must be found out), SIGKILL of the process that
starts workers, SIGKILL of the coordinator followed by ``fedbr resume``, also after the last commit. With two node
agents and no other workers (``--drills agents``): SIGKILL of an agent, in whose place another is started, of its fork
server and of its workers, SIGSTOP of an agent for longer than four heartbeats, SIGKILL of the coordinator, which the
agents wait for. The moments are drawn from ``--seed``. At the end model and hash chain of both runs are compared, and
no process may be left. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.chaos_parts.agents import AGENT, AgentDrill  # noqa: E402
from benchmarks.chaos_parts.local import LocalDrill  # noqa: E402
from benchmarks.chaos_parts.processes import SCENARIO, chain, command  # noqa: E402

FEDBR = ("method=fedbr",)
SCAFFOLD = ("method=scaffold", "train.lr=0.03", "train.clip=1.0")
FEDBUFF = ("method=fedprox", "rounds.policy=fedbuff", "rounds.buffer=5")
IN_ORDER, SUMMED = "aggregate.sum=client_order", "aggregate.sum=fixed_point"
LOCAL, AGENTS = "local", "agents"
DRILLS: Mapping[str, Mapping[str, Sequence[str]]] = {
    LOCAL: {"fedavg": ("method=fedavg",), "fedbr": FEDBR, "scaffold": SCAFFOLD, "fedbuff": FEDBUFF},
    AGENTS: {
        "fedavg": ("method=fedavg", IN_ORDER),
        "fedavg-sums": ("method=fedavg", SUMMED),
        "fedbr": (*FEDBR, IN_ORDER),
        "scaffold": (*SCAFFOLD, IN_ORDER),
        "fedbuff": (*FEDBUFF, IN_ORDER),
    },
}
"""Who does the work -> method -> overrides"""
METHODS = tuple(dict.fromkeys(method for methods in DRILLS.values() for method in methods))
FAULTS = {LOCAL: 26, AGENTS: 13}
"""By default, per method"""


@dataclass
class Outcome:
    """How a method came through."""

    method: str
    same: bool
    rounds: int
    seconds: float
    drills: str = LOCAL
    faults: Counter[str] = field(default_factory=Counter)
    requeue_seconds: list[float] = field(default_factory=list)
    """From the kill of an agent until its tasks were requeued"""


def drill(method: str, rounds: int, faults: int, seed: int, drills: str = LOCAL) -> Outcome:
    """One method, undisturbed with local workers, and under fire."""
    overrides = (*DRILLS[drills][method], f"rounds.max={rounds}")
    with tempfile.TemporaryDirectory(prefix="fedbr-chaos-") as scratch:
        out, rng, begun = Path(scratch), random.Random(f"{seed} {method}"), time.monotonic()
        words = ("--out", str(out), "--run-id", "calm", "--quiet", "--workers", "2", "--no-report")
        subprocess.run(command("run", *SCENARIO, *overrides, *words), check=True, stdout=subprocess.DEVNULL)
        expected, fire = chain(out / "digits" / "calm"), out / "digits" / "fire"
        assert len(expected) == rounds, (method, len(expected))
        if drills == LOCAL:
            local = LocalDrill(out, fire.name, overrides, rounds, faults, rng)
            local.play()
            came, waited = local.faults, list[float]()
        else:
            agents = AgentDrill(out, fire.name, overrides, faults, rng)
            agents.play()
            came, waited = agents.faults, agents.requeue_seconds(AGENT)
        found = chain(fire)
        return Outcome(method, found == expected, len(found), time.monotonic() - begun, drills, came, waited)


def described(outcome: Outcome) -> str:
    """A line of the output."""
    survived = ", ".join(f"{count} x {what}" for what, count in sorted(outcome.faults.items()))
    verdict = "same chain" if outcome.same else "DIFFERENT CHAIN"
    where = f"{outcome.method} ({outcome.drills})"
    return f"{where}: {outcome.rounds} rounds, {survived}: {verdict} ({outcome.seconds:.0f} s)"


def requeued(seconds: Sequence[float]) -> str:
    """How long the tasks of killed agents waited."""
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"tasks of a killed agent requeued after {middle:.2f} s ({least:.2f} to {most:.2f}, {len(seconds)} kills)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250, help="enough for all faults to strike")
    parser.add_argument("--faults", type=int, help=f"per method; by default {FAULTS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--drills", choices=DRILLS, action="append", help="who does the work; by default all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcomes = []
    for drills in asked.drills or DRILLS:
        faults = FAULTS[drills] if asked.faults is None else asked.faults
        for method in [each for each in DRILLS[drills] if each in (asked.method or METHODS)]:
            outcomes.append(drill(method, asked.rounds, faults, asked.seed, drills))
            if not asked.json:
                print(described(outcomes[-1]), flush=True)
    total = sum(sum(outcome.faults.values()) for outcome in outcomes)
    differing = sum(not outcome.same for outcome in outcomes)
    if asked.json:
        print(json.dumps({"faults": total, "differing": differing, "methods": [vars(one) for one in outcomes]}))
    else:
        seconds = [each for outcome in outcomes for each in outcome.requeue_seconds]
        print("\n".join([requeued(seconds)] if seconds else []))
        print(f"{total} faults survived, {differing} differing hash chains")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
