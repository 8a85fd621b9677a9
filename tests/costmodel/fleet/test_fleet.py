"""Who gets what: exact shares, spreads as asked for, traces row by row, and conditions that depend on nobody else."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.config import AccessLinks, Scale, ServerLink, Transport
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet, RowFactors, scaled
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.traces import Capacities, Cases, Machines, Users
from costmodel.fleet.variation import counts
from tests.costmodel.worlds import INF, fleet_of, streams

Doubles = NDArray[np.float64]
HEADERS = 1514 / 1448


def _build(clients: int = 10, seed: int = 0, **options: Any) -> Fleet:
    def of_seed(purpose: str, index: int, client: int) -> np.random.Generator:
        return streams(f"{seed} {purpose}", index, client)

    trace, own_devices, own_networks = (options.pop(name, None) for name in ("trace", "own_devices", "own_networks"))
    inputs = FleetInputs(own_devices or {}, own_networks or {}, trace)
    chosen: dict[str, Any] = {"devices": {"raspberry-pi-5": 1}, "networks": {"lte": 1}, "streams": of_seed}
    return fleet_of(clients, inputs, **(chosen | options))


def _distance(draws: Doubles, cdf: Doubles) -> float:
    """Kolmogorov and Smirnov's: the largest gap between the draws' share below x and ``cdf``, that law's at each."""
    order, size = np.argsort(draws), draws.size
    steps = np.arange(size + 1) / size
    return float(max(np.abs(cdf[order] - steps[:-1]).max(), np.abs(cdf[order] - steps[1:]).max()))


def _is_lognormal(draws: Doubles, median: float, sigma: float) -> bool:
    """Whether a test at the level of 0.1 % lets it pass: 1.95 / sqrt(draws)."""
    law = NormalDist(math.log(median), sigma)
    cdf = np.array([law.cdf(math.log(draw)) for draw in draws.tolist()])
    return _distance(draws, cdf) < 1.95 / math.sqrt(draws.size)


def _is_uniform(draws: Doubles, low: float, high: float) -> bool:
    return _distance(draws, np.clip((draws - low) / (high - low), 0, 1)) < 1.95 / math.sqrt(draws.size)


def _same(one: Conditions, visit: int, other: Conditions) -> bool:
    names = [field.name for field in dataclasses.fields(Conditions)]
    return all(np.array_equal(getattr(one, name)[visit], getattr(other, name)[0]) for name in names)


# Devices and networks.


def test_shares_become_exact_counts_by_largest_remainder() -> None:
    # 10 * (5, 3, 1) / 9 = 5.56, 3.33, 1.11: whole 5, 3, 1, and the one that is left goes to the largest remainder.
    assert counts({"a": 5, "b": 3, "c": 1}, 10).tolist() == [6, 3, 1]
    assert counts({"a": 1, "b": 1}, 3).tolist() == [2, 1]
    assert counts({"a": 0.1, "b": 0.2, "c": 0.7}, 1000).tolist() == [100, 200, 700]


def test_every_client_has_one_device_and_one_network_and_their_order_is_random() -> None:
    fleet = _build(1000, devices={"raspberry-pi-4": 3, "jetson-nano": 1}, networks={"lte": 0.5, "wifi-4": 0.5})
    names = fleet.device_names(range(1000))
    assert len(fleet) == 1000
    assert Counter(names) == {"raspberry-pi-4": 750, "jetson-nano": 250}
    assert Counter(fleet.network_names(range(1000))) == {"lte": 500, "wifi-4": 500}
    # Of the first 200 clients about a quarter: 50, standard deviation 5.5.
    assert 25 < names[:200].count("jetson-nano") < 75
    assert fleet.devices[fleet.device_of[0]].memory_bytes == 4 * 2**30


