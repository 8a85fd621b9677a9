"""A run on a Ray cluster of three nodes on this host, under fire: at last its head is killed, after which the run ends
with the agents that are connected."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos_parts.drill import Drill
from benchmarks.harness import committed
from tests.scenarios.cluster.ray_nodes import RayNodes, kill

NODE, COORDINATOR, HEAD = "node killed", "coordinator killed", "head killed"
BELOW = {"agent killed": 0, "agent's fork server killed": 1, "agent's worker killed": 2}
"""Fault -> depth of the process below the agent."""


class ClusterDrill(Drill):
    """One run under fire."""

    pause_seconds = (1.0, 6.0)

    def __init__(
        self, nodes: RayNodes, out: Path, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random
    ) -> None:
        super().__init__(out, overrides, rounds, faults, rng, "--on", nodes.address)
        self.nodes, self.environment = nodes, nodes.environment
        self._alive = [1, 2]
        """Nodes that may be killed, by their number: not the head."""
        self._awaited = 1
        """Rounds without which there is no further fault."""

    def strike(self) -> str | None:
        if (rounds := committed(self.folder)) < min(self._awaited, self.rounds):
            return None
        fault = self.rng.choices((NODE, *BELOW, COORDINATOR), (2, 3, 2, 4, 2))[0]
        if fault == NODE:  # another joins
            node = self.rng.choice(self._alive)
            self.nodes.kill(node)
            self._alive.remove(node)
            self.nodes.add()
            self._alive.append(len(self.nodes.pids) - 1)
        elif fault == COORDINATOR:
            self.kill_coordinator()
        elif not self._kill_below(BELOW[fault]):
            return None
        self._awaited = rounds + 1
        return fault

    def finish(self) -> None:
        kill(self.nodes.pids[0])
        self.faults[HEAD] += 1

    def _kill_below(self, depth: int) -> bool:
        """Kill a process; False if there is none. The agent is its supervisor's child."""
        supervisors = [supervisor for node in (0, *self._alive) for supervisor in self.nodes.agents(node)]
        processes = [child for supervisor in supervisors for child in supervisor.children()]
        for _ in range(depth):
            processes = [child for process in processes for child in process.children()]
        if processes:
            self.rng.choice(sorted(processes, key=lambda one: one.pid)).kill()
        return bool(processes)
