"""One coordinator and more and more machines: ``python benchmarks/scale.py``.

1, 2, 4 and 8 node agents join a run of `digits` over CURVE, with four workers each, which sleep instead of training: a
machine with cores of its own, as far as the coordinator can tell. A round has ten visits per worker, so that a perfect
one takes ten times a visit's sleep, however many machines there are. Three sizes of model are used. It is done on this
host's loopback, and, as root, in network namespaces with shaped links between them (1 Gbit/s, 1 ms round trip).

For each: time of a round against the perfect one, bytes that the coordinator sends and receives, its CPU time per visit
and its memory (medians of rounds). A model of the coordinator's cost is fitted to these rounds (`scale_model`),
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
from dataclasses import asdict
from itertools import product
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import end, module  # noqa: E402
from benchmarks.product import Request, differences  # noqa: E402
from benchmarks.scale_model import CoordinatorCost, Row, draw, fit  # noqa: E402
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
PORT = 5611
AGENT = "agent"
MODELS = {"small CNN": 4 * 62_006, "ResNet-18": 4 * 11_173_962}
"""Bytes of the LeNet-like CNN (`cnn`) and of ResNet-18 (`resnet18`), for ten classes."""

Start = Callable[[int | None, Sequence[str]], subprocess.Popen[str]]
"""(agent's number or None for the coordinator, command) -> process"""


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
            "digits", overrides, agents * WORKERS, rounds + 2, endpoint=endpoint, keys=keys, allowed=allowed
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
    with mock.patch.object(node_agent, "TRAINER", "benchmarks.echo:PacedSite"):
        return node_agent.join_run(endpoint, credentials, options)


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


def choose_links(choice: str) -> list[str]:
    """The links to measure; without shaped ones, and with a word about it, where this host cannot have them."""
    links = {"loopback": [LOOPBACK], "shaped": [SHAPED], "both": [LOOPBACK, SHAPED]}[choice]
    try:
        require_kernel()
    except UnavailableError as error:
        print(f"no shaped links: {error}")
        links = [link for link in links if link == LOOPBACK]
    return links


def main() -> int:
    from benchmarks.echo import PACE_VARIABLE  # imports torch, which agents do without

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="1,2,4,8")
    parser.add_argument("--widths", default="16,33,66")
    parser.add_argument("--links", choices=("loopback", "shaped", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--visit-ms", type=float, default=100.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    links, visit_seconds = choose_links(arguments.links), arguments.visit_ms / 1e3
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
