"""A node agent whose workers sleep instead of training: ``python -m benchmarks.scale_parts.agent ARGUMENTS``.

Arguments: endpoint, own NAME.key, the run's NAME.pub, number of workers, cache folder. The environment says how long a
visit takes (`benchmarks.echo`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from edge.runtime.connection import Credentials
from edge.runtime.keys import read_pair, read_public
from scenarios.cluster import node_agent
from scenarios.cluster.node_agent import NodeOptions, join_run


def main(endpoint: str, keys: str, server: str, workers: str, cache: str) -> int:
    credentials = Credentials(read_pair(Path(keys)), read_public(Path(server)))
    options = NodeOptions(int(workers), "cpu", None, cache, 60.0)
    with mock.patch.object(node_agent, "TRAINER", "benchmarks.echo:PacedSite"):
        return join_run(endpoint, credentials, options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
