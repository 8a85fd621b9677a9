"""A client of IFCA chooses the model with the smallest training loss, and trains that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from edge.methods.ifca import MOST_DRAWS, IFCAUpdate
from edge.protocol.options.ifca import IFCAOptions
from edge.protocol.payload import FORWARD, MODEL, WEIGHT_GRADIENT, Payload
from edge.training.client_update import Batches, no_batches
from tests.toy import batch, tower, visit


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


def test_ties_go_to_the_lowest_number() -> None:
    best = begun((1, 2, 3)).cluster + 1
    assert begun((best, best, best)).cluster == 0


def test_each_model_costs_one_forward_pass_of_each_example_and_one_model_none() -> None:
    for seeds, passes in (((1, 2, 3), 3 * 8), ((1,), 0)):
        net = tower()
        IFCAUpdate(IFCAOptions(models=len(seeds), shared=0, balanced_init=0.0)).begin(net, sent(seeds), {}, visit(net))
        assert net.executed[:, FORWARD].tolist() == [passes] * 4
        assert not net.executed[:, WEIGHT_GRADIENT].any()


def test_a_model_is_chosen_in_evaluation_mode_and_trained_in_training_mode() -> None:
    net, modes = tower(), []
    net.modules[0].register_forward_pre_hook(lambda module, x: modes.append(module.training))
    net.train_mode(True)
    IFCAUpdate(IFCAOptions(models=2, shared=0, balanced_init=0.0)).begin(net, sent((1, 2)), {}, visit(net))
    assert modes == [False, False]
    assert all(module.training for module in net.modules)


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


class Chosen(IFCAUpdate):
    """Clients choose as they are told, draw by draw."""

    def __init__(self, fraction: float, choices: Sequence[str]) -> None:
        super().__init__(IFCAOptions(balanced_init=fraction))
        self.told = iter("".join(choices))

    def _best(self, *_: Any) -> int:  # type: ignore[override]
        return int(next(self.told))


def test_initial_models_are_drawn_until_each_has_its_fraction_of_the_clients() -> None:
    def chosen(fraction: float, *choices: str) -> tuple[str, int]:
        """(the draw, the number of draws), of four clients."""
        drawn: list[int] = []

        def draws(draw: int) -> Payload:
            drawn.append(draw)
            return {f"{draw}a": {}, f"{draw}b": {}}

        def clients() -> Iterator[Batches]:
            return iter([no_batches] * 4)

        found = Chosen(fraction, choices).choose_initial(tower(), draws, clients)
        return "".join(found), len(drawn)

    assert chosen(0.0) == ("0a0b", 1)
    assert chosen(0.25, "0000", "0010") == ("1a1b", 2)
    assert chosen(0.5, "0001", "1111", "0110") == ("2a2b", 3)
    assert chosen(0.5, *["0000"] * 7, "0001", *["1111"] * 42) == ("7a7b", MOST_DRAWS)
