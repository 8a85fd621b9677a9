"""``fedbr check``: what a scenario weighs and will cost, from one worker and without training."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.server import ServerExtension
from coordinator.methods.spec import CorrectionSpec, Options
from edge.protocol.config import ModelProfile
from edge.protocol.payload import BlockShape, Layout, Payload, Vector
from scenarios.cli import main
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.report import check_output, terminal
from scenarios.studies.forecast import estimate as check


def described(samples: int = 0) -> ModelProfile:
    """A model of two blocks of 100 and 300 parameters; ten clients with ``samples`` each, or no data at all."""
    empty = np.zeros(0, dtype=np.int64)
    return ModelProfile(
        layout=Layout((BlockShape("body", 100), BlockShape("head", 300))),
        family="conv",
        flops=np.array([[1000.0, 1000.0, 0.0, 1000.0], [200.0, 200.0, 0.0, 200.0]]),
        activations=np.array([10.0, 20.0]),
        data_sha256="",
        data_source="",
        classes=10,
        test_count=0,
        samples=np.full(10, samples) if samples else empty,
        histogram=np.zeros((0, 10), dtype=np.int64),
        test_samples=empty,
    )


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The check of the FedBR paper's CIFAR-100 setting, on a machine without the data."""
    root = tmp_path_factory.mktemp("no-data")
    return check.run_check(load("fedbr-cifar100", parsed([f"data.root={root}", "model.norm=group"])), root)


def column(rows: list[dict[str, Any]], name: str, digits: int = 4) -> list[float]:
    return [round(row[name], digits) for row in rows]


@pytest.mark.usefixtures("warm_workers")
def test_the_blocks_of_resnet18_weigh_and_cost_what_its_shapes_say_and_a_message_a_header_more(
    cifar100: dict[str, Any],
) -> None:
    rows = cifar100["alphas"]
    assert column(rows, "payload_nbytes") == [205_200, 33_780_112, 42_178_960, 44_281_232, 44_873_104]
    assert column(rows, "flops_ratio", 3) == [1.000, 1.161, 1.484, 1.968, 2.633]
    assert column(rows, "ratio_3f") == [1.0001, 1.1612, 1.4834, 1.9668, 2.6313]
    assert column(rows, "eq2") == [1.1667, 1.5, 2.0, 2.6667, 3.5]
    assert column(rows, "nominal_share") == [0.1667, 0.3333, 0.5, 0.6667, 0.8333]
    assert column(rows, "share") == [0.0046, 0.7527, 0.9398, 0.9866, 0.9998]
    for row in cifar100["alphas"]:
        assert 0 < row["message_nbytes"] - row["payload_nbytes"] < 1000
    blocks = cifar100["blocks"]
    assert [block["name"] for block in blocks] == ["stem", "stage1", "stage2", "stage3", "stage4", "head"]
    assert sum(block["params"] for block in blocks) == 11_220_132
    assert sum(block["nbytes"] for block in blocks) == 4 * 11_220_132
    assert sum(block["flops_forward"] for block in blocks) == 2 * 555_468_800


def test_a_missing_data_set_is_a_warning_and_leaves_out_what_depends_on_it(cifar100: dict[str, Any]) -> None:
    estimate = cifar100["estimate"]

    assert estimate["data"]["found"] is None
    assert estimate["data"]["warning"].startswith("data set cifar100 was not found; searched data.root (")
    assert estimate["data"]["get"].startswith("put cifar100/train.parquet and cifar100/test.parquet, or torchvision's")
    assert (estimate["flops"], estimate["virtual_seconds"], estimate["joules"]) == (None, None, None)
    assert estimate["bytes"][0] > 0


def test_missing_data_that_can_be_downloaded_are_said_to_be() -> None:
    get = check.data(load("cifar10-cnn"), described(), None)["get"]
    assert get.startswith("the first run downloads it with torchvision (data.download = true); if you have it, put ")
    assert check.data(load("digits"), described(), "scikit-learn")["get"] is None


def test_the_printed_check_fits_80_columns_cuts_no_number_and_names_devices_that_are_too_small(
    cifar100: dict[str, Any],
) -> None:
    refused = [{"clients": 3, "why": "board: 4 B x ..."}]
    stream = io.StringIO()
    changed = cifar100 | {"estimate": cifar100["estimate"] | {"refused_clients": refused}}
    check_output.print_check(changed, stream)
    lines = stream.getvalue().splitlines()

    assert lines[1].startswith("costs, at most"), "before all details"
    assert 'name = "cifar100"' not in lines
    assert "…" not in stream.getvalue()
    unbroken = ("warning: data set", "to get it:", "wall time:")
    assert max(len(line) for line in lines if not line.startswith(unbroken)) <= 80
    row = "1 205,200 205,377 0.46 % 16.67 % 1.000 1.0001 1.1667"
    assert row in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("warning: data set cifar100 was not found") for line in lines)
    assert "warning: 3 clients cannot take part: board: 4 B x ..." in lines[:20]
    check_output.print_check(changed, stream, keys=True)
    assert 'name = "cifar100"' in stream.getvalue().splitlines()


