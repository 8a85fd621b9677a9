"""FedFomo: preferences grow by weights, downloads follow them, M_d = 0 is training alone; and the mix of a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coordinator.aggregation.server import Download, VisitFeedback
from coordinator.methods.fedfomo import FedFomoServer
from coordinator.records.client_vectors import ClientVectors
from edge.methods.fedfomo import FedFomoUpdate, first_order_weights
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.fedfomo import FedFomoOptions, mix_weights
from edge.protocol.payload import MODEL, BlockShape, Layout, Payload, shapes
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext
from tests.toy import batch, play, small_context, tower, vector, visit

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


def server(folder: Path, clients: int = 5, **options: Any) -> FedFomoServer:
    """A model of one number, 100 at first."""
    (folder / "vectors").mkdir(exist_ok=True)
    layout, initial = Layout((BlockShape("w", 1),)), {MODEL: {"w": vector(100)}}
    chosen = FedFomoOptions(**{"explore": 0, **options})
    return FedFomoServer(small_context(layout, chosen, [1] * clients, initial, store=ClientVectors(folder)))


def reply(client: int, weights: Sequence[float]) -> Update:
    """Its model is its number."""
    return Update(client, 0, {}, {MODEL: {"w": vector(client)}, "weights": {"candidates": vector(*weights)}})


def take(made: FedFomoServer, *replies: Update) -> list[tuple[int, int, float]]:
    """(client, peer, weight) of the rows of a round with these updates."""
    downloads = [made.download(one.client, 0) for one in replies]
    for one in replies:
        made.accumulate(one)
    made.step()
    made.store.publish()
    done = [VisitFeedback(sent, one, 0.0, 0.0) for sent, one in zip(downloads, replies, strict=True)]
    return [row[1:] for row in made.feedback(0, done)]


def received(sent: Download) -> dict[str, float]:
    return {slot: float(named["w"].data[0]) for slot, named in sent.built().items()}


def test_a_first_visit_gets_the_initial_model_and_later_ones_those_of_peers(tmp_path: Path) -> None:
    made = server(tmp_path, peers=2)
    assert received(made.download(0, 0)) == {MODEL: 100.0}
    take(made, reply(0, (0, 0, 0)))
    assert received(made.download(0, 1)) == {}, "nobody else has uploaded"
    take(made, reply(1, (0, 0, 0)))
    assert received(made.download(0, 2)) == {"peer0": 1.0}
    for client in (0, 1, 2):
        sent = made.download(client, 2)
        assert shapes(sent.built()) == sent.shapes


def test_preferences_add_weights_up_and_the_largest_are_sent(tmp_path: Path) -> None:
    made = server(tmp_path, peers=2)
    take(made, *(reply(client, (0, 0, 0)) for client in range(5)))
    one, other = (int(number) for number in received(made.download(0, 1)).values())
    rows = take(made, reply(0, (2.0, 4.0, 2.0)))
    assert sorted(rows) == sorted([(0, one, 0.25), (0, other, 0.5), (0, 0, 0.25)])
    assert made.preferences[0] == {one: 2.0, other: 4.0}, "as they were before they were normalised; not its own"
    assert received(made.download(0, 2)) == {"peer0": float(other), "peer1": float(one)}
    assert take(made, reply(0, (-3.0, 1.0, 0.0))) == [(0, one, 1.0)]
    assert made.preferences[0] == {one: 3.0, other: 1.0}
    assert received(made.download(0, 3)) == {"peer0": float(one), "peer1": float(other)}
    assert take(made, reply(0, (-4.0, -2.0, 0.0))) == []
    assert not {one, other} & {*received(made.download(0, 4)).values()}, "two that it never had are preferred to worse"


def test_exploration_draws_any_peers_and_ties_are_broken_at_random(tmp_path: Path) -> None:
    def drawn(peers: int, explore: float) -> set[tuple[int, ...]]:
        """The peers of client 0 in twenty visits, the largest preferences first."""
        made = server(tmp_path, peers=peers, explore=explore, explore_decay=0)
        take(made, *(reply(client, (0.0,) * (peers + 1)) for client in range(5)))
        made.preferences[0] = {3: 2.0, 1: 1.0}
        found = set()
        for number in range(20):
            made.visits[0] = number
            found.add(tuple(int(number) for number in received(made.download(0, 1)).values()))
        return found

    assert drawn(2, 0.0) == {(3, 1)}
    assert drawn(3, 0.0) == {(3, 1, 2), (3, 1, 4)}
    assert len(drawn(2, 1.0)) > 6


def test_all_peers_are_charged_and_weights_sum_to_1(tmp_path: Path) -> None:
    run = play(tmp_path, "fedfomo", rounds=3, peers=2, train=BRIEF)
    nbytes = run.federation.description.layout.nbytes()
    sent = "SELECT slot, SUM(nbytes) FROM transfers WHERE client = 1 AND round = 2 AND direction = 'down' GROUP BY slot"
    assert {slot: size for slot, size in run.rows(sent) if slot} == {"peer0": nbytes, "peer1": nbytes}
    totals = run.rows("SELECT SUM(weight), MIN(weight) FROM fedfomo GROUP BY round, client")
    assert totals and all(total == pytest.approx(1.0) and least > 0 for total, least in totals)
    # FLOPs: four models forward over the validation examples of client 1, beside three steps.
    profile = run.federation.description
    ((first,), (later,)) = run.rows("SELECT flops FROM visits WHERE client = 1 AND round IN (0, 2) ORDER BY round")
    forward = float(profile.flops[:, 0].sum())
    assert later - first == pytest.approx(4 * int(profile.validation_samples[1]) * forward)


# --- the client side --------------------------------------------------------------------------------------------------


KEYS = ("b1", "b2", "b3", "b4")


def flat(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(tower(seed=seed).flat.detach().numpy())


def loss(seed: int) -> float:
    with torch.no_grad():
        x, y = batch(6, seed=3)
        return float(F.cross_entropy(tower(seed=seed).run(x), y))


def context(net: BlockModel) -> VisitContext:
    """A visit with six validation examples."""
    return replace(visit(net), validation=lambda: iter([batch(6, seed=3)]))


def begun(peers: Sequence[int], own: int, previous: int, count: int = 5) -> tuple[BlockModel, FedFomoUpdate]:
    """A visit that downloads models of these seeds."""
    net, client_side = tower(), FedFomoUpdate(FedFomoOptions(peers=count))
    down: Payload = {f"peer{index}": tower(seed=seed).dump(KEYS) for index, seed in enumerate(peers)}
    state = {"own": tower(seed=own).dump(KEYS), "previous": tower(seed=previous).dump(KEYS)}
    client_side.begin(net, down, state, context(net))
    return net, client_side


def test_weights_are_falls_of_the_loss_per_distance_and_a_mix_normalises_the_positive_ones() -> None:
    weights = first_order_weights(np.array([1.0, -1.0, 3.0]), np.array([2.0, 1.0, 2.0]))
    assert weights == pytest.approx([0.5, -1.0, 1.5], rel=1e-4)
    assert mix_weights(weights.astype(np.float64)) == pytest.approx([0.25, 0.0, 0.75], rel=1e-4)
    assert mix_weights(np.array([-1.0, 0.0])).tolist() == [0.0, 0.0]
    assert first_order_weights(np.array([np.nan, -np.inf]), np.ones(2)).tolist() == [0.0, 0.0]


def test_the_start_is_the_mix_by_hand_and_lies_between_the_models() -> None:
    seeds = sorted(range(1, 9), key=loss)
    good, better, worst = seeds[1], seeds[0], seeds[-1]
    net, client_side = begun((good, seeds[-2], better), own=seeds[3], previous=worst)
    candidates = (good, seeds[-2], better, seeds[3])
    falls = np.array([loss(worst) - loss(seed) for seed in candidates])
    slopes = falls / [np.linalg.norm(flat(seed) - flat(worst)) + 1e-5 for seed in candidates]
    assert client_side.weights == pytest.approx([*slopes[:3], 0.0, 0.0, slopes[3]], rel=1e-4)
    expected = np.maximum(0.0, slopes) / np.maximum(0.0, slopes).sum()
    mixed = sum(weight * flat(seed) for weight, seed in zip(expected, candidates, strict=True))
    assert np.allclose(net.flat.detach().numpy(), mixed, atol=1e-5)
    stacked = np.stack([flat(seed) for seed in candidates])
    numbers = net.flat.detach().numpy()
    assert (stacked.min(axis=0) - 1e-6 <= numbers).all() and (numbers <= stacked.max(axis=0) + 1e-6).all()


def test_without_a_better_model_it_keeps_its_own_to_the_bit() -> None:
    seeds = sorted(range(1, 9), key=loss)
    net, client_side = begun(seeds[3:], own=seeds[2], previous=seeds[0])
    assert (client_side.weights < 0).all()
    assert np.array_equal(net.flat.detach().numpy(), flat(seeds[2]))


def test_it_keeps_its_model_and_what_it_started_from() -> None:
    net, client_side = begun((1, 2), own=3, previous=4)
    start = np.array(net.flat.detach().numpy())
    with torch.no_grad():
        net.flat.add_(1.0)
    up, state, _ = client_side.end(net, context(net))
    assert np.array_equal(np.concatenate([state["previous"][key].data for key in KEYS]), start)
    assert np.array_equal(np.concatenate([state["own"][key].data for key in KEYS]), start + 1)
    assert {slot: [*named] for slot, named in up.items()} == {MODEL: [*KEYS], "weights": ["candidates"]}
    assert up["weights"]["candidates"].data == pytest.approx(client_side.weights)
