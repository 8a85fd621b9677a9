"""Clients whose figures can be reckoned by hand, and random worlds in which anything may happen to anyone."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from costmodel.arrays import Streams
from costmodel.config import FleetConfig, ServerLink, Transport
from costmodel.fleet.availability import Always, Availability, Renewal
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import networks
from costmodel.fleet.dynamics import ABORT, PAUSE, ClientDynamics
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.speed import PURPOSE as LOAD
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad
from costmodel.network.bandwidth import (
    Constant,
    OrnsteinUhlenbeck,
    Replay,
    Samples,
    Variation,
    WithOutages,
    behind_sites,
)
from costmodel.network.links import Links
from costmodel.step_series import StepSeries
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work

INF = math.inf
SEEDS = 64
SILENCES = StepSeries((0.0, 2.0, 2.5, 3.0), (0.5, 1.0, 0.0, 1.5), 5.0, zero_waits=True)
RISES = StepSeries((0.0, 0.7, 3.1), (0.4, 1.3, 0.8), 4.0)
OUTAGES = StepSeries((0.0, 1.0, 1.5, 4.0), (1.0, 0.0, 2.0, 0.25), 7.0)

# 1448 bytes make one frame of 1514, 12 112 bits: 1 s down at 12 112 bit/s; 724 bytes up at 6056 bit/s: 1 s too.
# First contact: 3.5 round trips of 0.2 s. 6 FLOP at 2 FLOP/s and 10 steps of 0.02 s: 3.2 s. Half a round trip: 0.1 s.
VISIT = Work(bytes_down=1448, bytes_up=724, flops=6.0, steps=10)
DOWN_RATE, UP_RATE = 12_112.0, 6056.0
FIRST_ENDS = (0.7 + 1.0 + 0.1, 1.8 + 3.2, 5.0 + 1.0 + 0.1)
LATER_ENDS = (1.1, 4.3, 5.4)
BY_HAND = {
    "access_link": 0,
    "flops_per_second": 2.0,
    "step_seconds": 0.02,
    "codec_slowdown": 4.0,
    "slowdown": 1.0,
    "down": DOWN_RATE,
    "up": UP_RATE,
    "rtt": 0.2,
    "last_down": -INF,
    "last_up": -INF,
    "crash_after": INF,
    "loss": 0.0,
    "charge": INF,
    "train_watts": 10.0,
    "idle_watts": 1.0,
    "transmit_watts": 3.0,
    "transmit_joules_per_bit": 0.0,
    "receive_watts": 2.0,
    "receive_joules_per_bit": 0.0,
    "tail_watts": 0.0,
    "tail_seconds": 0.0,
    "awake_seconds": 0.0,
    "promotion_seconds": 0.0,
    "promotion_watts": 0.0,
}


def streams(purpose: str, index: int, client: int) -> np.random.Generator:
    """The same key always gives the same draws, another key others."""
    digest = hashlib.blake2b(f"{purpose}|{index}|{client}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def fleet_of(
    clients: int,
    inputs: FleetInputs | None = None,
    *,
    streams: Streams = streams,
    families: Sequence[str] = ("conv",),
    links: Links | None = None,
    behaviour: ClientDynamics | None = None,
    **keys: Any,
) -> Fleet:
    """A fleet with these keys of `FleetConfig`, by default without jitter and without limits of the server's link."""
    still: dict[str, Any] = {"jitter": 0.0, "server": ServerLink(INF, INF, INF)}
    fleet = Fleet.build(clients, FleetConfig(**(still | keys)), streams=streams, families=families, inputs=inputs)
    return dataclasses.replace(fleet, links=links or fleet.links, behaviour=behaviour or fleet.behaviour)


def conditions(clients: int = 1, /, **columns: Any) -> Conditions:
    """Of clients 0, 1, ...: those of `BY_HAND`, but for the ``columns`` given, one figure for all or one each."""
    figures = BY_HAND | columns
    each = {name: np.broadcast_to(np.asarray(figure, np.float64), clients).copy() for name, figure in figures.items()}
    access_link = each.pop("access_link").astype(np.intp)
    pairs = {"noise": np.ones((clients, 2)), "threshold": np.full((clients, 2), INF)}
    seeds = np.arange(2 * clients).reshape(clients, 2)
    return Conditions(clients=np.arange(clients), access_link=access_link, loss_seed=seeds, **pairs, **each)


def connected(clients: int = 1, /, **columns: Any) -> Conditions:
    """Clients that have been visited just before t = 0: no set-up, no slow start."""
    return conditions(clients, **({"last_down": -0.1, "last_up": -0.1} | columns))


def joined(batch: Sequence[Conditions]) -> Conditions:
    """The conditions of several visits as those of one batch."""
    names = [field.name for field in dataclasses.fields(Conditions)]
    return Conditions(**{name: np.concatenate([getattr(one, name) for one in batch]) for name in names})