def test_two_blocks_by_hand() -> None:
    row = check.alphas(load("digits", parsed(["model.blocks=balanced:2"])), described())[0]

    # A plain step: 3 x 1200 less the first block's input gradient; the pathway adds 200 forward and 200 back.
    assert row["flops_ratio"] == (2600 + 400) / 2600
    assert row["ratio_3f"] == 1 + 2 * 200 / (3 * 1200)
    assert row["payload_nbytes"] == 4 * 300
    assert (row["share"], row["nominal_share"], row["eq2"]) == (0.75, 0.5, 1.5)


def test_the_estimate_of_fedavg_by_hand_and_of_fedgkd_with_its_teacher_though_that_is_silent_at_first() -> None:
    settings = ["method_options={}", "rounds.max=3", "rounds.participants=5"]
    fedavg, fedgkd = (
        check.estimate(load("digits", parse_all([f"method={method}", *settings])), described(samples=32))
        for method in ("fedavg", "fedgkd")
    )

    down, up = fedavg["message_down_nbytes"][1], fedavg["message_up_nbytes"]
    assert fedavg["payload_down_nbytes"] == [1600, 1600]
    assert fedavg["bytes"] == [15 * (down + up)] * 2
    assert fedavg["nominal_bytes"] == 15 * 2 * 1600
    assert fedavg["flops"] == 15 * 2 * 32 * 2600  # two local epochs of 32 examples
    assert fedavg["virtual_seconds"] > 0
    assert fedavg["state_disk_nbytes"] == 0
    assert fedgkd["payload_down_nbytes"] == [3200, 3200]
    assert fedgkd["payload_up_nbytes"] == 1600
    assert fedgkd["flops"] == 15 * 2 * 32 * (2600 + 1200)


@pytest.mark.parametrize(("policy", "counted"), [("sync", 15), ("fedasync", 15), ("fedbuff", 30)])
def test_visits_in_flight_at_the_end_of_an_asynchronous_run_are_in_its_upper_bound(policy: str, counted: int) -> None:
    settings = ["method=fedavg", "method_options={}", "rounds.max=3", "rounds.participants=5"]
    found = check.estimate(load("digits", parse_all([*settings, f"rounds.policy={policy}"])), described(samples=32))

    # The run ends with the last update; the four others of the five visits in flight do not count, but cost.
    begun = counted if policy == "sync" else counted + 4
    assert (found["message_down_nbytes"], found["message_up_nbytes"]) == ([1811, 1811], 1865)
    assert found["bytes"] == [counted * (1811 + 1865), begun * (1811 + 1865)]
    assert found["flops"] == begun * 2 * 32 * 2600
    assert found["nominal_bytes"] == counted * 2 * 1600


# A round of five visits: 5 x (1,811 + 1,865) B, and 5 x 2 x 32 x 2,600 FLOPs.
@pytest.mark.parametrize(
    ("budget", "rounds", "amount"),
    [
        ("bytes=40 kB", 2, [2 * 5 * 3676] * 2),
        ("bytes_up=28 kB", 3, [3 * 5 * 1865] * 2),
        ("bytes_down=36.22 kB", 4, [4 * 5 * 1811] * 2),
        ("flops=2 MFLOP", 2, 2 * 5 * 2 * 32 * 2600),
    ],
)
def test_a_budget_ends_the_run_that_is_estimated_after_its_last_whole_round(
    budget: str, rounds: int, amount: float
) -> None:
    settings = ["method=fedavg", "method_options={}", "rounds.participants=5", f"budget.{budget}"]
    found = check.estimate(load("digits", parse_all(settings)), described(samples=32))

    rule = budget.partition("=")[0]
    assert (found["rounds"], found["ended_by"], found[rule]) == ([rounds, rounds], rule, amount)
    assert found["per_round"]["bytes"] == [5 * 3676] * 2
    costs = {"wall_seconds": None, "disk_nbytes": 1, "coordinator_nbytes": 1, "worker_nbytes": 1, "workers": 1}
    notes = check_output.cost_notes(costs, found | {"untimed": None})
    assert next(notes) == f"budget: budget.{rule} ends the run after about {rounds} rounds"


