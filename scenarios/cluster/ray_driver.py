"""The process between a run and a Ray cluster, a `scenarios.run.child_process.ChildProcess`:
``scenarios.cluster.ray_driver ADDRESS`` (`edge.protocol.interpreter`).

Ray ends the processes that use it when the head of its cluster is gone, which a run must survive; so the run's own
process never imports Ray. ADDRESS is that of a running cluster, ``auto``, or ``local`` for one that is started here, on
loopback alone, and ends with this process. It receives

    {"serve": {"token", "endpoint", "server", "keys", "device", "workers", "wait_seconds"}}
                                    place an agent on every node (`scenarios.cluster.ray_agents`)
    {"slot": NUMBER, "run": {..}}   make a run on some node (`scenarios.cluster.ray_runs`)
    {"slot": NUMBER, "stop": WHY}   the run of this slot is to end with its round
    {"slot": NUMBER, "drop": true}  and this one at once

and sends

    {"cluster": {"address", "own_address", "nodes", "cpus", "gpus", "most_cpus"}}      first, or
    {"unreachable": TEXT}
    {"placed": NODE, "name", "key", ..}, {"gone": NODE, "name"}, {"log": LINES, "name"}
    {"failed": NODE, "name", "why", "is_left_out"}, {"hopeless": TEXT}, {"note": TEXT}
    {"slot": NUMBER, "message": {..}}  of a run, as `scenarios.experiment.run_process` sends it

When its channel ends it ends all that it has placed.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from edge.protocol.scratch import scratch
from scenarios.cluster.ray_agents import NodeAgents, resources_of
from scenarios.cluster.ray_reach import check_reachable
from scenarios.cluster.ray_runs import ClusterRuns
from scenarios.run.child_process import Channel, Message, parent_channel

LOCAL = "local"
TURN_SECONDS = 0.5
OBJECT_STORE_NBYTES = 100 << 20
"""Of a cluster that is started here: only small answers go through it."""
LONGEST_FOLDER = 40
"""Letters of a folder in which Ray has room for the names of its sockets."""
ANY_PORT = 9
CLUSTER_ERRORS = (RayError, OSError, RuntimeError, ValueError)
"""Of a cluster that is not there, or not any more"""


def main(address: str) -> None:
    """Connect, and do what is asked until the channel ends."""
    channel = parent_channel()
    try:
        with _connected(address) as found:
            nodes = ray.nodes()
            own = own_address([node["NodeManagerAddress"] for node in nodes if node["Alive"]])
            channel.send({"cluster": {"address": found, "own_address": own, **resources_of(nodes)}})
            _serve(channel)
    except CLUSTER_ERRORS as error:
        channel.send({"unreachable": _last_line(error)})
        raise SystemExit(1) from None


def _serve(channel: Channel) -> None:
    requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    channel.listen(requests.put)
    agents: NodeAgents | None = None
    runs = ClusterRuns(channel)
    noted: set[str] = set()
    try:
        while True:
            with suppress(queue.Empty):
                request = requests.get(timeout=0.05 if runs.runs else TURN_SECONDS)
                if request is None:
                    return
                if "serve" in request:
                    agents = NodeAgents(request["serve"], channel)
                else:
                    runs.handle(request)
            try:
                runs.turn()
                if agents is not None:
                    agents.turn()
            except CLUSTER_ERRORS as error:
                note = f"the cluster does not answer: {_last_line(error)}"
                if note not in noted:
                    channel.send({"note": note})
                noted.add(note)
    finally:
        runs.end()
        if agents is not None:
            agents.end()


def _last_line(error: Exception) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


@contextmanager
def _connected(address: str) -> Iterator[str]:
    """The cluster's address while Ray is connected."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if len(tempfile.gettempdir()) > LONGEST_FOLDER // 2:
        tempfile.tempdir = "/tmp"
    with scratch() as folder:
        if address == LOCAL:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_NBYTES, "_temp_dir": str(folder)}
            ray.init(LOCAL, num_cpus=len(os.sched_getaffinity(0)), **own, **quiet)
        else:
            check_reachable(address)
            ray.init(address, **quiet)
        try:
            yield address if "://" in address else str(ray.get_runtime_context().gcs_address)
        finally:
            ray.shutdown()


def own_address(nodes: Sequence[str]) -> str:
    """This machine's address as the nodes see it: that from which packets to them would leave."""
    own = []
    for node in nodes:
        family = socket.AF_INET6 if ":" in node else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((node, ANY_PORT))  # sends nothing
            own.append(str(probe.getsockname()[0]))
    return next((mine for mine, node in zip(own, nodes, strict=True) if mine != node), own[0])


if __name__ == "__main__":
    main(sys.argv[1])
