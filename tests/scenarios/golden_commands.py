"""The outputs of the commands that make or read runs: ``python -m tests.scenarios.golden_commands FOLDER``.

Writes one file per output. Numbers are rounded, and what differs between machines is left out: paths, wall-clock
seconds, memory, disk. Training is portable, so that the outputs are one on x86-64 processors with AVX2; it is done in
this process, which starts again with `edge.protocol.portable.training_environment`. Apps of Flower alone have
processes of their own.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from coordinator.workers.launcher import environment
from edge.protocol.portable import trains_portably
from scenarios.cli import main
from tests.scenarios.flower.apps import CLIENT, write_app
from tests.scenarios.in_this_process import BOARDS, training_here

GOLDEN = Path(__file__).with_name("golden")
SHORT = ("digits", "train.instructions=portable", "train.local_steps=16", "rounds.max=3", "fleet.jitter=0.2", BOARDS)
BRIEF = ("train.instructions=portable", "train.local_epochs=1", "rounds.max=2")
IN_TURN = ("--workers", "1", "--device", "cpu", "--run-id", "a")
FOUR_BITS = 'codec.up={kind="quantize",bits=4}'
TIERS = "fleet.tiers={count=3,price=2}"
SLOWER = "fleet.scale.links=0.5"
COUNTED = "import torch\n" + CLIENT.replace(
    "(msg: Message, context: Context):", "(msg: Message, context: Context):\n    torch.ones(8, 8) @ torch.ones(8, 8)"
)
"""A ClientApp whose computing is counted FLOPs, not seconds of this host"""
APPS: dict[str, list[str]] = {
    "flower-run": [
        "flower",
        "run",
        "OUT/app",
        "fleet.jitter=0.2",
        BOARDS,
        "data.clients=3",
        "--run-config",
        "rounds=2",
    ],
}
RUNS: dict[str, tuple[str, ...]] = {
    "run": (*SHORT, "method=fedavg"),
    "codec-up": (*SHORT, "method=fedavg", 'codec.up=[{kind="topk",ratio=0.2},{kind="fp16"}]'),
    "codec-down": (*SHORT, "method=fedavg", FOUR_BITS, "codec.down.kind=bf16", "codec.min_values=1000"),
    "codec-coder": (*SHORT, "method=fedavg", 'codec.up=[{kind="quantize",levels=3,norm="l2"},{kind="elias"}]'),
    "codec-slots": (
        *SHORT,
        "method=fedprox+scaffold",
        FOUR_BITS,
        'codec.up_slots={control={kind="quantize",bits=8}}',
        'codec.down_slots={control={kind="fp16"}}',
    ),
    "tiers-two": (*SHORT, "fleet.tiers={count=4,price=2,above={count=2}}", "tiers.interval=[1,2]", FOUR_BITS),
    "tiers-interval": (*SHORT, "method=fedavg", TIERS, "tiers.interval=2", "eval.aggregators=true"),
    "tiers-asynchronous": (
        *(word.replace("max=3", "max=6") for word in SHORT),
        "method=fedavg",
        TIERS,
        "fleet.server={down=inf,up=inf}",
        "tiers.upwards=asynchronous",
        "codec.wan.kind=fp16",
    ),
    "heterofl": (*SHORT, "method=heterofl", "submodel.rate=client", "eval.on=both"),
    "depthfl": (*SHORT, "method=depthfl", "submodel.rate=round", "submodel.rates=[1.0,0.66,0.33]"),
    "charged": (*SHORT, "method=fedavg", "eval.charged=true", "eval.on=both", "data.validation=0.2"),
    "budget-whole": (*SHORT, "method=fedavg", "budget.virtual_seconds=1 s"),
    "budget-bytes": (*SHORT, "method=fedavg", "budget.bytes=1 MB", "rounds.min_fraction=0.2"),
    "budget-seconds": (*SHORT, "method=fedavg", "budget.virtual_seconds=800 ms", "rounds.min_fraction=0.2"),
}
"""Scenarios, each for ``run``, ``check`` and ``replay``"""
JOINT = ("run", "codec-coder", "codec-slots", "tiers-two", "heterofl", "charged", "budget-bytes")
"""Runs that an audit and a report have together"""
STUDIES: dict[str, list[str]] = {
    "compare": ["compare", *SHORT, "method=fedavg,fedbr"],
    "compare-seeds": ["compare", *SHORT, "method=fedavg,fedbr", "--seeds", "2"],
    "sweep": ["sweep", *SHORT, "method=fedavg,fedprox", "train.lr=0.05,0.1", "--seeds", "2", "--target", "0.1"],
    "sweep-at": [
        *("sweep", *SHORT, "method=fedavg,fedbr", "--seeds", "2"),
        *("--at", "bytes=700 kB,1 MB", "--at", "seconds=500 ms"),
    ],
    "sweep-judged": [
        *("sweep", *SHORT, "data.validation=0.2", "train.lr=0.05,0.1", "--judge", "validation", "--seeds", "1"),
    ],
    "decide": [
        "decide",
        *SHORT,
        "method=fedavg,fedprox",
        'codec.up=none,{kind="quantize",bits=4}',
        *("--target", "0.11", "--budget", "bytes=2 MB", "--seeds", "2", "--draws", "2"),
    ],
    "decide-tiers": [
        "decide",
        *SHORT,
        "fleet.tiers.count=2",
        "fleet.tiers.price=2",
        "tiers.interval=1,2",
        *("--budget", "price=0.001", "--seeds", "1", "--draws", "0"),
    ],
    "reproduce-fedbr": ["reproduce", "fedbr:fig4", *BRIEF, "row=FedAvg,FedBR"],
    "reproduce-fedmlb": ["reproduce", "fedmlb:2", *BRIEF, "row=FedAvg", "setting=cifar100-dir0.3-100"],
    "reproduce-fedalign": ["reproduce", "fedalign:1", *BRIEF, "row=FedAvg"],
    "reproduce-pfedmb": ["reproduce", "pfedmb:I", *BRIEF, "row=FedAvg"],
}
READINGS: dict[str, list[str]] = {
    **{f"list-{topic}": ["list", topic] for topic in ("methods", "partitions", "selections")},
    "check": ["check", *SHORT],
    **{f"check-{name}": ["check", *words] for name, words in RUNS.items()},
    "explain-key": ["explain", "train.lr"],
    "explain-method": ["explain", "fedbr"],
    "replay": ["replay", "OUT/digits/run", "fleet.server.up=2 Mbit/s"],
    **{f"replay-{name}": ["replay", f"OUT/digits/{name}", SLOWER] for name in RUNS if name != "run"},
    "replay-draws": ["replay", "OUT/digits/codec-up", "OUT/digits/run", "--draws", "2"],
    "audit": ["audit", *(f"OUT/digits/{name}" for name in JOINT)],
    **{
        f"verify-{name}": ["diff", "--again", f"OUT/digits/{name}"]
        for name in ("codec-slots", "tiers-two", "budget-bytes")
    },
    "measure": ["replay", "OUT/digits/charged", "--measure", "accuracy,class-accuracy"],
    "measure-parts": ["replay", "OUT/digits/heterofl", "--measure", "accuracy", "--clients", "evaluated"],
    "stress": ["stress", *SHORT, "--clients", "40", "--participants", "6", "--rounds", "3"],
    "stress-deadline": [
        *("stress", *SHORT, "method=fedavg", "rounds.policy=deadline", "rounds.deadline=0.35 s", FOUR_BITS),
        *("--clients", "40", "--participants", "6", "--rounds", "3"),
    ],
    "stress-tiers": ["stress", *SHORT, "method=fedavg", TIERS, "--clients", "40", "--participants", "6"],
    "reproduce-list": ["reproduce", "fedbr:fig4", "--list"],
}
HOST_KEYS = re.compile(
    r"wall.*|cpu_seconds|.*_dir|data|memory.*|disk.*|coordinator_nbytes|worker_nbytes|.*peak_bytes.*|folder|device|workers"
    r"|(visits|nbytes)_per_second|seconds_per_round|report|setup_seconds|.*cpu_seconds.*|clock_share|growth_.*"
    r"|worker_p.*|resident_nbytes|descriptors|nbytes_sent|nbytes_received"
)
"""Keys of results that say where, how fast and on which machine"""
WRITTEN = ("*.csv", "*.md", "*.tex")
MOST_LINES = 40
"""Of a table in a file, that are kept"""


class Outline(HTMLParser):
    """The structure of a report: headings, figures with their names, and tables with their columns."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._open: str | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "figure":
            self.lines.append(f"figure {dict(attrs).get('id') or ''}".rstrip())
        if tag == "table":
            self.lines.append("table")
        if tag in ("h1", "h2", "h3", "th"):
            self._open, self._text = tag, []

    def handle_data(self, data: str) -> None:
        if self._open:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self.lines.append(f"{tag} {' '.join(' '.join(self._text).split())}")
            self._open = None


