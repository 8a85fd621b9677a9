"""FedAMP: rows of attention sum to 1; a client without peers or pull trains alone; others are pulled to their mix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from coordinator.methods.fedamp import FedAMPServer
from coordinator.records.client_vectors import ClientVectors
from edge.methods.fedamp import FedAMPUpdate
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.fedamp import FedAMPOptions
from edge.protocol.payload import MODEL, BlockShape, Layout
from tests.toy import play, small_context, tower, vector, visit

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


def server(folder: Path, models: Mapping[int, Sequence[float]], **options: Any) -> FedAMPServer:
    """A model of two numbers, (1, 0) at first, and these last uploads."""
    (folder / "vectors").mkdir()
    layout, initial = Layout((BlockShape("w", 2),)), {MODEL: {"w": vector(1, 0)}}
    chosen = FedAMPOptions(**options)
    made = FedAMPServer(small_context(layout, chosen, [1] * 4, initial, store=ClientVectors(folder)))
    for client, numbers in models.items():
        made.accumulate(Update(client, 0, {}, {MODEL: {"w": vector(*numbers)}}))
    made.step()
    made.store.publish()
    return made


def cloud(of: FedAMPServer, client: int, round: int = 1) -> list[float]:
    return [float(number) for number in of.download(client, round).built()[MODEL]["w"].data]


def test_a_first_visit_gets_the_initial_model(tmp_path: Path) -> None:
    assert cloud(server(tmp_path, {0: (5, 5)}), 1) == [1.0, 0.0]


def test_a_client_that_is_alone_gets_its_own_model(tmp_path: Path) -> None:
    for attention in ("cosine", "distance"):
        (tmp_path / attention).mkdir()
        assert cloud(server(tmp_path / attention, {2: (0.1, 0.7)}, attention=attention), 2) == pytest.approx([0.1, 0.7])


def test_cosines_choose_among_the_others(tmp_path: Path) -> None:
    """Cosines of client 0 with 1 and 2 are 0 and 0.6; its own model has a third."""
    of = [math.exp(2 * cosine) for cosine in (0.0, 0.6)]
    others = [2 / 3 * power / sum(of) for power in of]
    expected = [1 / 3 * 1 + others[1] * 3, others[0] * 2 + others[1] * 4]
    assert cloud(server(tmp_path, {0: (1, 0), 1: (0, 2), 2: (3, 4)}, sigma=2), 0) == pytest.approx(expected)


def test_distances_choose_by_the_derivative_of_the_attention(tmp_path: Path) -> None:
    """A'(4) = exp(-4/8)/8 for client 1 at a distance of 2; alpha_k = 2, and 0.2 from round 30 on."""
    models, options = {0: (0.0, 0.0), 1: (2.0, 0.0)}, {"sigma": 8, "alpha_k": 2, "alpha_decay": 0.1}
    made = server(tmp_path, models, attention="distance", **options)
    for round, alpha_k in ((29, 2.0), (30, 0.2)):
        assert cloud(made, 0, round) == pytest.approx([2 * alpha_k * math.exp(-0.5) / 8, 0.0])


def test_one_model_is_charged_and_the_weights_of_each_mix_sum_to_1(tmp_path: Path) -> None:
    run = play(tmp_path, "fedamp", rounds=3, participants=2, train=BRIEF)
    nbytes = run.federation.description.layout.nbytes()
    assert set(
        run.rows("SELECT slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY visit, direction, slot")
    ) == {("model", nbytes)}
    took_part = run.rows("SELECT round, client FROM visits ORDER BY round, client")
    again = [visit for index, visit in enumerate(took_part) if visit[1] in {of for _, of in took_part[:index]}]
    sums = run.rows("SELECT round, client, SUM(weight), MIN(weight) FROM fedamp GROUP BY round, client")
    assert [row[:2] for row in sums] == again != []
    assert all(total == pytest.approx(1.0) and least > 0 for _, _, total, least in sums)


# --- the client side --------------------------------------------------------------------------------------------------


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