def test_seconds_and_joules_end_an_estimate_too_and_a_client_after_its_own_visits() -> None:
    settings = ["method=fedavg", "method_options={}", "rounds.participants=5", "data.clients=10", "rounds.max=40"]
    endless = check.estimate(load("digits", parse_all(settings)), described(samples=32))
    assert (endless["rounds"], endless["ended_by"]) == ([40, 40], None)
    seconds, joules = (endless["per_round"][name][1] for name in ("virtual_seconds", "joules"))
    # The third round is interrupted, and paid for until then.
    limit = f"budget.virtual_seconds={2.5 * seconds} s"
    timed = check.estimate(load("digits", parse_all([*settings, limit])), described(samples=32))
    assert (timed["rounds"], timed["ended_by"], timed["virtual_seconds"]) == ([2, 2], "virtual_seconds", 2.5 * seconds)
    assert timed["bytes"] == [3 * 5 * 3676] * 2
    spent = check.estimate(
        load("digits", parse_all([*settings, f"budget.joules={2.5 * joules} J"])), described(samples=32)
    )
    assert (spent["rounds"], spent["ended_by"], spent["joules"]) == ([2, 2], "joules", pytest.approx(2 * joules))
    # Three visits each: three rounds with the same five clients, six if the ten take turns.
    own = check.estimate(load("digits", parse_all([*settings, "budget.client.bytes=12 kB"])), described(samples=32))
    assert (own["rounds"], own["ended_by"]) == ([3, 6], "client.bytes")


def test_evaluations_that_are_charged_are_in_the_estimate() -> None:
    settings = ["method=fedavg", "method_options={}", "rounds.max=5", "eval.on=both", "eval.every=2"]
    description = replace(described(samples=32), test_samples=np.array([8] * 9 + [0]))
    free, charged = (
        check.estimate(load("digits", parse_all([*settings, f"eval.charged={flag}"])), description)
        for flag in ("false", "true")
    )

    assert "evaluation_visits" not in free
    found = charged["evaluation_visits"]
    # After rounds 1, 3 and the last; of the nine clients with examples. The model goes down as for training.
    assert (found["evaluations"], found["clients"]) == (3, 9)
    assert [found["message_down_nbytes"]] * 2 == charged["message_down_nbytes"] == free["message_down_nbytes"]
    nbytes = 27 * (found["message_down_nbytes"] + found["message_up_nbytes"])
    assert found["bytes"] == nbytes
    assert charged["bytes"] == [low_or_high + nbytes for low_or_high in free["bytes"]]
    assert charged["flops"] == free["flops"] + 27 * 8 * 1200
    assert charged["virtual_seconds"] > free["virtual_seconds"]
    assert charged["joules"] > free["joules"]
    assert "of these, evaluations" in dict(check_output.estimate_rows(charged))


@pytest.mark.parametrize("method", ["pfedme", "fedamp", "fedfomo"])
def test_a_model_that_a_client_keeps_is_not_sent_to_be_evaluated_in_the_lower_bound(method: str) -> None:
    description = replace(described(samples=32), test_samples=np.array([8] * 10), validation_samples=np.array([8] * 10))
    free, charged = (
        check.estimate(
            load("digits", parsed([f"method={method}", "rounds.max=5", f"eval.charged={flag}"])), description
        )
        for flag in ("false", "true")
    )
    least, most = (of - alone for of, alone in zip(charged["bytes"], free["bytes"], strict=True))
    assert most == charged["evaluation_visits"]["bytes"]
    assert least < most - 50 * 1600, "a model of 400 numbers goes to ten clients after each of five rounds, or does not"
    assert least > 0


def test_whole_rounds_of_fedbr_are_priced_with_all_pathways_where_they_train_them() -> None:
    three = replace(
        described(samples=32),
        layout=Layout((BlockShape("body", 100), BlockShape("neck", 200), BlockShape("head", 300))),
        flops=np.array([[1000.0, 1000.0, 0.0, 1000.0], [200.0, 200.0, 0.0, 200.0], [200.0, 200.0, 0.0, 200.0]]),
        activations=np.array([10.0, 20.0, 20.0]),
    )
    settings = ["model.blocks=balanced:3", "method_options.alpha=1", "rounds.max=3"]
    always_one = check.estimate(load("digits", parse_all(settings)), three)
    all_in_full = check.estimate(load("digits", parse_all([*settings, "method_options.full_rounds=all"])), three)

    # A plain step costs 3200; the pathway through the last block adds 400, the one through the last two 800.
    assert always_one["flops"] == 15 * 2 * 32 * 3600
    assert all_in_full["flops"] == 15 * 2 * 32 * 4400


