"""A run on a Ray cluster under fire: nodes, agents, their workers and at last the head are killed, and nothing changes.

``python benchmarks/chaos_cluster.py`` starts a cluster of three nodes on this host, and makes a run on it while faults
strike, at moments drawn from ``--seed``: SIGKILL of all processes of a node (another then joins), of an agent, of one
of its workers, of the process that starts these, and of the coordinator, followed by ``fedbr resume --on``. The last
fault is SIGKILL of the head, after which the run ends with the agents that are connected. Then the hash chain is
compared with that of an undisturbed run on this machine alone. Exit code 1 if it differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from coordinator.records.store import read
from tests.scenarios.cluster.ray_nodes import RayNodes, kill, ray_nodes

SCENARIO = ("digits", "method=fedavg", "stop.target_accuracy=1.0", "train.local_epochs=2", "aggregate.sum=fixed_point")
NODE, AGENT, WORKER, FORK_SERVER = "node killed", "agent killed", "agent's worker killed", "agent's fork server killed"
COORDINATOR, HEAD = "coordinator killed", "head killed"
PAUSE_SECONDS = (1.0, 6.0)
STUCK_SECONDS = 300.0
"""In which a run under fire must commit a round, else it hangs."""


def command(*words: str) -> list[str]:
    """``fedbr`` in a process of its own."""
    return [sys.executable, "-m", "scenarios.cli.main", *words]


def chain(folder: Path) -> list[str]:
    """The hashes of the rounds that are committed."""
    with contextlib.suppress(sqlite3.OperationalError):
        return [row["chain"] for row in read(folder / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")]
    return []


class ClusterDrill:
    """One run on a cluster under fire."""

    def __init__(self, nodes: RayNodes, out: Path, rounds: int, faults: int, rng: random.Random) -> None:
        self.nodes, self.folder, self.rounds, self.left, self.rng = nodes, out / "digits" / "fire", rounds, faults, rng
        self.faults: Counter[str] = Counter()
        self._alive = [1, 2]
        """Nodes that may be killed, by their number: not the head"""
        on = ("--on", nodes.address, "--quiet")
        self._again = command("resume", str(self.folder), *on)
        first = command("run", *SCENARIO, f"rounds.max={rounds}", "--out", str(out), "--run-id", "fire", *on)
        self._process = self._start(first)

    def play(self) -> None:
        """To the end of the run; RuntimeError if it fails or hangs."""
        try:
            self._until(1)
            while self.left:
                time.sleep(self.rng.uniform(*PAUSE_SECONDS))
                self._strike(self.rng.choices((NODE, AGENT, WORKER, FORK_SERVER, COORDINATOR), (2, 3, 4, 2, 2))[0])
                self._until(len(chain(self.folder)) + 1)
            kill(self.nodes.pids[0])
            self.faults[HEAD] += 1
            if (status := self._process.wait(10 * STUCK_SECONDS)) != 0:
                raise RuntimeError(f"{self.folder}: exit code {status} after {dict(self.faults)}")
        finally:
            self._process.kill()
            self._process.wait()

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=self.nodes.environment)

    def _until(self, rounds: int) -> None:
        """Until so many rounds are committed, or all."""
        deadline = time.monotonic() + STUCK_SECONDS
        while len(chain(self.folder)) < min(rounds, self.rounds):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.folder}: no further round after {dict(self.faults)}")
            time.sleep(0.05)

    def _strike(self, what: str) -> None:
        harm: dict[str, Callable[[], bool]] = {
            NODE: self._kill_node,
            AGENT: lambda: self._kill_below(0),
            FORK_SERVER: lambda: self._kill_below(1),
            WORKER: lambda: self._kill_below(2),
            COORDINATOR: self._kill_coordinator,
        }
        with contextlib.suppress(psutil.Error):
            if harm[what]():
                self.left -= 1
                self.faults[what] += 1

    def _kill_node(self) -> bool:
        node = self.rng.choice(self._alive)
        self.nodes.kill(node)
        self._alive.remove(node)
        self.nodes.add()
        self._alive.append(len(self.nodes.pids) - 1)
        return True

    def _kill_below(self, depth: int) -> bool:
        """Kill a process so deep below the supervisor's child, which is the agent."""
        agents = [agent for node in (0, *self._alive) for agent in self.nodes.agents(node)]
        found = [child for agent in agents for child in agent.children()]
        for _ in range(depth):
            found = [child for process in found for child in process.children()]
        if found:
            self.rng.choice(sorted(found, key=lambda one: one.pid)).send_signal(signal.SIGKILL)
        return bool(found)

    def _kill_coordinator(self) -> bool:
        self._process.kill()
        self._process.wait()
        self._process = self._start(self._again)
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250, help="enough for all faults to strike")
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedbr-chaos-") as scratch:
        out = Path(scratch)
        calm = command("run", *SCENARIO, f"rounds.max={asked.rounds}", "--out", str(out), "--run-id", "calm", "--quiet")
        subprocess.run(calm, check=True, stdout=subprocess.DEVNULL)
        begun = time.monotonic()
        with ray_nodes(3) as nodes:
            drill = ClusterDrill(nodes, out, asked.rounds, asked.faults, random.Random(f"{asked.seed} cluster"))
            drill.play()
        is_same = chain(drill.folder) == chain(out / "digits" / "calm")
    seconds = time.monotonic() - begun
    if asked.json:
        print(json.dumps({"faults": drill.faults, "same": is_same, "seconds": seconds}))
    else:
        survived = ", ".join(f"{count} x {what}" for what, count in sorted(drill.faults.items()))
        print(f"Ray cluster: {survived}: {'same chain' if is_same else 'DIFFERENT CHAIN'} ({seconds:.0f} s)")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
