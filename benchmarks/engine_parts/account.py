"""Where the time of a round goes, and its memory: part F of ``benchmarks/engine.py``.

Work is in CPU seconds, so that it means the same whether or not there are more workers than cores; only what nobody
works at (workers without a task, the disk) is read from the clock on the wall.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from benchmarks.engine_parts.memory import MIB, Peak, watched
from benchmarks.engine_parts.run import Request
from benchmarks.engine_parts.tools import AS_WORKER, Asked, Federation, Line, answer, command, request

COHORTS = {10: 40, 100: 5, 1000: 1}
"""Clients a round -> rounds that are accounted for, beside the first"""
QUICK_COHORTS = {4: 4, 40: 2}
WORKERS = (1, 2, 8)
SAMPLES = 100
WORK = ("train", "data", "visit", "evaluate", "wire", "fold", "ledger", "other")
GROWTH_BAR = 1.10
"""Of memory, from the smallest to the largest cohort"""
WORKLOAD_A = Federation(1000, 100, 100, 1)
QUICK_A = Federation(40, 40, 8, 1)


@dataclass(frozen=True)
class Account:
    """One round on average, of one federation and a number of workers."""

    cohort: int
    workers: int
    wall_seconds: float
    coordinator: dict[str, float]
    """CPU seconds by kind"""
    trained: dict[str, float]
    """CPU seconds by kind, all workers together"""
    commit_seconds: float
    """Wall seconds of the ledger and the checkpoint"""
    idle: float
    """Share of the workers' wall time in which they wait for a task"""
    peak: Peak

    def cells(self) -> list[str]:
        """A row of the second table."""
        # libzmq's own thread works while the others wait.
        wire = sum(side[kind] for side in (self.coordinator, self.trained) for kind in ("wire", "wait"))
        work = {kind: self.coordinator[kind] + self.trained[kind] for kind in WORK} | {"wire": wire}
        total = sum(work.values())
        return [
            str(self.cohort),
            str(self.workers),
            f"{self.wall_seconds:.3f}",
            *(f"{100 * work[kind] / total:.1f}" for kind in WORK),
            f"{100 * sum(self.coordinator.values()) / total:.1f}",
            f"{1000 * self.commit_seconds:.0f}",
            f"{100 * self.idle:.0f}",
            f"{self.peak.pss / MIB:,.0f}",
            f"{self.peak.anonymous / MIB:,.0f}",
        ]


HEADINGS = (
    *("a round", "workers", "wall s"),
    *(f"{kind} %" for kind in WORK),
    *("coord. %", "commit ms", "idle %", "PSS MiB", "not files"),
)


def account(part: str, asked: Asked) -> Iterator[Line]:
    """Part F."""
    cohorts = QUICK_COHORTS if asked.quick else COHORTS
    found = {
        (cohort, workers): measured(asked, Federation(cohort, SAMPLES, cohort, 1, eval_every=1), workers, rounds)
        for (cohort, rounds), workers in product(cohorts.items(), WORKERS)
    }
    asked.details[part] = [asdict(each) for each in found.values()]
    asked.tables[part] = (HEADINGS, [each.cells() for each in found.values()])
    alone = measured(asked, QUICK_A if asked.quick else WORKLOAD_A, 2, 2 if asked.quick else 6)
    yield Line(part, "workload A: workers without a task", f"{alone.idle:.1%} of their time", alone.idle)
    yield from _memory(part, found, min(cohorts), max(cohorts))
    yield from _profile(part, asked)


def measured(asked: Asked, federation: Federation, workers: int, rounds: int) -> Account:
    """One run that is sampled and watched."""
    toml = federation.written(asked.folder, f"F-{federation.participants}-{federation.eval_every}")
    answered, peak = watched(request(Request(str(toml), (), workers, 1 + rounds, sample=True)))
    ends, accounts = answered["ends"], answered["accounts"]
    coordinator, trained = (_difference(accounts[-1][who], accounts[0][who]) for who in ("coordinator", "workers"))
    wall = ends[-1] - ends[0]
    return Account(
        cohort=federation.participants,
        workers=workers,
        wall_seconds=wall / rounds,
        coordinator={kind: seconds / rounds for kind, seconds in coordinator["cpu"].items()},
        trained={kind: seconds / rounds for kind, seconds in trained["cpu"].items()},
        commit_seconds=coordinator["wall"]["ledger"] / rounds,
        idle=trained["wall"]["wait"] / (workers * wall),
        peak=peak,
    )


def _difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        clock: {kind: seconds - before[clock][kind] for kind, seconds in kinds.items()}
        for clock, kinds in after.items()
    }


def _memory(part: str, found: dict[tuple[int, int], Account], few: int, many: int) -> Iterator[Line]:
    """Whether memory grows with clients, and by how much with workers."""
    for workers in WORKERS:
        growth = found[many, workers].peak.anonymous / found[few, workers].peak.anonymous
        yield Line(
            part,
            f"memory but files, {workers} workers, {few} to {many:,} clients",
            f"x {growth:.2f}",
            growth,
            f"<= x {GROWTH_BAR:.2f}",
            growth <= GROWTH_BAR,
        )
    low, high = (found[few, workers].peak.anonymous / MIB for workers in (min(WORKERS), max(WORKERS)))
    each = (high - low) / (max(WORKERS) - min(WORKERS))
    yield Line(part, "memory but files of one more worker", f"{each:.0f} MiB", each)


def _profile(part: str, asked: Asked) -> Iterator[Line]:
    """What the steps of a visit allocate."""
    toml = Federation(50, SAMPLES, 50, 1).written(asked.folder, f"{part}-profile")
    found = answer(command("profile", json.dumps([str(toml), 5 if asked.quick else 50])), **AS_WORKER)
    asked.details[f"{part}-profile"] = found
    for phase in found["by_batch"][0]["allocations"]:
        by_batch = {row["batch"]: row["allocations"][phase] for row in found["by_batch"]}
        numbers = ", ".join(f"{count:g}" for count in by_batch.values())
        sizes = ", ".join(str(batch) for batch in by_batch)
        same = len(set(by_batch.values())) == 1
        yield Line(part, f"allocations per step, {phase}, batch {sizes}", numbers, None, "all alike", same)
    first, last = found["held"]
    yield Line(
        part,
        f"tensor bytes held after client 1 and {found['clients']}",
        f"{first:,} and {last:,}",
        float(last - first),
        "equal",
        first == last,
    )
    resident = found["resident_mib"]
    yield Line(
        part, f"resident memory after client 4 and {found['clients']}", f"{resident[0]:.1f} and {resident[1]:.1f} MiB"
    )
