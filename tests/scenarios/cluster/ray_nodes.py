"""A Ray cluster on this host for tests: ``python -m tests.scenarios.cluster.ray_nodes COUNT``.

Prints one JSON object per line: the ``address``, once all nodes are there, and the process ids of each node (the head
first). For each line ``add`` on stdin, a node joins, and its process ids are printed. The cluster ends with stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def pids(node: Any) -> list[int]:
    """Those of the processes that the node began with: first of its raylet."""
    processes = node.all_processes
    return [
        each.process.pid for kind in sorted(processes, key=lambda kind: kind != "raylet") for each in processes[kind]
    ]


def main(count: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        nodes = [cluster.head_node, *(cluster.add_node(**NODE) for _ in range(count - 1))]
        print(json.dumps({"address": cluster.address, "nodes": [pids(node) for node in nodes]}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(pids(cluster.add_node(**NODE))), flush=True)
    finally:
        for pid in [pid for node in (*cluster.worker_nodes, cluster.head_node) for pid in pids(node)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)  # Ray waits at its end for a head that may have been killed


if __name__ == "__main__":
    main(int(sys.argv[1]))
