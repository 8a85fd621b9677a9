"""CO2e of joules: by a zone's figure with its source, or by a number of the user's."""

from __future__ import annotations

import pytest

from costmodel.config import CarbonConfig
from costmodel.fleet.carbon import INTENSITY, Intensity, intensity, note, zones


def test_a_kilowatt_hour_emits_the_intensity() -> None:
    assert Intensity(381.0).co2e_grams(3.6e6) == 381.0
    assert Intensity(381.0).co2e_grams(18e6) == pytest.approx(5 * 381.0)  # 5 kWh
    assert Intensity(0.0).co2e_grams(18e6) == 0.0


def test_a_zone_has_the_figure_of_a_year_and_by_default_the_latest() -> None:
    # As Our World in Data has them, read on 29 November 2026.
    chosen = intensity(CarbonConfig(zone="DE", year=2023))
    assert chosen is not None
    assert (chosen.grams_per_kwh, chosen.text) == (362.92, "362.92 g/kWh, DE 2023")
    latest = intensity(CarbonConfig(zone="WORLD"))
    assert latest is not None
    assert (latest.grams_per_kwh, latest.year) == (458.29, 2025)
    assert latest.source == "Ember, Yearly Electricity Data 2026, via Our World in Data"
    assert "no imports" in latest.account
    assert "Left out: the server, aggregators, networks between them and the devices" in latest.account
    iceland = intensity(CarbonConfig(zone="IS"))  # whose row has no 2025
    assert iceland is not None
    assert (iceland.grams_per_kwh, iceland.year) == (27.82, 2024)


def test_a_number_of_the_users_names_no_source() -> None:
    own = intensity(CarbonConfig(grams_per_kwh=381.0))
    assert own is not None
    assert (own.text, own.source, own.counts) == ("381 g/kWh", "your number", "")
    assert intensity(CarbonConfig()) is None


def test_every_row_that_ships_has_a_dated_source_and_plausible_figures() -> None:
    assert len(zones()) == 60
    for code, zone in zones().items():
        assert code.isupper(), code
        assert zone.source.published < zone.source.accessed, code
        assert list(zone.grams_per_kwh) in ([2023, 2024, 2025], [2023, 2024]), code
        assert all(INTENSITY.least < grams < INTENSITY.most for grams in zone.grams_per_kwh.values()), code


def test_a_number_that_is_likely_in_kilograms_is_doubted() -> None:
    assert note(CarbonConfig(grams_per_kwh=0.4)) == "fleet.carbon.grams_per_kwh = 0.4 g/kWh; kg/kWh given?"
    assert note(CarbonConfig(grams_per_kwh=381e3)) == "fleet.carbon.grams_per_kwh = 381,000 g/kWh; g/MWh given?"
    assert [note(CarbonConfig(grams_per_kwh=grams)) for grams in (0.0, 27.0, 1300.0)] == ["", "", ""]
    assert note(CarbonConfig(zone="DE")) == ""
