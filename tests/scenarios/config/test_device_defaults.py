"""What a scenario leaves to the device: resolved from the model's table, and refused where the device lacks it."""

from __future__ import annotations

import pytest

from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run import run_problems
from scenarios.run.run_problems import check_machine
from scenarios.run.setup import on_device

NATIVE = "train.instructions=native"
WIDE = ["model.name=resnet18", "model.width=64", "data.name=cifar10"]
NARROW = ["model.name=resnet18", "model.width=16", "data.name=cifar10"]


def settled(overrides: list[str], device: str) -> tuple[str | None, str | None, str | None]:
    train = on_device(load("digits", parse_all([NATIVE, *overrides])), device).scenario.train
    return train.memory_format, train.precision, train.pathways


@pytest.mark.parametrize(
    ("overrides", "device", "expected"),
    [
        ([], "cpu", ("channels_last", "fp32", "sweep")),
        ([], "cuda:1", ("contiguous", "fp32", "sweep")),
        (NARROW, "cpu", ("channels_last", "fp32", "sweep")),
        (WIDE, "cpu", ("contiguous", "fp32", "sweep")),
        ([*WIDE, "train.precision=bf16"], "cpu", ("channels_last", "bf16", "sweep")),
        (WIDE, "cuda", ("contiguous", "fp32", "sweep")),
    ],
)
def test_what_is_not_said_follows_from_model_width_and_device(
    overrides: list[str], device: str, expected: tuple[str, str, str]
) -> None:
    assert settled(overrides, device) == expected


def test_what_is_said_stays_and_is_refused_where_the_device_or_everybody_lacks_it() -> None:
    said = ["train.memory_format=contiguous", "train.precision=bf16", "train.pathways=each"]
    assert settled(said, "cpu") == ("contiguous", "bf16", "each")
    with pytest.raises(ScenarioError) as caught:
        settled(["train.precision=tf32"], "cpu")
    assert str(caught.value) == "digits: train.precision = tf32: needs a CUDA device; this run is on cpu"
    with pytest.raises(ScenarioError, match=r"^digits: train\.graphs = true: needs a CUDA device; this run is on cpu$"):
        settled(["train.graphs=true"], "cpu")
    assert settled(["train.precision=tf32"], "cuda") == ("contiguous", "tf32", "sweep")


def test_steps_are_replayed_on_a_gpu_unless_the_scenario_or_the_model_is_ones_own() -> None:
    def graphs(overrides: list[str], device: str) -> bool | None:
        return on_device(load("digits", parse_all([NATIVE, *overrides])), device).scenario.train.graphs

    assert (graphs([], "cpu"), graphs([], "cuda"), graphs(WIDE, "cuda:1")) == (False, True, True)
    assert graphs(["train.graphs=false"], "cuda") is False
    assert graphs(["model.name=tests.plugins.residual:ROW"], "cuda") is False


def test_portable_numerics_need_a_processor_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    portable = load("digits", parsed(["train.instructions=portable"]))
    assert portable.scenario.train.instructions == "portable"
    with pytest.raises(ScenarioError) as caught:
        on_device(portable, "cuda")
    assert str(caught.value) == (
        "digits: train.instructions = portable: only on the CPU, and this run is on cuda; choose --device cpu, or "
        "native"
    )
    monkeypatch.setattr(run_problems, "lacking", lambda: "this machine's has no AVX2")
    check_machine(load("digits", parsed([NATIVE])))
    with pytest.raises(ScenarioError) as caught:
        check_machine(portable)
    assert str(caught.value) == (
        "digits: train.instructions = portable: needs an x86-64 processor with AVX2 and FMA, and this machine's has no "
        "AVX2; choose native"
    )