def test_those_who_only_listen_are_priced_too() -> None:
    settings = ["model.blocks=balanced:2", "rounds.max=3", "method_options.broadcast=everyone"]
    estimate = check.estimate(load("digits", parse_all(settings)), described(samples=32))
    down, up = estimate["message_down_nbytes"][1], estimate["message_up_nbytes"]

    assert estimate["bytes"][1] == 3 * (5 * (down + up) + 5 * down)
    # What five listeners keep is one file.
    assert estimate["state_disk_nbytes"] == (10 + 5 + 1) * 400


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, in whose callbacks (test tools have some) an alarm's error would be a warning."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_round_that_takes_too_long_to_reckon_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PATIENCE_SECONDS", 0.2)
    changes = [f"fleet.speed.{said}" for said in ("kind=load", "on=1 ms", "off=1 ms")]
    endless = load(
        "digits", parse_all(["method=fedavg", "method_options={}", "train.local_epochs=1000000000000", *changes])
    )
    estimate = check.estimate(endless, described(samples=32))

    assert (estimate["virtual_seconds"], estimate["joules"]) == (None, None)
    assert estimate["flops"] == 40 * 5 * 10**12 * 32 * 2600
    assert estimate["untimed"] == "not computed within 0.2 s: a round has too many events"
    assert ("virtual time", f"{terminal.UNKNOWN} {estimate['untimed']}") in list(check_output.estimate_rows(estimate))


def test_the_clients_of_a_typical_round_are_available() -> None:
    always = ["method=fedavg", "method_options={}"]
    away = [f"fleet.availability.{said}" for said in ("kind=renewal", "on=1 ms", "off=1000000000 s")]
    estimates = [
        check.estimate(load("digits", parse_all([*always, *more])), described(samples=32)) for more in ([], away)
    ]

    assert estimates[0]["virtual_seconds"] > 0
    assert estimates[0] == estimates[1]


class Control(ServerExtension):
    """A vector as large as the model, down and up."""

    def down(self, client: int) -> Payload:
        return {"control": {"c": Vector(np.zeros(400, np.float32))}}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return {"control": {"c": 400}}


def test_what_a_correction_sends_and_keeps_is_priced_too() -> None:
    loaded = load("digits", parsed(["method=fedavg", "method_options={}"]))
    row = CorrectionSpec(
        "control", "", "", Options, "", "edge.methods.fedprox:FedProxCorrection", server=Control, has_client_state=True
    )
    estimate = check.estimate(replace(loaded, method=replace(loaded.method, corrections=(row,))), described(samples=32))

    assert estimate["payload_down_nbytes"] == [1600 + 1600] * 2
    assert estimate["payload_up_nbytes"] == 1600 + 1600
    assert estimate["state_disk_nbytes"] == (10 + 5) * 1600


def test_what_clients_of_fedbr_keep_is_refused_with_the_sum_where_the_disk_cannot_hold_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "free_nbytes", lambda out: 5999)
    loaded = load("digits", parsed(["model.blocks=balanced:2"]))
    with pytest.raises(ScenarioError) as caught:
        check.check_disk(loaded, described(), tmp_path)

    # 100 parameters of each of ten clients, and a second copy of five while a round is under way.
    assert check.estimate(loaded, described())["state_disk_nbytes"] == 15 * 400
    assert str(caught.value) == (
        f"digits: data.clients = 10: client states need 15 x 400 B = 6 kB, but --out {tmp_path} has 6 kB free"
    )


@pytest.mark.usefixtures("warm_workers")
def test_check_as_json_has_exactly_these_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["check", "digits", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)

    assert set(result) == {"scenario", "blocks", "alphas", "notes", "estimate", "costs", "refusals"}
    assert result["refusals"] == []
    assert result["estimate"]["data"]["found"] is not None
    assert result["estimate"]["flops"] > 0


def test_a_data_set_of_ones_own_is_looked_for_by_its_place_and_not_by_the_name_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str, root: str | None, cache: Path | None) -> None:
        raise LookupError(name)

    monkeypatch.setattr(check, "find_data", asked)
    place = "benchmarks.engine_parts.images:images_200"
    with pytest.raises(LookupError, match=place):
        check.run_check(load("digits", parsed([f"data.name={place}", "model.name=cnn"])), tmp_path)
