"""``fedbr stress``: the cost model alone, for fleets of any size, without training."""

from __future__ import annotations

import io
import json
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from coordinator.rounds.policy import POLICIES, RoundPolicy
from coordinator.rounds.run import accepted
from coordinator.rounds.selection import ClientHistory
from costmodel.clock import Clock
from scenarios.config.errors import ScenarioError
from scenarios.studies import stress as study
from scenarios.studies.stress import ResidentMemory, closing, deadline_seconds, stress
from tests.costmodel.oracle import slow_start_seconds

OF_THIS_MACHINE = {
    *("wall_seconds", "cpu_seconds", "flows_per_second", "events_per_second", "visits_per_second"),
    *("fleet_peak_bytes", "round_peak_bytes", "peak_bytes_per_client"),
}


def virtual(result: Any) -> Any:
    """What does not depend on the machine."""
    if isinstance(result, dict):
        return {key: virtual(value) for key, value in result.items() if key not in OF_THIS_MACHINE}
    return [virtual(each) for each in result] if isinstance(result, list) else result


def quick(policy: str = "sync", *, clients: int = 60, cohort: int = 20, contended: bool = False, **more: int) -> Any:
    return stress(clients, cohort, policy, contended, **more)


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_virtual_follows_from_the_arguments_alone(policy: str, contended: bool) -> None:
    first, again = (virtual(quick(policy, contended=contended, visits=50)) for _ in range(2))
    other = virtual(quick(policy, contended=contended, visits=50, seed=1))

    assert first == again
    assert first["virtual_seconds"] != other["virtual_seconds"]
    assert json.loads(json.dumps(first)) == first


# --- synchronous rounds -----------------------------------------------------------------------------------------------


def test_a_round_lasts_as_long_as_its_slowest_visit() -> None:
    result = quick(rounds=3)

    assert [each["visits"] for each in result["rounds"]] == [20, 20, 20]
    assert max(each["seconds"] for each in result["rounds"]) == pytest.approx(result["visit_seconds"]["max"])
    assert result["virtual_seconds"] == pytest.approx(sum(each["seconds"] for each in result["rounds"]))


def test_one_client_alone_takes_what_its_device_and_network_take() -> None:
    fleet = study._fleet(1, 1, False, 0)
    device = fleet.devices[int(fleet.device_of[0])]
    down, up, rtt, flops_per_second = (
        float(column[0]) for column in (fleet.down, fleet.up, fleet.rtt, fleet.flops_per_second)
    )
    jitter = float(fleet.conditions([0], 0).slowdown[0])
    # 8 Mbit and the headers of its frames each way; 3.5 round trips to connect, and half a one for each last byte.
    bits = 8e6 * 1514 / 1448
    travelling = bits / down + bits / up + 4.5 * rtt
    starting_slowly = slow_start_seconds(rtt, down, bits) + slow_start_seconds(rtt, up, bits)
    computing = (50 * device.step_seconds + 20e9 / flops_per_second) * jitter

    result = quick(clients=1, cohort=1)
    assert result["virtual_seconds"] == pytest.approx(travelling + starting_slowly + computing)


def test_over_selection_begins_more_visits_than_it_counts_and_is_solved_in_parts_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = virtual(quick("over_select", rounds=2))
    assert [(each["visits"], each["counted"]) for each in whole["rounds"]] == [(26, 20)] * 2  # 1.3 x 20
    monkeypatch.setattr(study, "PART", 7)
    assert virtual(quick("over_select", rounds=2)) == whole


def test_a_contended_server_holds_most_visits_and_a_boundless_one_none() -> None:
    free, full = quick(cohort=60), quick(cohort=60, contended=True)

    assert free["rounds"][0]["held"] == 0
    assert free["server_down_bits_per_second"] is None
    assert full["rounds"][0]["held"] > 50
    assert full["visit_seconds"]["p50"] > free["visit_seconds"]["p50"]


