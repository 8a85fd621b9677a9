"""Aggregators between clients and server: their means, and the server's, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.optimizers import server_optimizer
from coordinator.aggregation.server import ServerContext, ServerStrategy, models_sha256
from coordinator.aggregation.tiers import TieredServer
from coordinator.methods.scaffold import ScaffoldExtension
from edge.protocol.codecs.update_codec import UpdateCodec
from edge.protocol.config import CodecConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.options.scaffold import ScaffoldOptions
from edge.protocol.payload import CONTROL, MODEL, BlockShape, Layout, Vector
from tests.toy import small_context

LAYOUT = Layout((BlockShape("a", 1), BlockShape("b", 1)))


def update(client: int, a: float, b: float | None = None) -> Update:
    vectors = {"a": Vector(np.array([a], np.float32))}
    if b is not None:
        vectors["b"] = Vector(np.array([b], np.float32))
    return Update(client, 0, {"loss": 1.0}, {MODEL: vectors})


def numbers(server: ServerStrategy, name: str = "global") -> dict[str, float]:
    return {key: float(vector.data[0]) for key, vector in server.models[name].items()}


def tiered(aggregator_of: Sequence[int], *parents: Sequence[int], **more: Any) -> TieredServer:
    """Clients 0, 1, .. have 10, 20, .. examples."""
    setup = small_context(LAYOUT, Options(), [10 * (k + 1) for k in range(len(aggregator_of))], **more)
    return TieredServer(setup, ServerStrategy, np.array(aggregator_of), [np.array(each) for each in parents])


def step(server: ServerStrategy, *updates: Update) -> None:
    for each in updates:
        server.accumulate(each)
    server.step()


def everyone(count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.ones(count, bool)


def test_aggregators_average_their_clients_and_the_server_averages_them_by_their_examples() -> None:
    server = tiered([0, 0, 1, 1], [0, 0])

    step(server, update(0, 1, 0), update(1, 4, 0), update(2, 10, 0), update(3, 3, 0))

    # (10 x 1 + 20 x 4) / 30 and (30 x 10 + 40 x 3) / 70; the server has nothing yet.
    assert [*server.models] == ["global", "aggregator 0", "aggregator 1"]
    assert [numbers(server, name)["a"] for name in server.models] == [0, 3, 6]
    assert [float(server.start_model(client)["global"]["a"].data[0]) for client in range(4)] == [3, 3, 6, 6]

    server.meet(0, everyone(2))

    assert [*server.models] == ["global"]  # which all have
    assert numbers(server)["a"] == pytest.approx((30 * 3 + 70 * 6) / 100)
    assert numbers(server.of_client(3)) == numbers(server)


def test_a_model_that_does_not_arrive_is_lost_and_its_aggregator_goes_on_from_the_others() -> None:
    server = tiered([0, 1], [0, 0])

    step(server, update(0, 1, 0), update(1, 4, 0))
    server.meet(0, np.array([True, False]))
    assert numbers(server)["a"] == numbers(server.of_client(1))["a"] == 1

    step(server, update(1, 5, 0))
    server.meet(0, everyone(2))
    assert numbers(server)["a"] == 5


def test_two_tiers_meet_one_after_another() -> None:
    # Four aggregators with a client each, below two, below the server.
    server = tiered([0, 1, 2, 3], [0, 1, 0, 1], [0, 0])

    step(server, *(update(client, float(client + 1), 0) for client in range(4)))
    server.meet(0, everyone(4))
    # (10 x 1 + 30 x 3) / 40 and (20 x 2 + 40 x 4) / 60
    assert [numbers(server, f"aggregator {k}")["a"] for k in range(4)] == pytest.approx([2.5, 10 / 3] * 2)
    assert numbers(server)["a"] == 0

    step(server, update(0, 7, 0))
    server.meet(0, everyone(4))
    server.meet(1, everyone(2))
    # 7 with 40 + 10 examples behind it, 10/3 with 60.
    assert numbers(server)["a"] == pytest.approx((50 * 7 + 60 * 10 / 3) / 110)
    assert [*server.models] == ["global"]


def test_with_one_aggregator_the_model_is_fedavgs_to_the_bit_and_with_several_up_to_rounding() -> None:
    rng = np.random.default_rng(0)
    setup = small_context(LAYOUT, Options(), [10, 20, 30, 40])
    flat, one, several = ServerStrategy(setup), tiered([0, 0, 0, 0], [0]), tiered([0, 1, 0, 1], [0, 0])
    for _ in range(5):
        updates = [update(client, *map(float, rng.standard_normal(2))) for client in range(4)]
        for server in (flat, one, several):
            step(server, *updates)
        one.meet(0, everyone(1))
        several.meet(0, everyone(2))

        assert models_sha256(one.models) == models_sha256(flat.models)
        assert numbers(several) == pytest.approx(numbers(flat), rel=1e-6)


def test_the_server_optimizer_acts_at_the_top_alone() -> None:
    # fedavgm: momentum 0.5 on changes.
    momentum = server_optimizer("fedavgm")
    half = momentum.options.model_validate({"momentum": 0.5})
    server = tiered([0, 1], [0, 0], optimiser=momentum.make(half))

    step(server, update(0, 2, 0), update(1, 2, 0))
    assert numbers(server, "aggregator 0")["a"] == 2
    server.meet(0, everyone(2))
    assert numbers(server)["a"] == 2

    step(server, update(0, 2, 0), update(1, 2, 0))
    server.meet(0, everyone(2))
    assert numbers(server)["a"] == 3  # no further change, but half of the last one


def test_a_checkpoint_between_two_meetings_has_all_models_and_weights() -> None:
    def two_rounds(server: TieredServer) -> TieredServer:
        step(server, update(0, 1, 0), update(3, 4, 0))
        server.meet(0, everyone(4))
        step(server, update(1, 5, 0))
        return server

    def end(server: TieredServer) -> dict[str, float]:
        step(server, update(2, 6, 0))
        server.meet(0, everyone(4))
        server.meet(1, everyone(2))
        return numbers(server)

    places = [0, 1, 2, 3], [0, 1, 0, 1], [0, 0]
    stopped, again = two_rounds(tiered(*places)), tiered(*places)
    again.restore(stopped.models, stopped.state())

    assert models_sha256(again.models) == models_sha256(stopped.models)
    assert end(again) == end(stopped) == end(two_rounds(tiered(*places)))


def test_a_model_is_mixed_in_as_far_as_its_factor_says_and_its_aggregator_alone_goes_on_from_it() -> None:
    server = tiered([0, 1], [0, 0])
    step(server, update(0, 8, 4), update(1, 2))

    server.mix(0, 0.5)  # from 0
    assert [numbers(server, name) for name in server.models] == [{"a": 4, "b": 2}, {"a": 2, "b": 0}]
    assert [*server.models] == ["global", "aggregator 1"]
    server.mix(1, 0.25)  # which has no update of b
    assert [numbers(server, name) for name in server.models] == [{"a": 3.5, "b": 2}, {"a": 4, "b": 2}]
    assert numbers(server.of_client(1)) == {"a": 3.5, "b": 2}

    step(server, update(0, 0, 0))
    server.mix(0, 0.0)  # it was lost on its way
    assert numbers(server) == numbers(server.of_client(0)) == {"a": 3.5, "b": 2}
    step(server, update(0, 1, 1))
    server.mix(0, 1.0)
    assert numbers(server) == {"a": 1, "b": 1}


def test_a_codec_has_the_models_on_their_way_up_alone() -> None:
    # The difference from the server's model, as the numbers of half precision near it.
    codec = UpdateCodec(CodecConfig(up=({"kind": "fp16"},), error_feedback=False), 0, {})
    setup = small_context(LAYOUT, Options(), [10, 10])
    server = TieredServer(setup, ServerStrategy, np.array([0, 1]), [np.array([0, 0])], codec)

    step(server, update(0, 1 + 2**-12, 0), update(1, 1, 0))
    assert numbers(server, "aggregator 0")["a"] == 1 + 2**-12
    server.meet(0, everyone(2))
    assert numbers(server)["a"] == 1  # 1 + 2^-12 is rounded to 1, whose step is 2^-10

    step(server, update(0, 1 + 2**-12, 0), update(1, 1 + 2**-12, 0))
    server.meet(0, everyone(2))
    assert numbers(server)["a"] == 1 + 2**-12  # the difference alone is a power of two


# --- SCAFFOLD's control variates --------------------------------------------------------------------------------------

ONE = Layout((BlockShape("a", 1),))


def with_control(setup: ServerContext) -> ServerStrategy:
    return ServerStrategy(setup, [ScaffoldExtension(setup)])


def scaffold(aggregator_of: Sequence[int], *parents: Sequence[int]) -> TieredServer:
    """Clients 0, 1, .. have 10, 20, .. examples; a model of one number."""
    setup = small_context(ONE, ScaffoldOptions(), [10 * (k + 1) for k in range(len(aggregator_of))])
    return TieredServer(setup, with_control, np.array(aggregator_of), [np.array(each) for each in parents])


def learned(client: int, change: float, a: float = 0.0) -> Update:
    """An update whose control variate has changed."""
    vectors = {MODEL: {"a": Vector(np.array([a], np.float32))}, CONTROL: {"a": Vector(np.array([change], np.float32))}}
    return Update(client, 0, {"loss": 1.0}, vectors)


def control(server: ServerStrategy) -> float:
    (extension,) = server.extensions
    return float(extension.carried()[CONTROL]["a"].data[0])


def variates(server: TieredServer) -> list[float]:
    """c of each aggregator, then of the server."""
    return [*map(control, server.aggregators), control(server.top)]


def test_an_aggregators_control_variate_is_the_mean_of_its_clients_and_the_servers_of_all() -> None:
    server = scaffold([0, 0, 0, 1], [0, 0])

    step(server, learned(0, 1), learned(1, 2), learned(2, 3), learned(3, 8))
    assert variates(server) == [6 / 3, 8 / 1, 0]
    assert float(server.payload(3, 0, {})[CONTROL]["a"].data[0]) == 8  # type: ignore[index]

    # (3 x 2 + 1 x 8) / 4, the mean of 1, 2, 3 and 8, though client 3 has 40 of 100 examples.
    server.meet(0, everyone(2))
    assert variates(server) == [3.5, 3.5, 3.5]

    # The correction of a client towards its aggregator changes with that's mean, the rest stays until the next meeting.
    step(server, learned(1, 3))
    assert variates(server) == [4.5, 3.5, 3.5]


def test_control_variates_pass_two_tiers() -> None:
    # Clients 0 to 4 at aggregators 0, 1 and 2, the first two of them below one of two above.
    server = scaffold([0, 0, 1, 2, 2], [0, 0, 1], [0, 0])

    step(server, *(learned(client, client + 1.0) for client in range(5)))
    server.meet(0, np.array([True, False, True]))
    # 3/2 of clients 0 and 1 is 3/3 of the three; aggregator 1 has its 3 yet; 9/2 of the others.
    assert variates(server) == [1, 1 + 3, 4.5, 0]

    server.meet(1, everyone(2))
    # 3 and 9 of five clients.
    assert variates(server) == pytest.approx([12 / 5, 12 / 5 + 3, 12 / 5, 12 / 5])

    server.meet(0, everyone(3))
    server.meet(1, everyone(2))
    assert variates(server) == pytest.approx([15 / 5] * 4)


@pytest.mark.parametrize(("corrects", "error"), [(True, 1e-4), (False, 0.02)])
def test_scaffold_finds_the_minimum_of_all_clients_between_rare_meetings(corrects: bool, error: float) -> None:
    # Client k has the loss w_k (y - m_k)^2 / 2 and 10 examples. Aggregators meet after 4 rounds of 5 steps.
    curvatures, minima = np.array([1.0, 3.0, 2.0, 0.5]), np.array([-1.0, 2.0, 4.0, -3.0])
    setup = small_context(ONE, ScaffoldOptions(), [10] * 4)
    server = TieredServer(setup, with_control, np.array([0, 0, 1, 1]), [np.array([0, 0])])
    own, steps, lr = np.zeros(4), 5, 0.05
    for round in range(1, 401):
        for client in range(4):
            down = server.payload(client, round, {})
            assert isinstance(down, dict)
            start, c = (float(down[slot]["a"].data[0]) for slot in (MODEL, CONTROL))
            y = start
            for _ in range(steps):
                y -= lr * (curvatures[client] * (y - minima[client]) + (c - own[client] if corrects else 0.0))
            change = (start - y) / (steps * lr) - c
            server.accumulate(learned(client, change if corrects else 0.0, y))
            own[client] += change
        server.step()
        if round % 4 == 0:
            server.meet(0, everyone(2))

    best = float((curvatures * minima).sum() / curvatures.sum())
    assert (abs(numbers(server)["a"] - best) < error) == corrects
