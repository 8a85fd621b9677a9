"""The node agents of a run on a Ray cluster: one per node that has processors (and GPUs, for a run on these).

Each agent has a placement group of its own, with all processors and GPUs of its node: a node that comes later could not
join a group that is there. Ray starts a keeper anew if its process ends; nodes that die are forgotten, and their visits
are repeated elsewhere by the run's own pool. Only `scenarios.cluster.ray_driver` imports this module.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from coordinator.workers.launcher import how_ended
from edge.runtime.keys import KeyPair
from scenarios.cluster.keepers import AgentKeeper, AgentLook, AgentOrder
from scenarios.run.child_process import Channel

MOST_STARTS = 3
"""Of an agent that fails, after which its node is left out."""
STEADY_SECONDS = 60.0
"""An agent that has worked so long may fail as often again."""
PENDING_SECONDS = 30.0
"""Wait for a node's processors before it is noted that others use them."""
END_SECONDS = 12.0


@dataclass
class PlacedAgent:
    node: str
    """Ray's name of the node, which no other ever has."""
    name: str
    """The node's address"""
    resources: dict[str, float]
    order: AgentOrder
    group: Any
    keeper: Any
    looking: Any
    placed_at: float
    started_at: float = 0.0
    """0: its keeper has not replied yet"""
    starts: int = 1
    is_noted: bool = False
    last_line: str = ""
    has_ended: bool = False
    """The run has ended, or the agent failed too often"""


class ClusterRun(TypedDict):
    """The run that is to be served, as `scenarios.cluster.ray_engine` says."""

    device: str
    keys: list[tuple[str, str]]
    """(public, secret) of agents"""
    workers: int | None
    token: str
    endpoint: str
    server: str
    wait_seconds: float


class RayNode(TypedDict):
    """The keys of an entry of `ray.nodes` that are read."""

    NodeID: str
    NodeManagerAddress: str
    Alive: bool
    Resources: dict[str, float]