@pytest.mark.parametrize(
    "rules",
    [
        RoundPolicy("sync", 20),
        RoundPolicy("over_select", 20, over_select=1.5),
        RoundPolicy("deadline", 20, deadline=1.5),
    ],
    ids=lambda rules: rules.policy,
)
def test_a_round_closes_when_that_of_a_run_would(rules: RoundPolicy) -> None:
    clock = Clock(study._fleet(60, 20, True, 0))
    conditions = clock.conditions(range(rules.cohort), 0)
    timeline = clock.solve(np.full(rules.cohort, 3.0), [study.VISIT] * rules.cohort, conditions)
    visits: list[Any] = [type("Visit", (), {"kind": "train", "client": k})() for k in range(rules.cohort)]
    counts, end = accepted(rules, ClientHistory(60), visits, timeline, 3.0)

    assert closing(rules, timeline.end, 3.0) == end
    assert (timeline.up_end <= end).sum() == counts.sum()


def test_memory_is_told_per_client_and_stays_small() -> None:
    # In a process of its own, whose freed memory no earlier test left behind.
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        result = alone.submit(stress, 1_000_000, 1_000_000, "sync", False).result()

    # Of 8 bytes each: device, network, FLOP/s, slowdown of codecs, two rates, round-trip time; last use of each way,
    # joules spent.
    assert result["fleet_bytes"] == 1_000_000 * 10 * 8
    assert result["fleet_peak_bytes"] <= result["round_peak_bytes"]
    assert result["peak_bytes_per_client"] == result["round_peak_bytes"] / 1_000_000
    # As promised for a million clients: fewer are charged more each for what the process itself needs.
    assert result["peak_bytes_per_client"] < 200


def growth_with_64_mib() -> tuple[int, int]:
    """Growth while 64 MiB are held, and the growth that is told after they were freed."""
    memory = ResidentMemory()
    held = np.ones(1 << 23)
    first = memory.peak_bytes()
    del held
    return first, memory.peak_bytes()


def test_the_growth_since_the_beginning_is_told_and_the_systems_record_of_the_peak_stays() -> None:
    # A process that has had a higher peak: 256 MiB, freed by now. ``time`` reads the record that is compared here.
    np.ones(1 << 25)
    record = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # More than once, since the system may take other pages back from this process at any moment.
    first, after = max(growth_with_64_mib() for _ in range(3))
    assert 0.8 * (64 << 20) < first <= after
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= record


def test_a_round_ends_at_its_deadline() -> None:
    result = stress(60, 60, "deadline", False, deadline=2.5)

    (only,) = result["rounds"]
    assert (result["deadline_seconds"], only["seconds"], only["visits"]) == (2.5, 2.5, 60)
    assert 0 < only["counted"] < 60
    assert quick("sync")["deadline_seconds"] is None


# --- rounds with gateways ---------------------------------------------------------------------------------------------


def test_a_round_with_gateways_is_as_long_as_the_path_of_its_last_gateway() -> None:
    result = quick(clients=60, cohort=60, contended=True, gateways=6, rounds=2)

    for each, of_gateways in zip(result["rounds"], result["gateways"], strict=True):
        seconds = [amount for name, amount in of_gateways.items() if name.endswith("_seconds")]
        assert each["seconds"] == pytest.approx(sum(seconds))
        assert min(seconds) > 0
        assert (of_gateways["wan_bytes_down"], of_gateways["wan_bytes_up"]) == (6_000_000, 6_000_000)
    # Ten clients of each add 10 MB at 3 GB/s, and the server 6 MB.
    last = result["gateways"][0]
    assert (last["gateway_seconds"], last["server_seconds"]) == pytest.approx((10e6 / 3e9, 6e6 / 3e9))
    assert result["server_down_bits_per_second"] == pytest.approx(0.05 * 6 * 94e6 * 1514 / 1448)
    assert result["rounds"][0]["held"] > 50