def outputs(out: Path) -> Iterator[tuple[str, str]]:
    """(file name, text) of every output."""
    write_app(out / "app", COUNTED)
    for name, words in APPS.items():
        yield from run_outputs(name, words, out)
    with training_here():
        for name, scenario in RUNS.items():
            yield from run_outputs(name, ["run", *scenario], out)
        yield from report_outputs("report", [out / "digits" / name for name in JOINT], out)
        for name, words in STUDIES.items():
            yield f"{name}.json", printed([*words, *IN_TURN, "--out", str(out / name), "--report"], out)
            (folder,) = (out / name).glob("*/*/")
            yield f"{name}.runs.txt", "".join(f"{path.name}\n" for path in sorted(folder.iterdir()))
            yield from file_outputs(name, folder, out)
        for name, words in READINGS.items():
            yield f"{name}.json", printed(words, out)


def run_outputs(name: str, words: list[str], out: Path) -> Iterator[tuple[str, str]]:
    """What a run prints and its report shows."""
    yield f"{name}.json", printed([*words, *IN_TURN[:-1], name, "--out", str(out), "--no-report"], out)
    (folder,) = out.glob(f"*/{name}/")
    yield from report_outputs(name, [folder], out)


def report_outputs(name: str, runs: list[Path], out: Path) -> Iterator[tuple[str, str]]:
    """What ``fedbr report --csv`` writes of runs."""
    page = out / "reports" / name / "report.html"
    page.parent.mkdir(parents=True)
    command(["report", *map(str, runs), "-o", str(page), "--csv"])
    yield from file_outputs(name, page.parent, out)