def ends(timeline: Timeline, visit: int = 0) -> tuple[float, float, float]:
    """When the visit's parts ended."""
    return float(timeline.down_end[visit]), float(timeline.compute_end[visit]), float(timeline.up_end[visit])


def differences(one: Timeline, visit: int, other: Timeline) -> list[str]:
    """Which figures of a visit of a batch are not those of the single visit ``other``, to the bit."""
    names = [*one.columns]
    return [name for name in names if getattr(one, name)[visit] != getattr(other, name)[0]]


@dataclass(frozen=True)
class World:
    """A random fleet and one visit to each of its clients."""

    fleet: Fleet
    works: tuple[Work, ...]
    starts: tuple[float, ...]


def random_world(
    seed: int,
    airtime: str | None = None,
    *,
    is_duplex: bool = False,
    sites_vary: bool = False,
    sharing: Literal["fair", "windows"] = "fair",
) -> World:
    """512 seeds in a row meet each combination of leaving, pausing, varying links, sites, batteries, crashes, lost
    segments, outages, and connections and radios that have to connect again.

    Jitter, noise, kinds of radio and power, capacities, sizes and starts are drawn. Later seeds have speeds that vary,
    throttle, or do both, and recorded links with outages, by turns. With ``airtime`` all sites share air in this way.
    ``is_duplex``: whether shared links may be so slow in one direction that it holds up the other; ``sites_vary``:
    whether those of sites have recorded rates, with an outage of the first and a silence of the second; ``sharing``: of
    all links.
    """
    leaves, pauses, varies, sites, battery, crashes, loses, breaks, sleeps = (bool(seed >> bit & 1) for bit in range(9))
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 25))
    availability: Availability = Renewal(20.0, 5.0, 0.5, streams) if leaves else Always()
    variation: Variation = OrnsteinUhlenbeck(0.36, 5.0, 1.0, streams) if varies else Constant()
    if seed >= SEEDS and varies:
        variation = Samples([OUTAGES], streams, [StepSeries((0.0, 2.0), (0.5, 2.0), 4.5)])
    if breaks:
        variation = WithOutages(variation, np.full(clients, 1200.0), np.full(clients, 0.5), streams)
    loss = 0.003 if loses else 0.0
    rows = {
        name: dataclasses.replace(row, loss=loss, promotion_seconds=0.26, promotion_watts=1.21)
        for name, row in networks().items()
    }
    down, up = rng.choice([3e6, 10e6, 20e6, INF], 2).tolist()
    behind = (INF,) * 3 if airtime else (8e6, 3e6, 1e9) if sites else ()
    behind_down = (20e6, 3e6, INF) if sites and is_duplex else behind
    links = Links(down, up, behind_down, behind, airtime)
    if sites and sites_vary:
        recorded = Replay([OUTAGES, SILENCES, RISES], [RISES, SILENCES, OUTAGES], np.arange(3))
        links = dataclasses.replace(links, site_variation=recorded)
        variation = behind_sites(variation, recorded, np.arange(clients) % 3)
    jitter, redraw, noise = (float(rng.choice([0.0, most])) for most in (0.1, 0.2, 0.1))
    mode_rounds = int(rng.integers(2))
    queue = 256_000 if is_duplex else 16_000
    transport = Transport(queue=queue, sharing=sharing, noise=noise, reconnect=8.0 if sleeps else INF, promotion=sleeps)
    fleet = fleet_of(
        clients,
        FleetInputs(networks=rows),
        links=dataclasses.replace(links, transport=transport),
        behaviour=ClientDynamics(availability, PAUSE if pauses else ABORT, variation, _speed(seed // SEEDS)),
        devices={"raspberry-pi-4": 1, "phone-mid": 1, "jetson-agx-xavier": 1},
        networks={"lte": 1, "wifi-4": 1},
        compute_spread=4,
        bandwidth_spread=4,
        jitter=jitter,
        redraw=redraw,
        mode_rounds=mode_rounds,
        crashes_per_hour=72.0 if crashes else 0.0,
        battery=30.0 if battery else None,
        compute_energy=str(rng.choice(["power", "kappa"])),
        radio_energy=str(rng.choice(["power", "rate"])),
    )
    return World(
        fleet, tuple(_random_work(rng) for _ in range(clients)), tuple((rng.integers(0, 3, clients) * 1.5).tolist())
    )


def _speed(turn: int) -> ComputeSpeed:
    """Constant, with load, throttled, or both."""
    load = ForegroundLoad(Renewal(3.0, 5.0, 0.5, streams, LOAD), 0.3)
    return ComputeSpeed((load,) if turn in (1, 3) else (), 2.0 if turn in (2, 3) else INF, 0.6)


def _random_work(rng: np.random.Generator) -> Work:
    down, up = (int(rng.integers(most) * (rng.random() > 0.1)) for most in (3_000_000, 2_000_000))
    return Work(down, up, float(rng.uniform(0, 1e11)), int(rng.integers(0, 20)), codec_seconds=(down + up) / 8e6)
