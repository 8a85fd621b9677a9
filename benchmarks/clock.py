"""What the clock achieves on this machine, beside what it should: ``python benchmarks/clock.py [--only NAME ...]``.

Speeds are medians of a few repetitions by the clock on the wall, so other work on the machine shows in them; nothing
else does. Exits with 1 if a bar is missed. It writes nothing but temporary files, and ends the processes it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from costmodel.clock import Clock  # noqa: E402
from costmodel.config import FleetConfig, Transport  # noqa: E402
from costmodel.fleet.availability import Always, Renewal  # noqa: E402
from costmodel.fleet.conditions import Conditions  # noqa: E402
from costmodel.fleet.dynamics import ClientDynamics  # noqa: E402
from costmodel.fleet.fleet import Fleet  # noqa: E402
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck  # noqa: E402
from costmodel.network.links import Links  # noqa: E402
from costmodel.network.transfers import transfer_batch  # noqa: E402
from costmodel.visits.timeline import Timeline  # noqa: E402
from costmodel.visits.work import Work  # noqa: E402
from edge.protocol.rng import keyed_generator  # noqa: E402
from scenarios.studies import doctor  # noqa: E402
from scenarios.studies.stress import stress  # noqa: E402
from tests.costmodel.oracle import random_case, replanned  # noqa: E402

MEMORY = {"fleet_peak_bytes", "round_peak_bytes", "peak_bytes_per_client"}
OF_THIS_MACHINE = {"wall_seconds", "cpu_seconds", "flows_per_second", "events_per_second", "visits_per_second", *MEMORY}
CORES = len(os.sched_getaffinity(0))
PROCESS_SECONDS = 600
"""No process that is started here lives longer."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
BUSY = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
STEPS = """
import json, time, torch
from edge.profile.calibrate import measure
from edge.models.registry import MODELS
torch.set_num_threads(1)
row = MODELS["digits-cnn"]
list(measure(row, row.width, (32,), range(5, 6)))
print("ready", flush=True)
input()
start = time.perf_counter()
(found,) = measure(row, row.width, (32,), range(300, 301))
print(json.dumps([found.seconds, time.perf_counter() - start]))
"""
"""Training steps in a process of its own: [CPU seconds of the median step, wall seconds of all]"""


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    what: str
    found: str
    bar: str = ""
    met: bool | None = None
    """None: there is no bar, or nothing to hold against it"""


# --- speed ------------------------------------------------------------------------------------------------------------


def rounds(repeat: int) -> Iterator[Line]:
    clients = 1_000_000
    results = [stress(clients, clients, "sync", False) for _ in range(repeat)]
    yield _less(f"{clients:,} clients, one round", _wall(results), 1.0, "s", _cpu(results))
    yield _less("the same, peak", _command("--clients", str(clients))[0]["peak_bytes_per_client"], 200, "B/client")


def links(repeat: int) -> Iterator[Line]:
    for flows, bar in ((10_000, 1.0), (100_000, 10.0)):
        rng = np.random.default_rng(0)
        start, bits, cap = rng.random(flows), rng.lognormal(16, 0.5, flows), rng.lognormal(17, 1, flows)
        call = partial(transfer_batch, start, bits, cap, 0.05 * float(cap.sum()))
        yield _less(f"{flows:,} flows on one full link", _median_seconds(call, repeat), bar, "s")
    whole = [_command("--clients", "100000", "--contended")[1] for _ in range(repeat)]
    yield _less("100,000 contended clients, the whole command", statistics.median(whole), 30.0, "s")
    clients = 10_000
    results = [stress(100 * clients, clients, "sync", True) for _ in range(repeat)]
    yield _less(f"{clients:,} of {100 * clients:,} clients, contended round", _wall(results), 1.0, "s", _cpu(results))


def large(_: int) -> Iterator[Line]:
    """Minutes and gigabytes: only with ``--only large``."""
    result, _ = _command("--clients", "1000000", "--contended")
    yield _less("1,000,000 contended clients, one round", result["cpu_seconds"], 60.0, "s of CPU")
    yield _less("the same, peak", result["peak_bytes_per_client"] * 1e6 / 1e9, 1.5, "GB")
    result = stress(1_000_000, 10_000, "fedbuff", False)
    visit = 1e3 * result["cpu_seconds"] / result["visits"]
    yield _less("1,000,000 clients, fedbuff, 10,000 visits at a time", visit, 0.2, "ms of CPU a visit")


def _command(*options: str) -> tuple[dict[str, Any], float]:
    """(the result of ``fedbr stress`` in a process of its own, whose memory is its own, and wall seconds of it all)"""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scenarios.cli.main", "stress", *options, "--json"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )
    return json.loads(done.stdout), time.perf_counter() - started


