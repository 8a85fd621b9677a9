"""The forecast of a run's costs, from the description of its model and data: rounds that train nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edge.protocol.config import ModelProfile
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup
from scenarios.studies.forecast import forecast as study
from scenarios.studies.forecast.forecast import Forecast, varied_by
from tests.scenarios.studies.forecast.profiles import profile


def foreseen(
    *overrides: str, method: str = "fedavg", options: str = "method_options={}", description: ModelProfile | None = None
) -> Forecast:
    """The forecast of a run on the digits, by default of ten clients with 32 examples each."""
    loaded = load("digits", parse_all([f"method={method}", options, *overrides]))
    return study.forecast(Setup.of(loaded, description or profile(samples=32)))


def test_the_costs_of_fedavg_by_hand_and_of_fedgkd_whose_teacher_is_silent_at_first() -> None:
    settings = ["rounds.max=3", "rounds.participants=5"]
    fedavg, fedgkd = (foreseen(*settings, method=method) for method in ("fedavg", "fedgkd"))

    down, up = fedavg.message_down_nbytes[1], fedavg.message_up_nbytes
    assert fedavg.payload_down_nbytes == (1600, 1600)
    assert (fedavg.bytes, fedavg.rounds_played) == (15 * (down + up), 3)
    assert fedavg.first_round["bytes"] == 5 * (down + up)
    assert fedavg.nominal_bytes == 15 * 2 * 1600
    assert fedavg.flops == 15 * 2 * 32 * 2600  # two local epochs of 32 examples
    assert fedavg.virtual_seconds is not None
    assert fedavg.virtual_seconds > 0
    assert fedavg.state_disk_nbytes == 0
    assert fedgkd.payload_down_nbytes == (3200, 3200)
    assert fedgkd.payload_up_nbytes == 1600
    assert fedgkd.flops == 2 * 32 * (15 * 2600 + 10 * 1200)  # in the second round and the third


def test_rounds_behind_those_that_are_played_go_on_at_the_pace_of_the_later_half() -> None:
    played, longer = foreseen("rounds.max=20"), foreseen("rounds.max=1000")

    assert (played.rounds_played, longer.rounds_played, longer.rounds) == (20, 20, 1000)
    assert played.virtual_seconds is not None
    assert longer.virtual_seconds is not None
    rest = longer.per_round["virtual_seconds"] * 980
    assert longer.virtual_seconds == pytest.approx(played.virtual_seconds + rest)
    assert longer.bytes == 50 * played.bytes


# A round of five visits: 5 x (1,811 + 1,865) B, and 5 x 2 x 32 x 2,600 FLOPs.
@pytest.mark.parametrize(
    ("budget", "rounds", "amount"),
    [
        ("bytes=40 kB", 2, 2 * 5 * 3676),
        ("bytes_up=28 kB", 3, 3 * 5 * 1865),
        ("bytes_down=36.22 kB", 4, 4 * 5 * 1811),
        ("flops=2 MFLOP", 2, 2 * 5 * 2 * 32 * 2600),
    ],
)
def test_a_budget_ends_the_run_that_is_foreseen_after_its_last_whole_round(
    budget: str, rounds: int, amount: float
) -> None:
    found, rule = foreseen("rounds.participants=5", f"budget.{budget}"), budget.partition("=")[0]

    assert (found.rounds, found.ended_by, getattr(found, rule)) == (rounds, rule, amount)
    assert found.per_round["bytes"] == 5 * 3676


def test_seconds_and_joules_end_a_run_too_and_a_client_after_its_own_visits() -> None:
    settings = ["rounds.participants=5", "data.clients=10", "rounds.max=12"]
    endless = foreseen(*settings)
    assert (endless.rounds, endless.ended_by) == (12, None)
    seconds, joules = (endless.first_round[name] for name in ("virtual_seconds", "joules"))
    # A later round is interrupted, and paid for until then.
    timed = foreseen(*settings, f"budget.virtual_seconds={2.5 * seconds} s")
    assert (timed.ended_by, timed.virtual_seconds) == ("virtual_seconds", 2.5 * seconds)
    assert timed.rounds in (1, 2, 3)
    assert timed.bytes <= (timed.rounds + 1) * 5 * 3676
    spent = foreseen(*settings, f"budget.joules={1.5 * joules} J")
    assert (spent.rounds, spent.ended_by, spent.joules) == (1, "joules", joules)
    # Behind rounds that were played, a budget is used up at their pace: 20 of them take 20 x 18,380 B.
    far = foreseen("rounds.participants=5", "data.clients=10", "rounds.max=1000", f"budget.bytes={500 * 18_380} B")
    assert (far.rounds_played, far.rounds, far.ended_by, far.bytes) == (20, 500, "bytes", 500 * 18_380)
    # Three visits each: no five clients are left when most of the ten have had them.
    own = foreseen(*settings, "budget.client.bytes=12 kB")
    assert (own.rounds, own.ended_by) == (5, "clients")


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, in whose callbacks (test tools have some) an alarm's error would be a warning."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_round_that_takes_too_long_to_compute_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "PATIENCE_SECONDS", 0.2)
    changes = [f"fleet.speed.{change}" for change in ("kind=load", "on=1 ms", "off=1 ms")]
    found = foreseen("train.local_epochs=1000000000000", *changes)

    assert (found.virtual_seconds, found.joules) == (None, None)
    assert found.flops == 40 * 5 * 10**12 * 32 * 2600
    assert found.untimed == "not computed within 0.2 s: a round has too many events, of fleet.speed"


def test_without_the_data_bytes_alone_are_foreseen() -> None:
    found = foreseen(description=profile())
    assert (found.flops, found.virtual_seconds, found.joules, found.untimed) == (None, None, None, None)
    assert (found.bytes, found.rounds) == (40 * 5 * 3676, 40)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((), []),
        (("fleet.jitter=0.5",), []),
        (
            ("fleet.availability.kind=renewal", "fleet.crashes_per_hour=2"),
            ["fleet.availability", "fleet.crashes_per_hour"],
        ),
        (("fleet.bandwidth.kind=ou", "fleet.speed.kind=load"), ["fleet.bandwidth", "fleet.speed"]),
        (("fleet.bandwidth.outages=true",), ["fleet.bandwidth"]),
        (("fleet.rates=['1 Mbit/s', '2 Mbit/s']", "fleet.redraw=0.1"), ["fleet.redraw", "fleet.rates"]),
        (("fleet.battery=1 kJ", "fleet.mode_rounds=20"), ["fleet.battery", "fleet.mode_rounds"]),
        (("fleet.tiers.count=2", "fleet.tiers.availability.kind=renewal"), ["fleet.tiers.availability"]),
    ],
)
def test_what_makes_rounds_differ_from_a_typical_one_is_named(words: tuple[str, ...], keys: list[str]) -> None:
    inputs = RunInputs(load("digits", parse_all(["method=fedavg", *words])))
    assert varied_by(inputs.scenario, inputs.files) == keys
