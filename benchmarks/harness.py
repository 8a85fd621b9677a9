"""Shared by all benchmarks: lines of a table and their bars, measuring in turns, child processes, memory, the command
line.

It imports no torch: a process that measures must not be as heavy as the processes that it measures.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from rich.console import Console
from rich.table import Table

from coordinator.records.store import read
from coordinator.workers.launcher import MALLOC, THREADS

ROOT = Path(__file__).parent.parent
FEDBR = (sys.executable, "-m", "scenarios.cli.main")
CORES = len(os.sched_getaffinity(0))
PROCESS_SECONDS = 900.0
"""Longest life of a child process."""
AS_WORKER = MALLOC | THREADS
"""Environment of the product's workers, for a process that stands for one."""
BF16 = "train.precision=bf16"
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Flags of /proc/cpuinfo; a CPU without any of them gains nothing from bfloat16."""
MIB = 1 << 20
MEMORY_SECONDS, WATCH_SHARE = 0.2, 0.05
"""Least pause between two readings of memory, and the most of one core that they may take: the kernel walks all pages.
"""


# --- lines and measurements -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    what: str
    result: str
    value: float | None = None
    bar: str = ""
    met: bool | None = None
    """None: no bar"""


def at_most(what: str, value: float, bar: float | None = None, form: str = "{:.3f}", more: str = "") -> Line:
    """A line whose value must not exceed its bar, if it has one."""
    limit = ("", None) if bar is None else (f"<= {form.format(bar)}", value <= bar)
    return Line(what, form.format(value) + more, value, *limit)


@dataclass
class Turns:
    """Seconds of variants that were measured in turns."""

    seconds: dict[str, list[float]]
    errors: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, base: str) -> float:
        """Median of the ratios of one cycle each."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[base], strict=False))

    def line(self, name: str, base: str = "", *notes: str) -> Line:
        """The seconds of a variant, in milliseconds below one second, and its ratio to another."""
        seconds = self.seconds[name]
        unit, factor = ("s", 1.0) if self.median(name) >= 1 else ("ms", 1e3)
        ends = " .. ".join(f"{factor * end:.3g}" for end in (min(seconds), max(seconds)))
        if base in self.seconds and base != name:
            notes = (f"x {self.ratio(name, base):.3f} of {base}", *notes)
        result = "; ".join((f"{factor * self.median(name):.3g} {unit} ({ends})", *notes))
        return Line(name, result, self.median(name))


def in_turns(
    variants: Mapping[str, Callable[[], float]],
    cycles: int,
    warm_up: int = 0,
    until: float = math.inf,
    *,
    keep_going: bool = False,
) -> Turns:
    """Measure all variants once per cycle, so that a noisy machine affects all of them; each cycle begins with the next
    variant.

    No further cycle begins after ``until`` (of the monotonic clock). With ``keep_going`` a variant that fails is left
    out of later cycles, with its error in the result.
    """
    turns = Turns({name: [] for name in variants})
    for cycle in range(warm_up + cycles):
        if cycle > warm_up and time.monotonic() > until:
            break
        names = [name for name in variants if name not in turns.errors]
        for name in names[cycle % max(1, len(names)) :] + names[: cycle % max(1, len(names))]:
            try:
                seconds = variants[name]()
            except (RuntimeError, ValueError) as error:
                if not keep_going:
                    raise
                turns.errors[name] = f"{type(error).__name__}: {error}"[:300]
                del turns.seconds[name]
                continue
            if cycle >= warm_up:
                turns.seconds[name].append(seconds)
    return turns


def why_no_bf16(scenario: str) -> str | None:
    """The reason why bf16 is not measured on this CPU, or None."""
    from scenarios.config.load import ScenarioError, load
    from scenarios.config.overrides import parse_all

    try:
        load(scenario, parse_all([BF16]))
    except ScenarioError as error:
        return str(error)
    return None if BF16_FLAGS & set(_cpuinfo("flags").split()) else f"this CPU has none of {sorted(BF16_FLAGS)}"


