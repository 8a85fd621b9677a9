"""The commands of README and docs: found, parsed, and run as they are written (``make test-docs``).

Each page's commands run in its own folder, in order, beside the files that the pages show. A command that is still at
work at the limit is stopped as by Ctrl-C, and must then end with exit code 4.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from scenarios.cli.main import app

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"^(?:    )?fedbr (.+)$", re.MULTILINE)
PYTHON_FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
TOML_FILE = re.compile(r"```toml\n# (\w+\.toml)\n(.*?)```", re.DOTALL)
TABLE_FILES = {"day.csv": "client,seconds,", "log.csv": "time,router,"}
"""File -> how the table begins that a page shows of it"""
SCENARIO = re.compile(r'    (extends = "digits"\n.*?)\n\n(?!    )', re.DOTALL)
STAND_INS = {"runs/digits/<run>": "runs/digits/plain", "RUN": "runs/digits/plain", "RUN1": "runs/digits/plain"}
STAND_INS |= {"runs/digits/<another>": "runs/digits/alpha2", "RUN2": "runs/digits/alpha2"}
"""Words that stand for runs of the reader's -> runs that the pages make."""
MAKING = {
    "runs/digits": "run digits method=fedavg --run-id plain --quiet",
    "runs/digits/plain": "run digits method=fedavg --run-id plain --quiet",
    "runs/digits/alpha2": "run digits method=fedbr method_options.alpha=2 --run-id alpha2 --quiet",
}
"""Such a run -> the command that makes it, for pages that do not."""
NOT_RUN = (
    *("worker ", "run cifar10-cnn --listen", "run cifar10-cnn --on", "sweep cifar10-cnn", "compare cifar10-cnn"),
    *("fetch ", "--install-completion"),
)
"""Beginnings of those that need other machines, or would change the user's shell."""
MORE = 5
"""Times the limit, for runs that later commands of a page take."""
STOPPED, USAGE, DIFFERENT = 4, 2, 1
MISSING = {
    "not found. Looked in": "no data",
    "torchvision could not download": "no network",
    "this machine has no NVIDIA GPU": "no GPU",
}
"""What a command says where it cannot run, and why that is."""


@dataclass(frozen=True)
class Documented:
    """One command line of a page, without ``fedbr``."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: fedbr {shlex.join(self.words)}"


def pages() -> list[Path]:
    """README and all pages of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> Iterator[Documented]:
    """The commands in the code blocks of a page; a comment behind one is left out."""
    for line in COMMAND.findall(page.read_text(encoding="utf-8")):
        for text in re.split(r"\s;\s(?:fedbr )?", line):
            words = shlex.split(text, comments=True)
            yield Documented(page.name, tuple(STAND_INS.get(word, word) for word in words))


def write_files(folder: Path) -> None:
    """The files that the pages show or name, beside which their commands run."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name, source in (*PYTHON_FILE.findall(text), *TOML_FILE.findall(text)):
            (folder / name).write_text(source, encoding="utf-8")
        for name, head in TABLE_FILES.items():
            for table in re.findall(rf"    ({head}.*?)\n\n", text, re.DOTALL):
                (folder / name).write_text(_dedented(table), encoding="utf-8")
    (scenario,) = scenarios(ROOT / "docs" / "commands.md")
    (folder / "mine.toml").write_text(scenario, encoding="utf-8")
    head = "client,flops_per_second,down_bits_per_second,up_bits_per_second\n"
    (folder / "my-clients.csv").write_text(head + "ann,30e9,20e6,5e6\nbob,10e9,8e6,1e6\n", encoding="utf-8")
    routers = "".join(f"{client},{('barn', 'yard')[client % 2]}\n" for client in range(10))
    (folder / "who.csv").write_text("client,router\n" + routers, encoding="utf-8")
    hours = "".join(
        f"m{device},{3600 * hour},{100 * device + 10 * (hour % 24 >= 12) + hour % 5}\n"
        for device in range(6)
        for hour in range(120)
    )
    (folder / "meters.csv").write_text("device,time,load\n" + hours, encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("verizon.down", "verizon.up"):
        (folder / name).write_text("".join(f"{2 * packet}\n" for packet in range(5000)), encoding="utf-8")


def scenarios(page: Path) -> list[str]:
    """The scenarios that a page shows."""
    return [_dedented(text) for text in SCENARIO.findall(page.read_text(encoding="utf-8"))]


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines()) + "\n"


def parsed(words: Sequence[str]) -> Mapping[str, Any]:
    """The parameters of a command line; an error of the command line's parser, or KeyError for an unknown command."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    with command.make_context("fedbr", rest, resilient_parsing=hasattr(command, "commands")) as context:
        return dict(context.params)


# --- make test-docs ---------------------------------------------------------------------------------------------------


def run_page(page: Path, only: str, limit: float) -> list[Documented]:
    """Run a page's commands for at most ``limit`` seconds each; those that failed."""
    failed, stand_ins = [], set[str]()
    with tempfile.TemporaryDirectory(prefix="docs-") as name:
        folder = Path(name)
        write_files(folder)
        for command in commands(page):
            if only not in str(command):
                continue
            for run in set(MAKING) & set(command.words):
                if not (folder / run).exists():
                    _ended(shlex.split(MAKING[run]), folder, limit * MORE)
                    stand_ins.add(run)
            for run in stand_ins.copy():
                if _makes_a_run(command.words) and command.words[command.words.index("--run-id") + 1] == Path(run).name:
                    shutil.rmtree(folder / run)  # the page makes it later, too
                    stand_ins.remove(run)
            started = time.monotonic()
            verdict = _verdict(command, folder, limit * (MORE if _makes_a_run(command.words) else 1))
            print(f"{verdict:12} {time.monotonic() - started:6.1f} s  {command}", flush=True)
            if verdict.startswith("FAILED"):
                failed.append(command)
    return failed


def _makes_a_run(words: Sequence[str]) -> bool:
    return words[0] == "run" and "--run-id" in words


def _verdict(command: Documented, folder: Path, limit: float) -> str:
    if shlex.join(command.words).startswith(NOT_RUN):
        parsed(command.words)
        return "parsed"
    code, told = _ended(command.words, folder, limit)
    if code == 0 or (code == DIFFERENT and command.words[0] == "diff"):
        return "ran"
    if code == STOPPED:
        return "ran, stopped"
    why = next((why for text, why in MISSING.items() if text in told), None)
    if code == USAGE and why is not None:
        return why
    print(told)
    return f"FAILED ({code})"


def _ended(words: Sequence[str], folder: Path, limit: float) -> tuple[int, str]:
    """The exit code and messages of a command, which is stopped at the limit, and killed a minute later."""
    line = [sys.executable, "-P", "-m", "scenarios.cli.main", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            told = process.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                told = process.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                told = "did not stop"
    return process.returncode, told


def main() -> int:
    """Run all commands of all pages: 0, or 1 if one failed. Those that need other machines or data are told."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each command")
    parser.add_argument("--only", default="", help="commands and pages that contain this text")
    options = parser.parse_args()
    failed = [c for page in pages() for c in run_page(page, options.only, options.limit)]
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