def test_one_client_below_one_gateway_takes_its_own_time_and_that_of_two_messages_over_the_wan() -> None:
    alone, below = quick(clients=1, cohort=1), quick(clients=1, cohort=1, gateways=1)

    # Broadband, of 10 ms: 8 Mbit and headers at 94 and 48 Mbit/s of goodput; 3.5 round trips to connect, half a one for
    # each last byte; its slow start.
    bits = 8e6 * 1514 / 1448
    rates = [rate * 1514 / 1448 for rate in (94e6, 48e6)]
    wan = sum(bits / rate + slow_start_seconds(0.01, rate, bits) for rate in rates) + 4.5 * 0.01
    added = 2 * 1e6 / 3e9
    assert below["virtual_seconds"] == pytest.approx(alone["virtual_seconds"] + wan + added)
    assert below["visit_seconds"] == alone["visit_seconds"]
    assert (below["lan_down_bits_per_second"], below["gateways"][0]["held_wan"]) == (None, 0)


def test_gateways_without_clients_in_a_round_stay_out_and_parts_agree_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = virtual(quick(cohort=3, gateways=20, contended=True, rounds=2))
    assert all(1 <= each["gateways"] <= 3 for each in whole["gateways"])
    assert [each["visits"] for each in whole["rounds"]] == [3, 3]
    many = virtual(quick(cohort=60, gateways=7, contended=True))
    monkeypatch.setattr(study, "PART", 10)
    assert virtual(quick(cohort=60, gateways=7, contended=True)) == many
    assert virtual(quick(cohort=3, gateways=20, contended=True, rounds=2)) == whole


@pytest.mark.parametrize(
    ("policy", "gateways", "message"),
    [
        ("sync", 10, "--gateways: must be at most the number of clients, 9, not 10"),
        ("fedbuff", 3, "--gateways: not with --policy fedbuff; gateways aggregate in rounds of policy sync alone"),
    ],
)
def test_gateways_that_cannot_be_are_refused(policy: str, gateways: int, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        quick(policy, clients=9, cohort=9, gateways=gateways)
    assert str(caught.value) == message


# --- visits one by one ------------------------------------------------------------------------------------------------


def test_a_visit_at_a_time_is_never_stale() -> None:
    result = quick("fedasync", cohort=1, visits=25)

    assert result["staleness"]["max"] == 0
    assert result["server_steps"] == 25
    assert result["simpy_events"] > 25


def test_updates_are_as_stale_as_there_are_steps_beside_them() -> None:
    each, buffered = (quick(policy, cohort=20, visits=400) for policy in ("fedasync", "fedbuff"))

    # While a visit is under way, each of the 19 others ends about once; with a buffer of ten, that is about two steps.
    assert 10 < each["staleness"]["p50"] < 28
    assert 1 <= buffered["staleness"]["p50"] <= 3
    assert (each["server_steps"], buffered["server_steps"]) == (400, 40)
    assert each["virtual_seconds"] == buffered["virtual_seconds"]


def test_by_default_three_visits_end_for_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "LEAST_VISITS", 10)

    assert quick("fedasync", cohort=20)["visits"] == 60
    assert quick("fedasync", cohort=2)["visits"] == 10


# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "cohort", "policy", "deadline", "message"),
    [
        (0, 1, "sync", None, "--clients: must be at least 1, not 0"),
        (9, 0, "sync", None, "--cohort: must be at least 1, not 0"),
        (9, 10, "sync", None, "--cohort: must be at most the number of clients, 9, not 10"),
        (9, 9, "synch", None, "--policy: no policy 'synch'; did you mean 'sync'?"),
        (9, 9, "sync", "20 s", "--deadline: policy 'sync' has none; add --policy deadline"),
        (9, 9, "deadline", "0 s", "--deadline: must be more than 0 s, not 0 s"),
        (9, 9, "deadline", "20", "--deadline: '20' is a duration without a unit"),
    ],
)
def test_bad_usage_is_refused(clients: int, cohort: int, policy: str, deadline: str | None, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        stress(clients, cohort, policy, False, deadline=None if deadline is None else deadline_seconds(deadline))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("policy", ["sync", "fedbuff"])
def test_the_table_says_what_was_asked_of_each_visit_and_fits_a_terminal(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    study.show(stress(60, 20, policy, True, visits=50, gateways=6 if policy == "sync" else 0), stream)

    assert "1 MB down, 1 MB up, 20 GFLOP in 50 steps" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert Console().width == 200
