"""The share of a run's time that rests on assumed figures: seconds of visits by the basis of the figures behind them.

Computing rests on the throughput that the device's row gives for the run's model, and on its step overhead; a transfer
on the network row's rate in its direction. Seconds count under the weakest basis of the figures that they rest on. What
else a time depends on (round trips, loss, spreads, sharing) is not looked at, and rows are never changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.fleet.devices import Device, Network, basis, devices, networks
from costmodel.fleet.traces import ClientTrace, Machines, RecordedDays
from scenarios.config import fleet_files
from scenarios.config.load import Loaded
from scenarios.config.schema import Scenario
from scenarios.run.visits import Query

READ = "read"
BASES = ("assumed", "derived", "inference", READ)
"""Weakest first. `READ`: measured in training, read in a source, or given by the scenario's own files and keys."""


def row_bases(loaded: Loaded) -> dict[str, dict[str, dict[str, str]]]:
    """What ``environment.json`` keeps: ``devices`` and ``networks``, name -> part of a visit -> basis."""
    scenario = loaded.scenario
    inputs = fleet_files.read_inputs(scenario)
    given = _given(scenario, inputs.trace)
    all_devices, all_networks = {**devices(), **inputs.devices}, {**networks(), **inputs.networks}
    bases: dict[str, dict[str, dict[str, str]]] = {"devices": {}, "networks": {}}
    for name in dict.fromkeys(scenario.fleet.devices):
        row = all_devices[name]
        used = next(family for family in (loaded.model.name, loaded.model.family) if family in row.flops_per_second)
        throughput = READ if "flops_per_second" in given else _basis(row, f"flops_per_second.{used}")
        bases["devices"][name] = {"compute": min(throughput, _basis(row, "step_seconds"), key=BASES.index)}
    for name in dict.fromkeys(scenario.fleet.networks):
        rates = {way: _basis(all_networks[name], f"{way}_bits_per_second") for way in ("down", "up")}
        bases["networks"][name] = dict.fromkeys(rates, READ) if "rates" in given else rates
    return bases


def seconds_by_basis(query: Query, bases: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Each of `BASES` -> seconds of all visits; None for a run whose environment has no ``bases`` for all of them.

    ``query``: `coordinator.records.store.read` bound to the run's ledger.
    """
    if bases is None:
        return None
    seconds = dict.fromkeys(BASES, 0.0)
    for row in query(
        "SELECT device, network, TOTAL(down_end_s - start_s) down, TOTAL(compute_end_s - down_end_s) compute, "
        "TOTAL(up_end_s - compute_end_s) up FROM visits GROUP BY device, network ORDER BY device, network"
    ):
        for part, of in (("down", "networks"), ("compute", "devices"), ("up", "networks")):
            name = row["device" if of == "devices" else "network"]
            known = bases.get(of, {}).get(name, {}).get(part)
            if known not in seconds:  # in an environment that no run has written
                return None
            seconds[known] += row[part]
    return seconds


def shares(seconds: Mapping[str, float] | None) -> dict[str, float] | None:
    """Basis -> share in [0, 1]; None if the bases are unknown, or no visit took any time."""
    total = sum(seconds.values()) if seconds else 0.0
    return {name: each / total for name, each in seconds.items()} if seconds and total else None


def _given(scenario: Scenario, trace: ClientTrace | None) -> set[str]:
    """What the scenario gives in place of its rows' figures: ``rates``, ``flops_per_second``."""
    section = scenario.fleet
    given = {"rates"} if section.rates is not None or section.trace is not None else set()
    has_speeds = isinstance(trace, Machines) or (isinstance(trace, RecordedDays) and trace.flops_per_second is not None)
    return given | {"flops_per_second"} if has_speeds else given


def _basis(row: Device | Network, key: str) -> str:
    found = basis(row, key)
    return found if found in BASES else READ
