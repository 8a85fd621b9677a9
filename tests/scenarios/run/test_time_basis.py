"""The basis of the figures that a run's times rest on: from the rows, unless the scenario gives figures of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.run import visits
from scenarios.run.setup import RunInputs


def row_bases(loaded: Loaded) -> dict[str, dict[str, dict[str, str]]]:
    inputs = RunInputs(loaded)
    return visits.row_bases(inputs.scenario, inputs.files, inputs.families)


@pytest.mark.parametrize(
    ("override", "device", "network"),
    [
        # The step of a phone was measured, that of a Nano is assumed; Wi-Fi's downlink was read, its uplink was not.
        ("fleet.devices={phone-high=1}", "read", ("read", "assumed")),
        ("fleet.devices={phone-low=1}", "derived", ("read", "assumed")),
        ("fleet.devices={jetson-nano=1}", "assumed", ("read", "assumed")),
        ("fleet.rates=['1 Mbit/s', '2 Mbit/s']", "assumed", ("read", "read")),
    ],
)
def test_a_basis_is_the_weakest_of_the_figures_that_the_run_uses(
    override: str, device: str, network: tuple[str, str]
) -> None:
    found = row_bases(load("digits", parse_all(["fleet.networks={wifi-4=1}", override])))
    assert {parts["compute"] for parts in found["devices"].values()} >= {device}
    assert found["networks"] == {"wifi-4": {"down": network[0], "up": network[1]}}


def test_a_file_of_machines_gives_rates_and_throughputs_and_a_row_the_step(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "client,flops_per_second,down_bits_per_second,up_bits_per_second\n0,1e9,1e6,1e6\n"
    )
    options = [f"fleet.trace={tmp_path / 'own.csv'}", "fleet.networks={lte=1}"]
    for device, expected in (("phone-low", "derived"), ("server-gpu", "assumed"), ("phone-high", "read")):
        found = row_bases(load("digits", parse_all([*options, f"fleet.devices={{{device}=1}}"])))
        assert found == {
            "devices": {device: {"compute": expected}},
            "networks": {"lte": {"down": "read", "up": "read"}},
        }


@pytest.mark.parametrize(
    ("column", "values", "up_file", "expected"),
    [
        ("bits_per_second", (5e6, 9e6), False, ("read", "read")),  # both directions follow the file
        ("factor", (0.5, 1.5), False, ("read", "assumed")),  # times the rates of the row
        ("factor", (0.5, 1.5), True, ("read", "read")),
    ],
)
def test_recorded_rates_of_links_are_the_scenarios_own(
    column: str, values: tuple[float, float], up_file: bool, expected: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "down.csv").write_text(f"seconds,{column}\n0,{values[0]}\n1,{values[1]}\n")
    (tmp_path / "up.csv").write_text("seconds,bits_per_second\n0,1e6\n1,2e6\n")
    link = ["bandwidth.kind=trace", f"bandwidth.file={tmp_path / 'down.csv'}"]
    link += [f"bandwidth.up_file={tmp_path / 'up.csv'}"] if up_file else []
    own = load("digits", parse_all(["fleet.networks={wifi-4=1}", *(f"fleet.{word}" for word in link)]))
    assert row_bases(own)["networks"]["wifi-4"] == dict(zip(("down", "up"), expected, strict=True))
    # Draws vary what rests on rows, and nothing else.
    traced = RunInputs(own).drawn_fleet.traced
    assert traced == {way for way in ("down", "up") if column == "bits_per_second" or (way == "up" and up_file)}
    tiers = ["fleet.tiers.count=2", "fleet.tiers.networks={wifi-4=1}", *(f"fleet.tiers.{word}" for word in link)]
    above = load("digits", parse_all(tiers))
    assert row_bases(above)["aggregators"]["wifi-4"] == dict(zip(("down", "up"), expected, strict=True))
    (fleet,) = RunInputs(above).tier_clock().fleets
    assert fleet.traced == traced