def test_conditions_are_the_rows_of_the_tables_in_the_order_asked_for() -> None:
    fleet = _build(3, devices=["jetson-nano", "phone-low", "server-gpu"], networks=["lte", "wan", "5g"])
    found = fleet.conditions([2, 0, 1], 0)
    assert found.clients.tolist() == [2, 0, 1]
    assert found.flops_per_second.tolist() == [8e12, 120e9, 3.49e9]
    assert found.step_seconds.tolist() == [0.002, 0.005, 0.0982]
    # Speed tests see no headers; the last row is the rate of a line.
    assert found.down.tolist() == pytest.approx([166e6 * HEADERS, 35e6 * HEADERS, 100e6])
    assert found.up.tolist() == pytest.approx([21e6 * HEADERS, 10e6 * HEADERS, 100e6])
    assert found.rtt.tolist() == [0.025, 0.04, 0.02]
    assert (found.train_watts.tolist(), found.idle_watts.tolist()) == ([300.0, 10.0, 1.5], [50.0, 2.0, 0.4])
    # The radio's watts beside the baseline.
    assert found.transmit_watts.tolist() == pytest.approx([50.0 + 3.92, 2.0 + 3.92, 0.4 + 0.5])
    assert found.receive_watts.tolist() == pytest.approx([50.0 + 1.96, 2.0 + 1.96, 0.4 + 0.5])
    # Nothing varies, nobody crashes, all are on mains and have never been visited.
    assert (found.slowdown == 1).all() and (found.noise == 1).all() and (found.tail_watts == 0).all()
    assert (found.crash_after == INF).all() and (found.charge == INF).all() and (found.last_down == -INF).all()
    assert all(getattr(found, field.name).shape[0] == 3 for field in dataclasses.fields(found))
    assert fleet.conditions([], 0).rtt.shape == (0,)


def test_a_device_computes_as_fast_as_it_does_on_the_models_family() -> None:
    speeds = {family: _build(1, families=(family,)).flops_per_second[0] for family in ("conv", "depthwise")}
    assert speeds == {"conv": 29.6e9, "depthwise": 4.0e9}
    assert _build(1, families=("unheard-of", "depthwise")).flops_per_second[0] == 4.0e9


# How clients differ for good.


def test_a_spread_of_4_slows_log_uniformly_by_1_to_4() -> None:
    fleet = _build(2000, compute_spread=4, bandwidth_spread=4)
    slower, narrower = 29.6e9 / fleet.flops_per_second, 35e6 * HEADERS / fleet.down
    assert _is_uniform(np.log(slower), 0.0, math.log(4))
    assert _is_uniform(np.log(narrower), 0.0, math.log(4))
    # One factor for both directions of a client's network, another than its device's.
    assert fleet.down / fleet.up == pytest.approx(35 / 10)
    assert abs(np.corrcoef(slower, narrower)[0, 1]) < 0.1


def test_lognormal_spreads_have_the_median_and_the_sigma_that_were_asked_for() -> None:
    fleet = _build(3000, compute_sigma=0.6, down_sigma=0.5, up_sigma=0.8)
    assert _is_lognormal(fleet.flops_per_second, 29.6e9, 0.6)
    assert _is_lognormal(fleet.down, 35e6 * HEADERS, 0.5)
    assert _is_lognormal(fleet.up, 10e6 * HEADERS, 0.8)
    # A control: 3000 draws tell a sigma of 0.5 from one of 0.6.
    assert not _is_lognormal(fleet.down, 35e6 * HEADERS, 0.6)
    correlations = np.corrcoef(np.log([fleet.flops_per_second, fleet.down, fleet.up]))
    assert np.abs(correlations - np.eye(3)).max() < 0.08


def test_a_spread_changes_neither_devices_nor_the_other_spreads() -> None:
    shares = {"raspberry-pi-4": 1, "jetson-nano": 1}
    plain, spread = _build(50, devices=shares), _build(50, devices=shares, compute_spread=4)
    both = _build(50, devices=shares, compute_spread=4, bandwidth_spread=4, down_sigma=0.5)
    assert plain.device_of.tolist() == spread.device_of.tolist() == both.device_of.tolist()
    assert plain.down.tolist() == spread.down.tolist() != both.down.tolist()
    assert spread.flops_per_second.tolist() == both.flops_per_second.tolist()


# What varies from round to round.


def test_a_redraw_varies_speed_and_rates_by_up_to_r_in_each_round() -> None:
    fleet = _build(2000, redraw=0.2)
    now, later = fleet.conditions(range(2000), 3), fleet.conditions(range(2000), 4)
    assert _is_uniform(now.flops_per_second / 29.6e9, 0.8, 1.2)
    assert _is_uniform(now.down / (35e6 * HEADERS), 0.8, 1.2)
    assert now.down / now.up == pytest.approx(3.5)
    assert (now.flops_per_second != later.flops_per_second).all()
    assert abs(np.corrcoef(now.down, later.down)[0, 1]) < 0.1