def _cpuinfo(key: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "unknown")


# --- processes --------------------------------------------------------------------------------------------------------


def module(name: str, *arguments: str) -> list[str]:
    """A module of this folder as a process."""
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]


Environment = Mapping[str, str]


def answer(words: Sequence[str], environment: Environment | None = None, limit_seconds: float = PROCESS_SECONDS) -> Any:
    """The JSON that a process prints last; RuntimeError with the end of its errors if it fails."""
    env = os.environ | (environment or {})
    done = subprocess.run(words, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=limit_seconds)
    if done.returncode or not done.stdout.strip():
        tail = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{' '.join(words[2:4])} ended with {done.returncode}: {tail}")
    return json.loads(done.stdout.splitlines()[-1])


def failure(what: str, reason: str) -> Line:
    return Line(what, f"FAILED: {reason}", met=False)


def send_line(line: Line) -> None:
    """Print a line for `lines_of`, in the child."""
    print(json.dumps(asdict(line)), flush=True)


def lines_of(
    what: str, words: Sequence[str], limit_seconds: float = PROCESS_SECONDS, environment: Environment | None = None
) -> Iterator[Line]:
    """The lines that a child sends; a last one with the reason, if it fails or reaches its limit."""
    code, output = run_for(words, limit_seconds, environment)
    lines = [text for text in output.splitlines() if text.strip()]
    yield from (Line(**json.loads(text)) for text in lines if text.startswith('{"what"'))
    if code is None:
        yield failure(what, f"ended after its limit of {limit_seconds:.0f} s")
    elif code:
        last = [text.strip() for text in lines if not text.startswith('{"what"')][-3:]
        yield failure(what, f"exit code {code}: {' / '.join(last)}")


def run_for(words: Sequence[str], seconds: float, environment: Environment | None = None) -> tuple[int | None, str]:
    """(exit code, or None after so many seconds; stdout and stderr) of a child in a session of its own, whose processes
    all end with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        child = subprocess.Popen(words, cwd=ROOT, env=os.environ | (environment or {}), **options)
        try:
            code: int | None = child.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        return code, output.read()


def end(process: subprocess.Popen[Any], seconds: float = 10.0) -> None:
    """Wait for the end of a process, then bring it about."""
    for bring_about in (process.terminate, process.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
        bring_about()
    process.wait()


def rows(folder: Path, query: str) -> list[dict[str, Any]]:
    """Rows of the ledger of a run folder; none while another process is about to create it."""
    with contextlib.suppress(sqlite3.OperationalError):
        return [dict(row) for row in read(folder / "ledger.sqlite", query)]
    return []


def committed(folder: Path) -> int:
    """Rounds in the ledger of a run folder."""
    return sum(row["n"] for row in rows(folder, "SELECT COUNT(*) AS n FROM rounds"))


def wait_until(is_done: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {seconds:g} s")
        time.sleep(0.005)


def processes_in(temporary: Path) -> list[psutil.Process]:
    """All processes with this ``TMPDIR``, whoever their parents are by now."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(temporary) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


@dataclass
class Memory:
    """The largest sums over a process and its descendants, in bytes."""

    pss: int = 0
    """Proportional set size: a page that n processes share counts 1/n in each."""
    anonymous: int = 0
    """Of it, all but mapped files such as the data set or a library."""


@contextlib.contextmanager
def call_repeatedly(look: Callable[[], None], pause_seconds: float) -> Iterator[None]:
    """Call this again and again until the end of the block, in a thread of its own that takes little of a core."""
    is_over = threading.Event()

    def watch() -> None:
        pause = pause_seconds
        while not is_over.wait(pause):
            started = time.thread_time()
            look()
            pause = max(pause_seconds, (time.thread_time() - started) / WATCH_SHARE)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[Memory]:
    """The peak of memory from here to the end of the block."""
    peak, process = Memory(), psutil.Process(pid)

    def look() -> None:
        pss = anonymous = 0
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                lines = Path(f"/proc/{each.pid}/smaps_rollup").read_text().splitlines()[1:]
                kib = {words[0].rstrip(":"): int(words[1]) for words in map(str.split, lines)}
                pss += 1024 * kib["Pss"]
                anonymous += 1024 * (kib["Pss_Anon"] + kib["Pss_Shmem"])
        peak.pss, peak.anonymous = max(peak.pss, pss), max(peak.anonymous, anonymous)

    with call_repeatedly(look, MEMORY_SECONDS):
        yield peak


