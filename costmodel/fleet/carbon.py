"""CO2e of the energy that clients' devices spend: joules times the carbon intensity of their electricity.

The intensity is that of a zone and year, a row of carbon.toml with its source, or the user's number. It is a mean over
a year: nothing is known here of the hour, of imports, or of the plants that another kilowatt hour would start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from costmodel.config import CarbonConfig
from costmodel.files import parse_toml
from costmodel.fleet.implausible import Plausible, doubt
from costmodel.units import nearest

JOULES_PER_KWH = 3.6e6
INTENSITY = Plausible("g/kWh", 2.0, 2000.0, "kg/kWh", "g/MWh")
"""The rows that ship lie between 27 and 717 g/kWh."""
OWN_NUMBER = "your number"
"""The source of an intensity that is no row's"""
LEFT_OUT = (
    "the server, aggregators, networks between them and the devices, cooling, evaluations that are not charged, making "
    "and disposal of devices"
)
"""Emissions of which joules of clients' visits know nothing; `CarbonSource.counts` has what an intensity leaves out."""


@dataclass(frozen=True)
class CarbonSource:
    """A publication of carbon intensities."""

    name: str
    """By which rows name it"""
    title: str
    place: str
    published: str
    """Date"""
    accessed: str
    """Date"""
    counts: str
    """The emissions that its figures count, and those that they do not"""


@dataclass(frozen=True)
class CarbonZone:
    """The carbon intensities of a zone."""

    name: str
    source: CarbonSource
    grams_per_kwh: Mapping[int, float]
    """By year, the earliest first"""
    also: tuple[str, ...] = ()
    """Other codes, which a scenario does not take and messages know"""

    @property
    def text(self) -> str:
        """``Germany: 362.92 (2023), 336.38 (2024) g/kWh [ember-2026]``."""
        figures = ", ".join(f"{grams:g} ({year})" for year, grams in self.grams_per_kwh.items())
        return f"{self.name}: {figures} g/kWh [{self.source.name}]"


@dataclass(frozen=True)
class Intensity:
    """The carbon intensity that the joules of a run are multiplied with."""

    grams_per_kwh: float
    zone: str | None = None
    """None: a number of the user's"""
    year: int | None = None
    source: str = OWN_NUMBER
    """The title of a publication"""
    counts: str = ""
    """As of `CarbonSource`"""

    def co2e_grams(self, joules: float) -> float:
        """The CO2 equivalents of these joules in grams."""
        return self.grams_per_kwh * joules / JOULES_PER_KWH

    @property
    def text(self) -> str:
        """``329.65 g/kWh, DE 2025``."""
        return f"{self.grams_per_kwh:g} g/kWh" + ("" if self.zone is None else f", {self.zone} {self.year}")

    @property
    def account(self) -> str:
        """What CO2e is made of, with its source, and what it leaves out, in sentences."""
        counts = f": {self.counts}" if self.counts else ""
        return f"CO2e is the energy of clients' visits at {self.text} ({self.source}){counts}. Left out: {LEFT_OUT}."


@cache
def zones() -> dict[str, CarbonZone]:
    """The zones that ship, by code."""
    tables = parse_toml(Path(__file__).with_name("carbon.toml").read_text(encoding="utf-8"))
    sources = {name: CarbonSource(name, **table) for name, table in tables["sources"].items()}
    return {
        code: CarbonZone(
            row["name"],
            sources[row["source"]],
            {int(year): grams for year, grams in row["grams_per_kwh"].items()},
            tuple(row.get("also", ())),
        )
        for code, row in tables["zones"].items()
    }


def sources() -> tuple[CarbonSource, ...]:
    """The publications that rows name, in their order."""
    return tuple(dict.fromkeys(zone.source for zone in zones().values()))


def intensity(config: CarbonConfig) -> Intensity | None:
    """The carbon intensity of a scenario; None if it has none.

    ValueError for a zone beside a number, an unknown zone, and a year without a zone or that the zone's row lacks.
    """
    if config.zone is None:
        if config.year is not None:
            raise ValueError(f"fleet.carbon.year = {config.year}: is the year of a zone; choose fleet.carbon.zone")
        return None if config.grams_per_kwh is None else Intensity(config.grams_per_kwh)
    if config.grams_per_kwh is not None:
        raise ValueError("fleet.carbon: zone and grams_per_kwh are two intensities; leave one out")
    zone = zones().get(config.zone)
    if zone is None:
        called = {name.lower(): code for code, row in zones().items() for name in (code, row.name, *row.also)}
        code = called.get(config.zone.lower())
        meant = nearest(config.zone, zones()) if code is None else f"did you mean {code!r}?"
        own = ", or set fleet.carbon.grams_per_kwh" if meant.startswith("choose") else ""
        raise ValueError(f"fleet.carbon.zone = {config.zone!r}: {meant}{own}")
    year = max(zone.grams_per_kwh) if config.year is None else config.year
    if year not in zone.grams_per_kwh:
        known = ", ".join(map(str, zone.grams_per_kwh))
        raise ValueError(f"fleet.carbon.year = {year}: zone {config.zone} has the years {known}")
    return Intensity(zone.grams_per_kwh[year], config.zone, year, zone.source.title, zone.source.counts)


def note(config: CarbonConfig) -> str:
    """A note on a number of the user's that is likely in another unit; '' if it may be right."""
    own = config.grams_per_kwh
    return "" if own is None else doubt("fleet.carbon.grams_per_kwh =", own, INTENSITY)
