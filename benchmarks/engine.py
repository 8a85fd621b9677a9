"""What the training engine achieves on this machine, beside its floors: ``python benchmarks/engine.py [--parts A,B]``.

Each figure stands beside a floor that was measured in the same run, in turns with it; figures are medians of a few
repetitions. Exits with 1 if a bar is missed. It writes nothing but temporary files, and ends the processes it starts.

A  1,000 clients of 100 examples, 100 a round, 1 epoch; small CNN    D  steps of FedMLB and FedBR, ResNet-18
B  100 clients of 500 examples, 10 a round, 2 epochs; small CNN      E  start-up to the first round
C  ResNet-18 of width 16, 10 clients of 10 steps                     F  where a round's time goes, and its memory
G  steps of GradAug and FedAlign, ResNet-18                          H  steps with portable and with native numerics
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.engine_parts import account, methods, portable, slim, start, training  # noqa: E402
from benchmarks.engine_parts.tools import CORES, Asked, Line, cpu_name  # noqa: E402

PARTS: dict[str, Callable[[str, Asked], Iterator[Line]]] = {
    "A": training.small_cnn,
    "B": training.small_cnn,
    "C": training.resnet,
    "D": methods.steps,
    "E": start.start_up,
    "F": account.account,
    "G": slim.steps,
    "H": portable.steps,
}


def parts(text: str) -> list[str]:
    """``A,B`` as a list; argparse's error for any other letter."""
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be some of {','.join(PARTS)}")
    return chosen


def measure(chosen: list[str], quick: bool, malloc: bool, console: Console) -> tuple[list[Line], Asked]:
    """The lines of these parts, and what stands behind them; a part that fails is a line that misses its bar."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="fedbr-engine-") as name:
        asked = Asked(Path(name), quick, malloc)
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(asked.folder / "cache")):
            for part in chosen:
                started = time.monotonic()
                try:
                    lines += PARTS[part](part, asked)
                except RuntimeError as error:
                    lines.append(Line(part, "failed", str(error), met=False))
                console.print(f"{part}: {time.monotonic() - started:.0f} s", style="dim")
    return lines, asked


def show(lines: list[Line], asked: Asked, console: Console) -> None:
    """The table, and those that parts have of their own."""
    marks = {None: "", True: "met", False: "MISSED"}
    rows = [[line.part, line.what, line.found, line.bar, marks[line.met]] for line in lines]
    for headings, cells in ((("", "what", "found", "bar", ""), rows), *asked.tables.values()):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in cells:
            table.add_row(*row)
        console.print(table, "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/engine.py", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=parts, default=list(PARTS), metavar="A,B,..", help="by default all")
    parser.add_argument("--quick", action="store_true", help="everything small, to try the script; figures mean little")
    parser.add_argument(
        "--same-malloc", action="store_true", help="floors of A, B, C with the workers' malloc settings"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    arguments = parser.parse_args()
    console = Console(highlight=False, markup=False, stderr=arguments.json)
    load = os.getloadavg()[0]
    machine = f"{cpu_name()}, {CORES} cores; {load:.1f} processes were running before it began"
    console.print(machine)
    lines, asked = measure(arguments.parts, arguments.quick, arguments.same_malloc, console)
    if arguments.json:
        found = {"machine": machine, "load_before": load, "lines": [asdict(line) for line in lines]}
        print(json.dumps(found | {"details": asked.details}))
    else:
        show(lines, asked, console)
    return 1 if any(line.met is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
