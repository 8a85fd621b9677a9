"""Runs under fire: workers, node agents and coordinators are killed at random moments, and the result must not change.

``python benchmarks/chaos.py`` plays each method once undisturbed, and once while faults strike. With local workers
(``--drills local``): SIGKILL of a worker, SIGSTOP of a worker (which must be found out), SIGKILL of the process that
starts workers, SIGKILL of the coordinator followed by ``fedbr resume``, also after the last commit. With two node
agents and no other workers (``--drills agents``): SIGKILL of an agent, in whose place another is started, of its fork
server and of its workers, SIGSTOP of an agent for longer than four heartbeats, SIGKILL of the coordinator, which the
agents wait for. On a Ray cluster of three nodes on this host (``--drills cluster``): SIGKILL of all processes of a node
(another then joins), of an agent, its fork server or worker, of the coordinator, and at last of the cluster's head. The
moments are drawn from ``--seed``. At the end model and hash chain of both runs are compared, and no process may be left
of the agents' drill. Exit code 1 if any differs.
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
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.drills import SCENARIO, AgentDrill, ClusterDrill, Drill, LocalDrill, chain
from benchmarks.harness import FEDBR
from tests.scenarios.cluster.ray_nodes import ray_nodes

FEDAVG, FEDBR_METHOD = ("method=fedavg",), ("method=fedbr",)
SCAFFOLD = ("method=scaffold", "train.lr=0.03", "train.clip=1.0")
FEDBUFF = ("method=fedprox", "rounds.policy=fedbuff", "rounds.buffer=5")
IN_ORDER, SUMMED = "aggregate.sum=client_order", "aggregate.sum=fixed_point"
LOCAL, AGENTS, CLUSTER = "local", "agents", "cluster"
DRILLS: Mapping[str, Mapping[str, Sequence[str]]] = {
    LOCAL: {"fedavg": FEDAVG, "fedbr": FEDBR_METHOD, "scaffold": SCAFFOLD, "fedbuff": FEDBUFF},
    AGENTS: {
        "fedavg": (*FEDAVG, IN_ORDER),
        "fedavg-sums": (*FEDAVG, SUMMED),
        "fedbr": (*FEDBR_METHOD, IN_ORDER),
        "scaffold": (*SCAFFOLD, IN_ORDER),
        "fedbuff": (*FEDBUFF, IN_ORDER),
    },
    CLUSTER: {"fedavg-sums": (*FEDAVG, SUMMED)},
}
"""How the work is done -> method -> overrides."""
METHODS = tuple(dict.fromkeys(method for methods in DRILLS.values() for method in methods))
FAULTS = {LOCAL: 26, AGENTS: 13, CLUSTER: 10}
"""By default, per method."""


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
    """From the kill of an agent until its tasks were requeued."""

    def __str__(self) -> str:
        survived = ", ".join(f"{count} x {what}" for what, count in sorted(self.faults.items()))
        verdict = "same chain" if self.same else "DIFFERENT CHAIN"
        return f"{self.method} ({self.drills}): {self.rounds} rounds, {survived}: {verdict} ({self.seconds:.0f} s)"


def drill(method: str, rounds: int, faults: int, seed: int, drills: str = LOCAL) -> Outcome:
    """One method, undisturbed with local workers, and under fire."""
    overrides = (*DRILLS[drills][method], f"rounds.max={rounds}")
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedbr-chaos-")))
        rng, begun = random.Random(f"{seed} {method}"), time.monotonic()
        words = ("--out", str(out), "--run-id", "calm", "--quiet", "--workers", "2", "--no-report")
        subprocess.run([*FEDBR, "run", *SCENARIO, *overrides, *words], check=True, stdout=subprocess.DEVNULL)
        expected, requeued = chain(out / "digits" / "calm"), list[float]()
        assert len(expected) == rounds, (method, len(expected))
        fire: Drill
        if drills == LOCAL:
            fire = LocalDrill(out, overrides, rounds, faults, rng, "--workers", "2")
        elif drills == AGENTS:
            fire = AgentDrill(out, overrides, rounds, faults, rng)
        else:
            fire = ClusterDrill(stack.enter_context(ray_nodes(3)), out, overrides, rounds, faults, rng)
        with closing(fire):
            fire.play()
        if isinstance(fire, AgentDrill):
            requeued = fire.requeue_seconds()
        result = chain(fire.folder)
        return Outcome(method, result == expected, len(result), time.monotonic() - begun, drills, fire.faults, requeued)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250, help="enough for all faults to strike")
    parser.add_argument("--faults", type=int, help=f"per method; by default {FAULTS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--drills", choices=DRILLS, action="append", help="how the work is done; by default all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    outcomes = []
    for drills in options.drills or DRILLS:
        faults = FAULTS[drills] if options.faults is None else options.faults
        for method in [each for each in DRILLS[drills] if each in (options.method or METHODS)]:
            outcomes.append(drill(method, options.rounds, faults, options.seed, drills))
            if not options.json:
                print(outcomes[-1], flush=True)
    total = sum(sum(outcome.faults.values()) for outcome in outcomes)
    differing = sum(not outcome.same for outcome in outcomes)
    if options.json:
        print(json.dumps({"faults": total, "differing": differing, "methods": [vars(one) for one in outcomes]}))
        return int(differing > 0)
    if seconds := [each for outcome in outcomes for each in outcome.requeue_seconds]:
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        kills = f"({least:.2f} to {most:.2f}, {len(seconds)} kills)"
        print(f"tasks of a killed agent requeued after {middle:.2f} s {kills}")
    print(f"{total} faults survived, {differing} differing hash chains")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
