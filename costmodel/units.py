"""Quantities with units ("50 GB", "20 Mbit/s", "15 min") to SI numbers, and back for tables.

Units are exact and case-sensitive: a megabyte is 1,000,000 bytes (MB), a mebibyte 1,048,576 (MiB). A number without a
unit is already in SI: byte, bit/s, second, FLOP, FLOP/s, joule, watt, hertz; a mass is in grams. A text without a unit
is an error. An unknown unit that others use for the same, such as Mbps, or MB/s where bits are counted, is an error
that says the quantity in a known one.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

Quantity = str | int | float
Units = Mapping[str, int | Decimal]
"""The SI value of each unit, smallest unit first."""

BYTES: Units = {"B": 1} | {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)}
BINARY_BYTES: Units = {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
RATES: Units = {"bit/s": 1} | {f"{prefix}bit/s": 1000**power for power, prefix in enumerate("kMGT", start=1)}
SECONDS: Units = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": 1, "min": 60, "h": 3600, "d": 86400}
FLOPS: Units = {"FLOP": 1} | {f"{prefix}FLOP": 1000**power for power, prefix in enumerate("kMGTPE", start=1)}
FLOP_RATES: Units = {f"{unit}/s": scale for unit, scale in FLOPS.items()}
HERTZ: Units = {"Hz": 1} | {f"{prefix}Hz": 1000**power for power, prefix in enumerate("kMG", start=1)}
WATTS: Units = {"mW": Decimal("1e-3"), "W": 1, "kW": 10**3}
JOULES: Units = {"mJ": Decimal("1e-3"), "J": 1, "kJ": 10**3, "MJ": 10**6, "GJ": 10**9}
WATT_HOURS: Units = {"Wh": 3600, "kWh": 3600 * 10**3}
GRAMS: Units = {"mg": Decimal("1e-3"), "g": 1, "kg": 10**3, "t": 10**6}
GRAMS_PER_KWH: Units = {"lb/MWh": Decimal("0.45359237"), "g/kWh": 1, "kg/kWh": 10**3}

_EIGHTH = Decimal("0.125")
_PREFIXES = {prefix: 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))}
_BITS = {f"{prefix}{bit}": _EIGHTH * scale for prefix, scale in _PREFIXES.items() for bit in ("bit", "b")}
_BIT_RATES = {f"{prefix}{bit}": scale for prefix, scale in _PREFIXES.items() for bit in ("bps", "b/s", "bit", "b")}
_BYTE_RATES = {
    f"{unit}{per}": 8 * scale for unit, scale in {**BYTES, **BINARY_BYTES}.items() for per in ("/s", "ps", "")
}
_FLOP_RATES = {
    f"{prefix}{name}": scale
    for prefix, scale in {**_PREFIXES, "P": 10**15, "E": 10**18}.items()
    for name in ("FLOPS", "FLOPs", "FLOPs/s", "FLOP")
}
_LONG_SECONDS = {"sec": 1, "second": 1, "minute": 60, "hour": 3600, "hr": 3600, "day": 86400, "week": 604800}
_FOREIGN: Mapping[str, Units] = {
    "bytes": _BITS,
    "a data rate": {**_BIT_RATES, **_BYTE_RATES},
    "a speed of computing": _FLOP_RATES,
    "a duration": _LONG_SECONDS | {f"{name}s": scale for name, scale in _LONG_SECONDS.items()},
    "a carbon intensity": {
        f"{mass}{gas}/{energy}": scale
        for mass, energy, scale in (("g", "kWh", 1), ("kg", "kWh", 1000), ("kg", "MWh", 1), ("t", "MWh", 1000))
        for gas in ("", "CO2", "CO2e", "CO2eq", " CO2", " CO2e", " CO2eq")
    },
}
"""What is measured -> the SI value of units that others use for it, and that are not accepted."""

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86400.0

# More than any scenario needs of any unit; infinity, which stands for "no limit", is accepted.
LARGEST = 10**30

# Two digits of exponent are enough for any quantity; a hostile text could ask for a billion.
_QUANTITY = re.compile(r"\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?)\s*(?P<unit>[^\d\s.].*?)?\s*")


def nbytes(quantity: Quantity) -> int:
    """Bytes, rounded to whole ones: "50 GB", "20 MiB"; ValueError for anything else."""
    amount = _parse(quantity, {**BYTES, **BINARY_BYTES}, "bytes")
    if amount == math.inf:
        raise ValueError(f"{quantity!r} is not a number of bytes: it must be finite")
    return round(amount)


def of_a_month(quantity: Quantity) -> Quantity:
    """What a quantity for each month is: "10 GB/month" -> "10 GB"; any other as it is."""
    return re.sub(r" *(/|per) *month$", "", quantity) if isinstance(quantity, str) else quantity


def bits_per_second(quantity: Quantity) -> float:
    """A data rate in bit/s: "20 Mbit/s"; ValueError for anything else."""
    return float(_parse(quantity, RATES, "a data rate"))


def seconds(quantity: Quantity) -> float:
    """A duration in seconds: "15 min", "2 h", "300 ms"; ValueError for anything else."""
    return float(_parse(quantity, SECONDS, "a duration"))


def flops(quantity: Quantity) -> float:
    """Floating-point operations: "2 PFLOP"; ValueError for anything else."""
    return float(_parse(quantity, FLOPS, "a number of FLOPs"))


def flops_per_second(quantity: Quantity) -> float:
    """A speed of computing in FLOP/s: "5 GFLOP/s"; ValueError for anything else."""
    return float(_parse(quantity, FLOP_RATES, "a speed of computing"))


def joules(quantity: Quantity) -> float:
    """Energy in joules: "5 kJ", "2 Wh"; ValueError for anything else."""
    return float(_parse(quantity, {**JOULES, **WATT_HOURS}, "an energy"))


def watts(quantity: Quantity) -> float:
    """A power in watts: "6 W", "250 mW"; ValueError for anything else."""
    return float(_parse(quantity, WATTS, "a power"))


def hertz(quantity: Quantity) -> float:
    """A clock in hertz: "1.8 GHz"; ValueError for anything else."""
    return float(_parse(quantity, HERTZ, "a clock"))


def grams(quantity: Quantity) -> float:
    """A mass in grams: "5 kg", "300 mg"; ValueError for anything else."""
    return float(_parse(quantity, GRAMS, "a mass"))


def grams_per_kwh(quantity: Quantity) -> float:
    """A carbon intensity in g/kWh: "381 g/kWh", "0.381 kg/kWh", "840 lb/MWh"; ValueError for anything else."""
    return float(_parse(quantity, GRAMS_PER_KWH, "a carbon intensity"))


Parser = Callable[[Quantity], float]
PARSERS: Mapping[Parser, Units] = {
    nbytes: BYTES,
    bits_per_second: RATES,
    seconds: SECONDS,
    flops: FLOPS,
    flops_per_second: FLOP_RATES,
    joules: JOULES,
    watts: WATTS,
    hertz: HERTZ,
    grams: GRAMS,
}
"""The functions that read quantities, and the units that `exact` writes for each."""
_OF_NAMES: Mapping[str, Parser] = {
    "bytes": nbytes,
    "bits_per_second": bits_per_second,
    "flops_per_second": flops_per_second,
    "seconds": seconds,
    "watts": watts,
    "hz": hertz,
}


def parser_of(name: str) -> Parser | None:
    """The function that reads texts with units for a key or column whose name ends with its SI unit, such as
    ``memory_bytes`` or ``flops_per_second.conv``; None for any other name."""
    name = name.partition(".")[0]
    return next((parse for end, parse in _OF_NAMES.items() if f"_{name}".endswith(f"_{end}")), None)


def exact(amount: float, parse: Parser) -> str:
    """The text of a finite amount in SI that ``parse``, of `PARSERS`, reads as the same: 2e7 -> "20 Mbit/s".

    In the largest unit that takes no more digits than SI does: 270 -> "4.5 min", 100 -> "100 s".
    """
    return _exact(Decimal(repr(amount)), PARSERS[parse])


def _exact(amount: Decimal, units: Units) -> str:
    base = next(unit for unit, scale in units.items() if scale == 1)
    most = len(amount.normalize().as_tuple().digits)
    for unit, scale in reversed(list(units.items())):
        number = (amount / scale).normalize()
        if abs(number) >= 1 and len(number.as_tuple().digits) <= most and number * scale == amount:
            return f"{number:f} {unit}"
    return f"{amount.normalize():f} {base}"


def format_bytes(nbytes: float) -> str:
    """44_880_000 -> "44.9 MB"."""
    return _format(nbytes, BYTES, "B")


def format_rate(bits_per_second: float) -> str:
    """2e7 -> "20 Mbit/s"."""
    return _format(bits_per_second, RATES, "bit/s")


def format_seconds(seconds: float) -> str:
    """906 -> "15.1 min"."""
    return _format(seconds, SECONDS, "s")


def format_flops(flops: float) -> str:
    """2.5e15 -> "2.5 PFLOP"."""
    return _format(flops, FLOPS, "FLOP")


def format_flop_rate(flops_per_second: float) -> str:
    """With a prefix: 10 TFLOP/s."""
    return f"{format_flops(flops_per_second)}/s"


def format_joules(joules: float) -> str:
    """5000 -> "5 kJ"."""
    return _format(joules, JOULES, "J")


def format_grams(grams: float) -> str:
    """0.0123 -> "12.3 mg"."""
    return _format(grams, GRAMS, "g")


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the nearest valid name, or all of them if none is near."""
    valid = list(names)
    folded = {candidate.lower(): candidate for candidate in reversed(valid)}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]!r}?" if near else f"choose from {', '.join(valid)}"


