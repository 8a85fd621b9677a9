"""What the coordinator costs per visit, whoever trains: ``python benchmarks/coordinator.py``.

Runs of `digits` with a thousand clients, all of them in each round, whose workers answer at once: each trains one visit
and repeats its update for all others (`benchmarks.echo`). So a round is what the coordinator does: selection, prices,
the clock, messages, checks, the weighted sum, the server's step, and rows of the ledger. Two workloads:

    partial sums   aggregate.sum = fixed_point: workers add updates up, and replies have numbers only
    250 kB         aggregate.sum = client_order: every update comes, and is checked and added

For each: visits per second of wall time and the coordinator's CPU per visit (median of rounds, and their spread). The
workers share the processor: on two cores, two of them and the coordinator are three processes. Exit code 1 if a bar is
missed: 5,000 and 2,000 visits per second, 0.4 ms of CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))  # or this file would hide the package of its name

from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver

CLIENTS = 1000
MOST_CPU_MS = 0.4
FLEET = ("method=fedavg", f"data.clients={CLIENTS}", 'data.partition={kind="iid"}', "eval.every=1000")


@dataclass(frozen=True)
class Workload:
    """One run."""

    name: str
    overrides: Sequence[str]
    least_per_second: float


WORKLOADS = (
    Workload("partial sums", ("aggregate.sum=fixed_point",), 5000.0),
    Workload("250 kB updates", ("aggregate.sum=client_order", "model.width=33"), 2000.0),
)


@dataclass
class Rounds(RunObserver):
    """When rounds ended, and what this process had computed until then."""

    ends: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    nbytes_up: int = 0

    def on_round(self, progress: RoundFinished) -> None:
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())
        self.nbytes_up = progress.row.bytes_up

    def per_visit(self, moments: Sequence[float]) -> list[float]:
        """Milliseconds per visit of each round but the first two, in which workers and caches are new."""
        return [(end - begin) / CLIENTS * 1e3 for begin, end in pairwise(moments[1:])]


def measure(workload: Workload, workers: int, rounds: int) -> Rounds:
    """Run one workload."""
    seen = Rounds()
    overrides = (*FLEET, *workload.overrides, f"rounds.participants={CLIENTS}", f"rounds.max={rounds}")
    site = "benchmarks.echo"
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as folder:
        host = Host(Path(folder) / "runs", workers, "cpu", None, [seen])
        with (
            mock.patch.object(runner, "Pool", partial(Pool, site=f"{site}:EchoSite")),
            WorkerLauncher(("edge.training.trainer", site)) as launcher,
        ):
            runner.run(load("digits", parse_all(overrides)), host, launcher, lambda: False, stop_at_target=False)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=22)
    arguments = parser.parse_args()
    missed = False
    for workload in WORKLOADS:
        seen = measure(workload, arguments.workers, arguments.rounds)
        wall, cpu = seen.per_visit(seen.ends), seen.per_visit(seen.cpu)
        per_second, cpu_ms = 1e3 / statistics.median(wall), statistics.median(cpu)
        is_missed = per_second < workload.least_per_second or cpu_ms > MOST_CPU_MS
        missed |= is_missed
        print(
            f"{workload.name:15} {per_second:6,.0f} visits/s (rounds {1e3 / max(wall):,.0f} to {1e3 / min(wall):,.0f}; "
            f"bar {workload.least_per_second:,.0f})  {cpu_ms:.3f} ms of CPU a visit (bar {MOST_CPU_MS})  "
            f"{seen.nbytes_up / CLIENTS / 1e3:.0f} kB charged up  {'MISSED' if is_missed else 'ok'}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
