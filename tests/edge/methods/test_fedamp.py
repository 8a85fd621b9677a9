"""A client of FedAMP trains its own model, and is pulled to the downloaded one."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from edge.methods.fedamp import FedAMPUpdate
from edge.protocol.options.fedamp import FedAMPOptions
from edge.protocol.payload import MODEL
from tests.toy import tower, visit

CLOUD, OWN = (tower(seed=seed).dump(("b1", "b2", "b3", "b4")) for seed in (5, 6))


def begun(start: Literal["own", "cloud"] = "own", lam: float = 0.5, alpha_k: float = 2.0) -> tuple[Any, FedAMPUpdate]:
    net = tower()
    client_side = FedAMPUpdate(FedAMPOptions(lam=lam, alpha_k=alpha_k, start=start))
    client_side.begin(net, {MODEL: CLOUD}, {"own": OWN}, visit(net))
    return net, client_side


@pytest.mark.parametrize(("start", "model"), [("own", OWN), ("cloud", CLOUD)])
def test_it_starts_from_its_own_model_or_from_the_cloud_model(start: Literal["own", "cloud"], model: Any) -> None:
    net, _ = begun(start)
    assert all(np.array_equal(net.dump([key])[key].data, model[key].data) for key in model)


def test_the_gradient_is_lambda_over_alpha_of_the_distance() -> None:
    net, client_side = begun()
    net.grad.fill_(1.0)
    client_side.correct(net)
    distance = np.concatenate([OWN[key].data - CLOUD[key].data for key in OWN])
    assert np.allclose(net.grad.numpy(), 1 + 0.25 * distance, atol=1e-6)


def test_a_first_visit_starts_from_the_download_without_a_pull() -> None:
    net = tower()
    client_side = FedAMPUpdate(FedAMPOptions(lam=1.0))
    client_side.begin(net, {MODEL: CLOUD}, {}, visit(net))
    net.grad.zero_()
    client_side.correct(net)
    assert not net.grad.any()


def test_its_own_model_is_kept_and_evaluated() -> None:
    net, client_side = begun()
    _, state, _ = client_side.end(net, visit(net))
    assert {key: vector.data.tolist() for key, vector in state["own"].items()} == {
        key: vector.data.tolist() for key, vector in OWN.items()
    }
    client_side.prepare_score(net, {}, {"own": OWN}, visit(net))
    assert np.array_equal(net.dump(["b1"])["b1"].data, OWN["b1"].data)