def test_jitter_has_median_1_and_noise_has_mean_1() -> None:
    found = _build(3000, jitter=0.1, transport=Transport(noise=0.2)).conditions(range(3000), 0)
    assert _is_lognormal(found.slowdown, 1.0, 0.1)
    for noise in (found.noise.T[0], found.noise.T[1]):
        assert _is_lognormal(noise, math.exp(-(0.2**2) / 2), 0.2)
        # Standard error 0.2 / sqrt(3000) = 0.004.
        assert noise.mean() == pytest.approx(1.0, abs=0.013)
    assert abs(np.corrcoef(found.noise[:, 0], found.noise[:, 1])[0, 1]) < 0.08


def test_factors_of_rows_apply_to_all_clients_of_a_row_but_not_to_what_a_trace_gives() -> None:
    devices = {"flops_per_second": {"raspberry-pi-4": 2.0, "phone-mid": 4.0}}
    devices["step_seconds"] = {"raspberry-pi-4": 3.0, "phone-mid": 1.0}
    devices["codec_slowdown"] = {"raspberry-pi-4": 0.5, "phone-mid": 2.0}
    networks = {figure: {"wifi-4": factor} for figure, factor in (("down", 2.0), ("up", 0.5), ("rtt", 4.0))}
    names = ["raspberry-pi-4", "phone-mid", "raspberry-pi-4"]
    rows: dict[str, Any] = {"devices": names, "networks": {"wifi-4": 1.0}}
    fleet = _build(3, **rows, bandwidth_spread=3.0)
    new = scaled(fleet, RowFactors(devices, networks))
    before, after = fleet.conditions(range(3), 0), new.conditions(range(3), 0)
    assert (after.flops_per_second / before.flops_per_second).tolist() == [2, 4, 2]
    assert (after.step_seconds / before.step_seconds).tolist() == [3, 1, 3]
    assert (after.codec_slowdown / before.codec_slowdown).tolist() == [0.5, 2, 0.5]
    assert [set(getattr(after, name) / getattr(before, name)) for name in ("down", "up", "rtt")] == [{2}, {0.5}, {4}]
    trace = Users(*(np.array([8e6, 4e6, 2e6]) for _ in range(2)), *(np.array([0.1, 0.1, 0.1]) for _ in range(2)))
    traced = _build(3, **rows, trace=trace)
    assert (scaled(traced, RowFactors(devices, networks)).down == traced.down).all()
    assert (scaled(traced, RowFactors(devices, networks)).rtt == 4 * traced.rtt).all()


def test_modes_switch_every_so_many_rounds_and_are_as_frequent_as_in_the_devices_row() -> None:
    fleet = _build(4000, devices={"jetson-xavier-nx": 1}, mode_rounds=20)
    speeds = [fleet.conditions(range(4000), round).flops_per_second / 430e9 for round in (0, 19, 20, 39, 40)]
    assert (speeds[0] == speeds[1]).all() and (speeds[2] == speeds[3]).all()
    assert np.mean(speeds[0] != speeds[2]) > 0.3 < np.mean(speeds[2] != speeds[4])
    # Five modes of eight at full clock, two at 0.73, one at 0.46; standard errors below 0.008.
    shares = {factor: float(np.mean(np.isclose(speeds[0], factor))) for factor in (1.0, 0.73, 0.46)}
    assert shares == pytest.approx({1.0: 0.625, 0.73: 0.25, 0.46: 0.125}, abs=0.025)


def test_kappa_makes_slow_modes_cheaper_and_full_clock_what_it_is() -> None:
    options: dict[str, Any] = {"devices": {"jetson-xavier-nx": 1}, "mode_rounds": 1}
    watts, kappa = (_build(100, compute_energy=energy, **options).conditions(range(100), 0) for energy in _ENERGIES)
    assert (watts.train_watts == 15.0).all()
    # E = kappa cycles f^2: the same cycles at 0.46 of the clock take 0.46^2 of the joules, in 1 / 0.46 of the time,
    # beside the 4 W that the device draws all the time.
    clock = kappa.flops_per_second / 430e9
    work = np.full(100, 430e9), np.zeros(100, np.int64), np.zeros(100)
    joules = (kappa.train_watts - 4.0) * kappa.compute_seconds(*work)
    assert joules == pytest.approx(11.0 * clock**2)
    assert set(clock.round(9).tolist()) == {0.46, 0.73, 1.0}
    # At constant watts slow modes are the dearer ones.
    constant = watts.train_watts * watts.compute_seconds(*work)
    assert constant == pytest.approx(15.0 / clock)