# --- the command line -------------------------------------------------------------------------------------------------


@dataclass
class Options:
    """The user's settings for all parts of a benchmark."""

    folder: Path
    """For scenarios and results; removed at the end."""
    quick: bool
    device: str = "cpu"
    deadline: float = math.inf
    """Of the monotonic clock."""
    repeat: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Raw measurements by part, for ``--out``."""

    def cycles(self, default: int) -> int:
        return 1 if self.quick else self.repeat or default


Part = Callable[[Options], Iterable[Line]]


def main(
    doc: str,
    parts: Mapping[str, Part],
    on_request: Collection[str] = (),
    device: str | None = None,
    total_seconds: float = math.inf,
    empty_cache: bool = False,
) -> int:
    """The command line of a benchmark: its exit code is 1 if a bar is missed or a part fails.

    ``on_request``: parts that run only if they are named. ``device``: the default of ``--device``, if there is one.
    ``empty_cache``: random images must not fill the user's cache.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ",".join(part for part in parts if part not in on_request)
    parser.add_argument("--parts", default=every, metavar=",".join(parts), help=f"by default {every}")
    parser.add_argument("--quick", action="store_true", help="everything small, to try the script; figures mean little")
    parser.add_argument("--repeat", type=int, help="repetitions; by default each part's own")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write all lines and measurements there")
    parser.add_argument("--device", default=device or "cpu", help=argparse.SUPPRESS if device is None else "or cpu")
    arguments = parser.parse_args()
    names = arguments.parts.split(",")
    if unknown := [name for name in names if name not in parts]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    about = machine(arguments.device)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 150)
    lines: dict[str, list[Line]] = {}
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as name:
        deadline = time.monotonic() + total_seconds
        options = Options(Path(name), arguments.quick, arguments.device, deadline, arguments.repeat)
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": f"{name}/cache"} if empty_cache else {}):
            for part in names:
                started, lines[part] = time.monotonic(), []
                try:
                    lines[part].extend(parts[part](options))
                except (RuntimeError, subprocess.SubprocessError) as error:
                    lines[part].append(failure(part, str(error)))
                console.print(f"{part}: {time.monotonic() - started:.0f} s", style="dim")
    table = Table("part", "what", "result", "bar", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for part, each in lines.items():
        for line in each:
            table.add_row(part, line.what, line.result, line.bar, {None: "", True: "met", False: "MISSED"}[line.met])
    console.print(table, "; ".join(f"{key}: {value}" for key, value in about.items()), sep="\n")
    if arguments.out:
        plain = {part: [asdict(line) for line in lines[part]] for part in lines}
        arguments.out.write_text(json.dumps({"machine": about, "lines": plain, "details": options.details}, indent=1))
    return int(any(line.met is False for each in lines.values() for line in each))


def machine(device: str) -> dict[str, Any]:
    """The circumstances of a measurement."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "cpu": _cpuinfo("model name"),
        "cores": CORES,
        "processes running before": os.getloadavg()[0],
        "torch": importlib.metadata.version("torch"),
    }
    if device == "cpu":
        return about
    from edge.runtime.gpu_memory import driver_table

    gpus = driver_table("--query-gpu=name,driver_version,memory.total").strip().splitlines()
    if not gpus:
        sys.exit(f"--device {device}: nvidia-smi shows no GPU; --device cpu --quick tries the script")
    return about | {"device": device, "gpus": gpus}
