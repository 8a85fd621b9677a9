"""Who gets what: exact shares, kept slow-downs, and rounds that depend on the caller's generators alone."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from costmodel.device import devices, networks
from costmodel.fleet import Fleet, counts


def _build(clients: int = 10, seed: int = 0, **options: Any) -> Fleet:
    chosen: dict[str, Any] = {"devices": {"raspberry-pi-5": 1}, "networks": {"lte": 1}, "server_down": 1e9}
    chosen |= {"server_up": 1e9, "rng": np.random.default_rng(seed)}
    return Fleet.build(clients, **(chosen | options))


def _never(client: int) -> np.random.Generator:
    raise AssertionError(f"a generator was asked for client {client}")


def test_shares_become_exact_counts_by_largest_remainder() -> None:
    # 10 * (5, 3, 1) / 9 = 5.56, 3.33, 1.11: whole 5, 3, 1, and the one that is left goes to the largest remainder.
    assert counts({"a": 5, "b": 3, "c": 1}, 10).tolist() == [6, 3, 1]
    assert counts({"a": 1, "b": 1}, 3).tolist() == [2, 1]
    assert counts({"a": 0.1, "b": 0.2, "c": 0.7}, 1000).tolist() == [100, 200, 700]


def test_every_client_has_one_device_and_one_network_and_their_order_is_random() -> None:
    fleet = _build(1000, devices={"raspberry-pi-4": 3, "jetson-nano": 1}, networks={"lte": 0.5, "wifi-4": 0.5})
    names = [fleet.device_name(client) for client in range(1000)]
    assert len(fleet) == 1000
    assert Counter(names) == {"raspberry-pi-4": 750, "jetson-nano": 250}
    assert Counter(fleet.network_name(client) for client in range(1000)) == {"lte": 500, "wifi-4": 500}
    # Of the first 200 clients about a quarter: 50, standard deviation 5.5.
    assert 25 < names[:200].count("jetson-nano") < 75


def test_a_list_names_the_device_of_each_client() -> None:
    fleet = _build(3, devices=["jetson-nano", "phone-low", "jetson-nano"])
    assert [fleet.device_name(client) for client in range(3)] == ["jetson-nano", "phone-low", "jetson-nano"]


def test_conditions_are_the_rows_of_the_tables_in_the_order_asked_for() -> None:
    fleet = _build(3, devices=["jetson-nano", "phone-low", "server-gpu"], networks=["lte", "wan", "5g"])
    conditions = fleet.conditions([2, 0], _never)
    gpu, nano, cell, lte = devices()["server-gpu"], devices()["jetson-nano"], networks()["5g"], networks()["lte"]
    assert {name: values.tolist() for name, values in dataclasses.asdict(conditions).items()} == {
        "flops_per_second": [gpu.flops_per_second, nano.flops_per_second],
        "down": [cell.down_bits_per_second, lte.down_bits_per_second],
        "up": [cell.up_bits_per_second, lte.up_bits_per_second],
        "rtt": [cell.rtt_seconds, lte.rtt_seconds],
        "train_watts": [gpu.train_watts, nano.train_watts],
        "idle_watts": [gpu.idle_watts, nano.idle_watts],
        "transmit_watts": [cell.transmit_watts, lte.transmit_watts],
        "receive_watts": [cell.receive_watts, lte.receive_watts],
    }
    assert all(values.dtype == np.float64 for values in dataclasses.asdict(conditions).values())


def test_a_spread_of_4_slows_log_uniformly_by_1_to_4() -> None:
    fleet = _build(2000, compute_spread=4, bandwidth_spread=4)
    conditions = fleet.conditions(range(2000), _never)
    slower = devices()["raspberry-pi-5"].flops_per_second / conditions.flops_per_second
    assert 1 <= slower.min() < 1.01
    assert 3.96 < slower.max() <= 4
    # log-uniform: half of them below the square root; 2000 draws have a standard deviation of 0.011.
    assert np.mean(slower < 2) == pytest.approx(0.5, abs=0.04)
    # One factor for both directions of a client's network, another than its device's.
    ratio = conditions.down / conditions.up
    assert ratio == pytest.approx(35 / 10)
    assert abs(np.corrcoef(slower, networks()["lte"].down_bits_per_second / conditions.down)[0, 1]) < 0.1


def test_a_spread_changes_neither_devices_nor_the_other_spread() -> None:
    shares = {"raspberry-pi-4": 1, "jetson-nano": 1}
    plain, spread = _build(50, devices=shares), _build(50, devices=shares, compute_spread=4)
    assert plain.device_of.tolist() == spread.device_of.tolist()
    assert plain.bandwidth_slowdown.tolist() == spread.bandwidth_slowdown.tolist() == [1.0] * 50
    listed = _build(50, devices=["jetson-nano"] * 50, compute_spread=4)
    assert listed.compute_slowdown.tolist() == spread.compute_slowdown.tolist()


def test_the_seed_alone_decides_the_fleet() -> None:
    options: dict[str, Any] = {"devices": {"raspberry-pi-4": 1, "jetson-nano": 1}, "compute_spread": 4}
    one, same, other = _build(seed=1, **options), _build(seed=1, **options), _build(seed=2, **options)
    assert one.compute_slowdown.tolist() == same.compute_slowdown.tolist() != other.compute_slowdown.tolist()
    assert one.device_of.tolist() == same.device_of.tolist()


def test_a_redraw_depends_on_the_client_and_not_on_who_else_is_asked() -> None:
    fleet = _build(redraw=0.2)
    together = fleet.conditions([3, 7], np.random.default_rng)
    alone = fleet.conditions([7], np.random.default_rng)
    assert together.flops_per_second[1] == alone.flops_per_second[0]
    assert together.down[1] == alone.down[0]
    speed, bandwidth = np.random.default_rng(7).uniform(0.8, 1.2, 2)
    assert alone.flops_per_second[0] == pytest.approx(29.6e9 * speed)
    assert (alone.down[0], alone.up[0]) == pytest.approx((35e6 * bandwidth, 10e6 * bandwidth))
    assert fleet.conditions([], _never).rtt.tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": {"jetson-nan": 1}}, "unknown device 'jetson-nan', did you mean 'jetson-nano'?"),
        ({"networks": ["lte"] * 9 + ["lte-n"]}, "unknown network 'lte-n', did you mean 'lte-m'?"),
        ({"networks": ["lte"] * 9}, "9 network names for 10 clients: give one per client, or shares"),
        ({"devices": {"jetson-nano": 0}}, "the share of device 'jetson-nano' must be a positive number, not 0"),
        ({"devices": {}}, "no device is named: choose from raspberry-pi-4, "),
        ({"clients": 0}, "a fleet needs at least one client, not 0"),
        ({"server_up": 0.0}, "server_up must be a positive number of bit/s, not 0.0"),
        ({"server_down": math.nan}, "server_down must be a positive number of bit/s, not nan"),
        ({"compute_spread": 0.5}, "compute_spread must be at least 1, not 0.5"),
        ({"bandwidth_spread": math.inf}, "bandwidth_spread must be at least 1, not inf"),
        ({"redraw": 1.0}, "redraw must be at least 0 and less than 1, not 1.0"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        _build(**options)
    assert message in str(error.value)
