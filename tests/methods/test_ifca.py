"""IFCA: each model is averaged over the clients that chose it, and each chooses by its training loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coordinator.methods.ifca import IFCAServer
from edge.methods.ifca import IFCAUpdate
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.ifca import IFCAOptions
from edge.protocol.payload import MODEL, BlockShape, Layout, Payload, initial_slot
from tests.toy import batch, federation, play, small_context, store, tower, vector, visit

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


def server(models: int, samples: tuple[int, ...] = (1, 3), weights: str = "size", shared: int = 0) -> IFCAServer:
    """Models of two blocks of one number; the number is that of the model."""
    layout = Layout((BlockShape("body", 1), BlockShape("head", 1)))
    initial = {initial_slot(index): {"body": vector(index), "head": vector(index)} for index in range(models)}
    options = IFCAOptions(models=models, shared=shared)
    return IFCAServer(small_context(layout, options, samples, initial, weights=weights))


def update(client: int, cluster: int, number: float) -> Update:
    return Update(client, 0, {"cluster": float(cluster)}, {MODEL: {"body": vector(number), "head": vector(number)}})


def heads(of: IFCAServer) -> dict[str, float]:
    return {name: float(model["head"].data[0]) for name, model in of.models.items() if "head" in model}


@pytest.mark.parametrize(("weights", "mean"), [("size", 9.0), ("uniform", 8.0)])
def test_a_cluster_is_the_mean_over_the_clients_that_chose_it(weights: str, mean: float) -> None:
    one = server(3, weights=weights)
    one.accumulate(update(0, 1, 6))
    one.accumulate(update(1, 1, 10))  # it has 3 examples, the other 1
    one.step()
    assert heads(one) == {"cluster0": 0.0, "cluster1": mean, "cluster2": 2.0}


def test_shared_blocks_are_one_model_that_all_clients_train() -> None:
    one = server(2, shared=1)
    assert {name: [*model] for name, model in one.models.items()} == {
        "shared": ["body"], "cluster0": ["head"], "cluster1": ["head"]
    }  # fmt: skip
    for client, cluster, number in ((0, 0, 4.0), (1, 1, 8.0)):
        payload = {"shared": {"body": vector(number)}, MODEL: {"head": vector(number)}}
        one.accumulate(Update(client, 0, {"cluster": float(cluster)}, payload))
    one.step()
    assert one.models["shared"]["body"].data.tolist() == [7.0]
    assert heads(one) == {"cluster0": 4.0, "cluster1": 8.0}


def test_at_least_one_block_is_a_cluster_s_own() -> None:
    IFCAOptions(shared=3).check(4)
    with pytest.raises(ValueError, match=r"method_options\.shared = 4: the model has 4 blocks, .* at most 3"):
        IFCAOptions(shared=4).check(4)


def test_all_models_are_charged_and_the_table_says_who_chose_which(tmp_path: Path) -> None:
    run = play(tmp_path, "ifca", models=3, train=BRIEF)
    nbytes = run.federation.description.layout.nbytes()
    sent = "SELECT slot, SUM(nbytes) FROM transfers WHERE client = 1 AND round = 0 AND slot != '' GROUP BY slot"
    assert dict(run.rows(sent)) == dict.fromkeys(("cluster0", "cluster1", "cluster2", "model"), nbytes)
    chose = run.rows("SELECT round, client, cluster FROM ifca ORDER BY round, client")
    assert [row[:2] for row in chose] == [(round, client) for round in (0, 1) for client in range(4)]
    assert {cluster for *_, cluster in chose} <= {0, 1, 2}


def test_an_evaluation_that_is_charged_includes_the_choice(tmp_path: Path) -> None:
    """40 examples to train on, 3 to be evaluated on: 2 times 40 passes for the choice."""

    def flops(folder: str, **how: Any) -> float:
        run = federation(tmp_path / folder, clients=2, evaluation={"on": "clients", "charged": True}, **how)
        store(run).ledger.close()
        price = run.pricing.evaluation({}, examples=3, samples=40)
        return price.work.flops / float(run.description.flops[:, 0].sum())

    assert flops("fedavg") == pytest.approx(3)
    assert flops("ifca", method="ifca") == pytest.approx(3 + 2 * 40)


# --- the client side --------------------------------------------------------------------------------------------------


def sent(seeds: Sequence[int]) -> Payload:
    """Independent models of four blocks, one per seed."""
    nets = [tower(seed=seed) for seed in seeds]
    return {f"cluster{index}": net.dump(net.layout.sizes) for index, net in enumerate(nets)}


def begun(seeds: Sequence[int]) -> IFCAUpdate:
    net = tower()
    client_side = IFCAUpdate(IFCAOptions(models=len(seeds), shared=0, balanced_init=0.0))
    client_side.begin(net, sent(seeds), {}, visit(net))
    chosen = sent(seeds)[f"cluster{client_side.cluster}"]
    assert all(np.array_equal(net.dump([key])[key].data, vector.data) for key, vector in chosen.items())
    return client_side


def test_the_smallest_training_loss_wins() -> None:
    x, y = batch()
    with torch.no_grad():
        losses = [float(F.cross_entropy(tower(seed=seed).run(x), y)) for seed in (1, 2, 3)]
    assert begun((1, 2, 3)).cluster == int(np.argmin(losses))


def test_a_model_that_has_diverged_is_not_chosen() -> None:
    down = sent((1, 2))
    net = tower()
    net.flat.fill_(torch.nan)
    client_side = IFCAUpdate(IFCAOptions(models=2, shared=0, balanced_init=0.0))
    client_side.begin(net, down | {"cluster0": net.dump(net.layout.sizes)}, {}, visit(net))
    assert client_side.cluster == 1


def test_shared_blocks_go_up_in_a_slot_of_their_own() -> None:
    net = tower()
    down: Payload = {slot: {key: named[key] for key in ("b2", "b3", "b4")} for slot, named in sent((1, 2)).items()}
    down["shared"] = tower(seed=5).dump(["b1"])
    client_side, context = IFCAUpdate(IFCAOptions(models=2, shared=1)), visit(net)
    client_side.begin(net, down, {}, context)
    up, state, numbers = client_side.end(net, context)
    assert {slot: [*named] for slot, named in up.items()} == {"shared": ["b1"], MODEL: ["b2", "b3", "b4"]}
    assert np.array_equal(up["shared"]["b1"].data, down["shared"]["b1"].data)
    assert numbers["cluster"] == client_side.cluster
    assert state == {}
