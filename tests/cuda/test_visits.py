"""Visits and evaluations on a GPU beside the same on a CPU, and steps replayed from real CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edge.protocol.messages import CORRECT, CROSS_ENTROPY, GLOBAL, Evaluate, Train, Update
from edge.protocol.payload import MODEL, Floats, Payload
from edge.training.cuda_graphs import GraphBackend, StepFactory
from edge.training.trainer import LocalTrainer
from tests.cuda.conftest import Called, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
"""Of pooling, whose windows do not overlap here; workers log it."""
FP32, TF32, BF16 = ("train.precision=fp32",), ("train.precision=tf32",), ("train.precision=bf16",)


def visit(of: LocalTrainer, start: Payload, client: int = 0, round: int = 0) -> Update:
    return of.train(Train(client, round, 0.1, {}, start), None, None)


def flat(payload: Payload) -> Floats:
    return np.concatenate([vector.data for vector in payload[MODEL].values()])


def start_of(of: LocalTrainer) -> Payload:
    """Copies: the vectors of a description are the model's."""
    return {MODEL: of.net.dump(of.net.layout.sizes)}


def off(model: Floats, other: Floats, start: Floats) -> float:
    return float(np.linalg.norm(model - other) / np.linalg.norm(other - start))


def test_a_visit_on_a_gpu_is_that_on_a_cpu_but_for_rounding(gpu: str, scenario: str) -> None:
    on_cpu = trainer(scenario, "cpu", *FP32, "train.memory_format=contiguous")
    start = start_of(on_cpu)
    expected = visit(on_cpu, start)
    first = visit(trainer(scenario, gpu, *FP32), start)
    again = visit(trainer(scenario, gpu, *FP32), start)
    assert flat(first.payload).tobytes() == flat(again.payload).tobytes()
    assert off(flat(first.payload), flat(expected.payload), flat(start)) < 1e-3
    assert first.numbers["loss"] == pytest.approx(expected.numbers["loss"], rel=1e-4)
    counted = ("samples", "steps", "flops")
    assert [first.numbers[name] for name in counted] == [expected.numbers[name] for name in counted]


@pytest.mark.parametrize("precision", [TF32, BF16])
def test_lower_precisions_differ_but_little(gpu: str, scenario: str, precision: tuple[str, ...]) -> None:
    exact = trainer(scenario, gpu, *FP32)
    start = start_of(exact)
    expected = flat(visit(exact, start).payload)
    assert 0 < off(flat(visit(trainer(scenario, gpu, *precision), start).payload), expected, flat(start)) < 0.3
    # A visit in tf32 leaves nothing behind for other trainers of its process.
    assert flat(visit(exact, start).payload).tobytes() == expected.tobytes()


def test_an_evaluation_on_a_gpu_counts_as_one_on_a_cpu(gpu: str, scenario: str) -> None:
    on_cpu, on_gpu = trainer(scenario, "cpu", *FP32), trainer(scenario, gpu, *TF32)
    model = visit(on_cpu, start_of(on_cpu)).payload
    task = Evaluate(0, 360, GLOBAL, model)
    ours, theirs = on_gpu.evaluate(task, None).values, on_cpu.evaluate(task, None).values
    assert abs(ours[CORRECT][0] - theirs[CORRECT][0]) <= 1  # an example may be on the border
    assert ours[CROSS_ENTROPY][0] == pytest.approx(theirs[CROSS_ENTROPY][0], rel=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "fedmlb", "fedprox"])
@pytest.mark.parametrize("precision", [FP32, BF16])
def test_a_replayed_step_is_the_captured_work_to_the_bit(
    gpu: str, scenario: str, method: str, precision: tuple[str, ...]
) -> None:
    overrides = (f"method={method}", "train.graphs=true", *precision)
    replayed, called = trainer(scenario, gpu, *overrides), trainer(scenario, gpu, *overrides)
    make: Callable[[], GraphBackend] = Called
    called.stepper = StepFactory(called.net, called.job.train, make)
    start = start_of(replayed)
    for client, round in ((0, 0), (1, 0), (0, 1)):
        ours, theirs = (visit(each, start, client, round) for each in (replayed, called))
        assert flat(ours.payload).tobytes() == flat(theirs.payload).tobytes()
        assert ours.numbers == theirs.numbers
    assert any(step.graph is not None for step in replayed.stepper._captured.values())
