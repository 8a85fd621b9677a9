"""Rounds of two levels against a run with tiers: a server, two gateways on WANs, three clients on the LAN of each.

The virtual round is the last one of a real run (`fleet.tiers`), whose messages, and whose seconds of computing, are
those of the measured rounds. These follow each other without a break, as in the run.

Seen on two busy cores of an AMD EPYC, Linux 6.18, 2026-11-26: docs/evidence/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbr
from coordinator.records.store import read
from tests.network.lab import Lab
from tests.network.measure import Doubles, error_percent, tiered_rounds

pytestmark = pytest.mark.timeout(600)

GATEWAYS, CLIENTS = 2, 3
"""Clients of each gateway"""
LAN, WAN, FAST = 100e6, 10e6, 10e9
"""Shared by all clients of a gateway, of each gateway, and never a bottleneck; bit/s"""
LAN_RTT, WAN_RTT = 0.002, 0.030
ROUNDS = 3
"""Of the run. In the last, connections are as in all later ones"""
REPETITIONS = 7
"""Beside a first round, whose connections are new"""
BAR_PERCENT = 7.0
SHARED = ("fleet.server.down", "fleet.server.up", "fleet.tiers.down", "fleet.tiers.up")
NETWORK = """
[{name}]
down_bits_per_second = {rate}
up_bits_per_second = {rate}
rtt_seconds = {rtt}
goodput = false
sigma_down = 0.0
sigma_up = 0.0
transmit_watts = 0.0
receive_watts = 0.0
transmit_joules_per_bit = 0.0
receive_joules_per_bit = 0.0
base_watts = 0.0
tail_watts = 0.0
tail_seconds = 0.0
source = "the lab"
year = 2026
assumed = true
"""


@dataclass(frozen=True)
class Case:
    """A model by its width, how long it is trained, and the server's link in bit/s, which the WANs share."""

    name: str
    width: int
    local_steps: int
    server: float
    is_fooled: bool
    """Whether a clock without contention must be off by more than `BAR_PERCENT`"""


# Without contention the first would be 6 % short: its messages are so small that round trips count for much.
CASES = (
    Case("0.26 MB", 34, 12, math.inf, False),
    Case("2.0 MB", 96, 4, math.inf, True),
    Case("0.26 MB, 12 Mbit/s at the server", 34, 12, 12e6, True),
    Case("2.0 MB, 12 Mbit/s at the server", 96, 4, 12e6, True),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rounds_take_as_long_as_those_of_a_run_with_tiers(
    case: Case,
    make_lab: Callable[..., Lab],
    show: Callable[[str], None],
    cell: Callable[[float, float], None],
    tmp_path: Path,
) -> None:
    wan = make_lab(WAN_RTT, (WAN,) * GATEWAYS, server_down=case.server, server_up=case.server)
    own = (math.inf,) * CLIENTS
    lans = [make_lab(LAN_RTT, own, server_down=LAN, server_up=LAN, server=(wan, end)) for end in wan.clients]

    run, last = _run(case, tmp_path), ROUNDS - 1
    compute = _rows(run, f"SELECT compute_end_s - down_end_s FROM visits WHERE round = {last} ORDER BY client")
    columns = f"start_s, end_s, nbytes FROM aggregators WHERE round = {last}"
    down, up = _rows(run, f"SELECT {columns} ORDER BY direction, aggregator").reshape(2, GATEWAYS, 3)
    virtual = _seconds(down[:, 0], down[:, 1], up[:, 0], up[:, 1])
    alone: dict[str, Any] = dict.fromkeys(SHARED, _bit_per_second(FAST))
    before, after = fedbr.replay(run, **alone)["per_round"][-2:]

    nbytes, pipes = int(up[0, 2]), tmp_path / "pipes"
    pipes.mkdir()
    _, *rounds = tiered_rounds(wan, lans, nbytes, compute.reshape(GATEWAYS, CLIENTS), 1 + REPETITIONS, pipes)
    real = np.array([_seconds(to.start, to.finish, back.start, back.finish) for to, back in rounds])

    median = np.median(real, axis=0)
    errors = error_percent(virtual, median)
    free = float(error_percent(after["end_s"][1] - before["end_s"][1], float(median[0])))
    parts = ", ".join(
        f"{name} {seconds:.3f} s ({error:+.1f} %)"
        for name, seconds, error in zip(("rounds", "down", "clients", "up"), median, errors, strict=True)
    )
    each = " ".join(f"{error:+.1f}" for error in error_percent(virtual[0], real[:, 0]))
    show(f"\n{case.name}: medians of {parts}; rounds each {each}; no contention {free:+.1f} %")
    for way in rounds[0]:
        assert way.nbytes == pytest.approx((nbytes,) * GATEWAYS, rel=0.005)
    cell(float(virtual[0]), float(median[0]))
    assert abs(errors[0]) <= BAR_PERCENT
    assert not case.is_fooled or free < -BAR_PERCENT


def _run(case: Case, folder: Path) -> fedbr.Run:
    rows = {"lab-lan": (FAST, LAN_RTT), "lab-wan": (WAN, WAN_RTT)}
    file = folder / "networks.toml"
    file.write_text("".join(NETWORK.format(name=name, rate=rate, rtt=rtt) for name, (rate, rtt) in rows.items()))
    server, lan = (_bit_per_second(min(rate, FAST)) for rate in (case.server, LAN))
    tiers = {"count": GATEWAYS, "assign": "place", "networks": {"lab-wan": 1.0}, "down": lan, "up": lan}
    fleet = {
        "devices": {"raspberry-pi-4": 1.0},
        "networks": {"lab-lan": 1.0},
        "network_file": str(file),
        "compute_spread": 3.0,
        "jitter": 0.0,
        "server": {"down": server, "up": server},
        "tiers": tiers,
    }
    everyone = GATEWAYS * CLIENTS
    return fedbr.run(
        "digits",
        out=folder,
        workers=1,
        progress=False,
        method="fedavg",
        data={"clients": everyone, "partition": {"kind": "iid"}},
        model={"width": case.width},
        train={"local_steps": case.local_steps},
        rounds={"participants": everyone, "max": ROUNDS},
        eval={"every": ROUNDS},
        stop={"target_accuracy": 1.0},
        fleet=fleet,
    )


def _bit_per_second(rate: float) -> str:
    return f"{rate:.0f} bit/s"


def _rows(run: fedbr.Run, query: str) -> Doubles:
    return np.array(read(run.folder / "ledger.sqlite", query), np.float64)


def _seconds(down: Doubles, down_end: Doubles, up: Doubles, up_end: Doubles) -> Doubles:
    """(4,) Seconds of the round, and means over gateways: of its model's way down, of its clients, of the way up."""
    parts = [(end - begin).mean() for begin, end in ((down, down_end), (down_end, up), (up, up_end))]
    return np.array([up_end.max() - down.min(), *parts])
