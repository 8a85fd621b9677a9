"""One coordinator and more and more machines: ``python benchmarks/scale.py``.

1, 2, 4 and 8 node agents join a run of `digits` over CURVE, with four workers each, which sleep instead of training: a
machine with cores of its own, as far as the coordinator can tell. A round has ten visits per worker, so that a perfect
one takes ten times a visit's sleep, however many machines there are. Three sizes of model are used. It is done on this
host's loopback, and, as root, in network namespaces with shaped links between them (1 Gbit/s, 1 ms round trip).

For each: time of a round against the perfect one, bytes that the coordinator sends and receives, its CPU time per visit
and its memory (medians of rounds). A model of the coordinator's cost is fitted to these rounds. It says for the small
CNN and ResNet-18 how many machines it can serve, and over which link, before a round takes a tenth longer than a
perfect one, and draws the figure of docs/evidence/scale.md. A round's CPU time at the coordinator is

    a + b visits + c machines + d (bytes sent and received)

fitted by least squares with no negative coefficient. Bytes per machine are one model down and one partial sum up, with
eight bytes per parameter; what visits add is in the fit of the bytes per visit. A round of k visits of t seconds per
worker then takes

    the larger of (k t, b visits) + the larger of (a + c machines + d bytes, the bytes' time on the coordinator's link)

since visits are handled while others train, but the model goes down before the first visit begins, and sums go up after
the last has ended.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import end, module  # noqa: E402
from benchmarks.product import Request, differences  # noqa: E402
from edge.runtime.connection import Credentials  # noqa: E402
from edge.runtime.keys import make, read_pair, read_public  # noqa: E402
from scenarios.cluster import node_agent  # noqa: E402
from scenarios.config.cache import cache_folder  # noqa: E402
from tests.network.lab import Lab, UnavailableError, require_kernel  # noqa: E402
from tests.network.peer import SERVER  # noqa: E402

CLIENTS, WORKERS, VISITS_EACH = 1000, 4, 10
LIMIT_SECONDS = 240.0
LINK, RTT = 1e9, 1e-3
LOOPBACK, SHAPED = "loopback", "1 Gbit/s, 1 ms"
LINKS = {"loopback": [LOOPBACK], "shaped": [SHAPED], "both": [LOOPBACK, SHAPED]}
PORT = 5611
AGENT = "agent"
MODELS = {"small CNN": 4 * 62_006, "ResNet-18": 4 * 11_173_962}
"""Bytes of the LeNet-like CNN (`cnn`) and of ResNet-18 (`resnet18`), for ten classes."""
SUM_FACTOR = 2
"""Bytes of a partial sum, int64, to those of a model, float32."""
RATES = np.geomspace(1e8, 1e11, 40)
MOST = 100_000

Start = Callable[[int | None, Sequence[str]], subprocess.Popen[str]]
"""(agent's number or None for the coordinator, command) -> process"""


@dataclass(frozen=True)
class Row:
    """The median round of a setting."""

    link: str
    agents: int
    width: int
    visits: int
    seconds: float
    perfect: float
    cpu_seconds: float
    nbytes_sent: float
    nbytes_received: float
    rss: float
    model_nbytes: int
    """Bytes that a client is charged for its download: the model, and some hundred bytes."""

    def __str__(self) -> str:
        return (
            f"| {self.link} | {self.model_nbytes / 1e3:,.0f} kB | {self.agents} | {self.visits} | {self.seconds:.3f} s "
            f"| {self.perfect / self.seconds:.1%} | {self.nbytes_sent / 1e6:.2f} MB "
            f"| {self.nbytes_received / 1e6:.2f} MB | {self.cpu_seconds / self.visits * 1e3:.3f} ms "
            f"| {self.rss / 1e6:,.0f} MB |"
        )


@contextlib.contextmanager
def machines(link: str, agents: int) -> Iterator[tuple[str, Start]]:
    """(endpoint, starter of processes) of a network with so many machines; all processes end with it."""
    with contextlib.ExitStack() as stack:

        def start(number: int | None, words: Sequence[str]) -> subprocess.Popen[str]:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            stack.callback(end, process)
            return process

        if link == LOOPBACK:
            yield f"tcp://127.0.0.1:{PORT}", start
        else:
            lab = stack.enter_context(Lab(RTT, [LINK] * agents, server_down=LINK, server_up=LINK))
            yield (
                f"tcp://10.77.0.1:{PORT}",
                lambda number, words: lab.start(SERVER if number is None else lab.clients[number], words),
            )


def measure(link: str, agents: int, width: int, rounds: int, visit_seconds: float, folder: Path) -> Row:
    """Run one setting; its processes have ended when it returns. Two rounds are left out, since they begin before all
    agents are there, or with new caches."""
    visits = agents * WORKERS * VISITS_EACH
    overrides = (
        *("method=fedavg", f"data.clients={CLIENTS}", 'data.partition={kind="iid"}', "eval.every=100000"),
        *("rounds.max=100000", f"rounds.participants={visits}", "aggregate.sum=fixed_point", f"model.width={width}"),
    )
    with machines(link, agents) as (endpoint, start):
        keys, allowed = str(folder / "run.key"), str(folder / "node.pub")
        request = Request(
            "digits",
            overrides,
            agents * WORKERS,
            rounds + 2,
            is_untrained=True,
            endpoint=endpoint,
            keys=keys,
            allowed=allowed,
        )
        coordinator = start(None, module("product", json.dumps(asdict(request))))
        assert coordinator.stdout is not None
        assert "listening" in coordinator.stdout.readline(), "the coordinator did not listen"
        own = [endpoint, str(folder / "node.key"), str(folder / "run.pub"), str(WORKERS), str(cache_folder())]
        for number in range(agents):
            start(number, module("scale", AGENT, *own))
        answer, _ = coordinator.communicate(timeout=LIMIT_SECONDS)
    seen = json.loads(answer.splitlines()[-1])["rounds"]
    totals = ("seconds", "cpu_seconds", "nbytes_sent", "nbytes_received")
    medians = {key: statistics.median(differences(seen[1:], key)) for key in totals}
    rss = statistics.median(each["rss"] for each in seen[2:])
    model_nbytes = seen[-1]["charged_down"] // visits
    perfect = VISITS_EACH * visit_seconds
    return Row(link, agents, width, visits, perfect=perfect, rss=rss, model_nbytes=model_nbytes, **medians)


def be_agent(endpoint: str, keys: str, server: str, workers: str, cache: str) -> int:
    """A node agent whose workers sleep instead of training."""
    credentials = Credentials(read_pair(Path(keys)), read_public(Path(server)))
    options = node_agent.NodeOptions(int(workers), "cpu", None, cache, 60.0)
    with mock.patch.object(node_agent, "TRAINER", "benchmarks.echo:PacedTrainer"):
        return node_agent.join_run(endpoint, credentials, options)


@dataclass(frozen=True)
class CoordinatorCost:
    """CPU seconds of a round: constant, per visit, per machine, per byte; and bytes per visit."""

    constant: float
    per_visit: float
    per_machine: float
    per_byte: float
    nbytes_per_visit: float

    def efficiency(
        self, machines: int, workers: int, visits_each: int, visit_seconds: float, model_nbytes: int, rate: float
    ) -> float:
        """Perfect time of a round over its time; ``rate``: of the coordinator's link, in bit/s each way."""
        visits, models = machines * workers * visits_each, machines * (1 + SUM_FACTOR) * model_nbytes
        perfect, nbytes = visits_each * visit_seconds, models + visits * self.nbytes_per_visit
        others = self.constant + self.per_machine * machines + self.per_byte * nbytes
        return perfect / (max(perfect, self.per_visit * visits) + max(others, models * 8 / rate))

    def most_machines(
        self, workers: int, visits_each: int, visit_seconds: float, model_nbytes: int, rate: float, least: float = 0.9
    ) -> int:
        """Machines up to which the efficiency is at least ``least``, but no more than 2^20."""

        def is_too_many(machines: int) -> bool:
            return self.efficiency(machines, workers, visits_each, visit_seconds, model_nbytes, rate) < least

        return bisect.bisect_left(range(1, (1 << 20) + 1), True, key=is_too_many)


def fit(rows: Sequence[Row]) -> tuple[CoordinatorCost, float]:
    """The cost, and the largest relative error of the fit's CPU time. Each round counts the same, whatever its size."""
    visits = np.array([each.visits for each in rows], float)
    models = np.array([each.agents * (1 + SUM_FACTOR) * each.model_nbytes for each in rows], float)
    nbytes = np.array([each.nbytes_sent + each.nbytes_received for each in rows])
    cpu = np.array([each.cpu_seconds for each in rows])
    columns = np.stack([np.ones(len(rows)), visits, [each.agents for each in rows], nbytes], axis=1)
    scale = columns.max(axis=0)
    solved, _ = nnls(columns / scale / cpu[:, None], np.ones(len(rows)))
    constant, per_visit, per_machine, per_byte = solved / scale
    nbytes_per_visit = max(0.0, float(np.median((nbytes - models) / visits)))
    predicted = columns @ (solved / scale)
    worst = float(np.abs(predicted / cpu - 1.0).max())
    assert math.isfinite(worst)
    return CoordinatorCost(constant, per_visit, per_machine, per_byte, nbytes_per_visit), worst


def draw(rows: Sequence[Row], cost: CoordinatorCost, models: Mapping[str, int], workers: int, path: Path) -> None:
    """Measured rounds beside perfect ones, and how many machines one coordinator can serve.

    ``models``: name -> bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure((9.6, 3.8), layout="constrained")
    axes, limits = figure.subplots(1, 2)
    for link, style in zip(dict.fromkeys(row.link for row in rows), ("-", "--"), strict=False):
        for colour, nbytes in enumerate(sorted({row.model_nbytes for row in rows if row.link == link})):
            chosen = [row for row in rows if row.link == link and row.model_nbytes == nbytes]
            axes.plot(
                [row.agents for row in chosen],
                [100 * row.perfect / row.seconds for row in chosen],
                style,
                marker="o",
                color=f"C{colour}",
                label=f"{link}, {nbytes / 1e3:,.0f} kB",
            )
    axes.set(xlabel="machines of four workers", ylabel="time of a perfect round, %", ylim=(0, 105), xscale="log")
    ticks = sorted({row.agents for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize=7)
    axes.set_title("Measured rounds of ten visits of 0.1 s a worker", fontsize=9)
    for colour, (name, nbytes) in enumerate(models.items()):
        for seconds, style in ((1.0, "-"), (10.0, "--")):
            most = [min(MOST, cost.most_machines(workers, 4, seconds, nbytes, rate)) for rate in RATES]
            limits.plot(RATES / 1e9, most, style, color=f"C{colour}", label=f"{name}, visits of {seconds:g} s")
    limits.set(xlabel="link of the coordinator, Gbit/s", ylabel=f"machines of {workers} workers", xscale="log")
    limits.set_yscale("log")
    limits.legend(fontsize=7)
    limits.set_title("Model: most machines at 90 % of a perfect round", fontsize=9)
    figure.savefig(path, dpi=150)


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


def main() -> int:
    from benchmarks.echo import PACE_VARIABLE  # imports torch, which agents do without

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="1,2,4,8")
    parser.add_argument("--widths", default="16,33,66")
    parser.add_argument("--links", choices=LINKS, default="both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--visit-ms", type=float, default=100.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    links, visit_seconds = LINKS[arguments.links], arguments.visit_ms / 1e3
    try:
        require_kernel()
    except UnavailableError as error:
        print(f"no shaped links: {error}")
        links = [link for link in links if link == LOOPBACK]
    os.chdir(ROOT)  # from which all processes import
    os.environ[PACE_VARIABLE] = str(visit_seconds)
    print("| link | model | machines | visits | a round | of a perfect one | sent | received | CPU a visit | memory |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows: list[Row] = []
    agents, widths = ([int(each) for each in text.split(",")] for text in (arguments.agents, arguments.widths))
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as name:
        for pair in ("run", "node"):
            make(pair, Path(name))
        for link, width, count in product(links, widths, agents):
            rows.append(measure(link, count, width, arguments.rounds, visit_seconds, Path(name)))
            print(rows[-1], flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if len(rows) >= 4:
        cost, worst = fit(rows)
        print_limits(cost, worst)
        if arguments.figure is not None:
            draw(rows, cost, MODELS, 16, arguments.figure)
    return 0


if __name__ == "__main__":
    sys.exit(be_agent(*sys.argv[2:]) if sys.argv[1:2] == [AGENT] else main())
