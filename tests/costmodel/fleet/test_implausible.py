"""Numbers that are a thousand times off are doubted with the unit that they may have, and right ones are not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.config import AccessLinks, FleetConfig, Prices, ServerLink, TierConfig, UpperTier
from costmodel.fleet.devices import devices, networks
from costmodel.fleet.implausible import RATE, doubt_of_series, doubts_of_row, doubts_of_tables, doubts_of_trace
from costmodel.fleet.traces import Capacities, Cases, ClientTrace, Machines, RecordedDays, Users
from costmodel.step_series import StepSeries

BOARD = replace(devices()["raspberry-pi-5"], name="board")
LINK = replace(networks()["wifi-4"], name="link")


def test_shipped_rows_are_plausible() -> None:
    for rows in (devices(), networks()):
        assert [text for row in rows.values() for text in doubts_of_row(row)] == []


@pytest.mark.parametrize(
    ("figures", "note"),
    [
        ({"flops_per_second": {"conv": 120.0}}, "board: flops_per_second.conv = 120 FLOP/s; GFLOP/s given?"),
        ({"step_seconds": 5.0}, "board: step_seconds = 5 s; ms given?"),
        ({"train_watts": 10_000.0}, "board: train_watts = 10,000 W; mW given?"),
        ({"idle_watts": 12.0}, "board: idle_watts: 12 W is more than train_watts, 11 W"),
        ({"memory_bytes": 4}, "board: memory_bytes = 4 B; GB or MB given?"),
        ({"clock_hz": 2.4}, "board: clock_hz = 2.4 Hz; GHz or MHz given?"),
        # Each of these may be right, but not both: a step that takes 5 s for 5 ms has such a throughput.
        (
            {"flops_per_second": {"conv": 22e6}},
            "board: FLOP/s (conv) over watts = 2e+06 FLOP/J; other units given?",
        ),
    ],
)
def test_a_figure_of_a_device_is_doubted(figures: dict[str, Any], note: str) -> None:
    assert list(doubts_of_row(replace(BOARD, **figures))) == [note]


def test_every_family_of_a_device_is_doubted() -> None:
    assert list(doubts_of_row(replace(BOARD, flops_per_second={"conv": 120.0, "depthwise": 5.0}))) == [
        "board: flops_per_second.conv = 120 FLOP/s; GFLOP/s given?",
        "board: flops_per_second.depthwise = 5 FLOP/s; GFLOP/s given?",
    ]


@pytest.mark.parametrize(
    ("figures", "note"),
    [
        ({"down_bits_per_second": 54.0}, "link: down_bits_per_second = 54 bit/s; Mbit/s given?"),
        ({"rtt_seconds": 40.0}, "link: rtt_seconds = 40 s; ms given?"),
        ({"transmit_watts": 1550.0}, "link: transmit_watts = 1,550 W; mW given?"),
        ({"transmit_joules_per_bit": 438.0}, "link: transmit_joules_per_bit = 438 J/bit; uJ/bit or nJ/bit given?"),
        ({"tail_seconds": 240.0}, "link: tail_seconds = 240 s; ms given?"),
    ],
)
def test_a_figure_of_a_network_is_doubted(figures: dict[str, Any], note: str) -> None:
    assert list(doubts_of_row(replace(LINK, **figures))) == [note]


def test_prices_and_rates_that_are_shared_are_doubted_and_no_limit_is_not() -> None:
    assert list(doubts_of_tables(FleetConfig(price=Prices(gb=5.0, kwh=0.3), server=ServerLink(up=math.inf)))) == []
    above = UpperTier(1, price=1e6)
    tiers = TierConfig(2, down=100.0, price=2e-9, above=above)
    config = FleetConfig(
        rates=(5.0, 20e6), price=Prices(1e-9, 8e-8), server=ServerLink(up=20.0), gateways=AccessLinks(), tiers=tiers
    )
    assert list(doubts_of_tables(config)) == [
        "fleet.server.up = 20 bit/s; Mbit/s given?",
        "fleet.tiers.down = 100 bit/s; Mbit/s given?",
        "fleet.rates = 5 bit/s; Mbit/s given?",
        "fleet.price.gb = 1e-09 a GB; the price of a MB or a byte given?",
        "fleet.price.kwh = 8e-08 a kWh; the price of a Wh or a joule given?",
        "fleet.tiers.price = 2e-09 a GB; the price of a MB or a byte given?",
        "fleet.tiers.above.price = 1e+06 a GB; the price of a TB given?",
    ]


def series(*rates: float) -> StepSeries:
    return StepSeries(tuple(map(float, range(len(rates)))), rates, len(rates))


def test_rates_over_time_are_doubted_where_all_are_too_small() -> None:
    assert doubt_of_series("t.csv:", [series(5, 0, 10, 4)], RATE) == "t.csv: at most 10 bit/s; Mbit/s given?"
    assert doubt_of_series("t.csv:", [series(5, 0, 10, 5e6)], RATE) == ""  # a link may break down


PAIR = np.array([20e6, 8e6])


@pytest.mark.parametrize(
    ("trace", "notes"),
    [
        (Machines(("a", "b"), np.array([30e9, 120.0]), PAIR, PAIR, np.array([40.0, 0.02])), [
            "column flops_per_second: as little as 120 FLOP/s; GFLOP/s given?",
            "column rtt_seconds: as much as 40 s; ms given?",
        ]),
        (Machines(("a", "b"), PAIR * 1e3, PAIR / 1e6, PAIR, None), [
            "column down_bits_per_second: as little as 8 bit/s; Mbit/s given?",
        ]),
        (RecordedDays(("a",), 9.0, (series(5, 10),), (series(0, 9e6),), (series(30, 0),), None), [
            "column down_bits_per_second: at most 10 bit/s; Mbit/s given?",
            "column flops_per_second: at most 30 FLOP/s; GFLOP/s given?",
        ]),
        (Users(PAIR, PAIR / 1e5, PAIR, PAIR), ["column up_kbps_mean: as little as 80 bit/s; Mbit/s given?"]),
        (Cases({1: (PAIR / 1e5, PAIR)}), ["column kbps_mean: as little as 80 bit/s; Mbit/s given?"]),
        (Capacities(PAIR, PAIR * 1e6), ["column communication_kbps: as much as 2e+13 bit/s"]),
        (Capacities(PAIR, PAIR), []),
    ],
)  # fmt: skip
def test_columns_of_a_trace_are_doubted(trace: ClientTrace, notes: list[str]) -> None:
    assert [text for text in doubts_of_trace(trace) if text] == notes
