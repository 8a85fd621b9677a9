"""Class-share calibration by hand: the shift of each form, and where it is added and where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods.registry import resolve
from edge.methods.calibrated import CalibratedCorrection, class_shift
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.options.calibrated import CalibratedOptions
from edge.training.block_model import BlockModel
from edge.training.blocks import load_dotted
from edge.training.client_update import ClientUpdate
from edge.training.cuda_graphs import StepFactory
from tests.toy import CPU, batch, tower, visit, whole

SHARES = [6, 2, 0]
"""Examples of each class; shares 0.75, 0.25 and none."""


def calibrated(net: BlockModel, counts: list[int], tau: float = 1.0, form: str = "shares") -> CalibratedCorrection:
    """The correction at the start of a visit to a client with these numbers of examples."""
    correction = CalibratedCorrection(CalibratedOptions(tau=tau, form=form))
    correction.begin(net, {}, {}, replace(visit(net), class_counts=np.array(counts)))
    return correction


def test_the_shift_is_the_logarithm_of_the_class_shares() -> None:
    assert class_shift(np.array(SHARES), "shares") == pytest.approx([np.log(0.75), np.log(0.25), -18.420681])
    # -n^(-1/4) of 16, 1, and of no example.
    assert class_shift(np.array([16, 1, 0]), "margin") == pytest.approx([-0.5, -1.0, -100.0])
    shift = calibrated(tower(), SHARES, tau=2.0).logit_shift
    assert shift is not None and shift.tolist() == pytest.approx([2 * np.log(0.75), 2 * np.log(0.25), -36.841361])
    assert calibrated(tower(), SHARES, tau=0.0).logit_shift is None
    assert calibrated(tower(), [0, 0, 0]).logit_shift is None, "of a client without examples"


@pytest.mark.parametrize(
    ("form", "counts", "expected"),
    [
        # Logits 0: softmax of the shifts, 0.75 and 0.25, or exp(-0.5) and exp(-1) over their sum.
        ("shares", [6, 2], [-np.log(0.75), -np.log(0.25)]),
        ("margin", [16, 1], [np.log(1 + np.exp(-0.5)), np.log(1 + np.exp(0.5))]),
    ],
)
def test_the_loss_of_two_classes_is_as_by_hand(form: str, counts: list[int], expected: list[float]) -> None:
    net = BlockModel(lambda: [("head", nn.Linear(5, 2))], CPU)
    net.flat.zero_()
    client_side, correction = ClientUpdate(Options()), calibrated(net, counts, form=form)
    step = StepFactory(net, TrainConfig(batch=8)).begin(visit(net), client_side, [correction])
    for label in (0, 1):
        step.backward(client_side.loss, torch.zeros(1, 5), torch.tensor([label]))
    assert [float(loss) for loss in client_side.losses] == pytest.approx(expected, rel=1e-6)


METHODS: list[tuple[str, dict[str, Any], int]] = [
    ("fedavg", {}, 1),
    ("fedmlb", {}, 4),
    ("fedmlb", {"order": "GL"}, 4),
    ("fedbr", {"drop": "exact"}, 4),
    ("fedavg-kd", {}, 2),
    ("fedntd", {}, 2),
    ("fedgkd", {}, 2),
]


@pytest.mark.parametrize("form", ["each", "sweep"])
@pytest.mark.parametrize(("name", "options", "paths"), METHODS)
def test_every_path_of_a_training_loss_is_shifted_and_no_evaluation(
    name: str, options: dict[str, Any], paths: int, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: list[int] = []
    added: list[int] = []
    whole_logits = BlockModel._logits

    def spy(self: BlockModel, x: torch.Tensor) -> torch.Tensor:
        shifted = whole_logits(self, x)
        assert correction.logit_shift is not None
        is_shifted = torch.equal(shifted, x + correction.logit_shift)
        (added if is_shifted else plain).append(len(x))
        assert is_shifted != torch.equal(shifted, x)
        return shifted

    monkeypatch.setattr(BlockModel, "_logits", spy)
    net, method = tower(), resolve(name)
    client_side = load_dotted(method.objective.client)(method.options(**options))
    about = replace(visit(net, alpha=3, full=1), pathways=form)
    correction = calibrated(net, SHARES)
    client_side.begin(net, whole(net), {}, about)
    step = StepFactory(net, TrainConfig(batch=8)).begin(about, client_side, [correction])
    before = len(plain)
    client_side.train(net, lambda: iter([batch()]), step)
    assert (sum(added), len(plain)) == (8 * paths, before), "the examples of all paths"
    client_side.end(net, about)
    client_side.adapt(
        net, lambda: iter([batch()]), StepFactory(net, TrainConfig(batch=8)).begin(about, client_side, [])
    )
    net.run(batch()[0])
    assert sum(added) == 8 * paths
    # `drop` = "exact" scores the model before and after.
    assert sum(plain) == 8 * (2 + 2 * ("drop" in options))
