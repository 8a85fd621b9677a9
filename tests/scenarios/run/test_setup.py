"""The fleet of a scenario: where its files are found, what each key does, and what is refused in which words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.fleet.availability import Always, Diurnal, Renewal
from costmodel.fleet.devices import devices
from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck
from costmodel.visits.work import Work, Works
from edge.protocol.config import ModelProfile
from edge.protocol.payload import BlockShape, Layout
from scenarios.config import fleet_files
from scenarios.config.cache import cache_folder
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run.setup import RunInputs, Setup

HOUR, DAY = 3600.0, 86400.0
CAPACITIES = "client_id,computation_ms_per_sample,communication_kbps\n1,100,1000\n2,200,2000\n3,400,4000\n"
CASES = "case,kbps_mean,kbps_std\n1,1000,100\n3,9000,900\n"
SERIES = "seconds,factor\n0,1\n2,0.5\n"
# The first phone is there from 1:00 to 3:00 and from 22:00 to 23:00, the second from 10:00 to 11:00.
PHONES = "device,start_s,end_s\na,3600,10800\na,79200,82800\nb,36000,39600\n"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own: an empty user cache, no data folder, and ``tmp_path`` to work in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDBR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def drawn(*overrides: str) -> Fleet:
    return RunInputs(load("digits", parse_all(overrides))).drawn_fleet


def refusal(*overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        drawn(*overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["fleet.devices={raspberry-pi-4=0.5, jetson-nano=0.5}", "fleet.compute_sigma=0.9", "fleet.jitter=0.5"],
        ["fleet.bandwidth.kind=ou", "fleet.networks={broadband=1}", "fleet.bandwidth.outages=true"],
        ["fleet.availability.kind=renewal"],
        ["fleet.availability.kind=diurnal"],
        ["fleet.speed.kind=load"],
    ],
)
def test_all_that_is_drawn_of_a_fleet_has_the_fleets_seed(words: list[str]) -> None:
    def times(*seeds: str) -> list[float]:
        clock, clients = Clock(drawn(*words, *seeds)), list(range(10))
        conditions = clock.conditions(clients, 0)
        works = Works.of([Work(bytes_down=1_000_000, bytes_up=1_000_000, flops=2e12, steps=50)] * 10)
        return list(clock.solve(np.full(10, 12 * HOUR), works, conditions).end.tolist())

    assert times("seed=1", "fleet.seed=5") == times("seed=2", "fleet.seed=5") == times("seed=5")
    assert times("seed=1") != times("seed=2")


# --- where files are found --------------------------------------------------------------------------------------------


def test_a_file_is_found_as_it_is_named_then_below_the_data_root_then_in_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load("digits").scenario
    in_cache = write(cache_folder() / "t.csv", "")
    assert fleet_files.find(scenario, "fleet.trace", "t.csv") == in_cache
    monkeypatch.setenv("FEDBR_DATA", str(home / "data"))
    below = write(home / "data" / "t.csv", "")
    assert fleet_files.find(scenario, "fleet.trace", "t.csv") == below
    write(home / "t.csv", "")
    assert fleet_files.find(scenario, "fleet.trace", "t.csv") == Path("t.csv")
    (home / "t.csv").unlink()
    alone = load("mnist-cnn", parsed([f"data.root={home / 'root'}"])).scenario  # a root that is named is the only one
    with pytest.raises(ScenarioError) as caught:
        fleet_files.find(alone, "fleet.trace", "t.csv")
    assert str(caught.value) == f"fleet.trace = 't.csv': no such file; searched t.csv, {home / 'root' / 't.csv'}"


@pytest.mark.parametrize(
    "key", ["fleet.trace", "fleet.device_file", "fleet.network_file", "fleet.availability.file", "fleet.bandwidth.file"]
)
@pytest.mark.parametrize("name", ["nowhere.csv", "folder", "x" * 300])
def test_what_is_no_file_is_refused_with_the_places_where_it_was_looked_for(home: Path, key: str, name: str) -> None:
    (home / "folder").mkdir()
    kind = f"{key.removesuffix('file')}kind=trace" if "availability" in key or "bandwidth" in key else "seed=0"
    expected = f"{key} = {name!r}: no such file; searched {name}, {cache_folder() / name}"
    assert refusal(kind, f'{key}="{name}"').partition(": ")[2] == expected


WINDOWS, FACTORS = "fleet.availability.kind=trace", "fleet.bandwidth.kind=trace"
TRACE, AVAILABLE, FIRST = ["fleet.trace=t"], "fleet.availability.file", "fleet.trace: client 0"
NOTHING = "fleet.trace = 't': has no columns of devices or links; it belongs to "
CLIENT = "client,flops_per_second,down_bits_per_second,up_bits_per_second,rtt_seconds\na,"
APART = "client all: seconds must be 0.001 or more apart, and factors 0 or within 1e-06 and 1e+06"


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        (PHONES, TRACE, f"{NOTHING}fleet.availability.file"),
        (SERIES, TRACE, f"{NOTHING}fleet.bandwidth.file"),
        (SERIES, [WINDOWS, f"{AVAILABLE}=t"], f"{AVAILABLE} = 't': has no windows of availability"),
        (
            PHONES,
            [FACTORS, "fleet.bandwidth.file=t"],
            "fleet.bandwidth.file = 't': has no columns seconds and factor or bits_per_second",
        ),
        ("", [WINDOWS], 'fleet.availability.kind = "trace" needs fleet.availability.file'),
        ("", [FACTORS], 'fleet.bandwidth.kind = "trace" needs fleet.bandwidth.file'),
        (CAPACITIES + "4,-1,1000\n", TRACE, "fleet.trace: t, line 5, column computation_ms_per_sample: -1 is negative"),
        (CASES, ["fleet.trace=t", "fleet.trace_case=2"], "fleet.trace_case = 2: t has the cases 1, 3"),
        # Clients that would take aeons.
        (CLIENT + "1e-9,1e6,1e6,0\n", TRACE, f"{FIRST} computes at 1e-09 FLOP/s; the least is 1"),
        (CLIENT + "1e9,0.5,1e6,0\n", TRACE, f"{FIRST} downloads at 0.52279 bit/s; the least is 1"),
        (CLIENT + "1e9,1e6,1e-18,0\n", TRACE, f"{FIRST} uploads at 1.04558e-18 bit/s; the least is 1"),
        (CLIENT + "1e9,1e6,1e6,1e9\n", TRACE, f"{FIRST} has round trips of 1e+09 s; the most is 3600"),
        *(
            (f"seconds,factor\n{rows}", [FACTORS, "fleet.bandwidth.file=t"], f"fleet.bandwidth.file = 't': {APART}")
            for rows in ("0,1\n1e-9,1\n", "0,1e9\n", "0,1e-9\n")
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(home: Path, text: str, overrides: list[str], said: str) -> None:
    write(home / "t", text)
    assert refusal(*overrides) == f"digits: {said}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fleet.server.up=0.5 bit/s", "fleet.server.up = '0.5 bit/s': must be at least 1 bit/s"),
        ("fleet.bandwidth.step=20 ms", "fleet.bandwidth.step = 20 ms: must be at least a thousandth of tau = 30 s"),
        ("fleet.availability.off=1e10", "fleet.availability.off = 10000000000.0: must be at most 1000000000 s"),
        ("budget.bytes=0 MB", "budget.bytes = '0 MB': must be more than 0 B"),
        ("fleet.down_sigma=6", "fleet.down_sigma = 6: input should be less than or equal to 5"),
        ("fleet.up_sigma=-1", "fleet.up_sigma = -1: input should be greater than or equal to 0"),
        ('fleet.rates=["1 Mbit/s"]', "fleet.rates = ['1 Mbit/s']: too few values"),
    ],
)  # fmt: skip
def test_figures_that_no_clock_can_keep_up_with_are_refused(override: str, message: str) -> None:
    assert refusal("fleet.bandwidth.kind=ou", override) == f"command line: {message}"


# --- devices and networks of one's own --------------------------------------------------------------------------------

DEVICE = """[{name}]
flops_per_second = {{ conv = 1e9, depthwise = 1e9 }}
step_seconds = 0.5
modes = [1.0, 0.5]
memory_bytes = 1000
train_watts = 5.0
idle_watts = 1.0
clock_hz = 1e9
source = "mine"
year = 2026
assumed = false
"""
NETWORK = """[{name}]
down_bits_per_second = 2e6
up_bits_per_second = 1e6
rtt_seconds = 0.25
goodput = false
sigma_down = 0.0
sigma_up = 0.0
transmit_watts = 1.0
receive_watts = 1.0
transmit_joules_per_bit = 0.0
receive_joules_per_bit = 0.0
base_watts = 0.0
tail_watts = 0.0
tail_seconds = 0.0
source = "mine"
year = 2026
assumed = false
"""


def test_devices_and_networks_of_own_files_take_part(home: Path) -> None:
    write(home / "d.toml", DEVICE.format(name="board"))
    write(home / "n.toml", NETWORK.format(name="radio"))
    fleet = drawn(
        "fleet.device_file=d.toml", "fleet.network_file=n.toml", "fleet.devices={board=1}", "fleet.networks={radio=1}"
    )
    assert (fleet.device_names([0]), fleet.network_names([9])) == (["board"], ["radio"])
    assert fleet.flops_per_second.tolist() == [1e9] * 10
    assert (fleet.down.tolist(), fleet.up.tolist(), fleet.rtt.tolist()) == ([2e6] * 10, [1e6] * 10, [0.25] * 10)


# --- when clients are there -------------------------------------------------------------------------------------------


def intervals(fleet: Fleet, client: int, until: float) -> list[tuple[float, float]]:
    """When a client is there, up to a time; hours since the beginning."""
    found, t = [], 0.0
    while t < until:
        here, change = fleet.behaviour.availability.interval(client, t)
        if here:
            found.append((t / HOUR, change / HOUR))
        t = change
    return found


def phones(home: Path, *overrides: str) -> list[list[tuple[float, float]]]:
    """When the two phones of the trace are there in the first 50 hours, the first one first."""
    write(home / "phones.csv", PHONES)
    fleet = drawn(
        "data.clients=2",
        "rounds.participants=2",
        "fleet.availability.kind=trace",
        "fleet.availability.file=phones.csv",
        *overrides,
    )
    return sorted((intervals(fleet, client, 50 * HOUR) for client in (0, 1)), key=len, reverse=True)


def test_a_trace_that_repeats_begins_at_the_hour_of_the_day_and_comes_again(home: Path) -> None:
    assert phones(home) == [[(1, 3), (22, 23), (25, 27), (46, 47), (49, 51)], [(10, 11), (34, 35)]]
    # At 2:00 the first phone is in the middle of its stay.
    assert phones(home, "fleet.availability.start_hour=2") == [
        [(0, 1), (20, 21), (23, 25), (44, 45), (47, 49)],
        [(8, 9), (32, 33)],
    ]
    assert phones(home, "fleet.availability.start_hour=12") == [
        [(10, 11), (13, 15), (34, 35), (37, 39)],
        [(22, 23), (46, 47)],
    ]


# --- what each key does -----------------------------------------------------------------------------------------------


def behaves(name: str) -> Callable[[Fleet], Any]:
    return lambda fleet: getattr(fleet.behaviour, name)


def kind_of(name: str) -> Callable[[Fleet], Any]:
    return lambda fleet: type(getattr(fleet.behaviour, name))


REACHES: list[tuple[str, Callable[[Fleet], Any], Any]] = [
    ("fleet.compute_spread=3", lambda f: f.config.compute_spread, 3.0),
    ("fleet.down_sigma=network", lambda f: f.config.down_sigma, "network"),
    ('fleet.rates=["1 Mbit/s", "10 Mbit/s"]', lambda f: f.config.rates, (1e6, 10e6)),
    ("fleet.transport.noise=measured", lambda f: f.links.transport.noise, "measured"),
    ('fleet.battery="2 Wh"', lambda f: f.battery_joules, 7200.0),
    ("seed=0", lambda f: f.battery_joules, math.inf),
    ("fleet.server.down=20 Mbit/s", lambda f: (f.links.down, f.links.up), (20e6, 1e9)),
    ("fleet.server.up=20 Mbit/s", lambda f: (f.links.down, f.links.up), (1e9, 20e6)),
    ("fleet.server.down=inf", lambda f: f.links.down, math.inf),
    ("fleet.server.aggregate=8 Gbit/s", lambda f: f.links.aggregate_bytes_per_second, 1e9),
    ("seed=0", lambda f: (f.links.aggregate_bytes_per_second, f.links.seconds_per_visit), (3e9, 0.0)),
    ("fleet.server.visit=0.38 ms", lambda f: f.links.seconds_per_visit, 0.38e-3),
    ("seed=0", lambda f: (f.links.site_down, f.links.site_up), ((), ())),
    (
        "fleet.gateways={count=2, down='5 Mbit/s', up='3 Mbit/s'}",
        lambda f: (f.links.site_down, f.links.site_up),
        ((5e6, 5e6), (3e6, 3e6)),
    ),
    ("fleet.gateways={count=2, kind='airtime', fair='packets'}", lambda f: f.links.airtime, "packets"),
    ("fleet.gateways={count=2, kind='airtime'}", lambda f: (f.links.airtime, len(f.links.site_up)), ("time", 2)),
    ("fleet.transport.security=curve", lambda f: f.links.transport.security, "curve"),
    ("fleet.transport.security=tls", lambda f: f.links.transport.connect_round_trips, 4.5),
    ("fleet.transport.slow_start=false", lambda f: f.links.transport.slow_start, False),
    ('fleet.transport.reconnect="2 min"', lambda f: f.links.transport.reconnect, 120.0),
    ("seed=0", lambda f: f.links.transport.reconnect, math.inf),
    ("fleet.transport.promotion=true", lambda f: f.links.transport.promotion, True),
    ("fleet.availability.on_loss=pause", behaves("on_loss"), "pause"),
    ("seed=0", kind_of("availability"), Always),
    ("fleet.availability.kind=renewal", kind_of("availability"), Renewal),
    ("fleet.availability.kind=diurnal", kind_of("availability"), Diurnal),
    ("seed=0", kind_of("variation"), Constant),
    ("fleet.bandwidth.kind=ou", kind_of("variation"), OrnsteinUhlenbeck),
]


@pytest.mark.parametrize(("override", "found", "expected"), REACHES, ids=[row[0] for row in REACHES])
def test_every_key_reaches_the_fleet(override: str, found: Callable[[Fleet], Any], expected: Any) -> None:
    assert found(drawn(override)) == expected


def test_a_trace_of_capacities_sets_rates_and_speeds_relative_to_its_median(home: Path) -> None:
    write(home / "capacities.csv", CAPACITIES)
    fleet = drawn(
        "fleet.trace=capacities.csv", "data.clients=3", "rounds.participants=3", "fleet.devices={phone-mid=1}"
    )
    conv = devices()["phone-mid"].flops_per_second["conv"]
    assert sorted(fleet.flops_per_second) == pytest.approx([conv / 2, conv, 2 * conv])
    # The slow phones of this trace have the fast links: rank by rank, the product is the same for all.
    assert fleet.flops_per_second * fleet.down == pytest.approx([2 * conv * fleet.down.min()] * 3)
    assert fleet.down.max() == pytest.approx(4 * fleet.down.min())


# --- memory -----------------------------------------------------------------------------------------------------------


def described(params: int, activations: float) -> ModelProfile:
    empty = np.zeros(0, np.int64)
    return ModelProfile(
        layout=Layout((BlockShape("body", params),)),
        family="conv",
        flops=np.ones((1, 4)),
        activations=np.array([activations]),
        data_sha256="",
        data_source="",
        classes=10,
        test_count=0,
        samples=empty,
        histogram=np.zeros((0, 10), np.int64),
        test_samples=empty,
    )


HALF_SMALL = ["fleet.device_file=d.toml", "fleet.devices={board=0.5, phone-mid=0.5}", "train.batch=2"]
SUM = "board: 4 B x (2 x 60 parameters + 60 gradients + 2 x 5 activations) = 760 B, more than 0.7 of 1 kB"


def test_a_device_that_is_too_small_is_refused_with_the_sum_and_the_others_take_part(home: Path) -> None:
    write(home / "d.toml", DEVICE.format(name="board"))
    loaded = load("digits", parse_all(HALF_SMALL))
    fleet = RunInputs(loaded).drawn_fleet
    out = Setup.of(loaded, described(60, 5.0)).refused
    assert out == {k: SUM for k, device in enumerate(fleet.device_names(range(10))) if device == "board"}
    assert len(out) == 5
    # 55 parameters take 4 (165 + 10) = 700 bytes, which is just the limit.
    assert Setup.of(loaded, described(55, 5.0)).refused == {}


@pytest.mark.parametrize(
    ("stage", "feedback", "count"), [("sign", "true", 5), ("sign", "false", 0), ("quantize", "null", 0)]
)
def test_a_residual_takes_as_much_memory_as_the_model(home: Path, stage: str, feedback: str, count: int) -> None:
    write(home / "d.toml", DEVICE.format(name="board"))
    given = [f'codec.up={{kind="{stage}"}}', *([f"codec.error_feedback={feedback}"] if feedback != "null" else [])]
    loaded = load("digits", parse_all([*HALF_SMALL, *given]))
    out = Setup.of(loaded, described(55, 5.0)).refused
    assert len(out) == count
    assert set(out.values()) <= {
        "board: 4 B x (2 x 55 parameters + 55 gradients + 2 x 5 activations + 55 kept) = 920 B, more than 0.7 of 1 kB"
    }


@pytest.mark.parametrize(("method", "count"), [("fedavg", 0), ("fedavg-kd", 0), ("fedmlb", 5)])
def test_a_pathway_keeps_its_activations_and_a_teacher_does_not(home: Path, method: str, count: int) -> None:
    write(home / "d.toml", DEVICE.format(name="board"))
    layout = Layout((BlockShape("body", 50), BlockShape("head", 5)))
    two = replace(described(55, 5.0), layout=layout, activations=np.array([0.0, 5.0]), flops=np.ones((2, 4)))
    loaded = load("digits", parse_all([*HALF_SMALL, f"method={method}"]))
    assert len(Setup.of(loaded, two).refused) == count


# --- the identity of a run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kind", "before", "after"),
    [
        ("fleet.trace", "seed=0", CAPACITIES, CAPACITIES.replace("100,", "101,")),
        ("fleet.device_file", "seed=0", DEVICE.format(name="board"), DEVICE.format(name="bord")),
        ("fleet.network_file", "seed=0", NETWORK.format(name="radio"), NETWORK.format(name="rado")),
        ("fleet.availability.file", "fleet.availability.kind=trace", PHONES, PHONES.replace("3600,", "3601,")),
        ("fleet.bandwidth.file", "fleet.bandwidth.kind=trace", SERIES, SERIES.replace("0.5", "0.6")),
    ],
)
def test_a_run_is_another_one_when_a_file_that_it_names_says_something_else(
    home: Path, key: str, kind: str, before: str, after: str
) -> None:
    write(home / "file", before)
    loaded = load("digits", parse_all([kind, f"{key}=file"]))
    known = RunInputs(loaded).identity
    assert list(known["files"]) == [key]
    assert fleet_files.read_inputs(loaded.scenario).sha256 == known["files"]
    assert RunInputs(load("digits", parse_all([kind, f"{key}=file"]))).identity == known
    write(home / "file", after)
    assert RunInputs(load("digits", parse_all([kind, f"{key}=file"]))).identity["files"] != known["files"]


# --- recorded traces --------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Path:
    root = Path(os.environ.get("FEDBR_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (root / "devices" / "availability_windows.csv").is_file():
        pytest.skip(f"no devices/availability_windows.csv below {root}; name a folder in FEDBR_TEST_DATA")
    monkeypatch.setenv("FEDBR_DATA", str(root))
    return root