class NodeAgents:
    """All agents of one run; `turn` is to be called every second or so."""

    def __init__(self, request: ClusterRun, channel: Channel) -> None:
        """``request``: of the run, see `scenarios.cluster.ray_driver`."""
        self._request, self._channel = request, channel
        self._kind = str(request["device"]).partition(":")[0]
        self._keys = deque(KeyPair(public.encode(), secret.encode()) for public, secret in request["keys"])
        self._placed: dict[str, PlacedAgent] = {}
        self._has_no_keys = False
        self._last_failure = ""

    def turn(self) -> None:
        """Take in nodes that have come, forget those that are gone, and look after the agents. RayError."""
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for placed in [placed for node, placed in self._placed.items() if node not in alive]:
            del self._placed[placed.node]
            self._channel.send({"gone": placed.node, "name": placed.name})
            self._give_back(placed)
        for node in alive.values():
            has_gpus = self._kind == "cpu" or node["Resources"].get("GPU", 0) > 0
            if node["NodeID"] not in self._placed and node["Resources"].get("CPU", 0) >= 1 and has_gpus:
                self._place(node)
        for placed in self._placed.values():
            if not placed.has_ended:
                self._look_after(placed)
        if self._placed and all(placed.starts > MOST_STARTS for placed in self._placed.values()):
            self._channel.send({"hopeless": f"no node is left whose agent can join the run; {self._last_failure}"})

    def end(self) -> None:
        """End all agents, and give back what they had."""
        ends = [placed.keeper.end.remote() for placed in self._placed.values() if placed.started_at]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
        for placed in self._placed.values():
            self._give_back(placed)

    # --- one node -------------------------------------------------------------------------------------------------

    def _place(self, node: RayNode) -> None:
        if not self._keys:
            if not self._has_no_keys:
                self._channel.send(
                    {"note": f"there are keys for {len(self._request['keys'])} nodes in a run, not for more"}
                )
            self._has_no_keys = True
            return
        gpus = {"GPU": node["Resources"]["GPU"]} if self._kind != "cpu" else {}
        resources = {"CPU": float(int(node["Resources"]["CPU"])), **gpus}
        workers = self._request["workers"]
        if workers is None and self._kind == "cpu":
            workers = int(resources["CPU"])
        counted = [] if workers is None else ["--workers", str(workers)]
        pair = self._keys.popleft()
        order = AgentOrder(
            name=f"{self._request['token'][:4]}{node['NodeID'][-4:]}",
            endpoint=self._request["endpoint"],
            server=self._request["server"].encode(),
            pair=pair,
            arguments=[*counted, "--device", self._kind, "--wait", str(self._request["wait_seconds"])],
        )
        group = placement_group([resources], strategy="STRICT_PACK", _soft_target_node_id=node["NodeID"])
        keeper = _keeper(group, resources, order)
        name = str(node["NodeManagerAddress"])
        if name in {placed.name.partition(" ")[0] for placed in self._placed.values()}:
            name = f"{name} ({node['NodeID'][:6]})"  # with a part of Ray's own name
        self._channel.send({"placed": node["NodeID"], "name": name, "key": pair.public.decode(), **resources})
        self._placed[node["NodeID"]] = PlacedAgent(
            node["NodeID"], name, resources, order, group, keeper, keeper.look.remote(), time.monotonic()
        )

    def _give_back(self, placed: PlacedAgent) -> None:
        ray.kill(placed.keeper)
        remove_placement_group(placed.group)

    def _look_after(self, placed: PlacedAgent) -> None:
        ready, _ = ray.wait([placed.looking], timeout=0)
        if not ready:
            waits = not placed.started_at and time.monotonic() - placed.placed_at >= PENDING_SECONDS
            if waits and not placed.is_noted:
                placed.is_noted = True
                needs = " and ".join(f"{count:g} {kind}" for kind, count in placed.resources.items())
                note = f"node {placed.name}: waiting for {needs}, which the cluster has not given yet"
                self._channel.send({"note": note})
            return
        try:
            look: AgentLook = ray.get(placed.looking)
        except ActorDiedError as error:  # a keeper that could not be made, such as where the product is not installed
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._failed(placed, lines[-1] if lines else type(error).__name__)
            if placed.has_ended:
                return
            placed.keeper = _keeper(placed.group, placed.resources, placed.order)
        except RayError:
            pass  # Ray starts it anew, or the node is gone
        else:
            self._on_look(placed, look)
        placed.looking = placed.keeper.look.remote()

    def _on_look(self, placed: PlacedAgent, look: AgentLook) -> None:
        now = time.monotonic()
        placed.started_at = placed.started_at or now
        if look.lines:
            placed.last_line = look.lines[-1].removeprefix("fedbr worker: ")
            self._channel.send({"log": look.lines, "name": placed.name})
        if look.status is None and now - placed.started_at > STEADY_SECONDS:
            placed.starts = 1
        if look.status == 0:
            placed.has_ended = True
        elif look.status is not None:
            why = f"its agent {how_ended(look.status)}"
            self._failed(placed, f"{why}: {placed.last_line}" if placed.last_line else why)
            if not placed.has_ended:
                placed.keeper.start.remote()
                placed.started_at = now

    def _failed(self, placed: PlacedAgent, why: str) -> None:
        placed.starts += 1
        placed.has_ended = placed.starts > MOST_STARTS
        self._last_failure = f"node {placed.name}: {why}"
        self._channel.send({"failed": placed.node, "name": placed.name, "why": why, "is_left_out": placed.has_ended})


def _keeper(group: Any, resources: Mapping[str, float], order: AgentOrder) -> Any:
    """A keeper with all of a placement group's only bundle."""
    return (
        ray.remote(AgentKeeper)
        .options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            max_restarts=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group),
        )
        .remote(order)
    )


def resources_of(nodes: Iterable[RayNode]) -> dict[str, float]:
    """Nodes, processors and GPUs of a cluster."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    return {
        "nodes": len(alive),
        "cpus": sum(each.get("CPU", 0) for each in alive),
        "gpus": sum(each.get("GPU", 0) for each in alive),
        "most_cpus": max((each.get("CPU", 0) for each in alive), default=0),
    }