_ENERGIES = ("power", "kappa")


def test_a_rate_dependent_radio_has_a_base_a_slope_and_a_tail() -> None:
    found = _build(1, radio_energy="rate").conditions([0], 0)
    assert (found.transmit_watts[0], found.receive_watts[0]) == pytest.approx((3.0 + 1.288, 3.0 + 1.288))
    assert (found.tail_watts[0], found.tail_seconds[0]) == (1.06, 11.6)
    # The figures are those of a goodput bit, and the bits of messages are those on the wire.
    slopes = found.transmit_joules_per_bit[0] * HEADERS, found.receive_joules_per_bit[0] * HEADERS
    assert slopes == pytest.approx((4.38e-7, 5.2e-8))


# Who else is asked makes no difference.


VARYING: dict[str, Any] = {
    "devices": {"jetson-tx2": 1, "phone-mid": 1},
    "networks": {"lte": 1, "wifi-4": 1},
    "compute_spread": 4,
    "bandwidth_spread": 4,
    "rates": (1e6, 30e6),
    "jitter": 0.1,
    "redraw": 0.2,
    "transport": Transport(noise=0.1),
    "mode_rounds": 5,
    "crashes_per_hour": 36.0,
}


def test_a_clients_round_does_not_depend_on_who_else_is_asked_or_when() -> None:
    fleet, again = _build(30, **VARYING), _build(30, **VARYING)
    together = fleet.conditions([17, 3, 29], 6)
    fleet.conditions(range(30), 7)
    for visit, client in enumerate((17, 3, 29)):
        assert _same(together, visit, fleet.conditions([client], 6))
        assert _same(together, visit, again.conditions([client], 6))


def test_a_visit_depends_on_its_number_and_not_on_those_before_it() -> None:
    fleet, again = _build(30, **VARYING), _build(30, **VARYING)
    # 1023 and 1024 lie on both sides of a block of draws.
    forward = {visit: fleet.conditions([visit % 30], 0, visit) for visit in (0, 1, 1023, 1024, 5000)}
    for visit in (5000, 1024, 0, 1023, 1):
        assert _same(forward[visit], 0, again.conditions([visit % 30], 0, visit))
    slowdowns = {float(one.slowdown[0]) for one in forward.values()}
    assert len(slowdowns) == 5
    # The next visit of the same client is another.
    assert not _same(fleet.conditions([4], 0, 4), 0, fleet.conditions([4], 0, 34))


# Traces.


def test_capacities_are_rates_and_speeds_relative_to_the_median_row() -> None:
    trace = Capacities(np.array([0.1, 0.2, 0.8]), np.array([1e6, 2e6, 3e6]))
    fleet = _build(6, trace=trace)
    pairs = sorted(zip(fleet.flops_per_second.tolist(), fleet.down.tolist(), fleet.up.tolist(), strict=True))
    # Each row twice. The row of 0.2 s computes as the device does, the others 4 times slower and twice as fast.
    rows = [(7.4e9, 3e6 * HEADERS), (29.6e9, 2e6 * HEADERS), (59.2e9, 1e6 * HEADERS)]
    assert [pair[:2] for pair in pairs] == [pytest.approx(row) for row in rows for _ in range(2)]
    assert [pair[1] for pair in pairs] == [pair[2] for pair in pairs]
    assert fleet.bandwidth_cv is None


def test_users_have_rates_of_their_own_and_a_cv_each_way() -> None:
    trace = Users(np.array([4e6, 8e6]), np.array([1e6, 2e6]), np.array([0.3, 0.4]), np.array([0.5, 0.6]))
    fleet = _build(4, trace=trace)
    assert fleet.bandwidth_cv is not None
    found = sorted(zip(fleet.down.tolist(), fleet.up.tolist(), *fleet.bandwidth_cv.T.tolist(), strict=True))
    first, second = (4e6 * HEADERS, 1e6 * HEADERS, 0.3, 0.5), (8e6 * HEADERS, 2e6 * HEADERS, 0.4, 0.6)
    assert found == [pytest.approx(row) for row in (first, first, second, second)]
    assert (fleet.flops_per_second == 29.6e9).all()


