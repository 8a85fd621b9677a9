"""Sends messages through a network under test and says when they arrived. Never goes on with a miscounted byte."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.network.lab import Lab, Steps
from tests.network.peer import SERVER

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Sent:
    """Messages that travelled at the same time; by client."""

    start: Doubles
    """When each was handed over, absolute seconds."""
    finish: Doubles
    """When each was received to its last byte, absolute seconds."""
    nbytes: tuple[int, ...]
    """Bytes that are charged for each."""

    @property
    def seconds(self) -> Doubles:
        """How long each took."""
        return self.finish - self.start

    @property
    def round_seconds(self) -> float:
        """From the first start to the last receipt."""
        return float(self.finish.max() - self.start.min())


def download(lab: Lab, payload_nbytes: Sequence[int]) -> Sent:
    """The server sends each client a `Train`, over connections that have been idle."""
    lab.settle()
    messages = list(enumerate(payload_nbytes))
    serve: Steps = [["send", messages]]
    seen = lab.run({SERVER: serve} | {name: [["receive", 1]] for name in lab.clients})
    return _sent(seen[SERVER][0], (seen[name][0][0] for name in lab.clients))


def upload(lab: Lab, payload_nbytes: Sequence[int], after: Sequence[float] = ()) -> Sent:
    """Each client sends the server an `Update`, over connections that have been idle, ``after`` so many seconds."""
    lab.settle()
    waits = after or [0.0] * len(lab.clients)
    sending: dict[str, Steps] = {
        name: [["sleep", waits[i]], ["send", [(i, payload_nbytes[i])]]] for i, name in enumerate(lab.clients)
    }
    seen = lab.run(sending | {SERVER: [["receive", len(lab.clients)]]})
    return _sent((seen[name][1][0] for name in lab.clients), sorted(seen[SERVER][0]))


def both_directions(lab: Lab, down_nbytes: Sequence[int], up_nbytes: Sequence[int]) -> tuple[Sent, Sent]:
    """The first clients receive a `Train` each while the others send an `Update` each: downloads, uploads."""
    lab.settle()
    downloads = list(enumerate(down_nbytes))
    uploads = list(enumerate(up_nbytes, len(downloads)))
    steps: dict[str, Steps] = {lab.clients[i]: [["receive", 1]] for i, _ in downloads}
    steps |= {lab.clients[i]: [["send", [(i, nbytes)]]] for i, nbytes in uploads}
    seen = lab.run(steps | {SERVER: [["send", downloads], ["receive", len(uploads)]]})
    down = _sent(seen[SERVER][0], (seen[lab.clients[i]][0][0] for i, _ in downloads))
    return down, _sent((seen[lab.clients[i]][0][0] for i, _ in uploads), sorted(seen[SERVER][1]))


def whole_round(lab: Lab, payload_nbytes: int, compute_seconds: Sequence[float]) -> tuple[Sent, Sent]:
    """The server sends all clients a `Train`; each computes (it sleeps) and sends an `Update`: downloads, uploads."""
    lab.settle()
    count = len(lab.clients)
    visits: dict[str, Steps] = {
        name: [["receive", 1], ["sleep", compute_seconds[i]], ["send", [(i, payload_nbytes)]]]
        for i, name in enumerate(lab.clients)
    }
    serve: Steps = [["send", [(i, payload_nbytes) for i in range(count)]], ["receive", count]]
    seen = lab.run(visits | {SERVER: serve})
    down = _sent(seen[SERVER][0], (seen[name][0][0] for name in lab.clients))
    up = _sent((seen[name][2][0] for name in lab.clients), sorted(seen[SERVER][1]))
    return down, up


def tiered_rounds(
    wan: Lab, lans: Sequence[Lab], payload_nbytes: int, compute_seconds: Doubles, rounds: int, folder: Path
) -> list[tuple[Sent, Sent]]:
    """Rounds right after each other: downloads and uploads of the gateways, which are the clients of ``wan``.

    At gateway i is the server of ``lans[i]``. It sends on what it has got; its clients compute (they sleep) and send an
    `Update` each, and when all have come, the gateway sends its own. ``compute_seconds``: (gateways, clients);
    ``folder``: an empty one.
    """
    inward, outward = ([str(folder / f"{way}{i}") for i in range(len(lans))] for way in ("in", "out"))
    for pipe in (*inward, *outward):
        os.mkfifo(pipe)
    wan.settle()
    for i, lan in enumerate(lans):
        messages = [(k, payload_nbytes) for k in range(len(lan.clients))]
        serve: Steps = [["wait", inward[i]], ["send", messages], ["receive", len(messages)], ["wake", outward[i]]]
        visits: dict[str, Steps] = {
            name: [["receive", 1], ["sleep", float(compute_seconds[i, k])], ["send", [messages[k]]]] * rounds
            for k, name in enumerate(lan.clients)
        }
        lan.tell(visits | {SERVER: [*serve] * rounds})
    messages = [(i, payload_nbytes) for i in range(len(lans))]
    meetings: dict[str, Steps] = {
        name: [["receive", 1], ["wake", inward[i]], ["wait", outward[i]], ["send", [messages[i]]]] * rounds
        for i, name in enumerate(wan.clients)
    }
    seen = wan.run(meetings | {SERVER: [["send", messages], ["receive", len(messages)]] * rounds})
    for lan in lans:
        lan.hear([SERVER, *lan.clients])
    served, met = seen[SERVER], [seen[name] for name in wan.clients]
    return [
        (
            _sent(served[2 * round], (taken[4 * round][0] for taken in met)),
            _sent((taken[4 * round + 3][0] for taken in met), sorted(served[2 * round + 1])),
        )
        for round in range(rounds)
    ]


def error_percent(predicted: Doubles | float, measured: Doubles | float) -> Doubles:
    """How far a prediction is off; negative is too early."""
    return np.asarray((np.asarray(predicted) / measured - 1.0) * 100.0)


def _sent(handed_over: Iterable[Sequence[float]], received: Iterable[Sequence[float]]) -> Sent:
    start, finish, counted = [], [], []
    for (client, at, nbytes), (receiver, until, arrived_nbytes, charged_nbytes) in zip(
        handed_over, received, strict=True
    ):
        assert client == receiver, (client, receiver)
        assert nbytes == arrived_nbytes == charged_nbytes, (nbytes, arrived_nbytes, charged_nbytes)
        start.append(at)
        finish.append(until)
        counted.append(int(nbytes))
    return Sent(np.array(start), np.array(finish), tuple(counted))
