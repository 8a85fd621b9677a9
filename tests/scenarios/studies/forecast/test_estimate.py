"""What a run is expected to cost, from the description of its model and data."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from coordinator.aggregation.server import ServerExtension
from coordinator.methods.spec import CorrectionSpec, numbers_of_model
from edge.protocol.config import ModelProfile
from edge.protocol.options.base import Options
from edge.protocol.payload import BlockShape, Layout, Payload, Vector
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs
from scenarios.studies.forecast import estimate as study
from scenarios.studies.forecast.estimate import Estimate, varied_by
from scenarios.studies.forecast.typical_visits import TypicalVisits
from tests.scenarios.studies.forecast.profiles import profile


def estimated(
    *overrides: str, method: str = "fedavg", options: str = "method_options={}", description: ModelProfile | None = None
) -> Estimate:
    """The estimate of a run on the digits, by default of ten clients with 32 examples each."""
    loaded = load("digits", parse_all([f"method={method}", options, *overrides]))
    return study.estimate(TypicalVisits.of(loaded, description or profile(samples=32)))


def test_the_estimate_of_fedavg_by_hand_and_of_fedgkd_with_its_teacher_though_that_is_silent_at_first() -> None:
    settings = ["rounds.max=3", "rounds.participants=5"]
    fedavg, fedgkd = (estimated(*settings, method=method) for method in ("fedavg", "fedgkd"))

    down, up = fedavg.message_down_nbytes[1], fedavg.message_up_nbytes
    assert fedavg.payload_down_nbytes == (1600, 1600)
    assert fedavg.bytes == (15 * (down + up),) * 2
    assert fedavg.nominal_bytes == 15 * 2 * 1600
    assert fedavg.flops == 15 * 2 * 32 * 2600  # two local epochs of 32 examples
    assert fedavg.virtual_seconds is not None
    assert fedavg.virtual_seconds > 0
    assert fedavg.state_disk_nbytes == 0
    assert fedgkd.payload_down_nbytes == (3200, 3200)
    assert fedgkd.payload_up_nbytes == 1600
    assert fedgkd.flops == 15 * 2 * 32 * (2600 + 1200)


@pytest.mark.parametrize(("policy", "counted"), [("sync", 15), ("fedasync", 15), ("fedbuff", 30)])
def test_visits_in_flight_at_the_end_of_an_asynchronous_run_are_in_its_upper_bound(policy: str, counted: int) -> None:
    found = estimated("rounds.max=3", "rounds.participants=5", f"rounds.policy={policy}")

    # The run ends with the last update; the four others of the five visits in flight do not count, but cost.
    begun = counted if policy == "sync" else counted + 4
    assert (found.message_down_nbytes, found.message_up_nbytes) == ((1811, 1811), 1865)
    assert found.bytes == (counted * (1811 + 1865), begun * (1811 + 1865))
    assert found.flops == begun * 2 * 32 * 2600
    assert found.nominal_bytes == counted * 2 * 1600


# A round of five visits: 5 x (1,811 + 1,865) B, and 5 x 2 x 32 x 2,600 FLOPs.
@pytest.mark.parametrize(
    ("budget", "rounds", "amount"),
    [
        ("bytes=40 kB", 2, (2 * 5 * 3676,) * 2),
        ("bytes_up=28 kB", 3, (3 * 5 * 1865,) * 2),
        ("bytes_down=36.22 kB", 4, (4 * 5 * 1811,) * 2),
        ("flops=2 MFLOP", 2, 2 * 5 * 2 * 32 * 2600),
    ],
)
def test_a_budget_ends_the_run_that_is_estimated_after_its_last_whole_round(
    budget: str, rounds: int, amount: float
) -> None:
    found, rule = estimated("rounds.participants=5", f"budget.{budget}"), budget.partition("=")[0]

    assert (found.rounds, found.ended_by, getattr(found, rule)) == ((rounds, rounds), rule, amount)
    assert found.per_round["bytes"] == (5 * 3676,) * 2


def test_seconds_and_joules_end_an_estimate_too_and_a_client_after_its_own_visits() -> None:
    settings = ["rounds.participants=5", "data.clients=10", "rounds.max=40"]
    endless = estimated(*settings)
    assert (endless.rounds, endless.ended_by) == ((40, 40), None)
    seconds, joules = (endless.per_round[name][1] for name in ("virtual_seconds", "joules"))
    # The third round is interrupted, and paid for until then.
    timed = estimated(*settings, f"budget.virtual_seconds={2.5 * seconds} s")
    assert (timed.rounds, timed.ended_by, timed.virtual_seconds) == ((2, 2), "virtual_seconds", 2.5 * seconds)
    assert timed.bytes == (3 * 5 * 3676,) * 2
    spent = estimated(*settings, f"budget.joules={2.5 * joules} J")
    assert (spent.rounds, spent.ended_by) == ((2, 2), "joules")
    assert spent.joules == pytest.approx(2 * joules)
    # Three visits each: three rounds with the same five clients, six if the ten take turns.
    own = estimated(*settings, "budget.client.bytes=12 kB")
    assert (own.rounds, own.ended_by) == ((3, 6), "client.bytes")


def test_evaluations_that_are_charged_are_in_the_estimate() -> None:
    settings = ["rounds.max=5", "eval.on=both", "eval.every=2"]
    description = replace(profile(samples=32), test_samples=np.array([8] * 9 + [0]))
    free, charged = (
        estimated(*settings, f"eval.charged={flag}", description=description) for flag in ("false", "true")
    )

    assert free.evaluation_visits is None
    visits = charged.evaluation_visits
    assert visits is not None
    # After rounds 1, 3 and the last; of the nine clients with examples. The model goes down as for training.
    assert (visits.evaluations, visits.clients) == (3, list(range(9)))
    assert (visits.work.bytes_down,) * 2 == charged.message_down_nbytes == free.message_down_nbytes
    assert visits.nbytes == 27 * (visits.work.bytes_down + visits.work.bytes_up)
    assert charged.bytes == tuple(nbytes + visits.nbytes for nbytes in free.bytes)
    pairs = [[getattr(each, name) for each in (free, charged)] for name in ("flops", "virtual_seconds", "joules")]
    flops, seconds, joules = (after - before for before, after in pairs)
    assert flops == 27 * 8 * 1200
    assert min(seconds, joules) > 0


@pytest.mark.parametrize("method", ["pfedme", "fedamp", "fedfomo"])
def test_a_model_that_a_client_keeps_is_not_sent_to_be_evaluated_in_the_lower_bound(method: str) -> None:
    description = replace(profile(samples=32), test_samples=np.array([8] * 10), validation_samples=np.array([8] * 10))
    free, charged = (
        estimated("rounds.max=5", f"eval.charged={flag}", method=method, description=description)
        for flag in ("false", "true")
    )
    least, most = (of - alone for of, alone in zip(charged.bytes, free.bytes, strict=True))
    assert charged.evaluation_visits is not None
    assert most == charged.evaluation_visits.nbytes
    assert least < most - 50 * 1600, "a model of 400 numbers goes to ten clients after each of five rounds, or does not"
    assert least > 0


def test_whole_rounds_of_fedbr_are_priced_with_all_pathways_where_they_train_them() -> None:
    three = replace(
        profile(samples=32),
        layout=Layout((BlockShape("body", 100), BlockShape("neck", 200), BlockShape("head", 300))),
        flops=np.array([[1000.0, 1000.0, 0.0, 1000.0], [200.0, 200.0, 0.0, 200.0], [200.0, 200.0, 0.0, 200.0]]),
        activations=np.array([10.0, 20.0, 20.0]),
    )
    always_one, all_in_full = (
        estimated("model.blocks=balanced:3", "rounds.max=3", method="fedbr", options=options, description=three)
        for options in ("method_options={alpha=1}", 'method_options={alpha=1, full_rounds="all"}')
    )

    # A plain step costs 3200; the pathway through the last block adds 400, the one through the last two 800.
    assert always_one.flops == 15 * 2 * 32 * 3600
    assert all_in_full.flops == 15 * 2 * 32 * 4400


def test_clients_that_only_download_are_priced_too() -> None:
    options = 'method_options={broadcast="everyone"}'
    found = estimated("model.blocks=balanced:2", "rounds.max=3", method="fedbr", options=options)
    down, up = found.message_down_nbytes[1], found.message_up_nbytes

    assert found.bytes[1] == 3 * (5 * (down + up) + 5 * down)
    # What five such clients keep is one file.
    assert found.state_disk_nbytes == (10 + 5 + 1) * 400


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
    found = estimated("train.local_epochs=1000000000000", *changes)

    assert (found.virtual_seconds, found.joules) == (None, None)
    assert found.flops == 40 * 5 * 10**12 * 32 * 2600
    assert found.untimed == "not computed within 0.2 s: a round has too many events, of fleet.speed"


def test_the_clients_of_a_typical_round_are_available() -> None:
    away = [f"fleet.availability.{change}" for change in ("kind=renewal", "on=1 ms", "off=1000000000 s")]
    always = estimated()

    assert always.virtual_seconds is not None
    assert always == replace(estimated(*away), varied_by=[])


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


class Control(ServerExtension):
    """A vector as large as the model, down and up."""

    def down(self, client: int) -> Payload:
        return {"control": {"c": Vector(np.zeros(400, np.float32))}}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return {"control": {"c": 400}}


def test_what_a_correction_sends_and_keeps_is_priced_too() -> None:
    loaded = load("digits", parse_all(["method=fedavg", "method_options={}"]))
    row = CorrectionSpec(
        "control",
        "",
        "",
        Options,
        "",
        "edge.methods.fedprox:FedProxCorrection",
        server=Control,
        client_state=numbers_of_model,
    )
    joined = replace(loaded, method=replace(loaded.method, corrections=(row,)))
    found = study.estimate(TypicalVisits.of(joined, profile(samples=32)))

    assert found.payload_down_nbytes == (1600 + 1600,) * 2
    assert found.payload_up_nbytes == 1600 + 1600
    assert found.state_disk_nbytes == (10 + 5) * 1600