def streams(repeat: int) -> Iterator[Line]:
    results = [stress(10_000, 10_000, "fedasync", True) for _ in range(repeat)]
    events, bar = results[0]["simpy_events"], 30_000
    rate, by_cpu = events / _wall(results), events / _cpu(results)
    found = f"{rate:,.0f} events/s ({by_cpu:,.0f} by CPU time)"
    yield Line("10,000 clients asynchronously, contended", found, f"> {bar:,} events/s", rate > bar)
    # Events are few here, since a message takes one: the visit is what has to be quick.
    results = [stress(10_000, 10_000, "fedbuff", False) for _ in range(repeat)]
    visit = 1e3 * _cpu(results) / results[0]["visits"]
    yield _less("10,000 clients, fedbuff, uncontended", visit, 0.2, "ms of CPU a visit")


def _wall(results: list[dict[str, Any]]) -> float:
    return statistics.median(float(result["wall_seconds"]) for result in results)


def _cpu(results: list[dict[str, Any]]) -> float:
    return statistics.median(float(result["cpu_seconds"]) for result in results)


def _median_seconds(call: Callable[[], object], repeat: int) -> float:
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _less(what: str, found: float, bar: float, unit: str, cpu: float | None = None) -> Line:
    beside = "" if cpu is None else f" ({cpu:.3g} {unit} of CPU)"
    return Line(what, f"{found:.3g} {unit}{beside}", f"< {bar:g} {unit}", found < bar)


# --- exactness --------------------------------------------------------------------------------------------------------


def solver(_: int) -> Iterator[Line]:
    """Max-min sharing against the plain way of doing it, with arrivals, changing caps, pauses, cuts and sites."""
    worst, cases = 0.0, 500
    for number in range(cases):
        rng = np.random.default_rng(number)
        case = random_case(rng, int(rng.integers(2, 30)), int(rng.integers(0, 4)))
        shared, plain = case.shared(), replanned(case)
        for name in ("finish", "sent"):
            ours, theirs = getattr(shared, name), getattr(plain, name)
            differs = ours != theirs
            off = np.abs(ours[differs] - theirs[differs]) / np.maximum(np.abs(theirs[differs]), 1e-12)
            # Where only one of the two is infinite, this is inf.
            worst = max(worst, float(np.nan_to_num(off, nan=math.inf).max(initial=0.0)))
    yield Line(f"fair shares against the plain way, {cases} cases", f"off by {worst:.1e}", "< 1e-9", worst < 1e-9)


def both_ways(_: int) -> Iterator[Line]:
    """Visits in a batch against the same visits event by event."""
    scenes = 300
    different = sum(not _agrees(scene) for scene in range(scenes))
    yield Line(f"batch against SimPy, {scenes} scenes", f"{different} differ", "0: equal to the bit", different == 0)


def _agrees(scene: int) -> bool:
    rng = np.random.default_rng(scene)
    clock = Clock(_scene(scene, int(rng.integers(1, 25))))
    clients = [k for k in range(len(clock.fleet)) if clock.is_there is None or clock.is_there(k)]
    works = [_work(rng) for _ in clients]
    if not clients:
        return True
    each = [clock.conditions([client], 0, visit=client) for client in clients]
    batch = clock.solve(np.zeros(len(clients)), works, _together(each))
    for place in rng.permutation(len(clients)).tolist():
        clock.begin(works[place], each[place], clients[place])
    single: dict[int, Timeline] = {}
    for _ in clients:
        ended = clock.next()
        single[ended.order] = ended.timeline
    return all(
        np.array_equal(getattr(batch, field.name)[[place]], getattr(single[client], field.name), equal_nan=True)
        for place, client in enumerate(clients)
        for field in dataclasses.fields(Timeline)
    )


def _work(rng: np.random.Generator) -> Work:
    """One in ten has no message, the one way or the other."""
    down, up = (int(rng.integers(0, 3_000_000) * (rng.random() > 0.1)) for _ in range(2))
    return Work(down, up, float(rng.uniform(0, 1e11)), int(rng.integers(0, 20)))


