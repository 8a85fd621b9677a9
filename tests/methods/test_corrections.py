"""SCAFFOLD and FedDyn on quadratics by hand and on digits; FedProx on softmax regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coordinator.aggregation.server import ServerContext, ServerStrategy
from coordinator.methods.registry import resolve
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import FederatedRun
from edge.methods.fedprox import FedProxCorrection
from edge.protocol import client_state
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import CONTROL, MODEL, Layout, Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import load_dotted
from edge.training.sgd import Sgd
from tests.crossed import every
from tests.toy import CPU, batch, play, state_file, tower, vector, visit, whole

IID = PartitionConfig("iid")
BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)


# --- a federation on quadratics ---------------------------------------------------------------------------------------


@dataclass
class Quadratics:
    """Clients k with f_k(w) = curvatures[k]/2 (w - optima[k])² + slopes[k] w over one number w, and their server."""

    method: str
    curvatures: Sequence[float]
    optima: Sequence[float]
    train: TrainConfig
    start: float = 0.0
    slopes: Sequence[float] = ()
    options: dict[str, Any] = field(default_factory=dict)
    weights: str = "uniform"
    samples: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.net = BlockModel(lambda: [("w", nn.Linear(1, 1, bias=False))], CPU)
        self.client_sides = [load_dotted(row.client) for row in resolve(self.method).corrections]
        method, count = resolve(self.method), len(self.curvatures)
        self.chosen = method.options(**self.options)
        samples = np.array(self.samples or [1] * count)
        initial: Payload = {MODEL: {"w": vector(self.start)}}
        layout: Layout = self.net.layout
        setup = ServerContext(layout, initial, self.chosen, self.weights, ("w",), ("w",), 0, samples, samples[:, None],
                      train=self.train)  # fmt: skip
        self.server = ServerStrategy(setup, [row.server(setup) for row in method.corrections if row.server])
        self.kept: dict[int, Payload] = {}
        self.ups: dict[int, Payload] = {}
        self.round = 0

    def loss(self, client: int) -> Callable[[BlockModel, Tensor, Tensor], Tensor]:
        slope = self.slopes[client] if self.slopes else 0.0

        def value(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
            w = next(net.modules[0].parameters())
            return (self.curvatures[client] / 2 * (w - self.optima[client]) ** 2 + slope * w).sum()

        return value

    def play(self, *cohorts: Sequence[int], steps: int | None = None) -> list[float]:
        """One round after the other; the global model after each."""
        path = []
        for cohort in cohorts:
            for client in cohort:
                self.server.accumulate(self._visited(client, self.train.local_steps if steps is None else steps))
            self.server.step()
            self.round += 1
            path.append(self.w)
        return path

    def _visited(self, client: int, steps: int | None) -> Update:
        assert steps is not None
        down, kept = self.server.download(client, self.round).payload, self.kept.get(client, {})
        lr = self.train.lr_in(self.round)
        about = replace(visit(self.net), client=client, lr=lr, step_sum=self.train.step_sum(steps))
        self.net.load(down[MODEL])
        sides = [side(self.chosen) for side in self.client_sides]
        for side in sides:
            side.begin(self.net, down, kept, about)
        step = Sgd(
            self.net,
            self.train,
            lr,
            [side.correct for side in sides],
            [side.correct_unclipped for side in sides],
        )
        for _ in range(steps):
            step(self.loss(client), *batch())
        up: Payload = {MODEL: self.net.dump(["w"])}
        self.kept[client] = {}
        for side in sides:
            more, keep, _ = side.end(self.net, about)
            up |= copied(more)
            self.kept[client] |= copied(keep)
        self.ups[client] = up
        return Update(client, self.round, {"steps": float(steps)}, up)

    @property
    def w(self) -> float:
        return float(self.server.model["w"].data[0])

    @property
    def common(self) -> float:
        """What the server remembers: c, or h."""
        return float(np.asarray(self.server.state()["part0/w"])[0])

    def own(self, client: int) -> float:
        """What a client remembers: c_i, or λ_i; 0 before its first visit."""
        return sum(float(named["w"].data[0]) for named in self.kept.get(client, {}).values())

    @property
    def mean_own(self) -> float:
        return sum(self.own(client) for client in range(len(self.curvatures))) / len(self.curvatures)


def copied(payload: Payload) -> Payload:
    return {slot: {key: vector(*one.data.tolist()) for key, one in named.items()} for slot, named in payload.items()}


def cohorts(rounds: int, clients: int, count: int) -> list[list[int]]:
    """So many clients in each round, drawn at random."""
    rng = np.random.default_rng(0)
    return [sorted(rng.choice(clients, size=count, replace=False).tolist()) for _ in range(rounds)]


A, B = (1.0, 2.0, 4.0, 0.5), (0.0, 1.0, 4.0, -6.0)
LEAST = (0 + 2 + 16 - 3) / 7.5
"""2.0, where the sum of the four is least."""
FIVE_STEPS = TrainConfig(lr=0.05, local_steps=5)


def test_fedavg_on_quadratics_does_not_reach_the_global_optimum() -> None:
    # With all four in every round, it ends where Σ (1 - (1 - 0.05 a)^5)(w - b) = 0.
    share = 1 - (1 - 0.05 * np.array(A)) ** 5
    ends = float((share * B).sum() / share.sum())
    assert Quadratics("fedavg", A, B, FIVE_STEPS).play(*[range(4)] * 200)[-1] == pytest.approx(ends, abs=1e-5)
    assert abs(ends - LEAST) > 0.1


@pytest.mark.parametrize("momentum", every(2, [0.0, 0.5]))
@pytest.mark.parametrize("lean", [False, True])
def test_scaffold_reaches_the_global_optimum_with_half_of_the_clients(lean: bool, momentum: float) -> None:
    train = replace(FIVE_STEPS, momentum=momentum)
    world = Quadratics("scaffold", A, B, train, options={"lean": lean})
    assert world.play(*cohorts(300, 4, 2))[-1] == pytest.approx(LEAST, abs=1e-4)
    # There, each client's control is its own gradient.
    assert [world.own(client) for client in range(4)] == pytest.approx([2.0, 2.0, -8.0, 4.0], abs=1e-3)


@pytest.mark.parametrize("clipped", every(2, ["everything", "ce+linear"]))
def test_feddyn_reaches_the_global_optimum_with_half_of_the_clients(clipped: str) -> None:
    world = Quadratics(
        "feddyn", A, B, replace(FIVE_STEPS, local_steps=40), options={"coefficient": 1, "clipped": clipped}
    )
    assert world.play(*cohorts(200, 4, 2))[-1] == pytest.approx(LEAST, abs=1e-4)
    assert [world.own(client) for client in range(4)] == pytest.approx([2.0, 2.0, -8.0, 4.0], abs=1e-3)


# --- scaffold by hand -------------------------------------------------------------------------------------------------

TWO_STEPS = TrainConfig(lr=0.5, local_steps=2)


@pytest.mark.parametrize("lean", [False, True])
def test_two_rounds_of_scaffold_by_hand(lean: bool) -> None:
    world = Quadratics("scaffold", (1.0, 1.0), (0.0, 6.0), TWO_STEPS, 4.0, options={"lean": lean})
    # Client 0: 4, 2, 1, so c_0 = (4 - 1)/(2 · 0.5) = 3. Client 1: 4, 5, 5.5, so c_1 = -1.5.
    assert world.play([0, 1]) == [3.25]
    assert (world.own(0), world.own(1), world.common) == (3.0, -1.5, 0.75)
    # Client 0's gradient is w - 3 + 0.75: 3.25, 2.75, 2.5. Client 1's is w - 6 + 1.5 + 0.75: 3.25, 3.5, 3.625.
    assert world.play([0, 1]) == [3.0625]
    assert (world.own(0), world.own(1), world.common) == (3.0, -2.625, 0.1875)
    sent = {client: {slot: one["w"].data.tolist() for slot, one in up.items()} for client, up in world.ups.items()}
    assert sent == (
        {0: {"model": [2.5]}, 1: {"model": [3.625]}}
        if lean
        else {0: {"model": [2.5], "control": [0.0]}, 1: {"model": [3.625], "control": [-1.125]}}
    )


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_control_of_an_unchanging_gradient_is_that_gradient(momentum: float, nesterov: bool, lean: bool) -> None:
    train = TrainConfig(lr=0.5, lr_decay=0.5, local_steps=3, momentum=momentum, nesterov=nesterov)
    world = Quadratics("scaffold", (0.0, 0.0), (0.0, 0.0), train, slopes=(2.0, -6.0), options={"lean": lean})
    for _ in range(3):  # whose step sizes are 0.5, 0.25, 0.125
        world.play([0, 1])
        assert (world.own(0), world.own(1), world.common) == (2.0, -6.0, -2.0)


def test_the_corrected_gradient_is_clipped() -> None:
    train = TrainConfig(lr=0.5, local_steps=1, clip=1.0)
    world = Quadratics("scaffold", (0.0, 0.0), (0.0, 0.0), train, slopes=(0.5, -4.0))
    world.play([0, 1])
    # Client 1's gradient was clipped to -1, and so is what it learned.
    assert (world.own(0), world.own(1)) == pytest.approx((0.5, -1.0), abs=1e-6)
    world.play([1])
    # -4 + 1 - 0.25 is clipped to -1 as well, and c_1 becomes c_1 - c + that.
    assert world.own(1) == pytest.approx(-1.0 + 0.25 - 1.0, abs=1e-6)


# --- feddyn by hand ---------------------------------------------------------------------------------------------------


def test_two_rounds_of_feddyn_by_hand() -> None:
    train = TrainConfig(lr=0.5, local_steps=1)
    world = Quadratics("feddyn", (1.0, 1.0), (0.0, 6.0), train, 4.0, options={"coefficient": 0.5})
    # 4 - 0.5 · 4 = 2, so λ_0 = 0.5 · 2 = 1; 4 + 0.5 · 2 = 5, so λ_1 = -0.5. h = 0.25; θ = 3.5 - 0.25/0.5.
    assert world.play([0, 1]) == [3.0]
    assert (world.own(0), world.own(1), world.common) == (1.0, -0.5, 0.25)
    # Client 0 alone: gradient 3 - 1 = 2, so 3 - 0.5 · 2 = 2 and λ_0 = 1 + 0.5; h = 0.25 + 0.5/2 · 1; θ = 2 - 0.5/0.5.
    assert world.play([0]) == [1.0]
    assert (world.own(0), world.own(1), world.common) == (1.5, -0.5, 0.5)


@pytest.mark.parametrize(
    ("clipped", "clip", "ends"),
    [
        ("everything", 0.0, [0.5, -0.625]),  # -0.5 · 3; then 3 + 0.5 (0.5 - 2) = 2.25
        ("ce+linear", 0.0, [0.5, -0.625]),
        ("everything", 1.0, [1.5, 1.0]),  # of 3 and 2.75
        ("ce+linear", 1.0, [1.0, 0.25]),  # 3 - 0.5 · 2 = 2 is clipped to 1, and 0.5 w is added: 2, then 1.5
    ],
)
def test_what_of_feddyn_is_clipped(clipped: str, clip: float, ends: list[float]) -> None:
    for steps, end in enumerate(ends, start=1):
        train = TrainConfig(lr=0.5, local_steps=steps, clip=clip)
        options = {"coefficient": 0.5, "clipped": clipped}
        world = Quadratics("feddyn", (0.0,), (0.0,), train, 2.0, slopes=(3.0,), options=options)
        world.play([0])
        assert float(world.ups[0][MODEL]["w"].data[0]) == pytest.approx(end, abs=1e-5)


# --- on digits --------------------------------------------------------------------------------------------------------


def own(run: FederatedRun, slot: str) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """What each client remembers, all blocks in one vector; 0 for those that were never visited."""
    kept = [client_state.read(state_file(run, client)).get(slot, {}) for client in range(len(run.description.samples))]
    sizes = {key: size for key, size in run.description.layout.sizes.items() if not key.endswith(".buffers")}
    return [
        np.concatenate([named[key].data if key in named else np.zeros(size, np.float32) for key, size in sizes.items()])
        for named in kept
    ]


def common(run: FederatedRun) -> np.ndarray[Any, np.dtype[np.float32]]:
    remembered = run.server.extensions[0].state()
    return np.concatenate([np.asarray(remembered[name]) for name in run.description.layout.names])


DIGITS: list[tuple[str, dict[str, Any]]] = [
    ("scaffold", {}),
    ("scaffold", {"lean": True}),
    ("fedbr+scaffold", {"alpha": 2}),  # visits start from blocks that the server has never had
    ("feddyn", {}),
]


@pytest.mark.parametrize(("method", "options"), DIGITS)
def test_whatever_the_objective_the_server_remembers_the_clients_mean(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run = play(tmp_path, method, clients=5, participants=2, rounds=6, train=BRIEF, partition=IID, **options).federation
    slot = CONTROL if "scaffold" in method else "feddyn"
    assert np.abs(common(run) - np.mean(own(run, slot), axis=0)).max() < 1e-5 * np.abs(common(run)).max()
    assert np.abs(common(run)).max() > 1e-4


@pytest.mark.parametrize(
    "rules", [RoundPolicy("fedasync"), RoundPolicy("fedbuff", buffer=4)], ids=lambda rules: rules.policy
)
def test_scaffold_remembers_all_visits_where_updates_come_one_by_one(rules: RoundPolicy, tmp_path: Path) -> None:
    # With a buffer of 4 and three clients, some come twice before the server steps.
    run = play(tmp_path, "scaffold", clients=3, rounds=5, train=BRIEF, partition=IID, rules=rules)
    ages = {age for (age,) in run.rows("SELECT staleness FROM visits WHERE kind = 'train'")}
    assert max(ages) > 0
    assert np.abs(common(run.federation) - np.mean(own(run.federation, CONTROL), axis=0)).max() < 2e-6


@pytest.mark.parametrize(
    ("method", "codec"),
    [
        (("scaffold", {}), {"up_slots": {CONTROL: ({"kind": "randk", "ratio": 0.2},)}, "down": ({"kind": "sign"},)}),
        (("scaffold", {"lean": True}), {"up": ({"kind": "topk", "ratio": 0.1},), "error_feedback": True}),
        (("feddyn", {}), {"up": ({"kind": "topk", "ratio": 0.1},), "error_feedback": True, "of": "update"}),
    ],
)
def test_codecs_do_not_let_the_servers_memory_drift_from_the_clients(
    method: tuple[str, dict[str, Any]], codec: dict[str, Any], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"clients": 5, "participants": 2, "rounds": 8, "train": BRIEF, "partition": IID}
    run = play(tmp_path, method[0], **how, **method[1], codec=codec).federation
    means = np.mean(own(run, CONTROL if method[0] == "scaffold" else "feddyn"), axis=0)
    assert np.abs(common(run) - means).max() < 1e-5 * np.abs(common(run)).max()


def test_lean_scaffold_sends_less_and_ends_in_nearly_the_same_model(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 4, "train": BRIEF, "partition": IID}
    full, lean = (play(tmp_path / str(lean), "scaffold", lean=lean, **how) for lean in (False, True))
    assert np.abs(full.model - lean.model).max() < 1e-5 < 1e-2 < np.abs(full.model - full.start).max()
    query = "SELECT direction, SUM(nbytes) FROM transfers WHERE slot = 'control' GROUP BY direction ORDER BY direction"
    assert full.rows(query) == [("down", 16 * 5000), ("up", 16 * 5000)]
    assert lean.rows(query) == [("down", 16 * 5000)]


# --- FedProx on softmax regression ------------------------------------------------------------------------------------


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def distance(mu: float, lr: float, steps: int = 30, half: bool = True) -> float:
    """‖θ_i − θ‖ after local steps from where the visit starts."""
    net = tower((5, 3))
    start = net.flat.clone()
    prox = FedProxCorrection(FedProxOptions(mu=mu, half=half))
    prox.begin(net, whole(net), {}, visit(net))
    step = Sgd(net, TrainConfig(), lr, [prox.correct])
    for _ in range(steps):
        step(cross_entropy, *batch(32))
    return float(torch.linalg.vector_norm(net.flat - start))


def test_a_stronger_pull_keeps_the_local_model_nearer() -> None:
    distances = [distance(mu, lr=0.05) for mu in (0.0, 0.1, 1.0, 10.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 5 * distances[-1]


def test_without_the_half_the_pull_is_twice_as_strong() -> None:
    assert distance(0.5, lr=0.05, half=False) == distance(1.0, lr=0.05)


def test_the_pull_by_hand() -> None:
    net = tower((5, 3))
    prox = FedProxCorrection(FedProxOptions(mu=0.5, half=True))
    prox.begin(net, whole(net), {}, visit(net))
    for away, pulled in ((0.0, 1.0), (2.0, 2.0)):  # 1, and 1 + 0.5 x 2
        net.flat.add_(away)
        net.grad.fill_(1.0)
        prox.correct(net)
        assert torch.allclose(net.grad, torch.tensor(pulled), rtol=0, atol=1e-6)
