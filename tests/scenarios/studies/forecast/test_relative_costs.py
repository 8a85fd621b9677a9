"""What ``fedbr list methods`` says a method costs beside FedAvg."""

from __future__ import annotations

import numpy as np
import pytest

from edge.protocol.config import ModelConfig
from edge.training.blocks import build
from edge.training.counts import flops_per_example
from scenarios.studies.forecast.relative_costs import CLASSES, LAYOUT, MACS, method_costs

MODEL_NBYTES = 44_880_528


def test_the_stated_model_is_the_one_that_ships() -> None:
    config = ModelConfig("resnet18")
    blocks = build(config, CLASSES, 3)
    assert [(name, sum(p.numel() for p in module.parameters())) for name, module in blocks] == [
        (block.name, block.params) for block in LAYOUT.blocks
    ]
    assert LAYOUT.nbytes() == MODEL_NBYTES
    assert np.array_equal(2 * MACS, flops_per_example(lambda: build(config, CLASSES, 3), (3, 32, 32)))


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("fedavg", 1.0),
        ("fedprox", 1.0),
        ("fedavg-kd", 4 / 3),
        ("fedavg-fitnet", 4 / 3 - 51_200 / (3 * 555_468_800)),  # without the head
        ("fedgkd", 4 / 3),
        ("fednova", 1.0),
        ("fedper", 1.0),
        ("pfedme", 5.0 - 4 * 1_769_472 / (3 * 555_468_800)),  # papers count the images' gradient once
    ],
)
def test_a_teacher_costs_one_forward_pass_of_three(name: str, factor: float) -> None:
    assert method_costs(name).relative_compute == pytest.approx((factor, factor), rel=1e-12)


def test_pathways_cost_what_the_papers_count() -> None:
    assert method_costs("fedmlb").relative_compute == pytest.approx((2.631, 2.631), abs=5e-4)
    assert method_costs("fedbr").relative_compute == pytest.approx((1.0001, 2.6313), abs=5e-5)


def test_what_travels_beside_the_model() -> None:
    found = {name: method_costs(name) for name in ("fedavg", "fedavg-kd", "fedgkd", "fednova", "fedbr")}
    extra = {name: (one.extra_bytes_down, one.extra_bytes_up) for name, one in found.items()}
    assert extra["fedavg"] == extra["fedavg-kd"] == (0, 0)
    alone = method_costs("local")
    assert (alone.extra_bytes_down, alone.extra_bytes_up) < (-MODEL_NBYTES, -MODEL_NBYTES)  # not even headers
    # Another model, and in the header its entries and a number.
    assert 0 < extra["fedgkd"][0] - MODEL_NBYTES < 1000
    # "normaliser" takes 11 bytes, and its number 10.
    assert extra["fednova"] == (0, 11 + 10)
    assert [name for name, one in found.items() if one.chosen_per_visit] == ["fedbr"]


def test_stored_numbers_per_client_are_those_of_the_spec_and_of_the_server_s_store() -> None:
    model = MODEL_NBYTES // 4
    stored = {
        name: (costs.stored_on_server, costs.stored_on_client)
        for name, costs in ((name, method_costs(name)) for name in ("fedavg", "fedbr", "feddyn", "fedfomo", "fedamp"))
    }
    assert stored == {
        "fedavg": (0, 0),
        "fedbr": (0, model - 51_300),
        "feddyn": (0, model),
        "fedfomo": (model, 2 * model),
        "fedamp": (model, model),
    }
