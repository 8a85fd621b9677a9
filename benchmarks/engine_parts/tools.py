"""What the parts of ``benchmarks/engine.py`` share: lines of the table, scenarios, and processes of their own.

Never torch: whoever measures must not be as heavy as what it measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.engine_parts import images
from benchmarks.engine_parts.run import Request
from coordinator.workers.launcher import MALLOC, THREADS

ROOT = Path(__file__).parent.parent.parent
CORES = len(os.sched_getaffinity(0))
PROCESS_SECONDS = 900
"""No process that is started here lives longer."""
AS_WORKER = MALLOC | THREADS
"""Environment of the product's workers, for a process that stands for one"""
NEVER = 1_000_000
"""More rounds than any run here has."""
BF16 = "train.precision=bf16"
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Of /proc/cpuinfo: what a CPU needs to gain from bfloat16"""


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    part: str
    what: str
    found: str
    value: float | None = None
    bar: str = ""
    met: bool | None = None
    """None: there is no bar, or nothing to hold against it"""


@dataclass
class Asked:
    """How the parts are to work."""

    folder: Path
    """For scenarios and results; it is removed at the end."""
    quick: bool
    malloc: bool = False
    """Whether the floors of A, B and C get the workers' settings of glibc's malloc; who writes a loop has none"""
    details: dict[str, Any] = field(default_factory=dict)
    """What stands behind the lines, by part; for --json"""
    tables: dict[str, tuple[Sequence[str], list[list[str]]]] = field(default_factory=dict)
    """Further tables by part: headings, rows"""


@dataclass(frozen=True)
class Federation:
    """A scenario of alike clients: FedAvg, iid, every round waits for all."""

    clients: int
    samples: int
    """Per client"""
    participants: int
    epochs: int
    model: str = "cnn"
    width: int | None = None
    eval_every: int = NEVER
    batch: int = 20

    @property
    def toml(self) -> str:
        """As a scenario file."""
        width = "" if self.width is None else f"width = {self.width}\n"
        return (
            'method = "fedavg"\n'
            f'[data]\nname = "{images.named(self.clients * self.samples)}"\nclients = {self.clients}\n'
            'augment = "none"\n'
            f'[model]\nname = "{self.model}"\n{width}'
            f"[train]\nlr = 0.05\nbatch = {self.batch}\nlocal_epochs = {self.epochs}\n"
            f"[rounds]\nparticipants = {self.participants}\nmax = {NEVER}\n"
            f"[eval]\nevery = {self.eval_every}\n"
            "[fleet]\njitter = 0.0\n"
        )

    def written(self, folder: Path, name: str) -> Path:
        """The scenario file."""
        path = folder / f"engine-{name}.toml"
        path.write_text(self.toml)
        return path


def ratio(part: str, what: str, value: float, bar: float | None = None) -> Line:
    """A line with a ratio that should not be above its bar."""
    return Line(part, what, f"{value:.3f}", value, *(() if bar is None else (f"<= {bar:.2f}", value <= bar)))


def command(module: str, *arguments: str) -> list[str]:
    """A module of this folder as a process."""
    return [sys.executable, "-m", f"benchmarks.engine_parts.{module}", *arguments]


def answer(words: Sequence[str], **environment: str) -> Any:
    """The JSON that a process prints on its last line; RuntimeError with the end of its complaints if it fails."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )
    return parsed(words, done.returncode, done.stdout, done.stderr)


def parsed(words: Sequence[str], code: int, out: str, complaints: str) -> Any:
    """As `answer`, of a process that has ended."""
    if code or not out.strip():
        tail = " | ".join(complaints.strip().splitlines()[-3:])
        raise RuntimeError(f"{' '.join(words[2:4])} ended with {code}: {tail}")
    return json.loads(out.strip().splitlines()[-1])


def request(asked: Request) -> list[str]:
    """The words that run the product once."""
    return command("run", json.dumps(asdict(asked)))


class Helper:
    """A process that answers one line with one line, and idles in between."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words, cwd=ROOT, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError(f"{words[2]} did not start")

    def ask(self, question: Any) -> Any:
        """Send, and wait for the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the floor ended before it answered")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def why_no_bf16(toml: Path) -> str | None:
    """Why bf16 is not measured, or None."""
    from scenarios.config.load import ScenarioError, load
    from scenarios.config.overrides import parse_all

    try:
        load(str(toml), parse_all([BF16]))
    except ScenarioError as error:
        return str(error)
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "").split()
    return None if BF16_FLAGS & set(flags) else f"this CPU has none of {', '.join(sorted(BF16_FLAGS))}"


def cpu_name() -> str:
    """As the system calls it."""
    return next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")


def _cpuinfo() -> Iterator[str]:
    with Path("/proc/cpuinfo").open() as file:
        yield from file