def _scene(scene: int, clients: int) -> Fleet:
    """A fleet of few, whose options all occur together with each other somewhere in the scenes."""
    keyed = partial(keyed_generator, scene)
    sites = (8e6, 3e6, 1e9) if scene // 8 % 2 else ()
    config = FleetConfig(
        devices={"raspberry-pi-4": 1, "phone-mid": 1},
        networks={"lte": 1, "wifi-4": 1},
        compute_spread=4,
        bandwidth_spread=4,
        jitter=0.1,
        crashes_per_hour=72.0 if scene % 7 == 0 else 0.0,
        battery=30.0 if scene % 6 == 0 else None,
        radio_energy="rate" if scene % 2 else "power",
    )
    down, up = (20e6, math.inf, 5e6)[scene % 3], (10e6, 3e6, math.inf)[scene % 3]
    return dataclasses.replace(
        Fleet.build(clients, config, streams=keyed),
        links=Links(down, up, sites, sites, transport=Transport(noise=0.1 if scene % 5 == 0 else 0.0)),
        behaviour=ClientDynamics(
            Renewal(20.0, 5.0, 0.5, keyed) if scene % 2 else Always(),
            ("abort", "pause")[scene // 2 % 2],
            OrnsteinUhlenbeck(0.36, 5.0, 1.0, keyed) if scene // 4 % 2 else Constant(),
        ),
    )


def _together(each: list[Conditions]) -> Conditions:
    names = [field.name for field in dataclasses.fields(Conditions)]
    return Conditions(**{name: np.concatenate([getattr(one, name) for one in each]) for name in names})


# --- what must not matter ---------------------------------------------------------------------------------------------


def loaded_host(_: int) -> Iterator[Line]:
    """Virtual time while twice as many processes spin as there are cores."""
    idle = _virtual_digest()
    with contextlib.ExitStack() as ends:
        for _ in range(2 * CORES):
            ends.callback(_end, subprocess.Popen([sys.executable, "-c", BUSY]))
        loaded = _virtual_digest()
    found = "identical" if idle == loaded else "different"
    yield Line(f"idle and loaded host ({2 * CORES} processes spin)", found, "identical", idle == loaded)


def _virtual_digest() -> str:
    results = [
        stress(3000, 2000, "over_select", True, rounds=2),
        stress(300, 200, "fedbuff", True, visits=2000),
    ]
    return hashlib.sha256(json.dumps(_virtual(results), sort_keys=True).encode()).hexdigest()


def _virtual(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: _virtual(value) for key, value in result.items() if key not in OF_THIS_MACHINE}
    return [_virtual(each) for each in result] if isinstance(result, list) else result


def workers(_: int) -> Iterator[Line]:
    """The same scenario, really trained, by one worker and by eight."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in (1, 8):
            words = ["run", "digits", "rounds.max=5", "--workers", str(number), "--json", "--out", folder]
            done = subprocess.run(
                [sys.executable, "-m", "scenarios.cli.main", *words],
                cwd=ROOT,
                check=False,
                capture_output=True,
                text=True,
                timeout=PROCESS_SECONDS,
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                yield Line("1 and 8 workers", f"failed: {reason}", "identical", False)
                return
            result = json.loads(done.stdout)
            found.append([result[key] for key in ("virtual_seconds", "joules", "model_sha256")])
    same = found[0] == found[1]
    yield Line("1 and 8 workers", "identical" if same else f"{found[0]} and {found[1]}", "identical", same)


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


# --- computing --------------------------------------------------------------------------------------------------------


def calibration(_: int) -> Iterator[Line]:
    """Steps of models to which no calibrated device is fitted, as it predicts them, against their measured CPU time.

    The user's own cache is left alone.
    """
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
        result = doctor.calibrate("benchmark")
    worst: dict[str, float] = {}
    for row in result["measurements"]:
        if not row["fitted"]:
            name = row["model"] if row["width"] is None else f"{row['model']}, width {row['width']}"
            worst[name] = max(worst.get(name, 0.0), abs(row["relative_error"]))
    for name, off in worst.items():
        yield Line(f"step of {name}", f"off by {off:.0%}", "<= 10 %", off <= doctor.BAR)
    spread = result["not_fitted"]["spread"]
    yield Line("  the measurements themselves, from pass to pass", f"differ by {spread:.0%}")


def neighbours(_: int) -> Iterator[Line]:
    """CPU time of a step beside how many others run the same; the wall's clock shows why it is not asked."""
    alone = _steps(1)
    for processes in (CORES, 2 * CORES, 4 * CORES):
        beside = _steps(processes)
        cpu, wall = beside[0] / alone[0] - 1, beside[1] / alone[1]
        yield Line(f"CPU time of a step, {processes} processes", f"{cpu:+.1%}", "within 10 %", abs(cpu) <= 0.1)
        yield Line("  on the wall (negative control)", f"x {wall:.2f}")


def _steps(processes: int) -> tuple[float, float]:
    """Medians over the processes of `STEPS`."""
    with contextlib.ExitStack() as ends:
        started = []
        for _ in range(processes):
            process = subprocess.Popen(
                [sys.executable, "-c", STEPS],
                cwd=ROOT,
                env=os.environ | ONE_THREAD,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.callback(_end, process)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a process that trains failed"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate(timeout=PROCESS_SECONDS)[0]) for process in started]
    return statistics.median(cpu for cpu, _ in answers), statistics.median(wall for _, wall in answers)


# --- the table --------------------------------------------------------------------------------------------------------

BENCHMARKS: dict[str, Callable[[int], Iterator[Line]]] = {
    "rounds": rounds,
    "links": links,
    "streams": streams,
    "large": large,
    "solver": solver,
    "both-ways": both_ways,
    "loaded-host": loaded_host,
    "workers": workers,
    "calibration": calibration,
    "neighbours": neighbours,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/clock.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=BENCHMARKS,
        default=[name for name in BENCHMARKS if name != "large"],
        metavar="NAME",
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of what is timed")
    arguments = parser.parse_args()
    console = Console(highlight=False, markup=False)
    load = os.getloadavg()[0]
    lines = []
    for name in arguments.only:
        console.print(f"{name} ...", style="dim")
        lines += list(BENCHMARKS[name](arguments.repeat))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("what", "found", "bar", ""):
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(line.what, line.found, line.bar, {None: "", True: "met", False: "MISSED"}[line.met])
    console.print(table)
    console.print(f"{CORES} cores; {load:.1f} processes were running before it began")
    return 1 if any(line.met is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
