"""Weak devices: smaller models, a deadline, or leave them out? Rows of settings x seeds, on any device of this machine.

    .venv/bin/python benchmarks/weak_devices.py --scenario har-people --seeds 5 --at-a-time 2 --out weak.json

Half of the clients have a device four times slower than phone-mid, with half its memory. Each row gets as many rounds;
costs are those until targets. Accuracies of people are those of the global model, or of the part that a client has, on
each one's own test examples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import FEDBR
from coordinator.records.store import read
from scenarios.config.load import load
from scenarios.run.setup import RunInputs

DEVICE = """
[{name}]
flops_per_second = {{ conv = 2.425e9, depthwise = 0.4875e9 }}
step_seconds = 0.1404
modes = [1.0]
memory_bytes = {memory}
train_watts = 1.98
idle_watts = 0.5
clock_hz = 1.709e9
codec_slowdown = 19.6
source = "phone-mid, four times slower"
year = 2026
assumed = ["flops_per_second.conv", "flops_per_second.depthwise", "step_seconds", "memory_bytes"]
"""
WEAK = DEVICE.format(name="weak", memory=3 << 30) + DEVICE.format(name="too-weak", memory=1000)
"""With half of phone-mid's memory, and with memory for no model"""
PARTS = "submodel.rate={{phone-mid=1.0,{weak}={rate}}}"
ROWS: dict[str, tuple[str, ...]] = {
    "wait for all": ("method=fedavg",),
    "deadline": ("method=fedavg", "rounds.policy=deadline"),
    "over-select": ("method=fedavg", "rounds.policy=over_select"),
    "fedbuff": ("method=fedavg", "rounds.policy=fedbuff", "rounds.buffer=5"),
    "leave out": ("method=fedavg",),
    "heterofl": ("method=heterofl", "method_options.statistics=running", PARTS.format(weak="weak", rate=0.25)),
    "fedrolex": ("method=fedrolex", PARTS.format(weak="weak", rate=0.25)),
    "fjord": ("method=fjord", PARTS.format(weak="weak", rate=0.25)),
    "depthfl": ("method=depthfl", PARTS.format(weak="weak", rate=0.5)),
}


def words(row: str, arguments: argparse.Namespace, devices: Path) -> list[str]:
    """The overrides of a row."""
    weak = "too-weak" if row == "leave out" else "weak"
    own = [*ROWS[row], *(arguments.deadline if row == "deadline" else [])]
    return [
        *own,
        f"fleet.device_file={devices}",
        f"fleet.devices={{phone-mid=0.5,{weak}=0.5}}",
        f"rounds.max={arguments.rounds}",
        "stop.target_accuracy=1.0",
        "eval.on=both",
        f"eval.every={arguments.every}",
        *arguments.more,
    ]


def result(folder: Path, targets: list[float]) -> dict[str, Any]:
    """What a run's folder says: accuracies, costs until targets, and the people by device."""
    loaded, ledger = load(str(folder / "scenario.toml")), folder / "ledger.sqlite"
    drawn = RunInputs(loaded).drawn_fleet
    own = read(
        ledger,
        "SELECT client, value FROM evaluations WHERE metric = 'accuracy' AND exit IS NULL AND client >= 0 AND round = "
        "(SELECT MAX(round) FROM evaluations WHERE client >= 0)",
    )
    by_device: dict[str, list[float]] = {}
    for client, value in own:
        name = drawn.devices[int(drawn.device_of[client])].name
        by_device.setdefault("weak" if "weak" in name else "strong", []).append(value)
    columns = "round, end_s, accuracy, bytes_down + bytes_up, joules"
    seconds, nbytes, joules, reached, best, last = 0.0, 0, 0.0, {}, 0.0, 0.0
    for _, end, accuracy, sent, spent in read(ledger, f"SELECT {columns} FROM rounds ORDER BY round"):
        seconds, nbytes, joules = end, nbytes + sent, joules + spent
        if accuracy is not None:
            best, last = max(best, accuracy), accuracy
            for target in targets:
                if accuracy >= target and str(target) not in reached:
                    reached[str(target)] = {"seconds": seconds, "bytes": nbytes, "joules": joules}
    people = {name: {"mean": statistics.fmean(values), "worst": min(values)} for name, values in by_device.items()}
    return {"best": best, "last": last, "seconds": seconds, "bytes": nbytes, "joules": joules, "reached": reached} | {
        "people": people
    }


def main() -> None:
    """Make the runs that are missing in --runs, and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="har-people")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=2, help="rounds between evaluations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="*", default=[*ROWS])
    parser.add_argument("--targets", nargs="*", type=float, default=[0.7, 0.8, 0.85])
    parser.add_argument("--deadline", nargs="*", default=[], help="overrides of the row deadline")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder of the runs; by default one that is removed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("more", nargs="*", help="KEY=VALUE of all runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        runs = arguments.runs or Path(made)
        devices = runs.absolute() / "weak.toml"
        runs.mkdir(parents=True, exist_ok=True)
        devices.write_text(WEAK)
        found: dict[str, dict[str, Any]] = {row: {} for row in arguments.rows}

        def run(row: str, seed: int) -> None:
            name = f"{row.replace(' ', '-')}-{seed}"
            options = ["--json", "--no-report", "--device", arguments.device, "--workers", str(arguments.workers)]
            command = ["run", arguments.scenario, *words(row, arguments, devices), f"seed={seed}", *options]
            done = subprocess.run(  # noqa: PLW1510 - the code is read below
                [*FEDBR, *command, "--out", str(runs), "--run-id", name], capture_output=True, text=True
            )
            if done.returncode:
                print(row, seed, *done.stderr.strip().splitlines()[-3:], sep="\n", file=sys.stderr, flush=True)
                return
            found[row][str(seed)] = result(Path(json.loads(done.stdout)["run_dir"]), arguments.targets)
            print(row, seed, json.dumps(found[row][str(seed)]), flush=True)
            arguments.out.write_text(json.dumps(found, indent=1))

        with ThreadPoolExecutor(arguments.at_a_time) as pool:
            for seed in range(arguments.seeds):
                for row in arguments.rows:
                    pool.submit(run, row, seed)


if __name__ == "__main__":
    main()
