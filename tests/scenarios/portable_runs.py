"""Short runs on the digits, one per method: ``python -m tests.scenarios.portable_runs FOLDER METHOD...``.

Prints a JSON object, method -> SHA-256 of the model. All is computed in this process, which is to be started with
`edge.protocol.portable.training_environment`; so it can be emulated on another processor, too:

    qemu-x86_64 -cpu Haswell-v4 .venv/bin/python -m tests.scenarios.portable_runs /tmp/digits fedavg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import torch

from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from tests.scenarios.in_this_process import InThisProcess

SHORT = ("train.instructions=portable", "rounds.max=2", "train.local_steps=4", "stop.target_accuracy=1.0")


def model_sha256(out: Path, method: str) -> str:
    """The hash of the model after a run."""
    loaded, host = load("digits", parse_all([f"method={method}", *SHORT])), Host(out, 1, "cpu", method)
    return str(runner.run(loaded, host, WorkerLauncher(()), lambda: False, True)["model_sha256"])


def main(folder: str, *methods: str) -> None:
    """Run and print."""
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    with mock.patch.object(runner, "Pool", InThisProcess):
        print(json.dumps({method: model_sha256(Path(folder), method) for method in methods}))


if __name__ == "__main__":
    main(*sys.argv[1:])