def test_a_case_says_how_links_are_down_and_networks_how_they_are_up() -> None:
    cases = Cases({1: (np.array([5e6]), np.array([0.1])), 3: (np.array([7e6]), np.array([0.9]))})
    fleet = _build(2, trace=cases, trace_case=3)
    assert fleet.down.tolist() == pytest.approx([7e6 * HEADERS] * 2)
    assert fleet.up.tolist() == pytest.approx([10e6 * HEADERS] * 2)
    assert fleet.bandwidth_cv is not None
    assert fleet.bandwidth_cv.tolist() == [[0.9, 0.9]] * 2
    with pytest.raises(ValueError, match="there is no case 2 in the trace: choose from 1, 3"):
        _build(2, trace=cases, trace_case=2)


@pytest.mark.parametrize(("rtt", "expected"), [(np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3]), (None, [0.04] * 3)])
def test_machines_say_it_all_but_perhaps_the_round_trip(rtt: Doubles | None, expected: list[float]) -> None:
    figures = np.array([1.0, 2.0, 3.0])
    fleet = _build(3, trace=Machines(("a", "b", "c"), figures * 1e9, figures * 1e6, figures * 1e5, rtt))
    order = np.argsort(fleet.flops_per_second)
    assert fleet.flops_per_second[order].tolist() == [1e9, 2e9, 3e9]
    assert fleet.down[order] == pytest.approx(figures * 1e6 * HEADERS)
    assert fleet.up[order] == pytest.approx(figures * 1e5 * HEADERS)
    assert fleet.rtt[order].tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": {"jetson-nan": 1}}, "unknown device 'jetson-nan', did you mean 'jetson-nano'?"),
        ({"networks": ["lte"] * 9 + ["lte-n"]}, "unknown network 'lte-n', did you mean 'lte-m'?"),
        ({"networks": ["lte"] * 9}, "9 network names for 10 clients: give one per client, or shares"),
        ({"devices": {"jetson-nano": 0}}, "the share of device 'jetson-nano' must be a positive number, not 0"),
        ({"devices": {}}, "no device is named: choose from raspberry-pi-4, "),
        ({"families": ("attention",), "devices": {"jetson-tx2": 1}}, "no throughput for models of family 'attention'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        _build(**options)
    assert message in str(error.value)


# Other speeds of all links and devices.


def test_a_scale_multiplies_the_rates_of_links_and_the_speeds_of_devices() -> None:
    keys: dict[str, Any] = {"server": ServerLink(8e6, 4e6), "gateways": AccessLinks(2, 6e6, 3e6)}
    plain, slow = (_build(4, **keys, scale=scale) for scale in (Scale(), Scale(server=0.25, links=0.5, devices=0.125)))
    assert (slow.links.down, slow.links.up) == (2e6, 1e6)
    assert (slow.links.site_down, slow.links.site_up) == ((3e6, 3e6), (1.5e6, 1.5e6))
    before, after = (fleet.conditions(range(4), 0) for fleet in (plain, slow))
    for name, factor in {"down": 0.5, "up": 0.5, "rtt": 1, "flops_per_second": 0.125, "train_watts": 1}.items():
        assert getattr(after, name).tolist() == (factor * getattr(before, name)).tolist(), name
    for name in ("step_seconds", "codec_slowdown"):
        assert getattr(after, name).tolist() == (8 * getattr(before, name)).tolist(), name
    # One after the other is both together, also for rates that are drawn between limits.
    assert plain.at_scale(Scale(0.5, 1, 0.5)).at_scale(Scale(0.5, 0.5, 0.25)).config.scale == slow.config.scale
    drawn = _build(4, rates=(1e6, 4e6))
    both = [fleet.conditions(range(4), 0).up for fleet in (drawn, drawn.at_scale(Scale(links=0.5)))]
    assert both[1].tolist() == (both[0] / 2).tolist()
