"""Does halving find what a whole grid finds? `fedbr decide` beside all candidates, all seeds, to the end.

    .venv/bin/python benchmarks/decide.py --repetitions 10 --parallel 2 --runs RUNS

A repetition has seeds of its own. All runs are made once, to the target or their last round; the decision reads them as
far as it would have trained them, so that its answer and its effort are those of `fedbr decide`. Bars: the chosen
candidate within one standard error of the best in nine of ten repetitions, for a third of the training.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.workers.launcher import WorkerLauncher
from scenarios.experiment.executors import choose_executor, make_runs
from scenarios.experiment.grid import grid_of
from scenarios.experiment.run_set import PlannedRun
from scenarios.run.host import Host
from scenarios.studies.decide import decision
from scenarios.studies.decide.evidence import recorded
from scenarios.studies.decide.objective import objective_of

GRID = (
    "method=fedavg,fedprox,scaffold,fedbr",
    "train.lr=0.05,0.1",
    'codec.up=none,{kind="quantize",bits=4},{kind="topk",ratio=0.1}',
    "rounds.max=32",
)
SHARE, RIGHT = 1 / 3, 0.9
"""Of the training of the whole grid, at most; of the repetitions, at least"""


def repetition(number: int, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """One repetition: what the decision chooses, what the whole grid says of it, and the rounds of both."""
    sought = objective_of(arguments.target, arguments.cost, {})
    grid = grid_of(arguments.scenario, [*GRID, *arguments.more])
    planned = decision.plan(grid, sought, arguments.seeds, number * arguments.seeds, f"repetition-{number}")
    enough = {"accuracy": arguments.target}
    runs = [
        PlannedRun(planned.run_name(each.row, seed), planned.load_row(each.row, seed), {"rounds": each.rounds}, enough)
        for seed in planned.seeds
        for each in planned.candidates
    ]
    whole = replace(planned, run_set=replace(planned.run_set, runs=runs))
    host = Host(out, arguments.parallel, "cpu")
    with WorkerLauncher() as launcher:
        done = make_runs(whole.run_set, host, choose_executor(launcher, arguments.parallel), lambda: False)
    walk = whole.walk(done)
    order, folder = whole.finalists(walk), Path(done["folder"])
    values: dict[str, list[float]] = {}
    rounds, exhaustive = 0, 0
    for each in whole.candidates:
        trails = [recorded(folder / whole.run_name(each.row, seed), each.rounds) for seed in whole.seeds]
        lengths = [trail[-1].rounds for trail in trails]
        exhaustive += sum(lengths)
        rung = whole.rungs[walk.standings[each.row.name].rung]
        limit = rung.rounds(each.rounds, each.every)
        rounds += sum(min(limit, length) for length in lengths[: rung.seeds])
        found = [sought.value(trail) for trail in trails]
        values[each.row.name] = [math.inf if value is None else value for value in found]
    means = {name: statistics.fmean(own) for name, own in values.items()}
    best = min(means, key=lambda name: means[name])
    error = statistics.stdev(values[best]) / math.sqrt(len(values[best]))
    return {
        "chosen": order[0],
        "best": best,
        "chosen_mean": means[order[0]],
        "best_mean": means[best],
        "standard_error": error,
        "is_right": means[order[0]] <= means[best] + error,
        "rounds": rounds,
        "exhaustive_rounds": exhaustive,
    }


def main() -> int:
    """Make all repetitions, print a line for each, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="digits")
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--cost", default="bytes")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder of the runs; by default one that is removed")
    parser.add_argument("more", nargs="*", help="KEY=VALUE of all runs")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as made:
        for number in range(arguments.repetitions):
            found.append(repetition(number, arguments, arguments.runs or Path(made)))
            print(json.dumps(found[-1]), flush=True)
    right = sum(each["is_right"] for each in found) / len(found)
    share = sum(each["rounds"] for each in found) / sum(each["exhaustive_rounds"] for each in found)
    print(f"within one standard error of the best: {right:.0%} of {len(found)}; training: {share:.1%} of the grid's")
    return int(right < RIGHT or share > SHARE)


if __name__ == "__main__":
    sys.exit(main())
