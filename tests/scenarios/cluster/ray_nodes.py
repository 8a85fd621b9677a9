"""A Ray cluster on this host, on loopback alone, whose nodes can be killed; and its own process:
``python -m tests.scenarios.cluster.ray_nodes COUNT``.

The process prints one JSON object per line: the ``address``, once all nodes are there, and the process ids of each node
(the head first). For each line ``add`` on stdin, a node joins, and its process ids are printed. The cluster ends with
stdin.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
PRIVATE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback alone
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass
class RayNodes:
    """A cluster in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    pids: list[list[int]]
    """Of each node, first of its raylet"""
    environment: dict[str, str]
    """That of commands which use it"""

    def add(self) -> None:
        """A node joins."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("add\n")
        self.process.stdin.flush()
        self.pids.append(json.loads(self.process.stdout.readline()))

    def agents(self, node: int) -> list[psutil.Process]:
        """The supervisors of agents that were placed on a node: they outlive the node's own processes."""
        raylet = str(self.pids[node][0])
        return [one for one in psutil.process_iter() if _is_supervisor(one) and _environment(one, raylet)]

    def kill(self, node: int) -> None:
        """SIGKILL to all processes of a node, its agent's workers among them."""
        trees = [psutil.Process(self.pids[node][0]), *self.agents(node)]
        below = [child.pid for tree in trees for child in tree.children(recursive=True)]
        kill([*self.pids[node], *(tree.pid for tree in trees), *below])


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to those that are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_supervisor(process: psutil.Process) -> bool:
    return _asked(lambda: "scenarios.cluster.supervisor" in process.cmdline())


def _environment(process: psutil.Process, raylet: str) -> bool:
    return _asked(lambda: process.environ().get("RAY_RAYLET_PID") == raylet)


def _asked(question: Callable[[], bool]) -> bool:
    """The answer; False of a process that is gone, or not ours."""
    with suppress(psutil.Error):
        return bool(question())
    return False


@contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    """A cluster of so many nodes of one core."""
    words = [sys.executable, "-m", "tests.scenarios.cluster.ray_nodes", str(count)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True))
        own = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": folder}
        environment = {**os.environ, **PRIVATE, **own}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        process = stack.enter_context(
            subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, text=True, env=environment)
        )
        assert process.stdout is not None
        there = json.loads(process.stdout.readline())
        yield RayNodes(process, there["address"], there["nodes"], environment)


def pids(node: Any) -> list[int]:
    """Those of the processes that a node began with: first of its raylet."""
    kinds = sorted(node.all_processes.items(), key=lambda item: item[0] != "raylet")
    return [each.process.pid for _, processes in kinds for each in processes]


def main(count: int) -> None:
    """Be the cluster until stdin ends."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    nodes = [cluster.head_node]
    try:
        nodes += [cluster.add_node(**NODE) for _ in range(count - 1)]
        print(json.dumps({"address": cluster.address, "nodes": [pids(node) for node in nodes]}), flush=True)
        for _ in sys.stdin:
            nodes.append(cluster.add_node(**NODE))
            print(json.dumps(pids(nodes[-1])), flush=True)
    finally:
        kill(pid for node in nodes for pid in pids(node))
        os._exit(0)  # Ray waits at its end for a head that may have been killed


if __name__ == "__main__":
    main(int(sys.argv[1]))
