"""One coordinator and more and more machines: ``python benchmarks/scale.py``.

1, 2, 4 and 8 node agents join a run of `digits` over CURVE, with four workers each, which sleep instead of training: a
machine with cores of its own, as far as the coordinator can tell. A round has ten visits per worker, so that a perfect
one takes ten times a visit's sleep, however many machines there are. Three sizes of model are used. It is done on this
host's loopback, and, as root, in network namespaces with shaped links between them (1 Gbit/s, 1 ms round trip).

For each: time of a round against the perfect one, bytes that the coordinator sends and receives, its CPU time per visit
and its memory (medians of rounds). A model of the coordinator's cost is fitted to these rounds (`scale_parts.model`),
and says for the small CNN and ResNet-18 how many machines it can serve, and over which link, before a round takes a
tenth longer than a perfect one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.echo import PACE_VARIABLE  # noqa: E402
from benchmarks.scale_parts.coordinator import Request, Round  # noqa: E402
from benchmarks.scale_parts.figure import draw  # noqa: E402
from benchmarks.scale_parts.model import CoordinatorCost, Measured, fit  # noqa: E402
from edge.runtime.keys import make  # noqa: E402
from scenarios.config.cache import cache_folder  # noqa: E402
from tests.network.lab import Lab, UnavailableError, require_kernel  # noqa: E402
from tests.network.peer import SERVER  # noqa: E402

WORKERS, VISITS_EACH = 4, 10
WIDTHS = (16, 33, 66)
LIMIT_SECONDS = 240.0
LINK, RTT = 1e9, 1e-3
LOOPBACK, SHAPED = "loopback", "1 Gbit/s, 1 ms"
PORT = 5611
MODELS = {"small CNN": 4 * 62_006, "ResNet-18": 4 * 11_173_962}
"""Bytes of the LeNet-like CNN (`cnn`) and of ResNet-18 (`resnet18`), for ten classes."""

Start = Callable[[int | None, Sequence[str]], subprocess.Popen[str]]
"""(agent's number or None for the coordinator, command) -> process"""


@dataclass(frozen=True)
class Setting:
    """One run."""

    link: str
    agents: int
    width: int

    @property
    def visits(self) -> int:
        """In a round."""
        return self.agents * WORKERS * VISITS_EACH


@dataclass(frozen=True)
class Row:
    """The median round of a setting."""

    setting: Setting
    seconds: float
    perfect: float
    cpu_seconds: float
    nbytes_sent: float
    nbytes_received: float
    rss: float
    model_nbytes: int


@contextlib.contextmanager
def machines(link: str, agents: int) -> Iterator[tuple[str, Start]]:
    """(endpoint, starter of processes) of a network with so many machines; all processes end with it."""
    with contextlib.ExitStack() as stack:
        if link == LOOPBACK:
            yield f"tcp://127.0.0.1:{PORT}", lambda number, words: _started(words, stack)
        else:
            lab = stack.enter_context(Lab(RTT, [LINK] * agents, server_down=LINK, server_up=LINK))
            yield (
                f"tcp://10.77.0.1:{PORT}",
                lambda number, words: lab.start(SERVER if number is None else lab.clients[number], words),
            )


def _started(words: Sequence[str], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    stack.callback(_ended, process)
    return process


def _ended(process: subprocess.Popen[str]) -> None:
    for end in (lambda: None, process.terminate, process.kill):  # the run is over, so it ends by itself
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


def measure(setting: Setting, rounds: int, visit_seconds: float, folder: Path) -> Row:
    """Run one setting; its processes have ended when it returns."""
    python = [sys.executable, "-m"]
    with machines(setting.link, setting.agents) as (endpoint, start):
        overrides = ("aggregate.sum=fixed_point", f"model.width={setting.width}")
        keys, allowed = str(folder / "run.key"), str(folder / "node.pub")
        request = Request(endpoint, keys, allowed, setting.agents * WORKERS, setting.visits, rounds, overrides)
        coordinator = start(None, [*python, "benchmarks.scale_parts.coordinator", json.dumps(asdict(request))])
        assert coordinator.stdout is not None
        assert "listening" in coordinator.stdout.readline(), "the coordinator did not listen"
        own = [endpoint, str(folder / "node.key"), str(folder / "run.pub"), str(WORKERS), str(cache_folder())]
        for number in range(setting.agents):
            start(number, [*python, "benchmarks.scale_parts.agent", *own])
        answer, _ = coordinator.communicate(timeout=LIMIT_SECONDS)
    seen = [Round(**each) for each in json.loads(answer)["rounds"]]
    medians = {name: statistics.median(getattr(each, name) for each in seen) for name in asdict(seen[0])}
    perfect = VISITS_EACH * visit_seconds
    return Row(setting, perfect=perfect, **medians)


def print_row(row: Row) -> None:
    setting = row.setting
    print(
        f"| {setting.link} | {row.model_nbytes / 1e3:,.0f} kB | {setting.agents} | {setting.visits} "
        f"| {row.seconds:.3f} s | {row.perfect / row.seconds:.1%} | {row.nbytes_sent / 1e6:.2f} MB "
        f"| {row.nbytes_received / 1e6:.2f} MB | {row.cpu_seconds / setting.visits * 1e3:.3f} ms "
        f"| {row.rss / 1e6:,.0f} MB |",
        flush=True,
    )


def print_limits(cost: CoordinatorCost, worst: float) -> None:
    print(
        f"\nCPU seconds of a round: {cost.constant:.3g} + {cost.per_visit * 1e3:.3g} ms a visit "
        f"+ {cost.per_machine * 1e3:.3g} ms a machine + {cost.per_byte * 1e9:.3g} ns a byte; "
        f"{cost.nbytes_per_visit:.0f} bytes a visit; at worst {worst:.0%} off\n"
    )
    print("Machines of 16 workers, four visits per worker and round, up to which a round takes a tenth longer:\n")
    print("| model | a visit | 1 Gbit/s | 10 Gbit/s | 25 Gbit/s |\n|---|---|---|---|---|")
    for name, nbytes in MODELS.items():
        for seconds in (0.1, 1.0, 10.0):
            most = [cost.most_machines(16, 4, seconds, nbytes, rate) for rate in (1e9, 1e10, 2.5e10)]
            print(f"| {name} | {seconds:g} s | " + " | ".join(f"{each:,}" for each in most) + " |")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", default="1,2,4,8")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--links", choices=("loopback", "shaped", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--visit-ms", type=float, default=100.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    return parser.parse_args()


def links_of(asked: str) -> list[str]:
    """The links to measure, without shaped ones where this host cannot have them, which is said."""
    links = {"loopback": [LOOPBACK], "shaped": [SHAPED], "both": [LOOPBACK, SHAPED]}[asked]
    try:
        require_kernel()
    except UnavailableError as error:
        print(f"no shaped links: {error}")
        links = [link for link in links if link == LOOPBACK]
    return links


def measure_all(settings: Sequence[Setting], rounds: int, visit_seconds: float) -> list[Row]:
    """Run all settings with keys of their own, and print a row for each."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as name:
        for pair in ("run", "node"):
            make(pair, Path(name))
        for setting in settings:
            rows.append(measure(setting, rounds, visit_seconds, Path(name)))
            print_row(rows[-1])
    return rows


def measured(row: Row) -> Measured:
    """A row as the model of the coordinator's cost takes it."""
    nbytes = row.nbytes_sent + row.nbytes_received
    return Measured(row.setting.agents, row.setting.visits, row.model_nbytes, nbytes, row.cpu_seconds)


def main() -> int:
    arguments = read_arguments()
    links = links_of(arguments.links)
    visit_seconds = arguments.visit_ms / 1e3
    os.chdir(ROOT)  # from which all processes import
    os.environ[PACE_VARIABLE] = str(visit_seconds)
    agents, widths = ([int(each) for each in text.split(",")] for text in (arguments.agents, arguments.widths))
    print(
        "| link | model | machines | visits | a round | of a perfect one | sent | received | CPU a visit | memory |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    settings = [Setting(link, count, width) for link in links for width in widths for count in agents]
    rows = measure_all(settings, arguments.rounds, visit_seconds)
    flat = [asdict(row) | asdict(row.setting) for row in rows]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(flat, indent=1))
    if len(rows) >= 4:
        cost, worst = fit([measured(row) for row in rows])
        print_limits(cost, worst)
        if arguments.figure is not None:
            draw(flat, cost, MODELS, 16, arguments.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
