"""Where messages contend over short queues or lossy links, it is said that fair shares may be far off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.config import AccessLinks, ServerLink, Transport
from costmodel.fleet.devices import networks
from costmodel.fleet.fair_shares import doubts
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from tests.costmodel.worlds import fleet_of

MORE = (
    "rounds may take up to 2.5 times as long as fair shares say; fleet.transport.sharing = windows follows each sender"
)
SHORT = "fleet.transport.queue = 64 kB: shorter than the 100 kB of a path (20 Mbit/s x 40 ms) over the server's link up"


def fleet_with(queue: int, loss: float = 0.0, **keys: Any) -> Fleet:
    """Ten clients of 30 Mbit/s and 40 ms behind an uplink of 20 Mbit/s."""
    row = replace(networks()["wifi-4"], rtt_seconds=0.04, up_bits_per_second=30e6, down_bits_per_second=30e6, loss=loss)
    inputs = FleetInputs(networks={"wifi-4": row})
    transport = Transport(queue=queue)
    return fleet_of(
        10,
        inputs,
        server=ServerLink(1e9, 20e6),
        networks={"wifi-4": 1},
        transport=transport,
        down_sigma=0,
        up_sigma=0,
        **keys,
    )


@pytest.mark.parametrize(
    ("queue", "visits", "contention", "said"),
    [
        (64_000, 10, 0.4, [f"{SHORT}: {MORE}"]),
        (64_000, 1, 0.4, [f"{SHORT}: {MORE}"]),  # one own link is faster than the server's
        (128_000, 10, 0.4, []),  # longer than the path
        (64_000, 10, 0.05, []),  # links are seldom full
    ],
)
def test_a_queue_shorter_than_its_path_is_doubted(queue: int, visits: int, contention: float, said: list[str]) -> None:
    fleet = fleet_with(queue)
    assert list(doubts(fleet, visits, contention)) == said
    by_windows = replace(fleet, links=replace(fleet.links, transport=Transport(queue=queue, sharing="windows")))
    assert list(doubts(by_windows, visits, contention)) == []


def test_the_link_that_is_asked_for_most_is_named() -> None:
    (text,) = doubts(fleet_with(16_000, gateways=AccessLinks(count=2, down=100e6, up=5e6)), 10, 0.5)
    assert "the 25 kB of a path (5 Mbit/s x 40 ms) over a gateway up" in text


def test_lost_segments_are_doubted_where_a_link_is_shared() -> None:
    fleet = fleet_with(256_000, loss=0.003)
    assert list(doubts(fleet, 10, 0.4)) == [f"segments are lost, and the server's link up is shared: {MORE}"]
    assert list(doubts(replace(fleet, links=replace(fleet.links, up=1e9)), 10, 0.4)) == []
