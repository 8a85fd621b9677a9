"""The basis of the figures that a run's times rest on: from the rows, unless the scenario gives figures of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import visits


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
    found = visits.row_bases(load("digits", parse_all(["fleet.networks={wifi-4=1}", override])))
    assert {parts["compute"] for parts in found["devices"].values()} >= {device}
    assert found["networks"] == {"wifi-4": {"down": network[0], "up": network[1]}}


def test_a_file_of_machines_gives_rates_and_throughputs_and_a_row_the_step(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "client,flops_per_second,down_bits_per_second,up_bits_per_second\n0,1e9,1e6,1e6\n"
    )
    options = [f"fleet.trace={tmp_path / 'own.csv'}", "fleet.networks={lte=1}"]
    for device, expected in (("phone-low", "derived"), ("server-gpu", "assumed"), ("phone-high", "read")):
        found = visits.row_bases(load("digits", parse_all([*options, f"fleet.devices={{{device}=1}}"])))
        assert found == {
            "devices": {device: {"compute": expected}},
            "networks": {"lte": {"down": "read", "up": "read"}},
        }