def _parse(quantity: Quantity, units: Units, meaning: str) -> int | float | Decimal:
    # In decimal, so that "2.3 GB" is 2,300,000,000 bytes and "7 ms" the float nearest to 0.007.
    if isinstance(quantity, str):
        amount: int | float | Decimal = _parse_text(quantity, units, meaning)
    elif isinstance(quantity, bool) or not isinstance(quantity, int | float):
        raise ValueError(f"{quantity!r} is not {meaning}: write a number and a unit of {', '.join(units)}")
    else:
        amount = quantity
    if amount < 0 or amount != amount:
        raise ValueError(f"{quantity!r} is not {meaning}: it must not be negative")
    if LARGEST < amount < math.inf:
        raise ValueError(f"{quantity!r} is not {meaning}: it is too large")
    return amount


def _parse_text(text: str, units: Units, meaning: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {meaning}: write a number and a unit of {', '.join(units)}")
    unit = match["unit"]
    if unit is None:
        raise ValueError(f"{text!r} is {meaning} without a unit: add one of {', '.join(units)}")
    if unit not in units:
        raise ValueError(f"{text!r} is not {meaning}: unknown unit {unit!r}, {_meant(match, units, meaning)}")
    return Decimal(match["number"]) * units[unit]


def _meant(match: re.Match[str], units: Units, meaning: str) -> str:
    """The quantity in known units, for an unknown one that others use or that begins some; else the nearest unit."""
    number, unit, foreign = match["number"], match["unit"], _FOREIGN.get(meaning, {})
    if unit.lower() in map(str.lower, units):
        return nearest(unit, units)
    scales = [foreign[unit]] if unit in foreign else [s for u, s in foreign.items() if u.lower() == unit.lower()]
    decimal = {name: scale for name, scale in units.items() if name not in BINARY_BYTES}
    texts = [_exact(Decimal(number) * scale, decimal) for scale in scales]
    texts = texts or [f"{number} {name}" for name in units if name.startswith(unit)]
    return f"did you mean {' or '.join(map(repr, dict.fromkeys(texts)))}?" if texts else nearest(unit, units)


def _format(amount: float, units: Units, base: str) -> str:
    if amount == 0 or not math.isfinite(amount):
        return f"{amount:g} {base}"
    # The largest unit of which there is at least one after rounding, so that 999,999 B is 1 MB and not 1000 kB.
    rounded = {unit: float(f"{amount / float(scale):.3g}") for unit, scale in units.items()}
    unit = next((unit for unit in reversed(rounded) if abs(rounded[unit]) >= 1), next(iter(rounded)))
    return f"{rounded[unit]:g} {unit}"