def file_outputs(name: str, folder: Path, out: Path) -> Iterator[tuple[str, str]]:
    """The tables of a folder, and the structure of its pages."""
    for file in sorted(path for pattern in WRITTEN for path in folder.glob(pattern)):
        yield f"{name}.{file.name}", rounded(file.read_text(encoding="utf-8")).replace(str(out), "OUT")
    for page in sorted(folder.glob("*.html")):
        yield f"{name}.{page.stem}.outline.txt", outline(page)


def printed(words: list[str], out: Path) -> str:
    """What a command prints as JSON, or why it refuses, and its exit code."""
    code, stdout, stderr = command([*(word.replace("OUT", str(out)) for word in words), "--json"])
    result = kept(json.loads(stdout)) if stdout else stderr.strip()
    text = json.dumps({"exit": code, "result": result}, indent=1, ensure_ascii=False)
    return text.replace(str(out), "OUT") + "\n"


def command(words: list[str]) -> tuple[int, str, str]:
    """Exit code of a command, and what it writes on stdout and stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main.run_command(words)
    return code, stdout.getvalue(), stderr.getvalue()


def kept(value: Any) -> Any:
    """A result without what is this machine's, and with rounded numbers."""
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items() if not HOST_KEYS.fullmatch(key)}
    if isinstance(value, list):
        return [kept(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def rounded(text: str) -> str:
    """The first lines of a text, with their long numbers rounded."""
    lines = text.splitlines(keepends=True)[:MOST_LINES]
    return re.sub(r"-?\d+\.\d{5,}(e-?\d+)?", lambda match: f"{float(match[0]):.5g}", "".join(lines))


def outline(report: Path) -> str:
    """The structure of a report."""
    parser = Outline()
    parser.feed(report.read_text(encoding="utf-8"))
    return "".join(f"{line}\n" for line in parser.lines)


def write(folder: Path) -> None:
    """Write all outputs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as out:
        for name, text in outputs(Path(out)):
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if not trains_portably(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment("portable"))
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
