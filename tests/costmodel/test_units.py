"""Quantities are read exactly, written short, and refused with the valid units."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from costmodel import units


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.nbytes, "50 GB", 50_000_000_000),
        (units.nbytes, "20 MiB", 20_971_520),
        (units.nbytes, "1e3 B", 1000),
        (units.nbytes, " 7 kB ", 7000),
        (units.bits_per_second, "20 Mbit/s", 20_000_000.0),
        (units.seconds, "15 min", 900.0),
        (units.seconds, "300 ms", 0.3),
        (units.joules, "5 kJ", 5000.0),
        (units.joules, "2 Wh", 7200.0),
        (units.flops_per_second, "5 GFLOP/s", 5e9),
        (units.watts, "250 mW", 0.25),
        (units.hertz, "1.8 GHz", 1.8e9),
        (units.grams, "2.5 kg", 2500.0),
        (units.grams_per_kwh, "0.381 kg/kWh", 381.0),
        (units.grams_per_kwh, "1000 lb/MWh", 453.59237),
    ],
)
def test_a_text_is_converted_to_si_exactly(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == expected
    assert type(parse(text)) is type(expected)


def test_a_number_is_already_in_si() -> None:
    assert units.nbytes(5e9) == 5_000_000_000
    assert type(units.nbytes(5e9)) is int
    assert units.seconds(90) == 90.0
    assert units.bits_per_second(math.inf) == math.inf


@pytest.mark.parametrize(
    ("parse", "quantity", "message"),
    [
        (units.nbytes, "50 gb", "'50 gb' is not bytes: unknown unit 'gb', did you mean 'GB'?"),
        (units.seconds, "15", "'15' is a duration without a unit: add one of us, ms, s, min, h, d"),
        (units.seconds, "soon", "'soon' is not a duration: write a number and a unit of us, ms"),
        (units.seconds, "-1 s", "'-1 s' is not a duration: it must not be negative"),
        (units.flops, math.nan, "nan is not a number of FLOPs"),
        (units.joules, True, "True is not an energy"),
        (units.seconds, 10**400, "is not a duration: it is too large"),
    ],
)
def test_anything_else_is_refused_by_name(parse: Callable[[Any], float], quantity: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(quantity)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("parse", "quantity", "hint"),
    [
        (units.bits_per_second, "20 MB/s", "did you mean '160 Mbit/s'?"),
        (units.bits_per_second, "20 Mbps", "did you mean '20 Mbit/s'?"),
        (units.bits_per_second, "20 mb/s", "did you mean '20 Mbit/s' or '160 Mbit/s'?"),
        (units.nbytes, "5 Mbit", "did you mean '625 kB'?"),
        (units.nbytes, "5 G", "did you mean '5 GB' or '5 GiB'?"),
        (units.seconds, "2 hours", "did you mean '2 h'?"),
        (units.flops_per_second, "2 GFLOPS", "did you mean '2 GFLOP/s'?"),
        (units.grams_per_kwh, "381 gCO2/kWh", "did you mean '381 g/kWh'?"),
        (units.grams_per_kwh, "381 kg/MWh", "did you mean '381 g/kWh'?"),
    ],
)
def test_a_unit_of_others_is_converted_and_an_ambiguous_one_is_asked_about(
    parse: Callable[[Any], float], quantity: str, hint: str
) -> None:
    with pytest.raises(ValueError) as error:
        parse(quantity)
    assert str(error.value).endswith(hint)


@pytest.mark.parametrize(
    ("amount", "parse", "text"),
    [
        (2e7, units.bits_per_second, "20 Mbit/s"),
        (270.0, units.seconds, "4.5 min"),
        (0.4, units.seconds, "400 ms"),
        (1 / 3, units.seconds, "333.3333333333333 ms"),
        (1_048_576, units.nbytes, "1.048576 MB"),
        (1e30, units.flops, "1000000000000 EFLOP"),
        (1e-7, units.seconds, "0.0000001 s"),
    ],
)
def test_an_amount_is_written_in_units_without_any_loss(
    amount: float, parse: Callable[[Any], float], text: str
) -> None:
    assert units.exact(amount, parse) == text
    assert parse(text) == amount


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.format_bytes(44_880_000), "44.9 MB"),
        (units.format_bytes(999_999), "1 MB"),
        (units.format_rate(20e6), "20 Mbit/s"),
        (units.format_seconds(906), "15.1 min"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(math.inf), "inf s"),
        (units.format_flops(2.5e15), "2.5 PFLOP"),
        (units.format_joules(-5000), "-5 kJ"),
        (units.format_grams(0.0123), "12.3 mg"),
    ],
)
def test_a_table_shows_three_digits_in_decimal_units(written: str, expected: str) -> None:
    assert written == expected


def test_the_nearest_name_is_proposed_if_one_is_near() -> None:
    assert units.nearest("Jetson_Nano", ["jetson-nano", "jetson-tx2"]) == "did you mean 'jetson-nano'?"
    assert units.nearest("toaster", ["jetson-nano", "jetson-tx2"]) == "choose from jetson-nano, jetson-tx2"


def test_a_name_says_its_unit_at_its_end() -> None:
    names = ("memory_bytes", "up_bits_per_second", "flops_per_second.conv", "seconds", "idle_watts", "clock_hz")
    expected = [units.nbytes, units.bits_per_second, units.flops_per_second, units.seconds, units.watts, units.hertz]
    assert [units.parser_of(name) for name in names] == expected
    others = ("year", "transmit_joules_per_bit", "operations_per_second.linear", "kilobytes", "kbps_mean")
    assert [units.parser_of(name) for name in others] == [None] * 5
