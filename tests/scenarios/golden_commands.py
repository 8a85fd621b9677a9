"""The outputs of the commands that make or read runs: ``python -m tests.scenarios.golden_commands FOLDER``.

Writes one file per output. Numbers are rounded, and what differs between machines is left out: paths, wall-clock
seconds, memory, disk. Training is portable, so that the outputs are one on x86-64 processors with AVX2; it is done in
this process, which starts again with `edge.protocol.portable.training_environment`.
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
from unittest import mock

from coordinator.workers.launcher import WorkerLauncher, environment
from edge.protocol.portable import NATIVE, trains_portably
from scenarios.cli import main
from scenarios.run import runner
from tests.scenarios.in_this_process import BOARDS, InThisProcess

GOLDEN = Path(__file__).with_name("golden")
SHORT = ("digits", "train.instructions=portable", "train.local_steps=16", "rounds.max=3", "fleet.jitter=0.2", BOARDS)
BRIEF = ("train.instructions=portable", "train.local_epochs=1", "rounds.max=2")
IN_TURN = ("--workers", "1", "--device", "cpu", "--run-id", "a")
STUDIES: dict[str, list[str]] = {
    "compare": ["compare", *SHORT, "method=fedavg,fedbr"],
    "compare-seeds": ["compare", *SHORT, "method=fedavg,fedbr", "--seeds", "2"],
    "sweep": ["sweep", *SHORT, "method=fedavg,fedprox", "train.lr=0.05,0.1", "--seeds", "2", "--target", "0.1"],
    "budget": ["study", "budget", *SHORT, "--bytes", "700 kB,1 MB", "--time", "500 ms", "--seeds", "2"],
    "tune": ["study", "tune", *SHORT, "data.validation=0.2", "train.lr=0.05,0.1"],
    "trial": [
        "study",
        "trial",
        *SHORT,
        "--seeds",
        "1",
        "variant=fedavg,fedbr-alpha-2",
        "--target",
        "0.9",
        "--target",
        "0.1",
    ],
    "reproduce-fedbr": ["reproduce", "fedbr:fig4", *BRIEF, "row=FedAvg,FedBR"],
    "reproduce-fedmlb": ["reproduce", "fedmlb:2", *BRIEF, "row=FedAvg", "setting=cifar100-dir0.3-100"],
    "reproduce-fedalign": ["reproduce", "fedalign:1", *BRIEF, "row=FedAvg"],
    "reproduce-pfedmb": ["reproduce", "pfedmb:I", *BRIEF, "row=FedAvg"],
}
READINGS: dict[str, list[str]] = {
    **{f"list-{topic}": ["list", topic] for topic in ("methods", "partitions", "selections")},
    "check": ["check", *SHORT],
    "explain-key": ["explain", "train.lr"],
    "explain-method": ["explain", "fedbr"],
    "replay": ["replay", "OUT/digits/run", "fleet.server.up=2 Mbit/s"],
    "reproduce-list": ["reproduce", "fedbr:fig4", "--list"],
}
HOST_KEYS = re.compile(
    r"wall.*|.*_dir|data|memory.*|disk.*|coordinator_nbytes|worker_nbytes|folder|device|workers|seconds_per_round|report"
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
    yield "run.json", printed(["run", *SHORT, "method=fedavg", *IN_TURN[:-1], "run", "--out", str(out)], out)
    for name, words in STUDIES.items():
        yield f"{name}.json", printed([*words, *IN_TURN, "--out", str(out / name), "--report"], out)
        (folder,) = (out / name).glob("*/*/")
        yield f"{name}.runs.txt", "".join(f"{path.name}\n" for path in sorted(folder.iterdir()))
        for file in sorted(path for pattern in WRITTEN for path in folder.glob(pattern)):
            yield f"{name}.{file.name}", rounded(file.read_text(encoding="utf-8"))
        for page in sorted(folder.glob("*.html")):
            yield f"{name}.{page.stem}.outline.txt", outline(page)
    for name, words in READINGS.items():
        yield f"{name}.json", printed([word.replace("OUT", str(out)) for word in words], out)


def printed(words: list[str], out: Path) -> str:
    """What a command prints as JSON, and its exit code."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main.run_command([*words, "--json"])
    if not stdout.getvalue():
        raise SystemExit(f"fedbr {' '.join(words)}: exit {code}: {stderr.getvalue()}")
    result = kept(json.loads(stdout.getvalue()))
    text = json.dumps({"exit": code, "result": result}, indent=1, ensure_ascii=False)
    return text.replace(str(out), "OUT") + "\n"


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
    with (
        tempfile.TemporaryDirectory() as out,
        mock.patch.object(runner, "Pool", InThisProcess),
        mock.patch.object(WorkerLauncher.__init__, "__defaults__", ((), NATIVE)),
    ):
        for name, text in outputs(Path(out)):
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if not trains_portably(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment("portable"))
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
