"""SCAFFOLD and FedDyn on quadratics by hand and on digits; the gradients of their client sides."""

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
from edge.methods.feddyn import KEPT, FedDynCorrection
from edge.methods.scaffold import ScaffoldCorrection
from edge.protocol import client_state
from edge.protocol.codecs.update_codec import RESIDUAL
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.options.feddyn import FedDynOptions
from edge.protocol.options.scaffold import ScaffoldOptions
from edge.protocol.payload import CONTROL, MODEL, Layout, Payload, Vector
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, load_dotted
from edge.training.client_update import GradientCorrection
from edge.training.sgd import Sgd
from tests.toy import CPU, batch, play, shifted, state_file, tower, vector, visit, whole

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


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("lean", [False, True])
def test_scaffold_reaches_the_global_optimum_with_half_of_the_clients(lean: bool, momentum: float) -> None:
    train = replace(FIVE_STEPS, momentum=momentum)
    world = Quadratics("scaffold", A, B, train, options={"lean": lean})
    assert world.play(*cohorts(300, 4, 2))[-1] == pytest.approx(LEAST, abs=1e-4)
    # There, each client's control is its own gradient.
    assert [world.own(client) for client in range(4)] == pytest.approx([2.0, 2.0, -8.0, 4.0], abs=1e-3)


@pytest.mark.parametrize("clipped", ["everything", "ce+linear"])
def test_feddyn_reaches_the_global_optimum_with_half_of_the_clients(clipped: str) -> None:
    world = Quadratics(
        "feddyn", A, B, replace(FIVE_STEPS, local_steps=40), options={"coefficient": 1, "clipped": clipped}
    )
    assert world.play(*cohorts(200, 4, 2))[-1] == pytest.approx(LEAST, abs=1e-4)
    assert [world.own(client) for client in range(4)] == pytest.approx([2.0, 2.0, -8.0, 4.0], abs=1e-3)


@pytest.mark.parametrize(
    ("method", "options"),
    [("scaffold", {}), ("scaffold", {"lean": True}), ("feddyn", {}), ("feddyn", {"coefficient": 2.0})],
)
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_what_the_server_remembers_is_the_mean_of_what_the_clients_do(
    method: str, options: dict[str, Any], weights: str
) -> None:
    train = replace(FIVE_STEPS, lr_decay=0.97, momentum=0.5, weight_decay=0.01)
    world = Quadratics(method, A, B, train, 3.0, options=options, weights=weights, samples=[1, 2, 3, 4])
    for number, cohort in enumerate(cohorts(30, 4, 2)):
        world.play(cohort)
        assert world.common == pytest.approx(world.mean_own, abs=2e-6), number
        assert world.common != 0


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


def test_c_moves_by_what_came_over_all_clients_not_over_those_that_took_part() -> None:
    world = Quadratics("scaffold", (1.0, 1.0, 1.0, 1.0), (0.0, 6.0, 0.0, 0.0), TWO_STEPS, 4.0)
    world.play([0])
    assert (world.own(0), world.common) == (3.0, 0.75)


@pytest.mark.parametrize(
    ("train", "total"),
    [
        (TrainConfig(), 3.0),
        (TrainConfig(momentum=0.5), 4.25),  # 1 + 1.5 + 1.75
        (TrainConfig(momentum=0.5, nesterov=True), 5.125),  # 1.5 + 1.75 + 1.875
    ],
)
def test_three_steps_along_an_unchanging_gradient(train: TrainConfig, total: float) -> None:
    assert train.step_sum(3) == total
    assert train.step_sum(1) == (1.5 if train.nesterov else 1.0)
    assert train.step_sum(0) == 0.0


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_control_of_an_unchanging_gradient_is_that_gradient(momentum: float, nesterov: bool, lean: bool) -> None:
    train = TrainConfig(lr=0.5, lr_decay=0.5, local_steps=3, momentum=momentum, nesterov=nesterov)
    world = Quadratics("scaffold", (0.0, 0.0), (0.0, 0.0), train, slopes=(2.0, -6.0), options={"lean": lean})
    for _ in range(3):  # whose step sizes are 0.5, 0.25, 0.125
        world.play([0, 1])
        assert (world.own(0), world.own(1), world.common) == (2.0, -6.0, -2.0)


def test_clients_that_are_alike_send_the_same() -> None:
    world = Quadratics("scaffold", (2.0,) * 3, (5.0,) * 3, FIVE_STEPS)
    for _ in range(3):
        world.play([0, 1, 2])
        assert len({up[CONTROL]["w"].version for up in world.ups.values()}) == 1


def test_weight_decay_is_in_the_control() -> None:
    world = Quadratics("scaffold", (0.0,), (0.0,), TrainConfig(lr=0.5, local_steps=1, weight_decay=0.25), 2.0)
    assert world.play([0]) == [1.75]
    assert world.own(0) == 0.5


def test_the_corrected_gradient_is_clipped() -> None:
    train = TrainConfig(lr=0.5, local_steps=1, clip=1.0)
    world = Quadratics("scaffold", (0.0, 0.0), (0.0, 0.0), train, slopes=(0.5, -4.0))
    world.play([0, 1])
    # Client 1's gradient was clipped to -1, and so is what it learned.
    assert (world.own(0), world.own(1)) == pytest.approx((0.5, -1.0), abs=1e-6)
    world.play([1])
    # -4 + 1 - 0.25 is clipped to -1 as well, and c_1 becomes c_1 - c + that.
    assert world.own(1) == pytest.approx(-1.0 + 0.25 - 1.0, abs=1e-6)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("lr", "steps"), [(0.5, 0), (0.0, 2)])
def test_a_visit_that_does_not_move_teaches_nothing(lr: float, steps: int, lean: bool) -> None:
    world = Quadratics("scaffold", (1.0, 1.0), (0.0, 6.0), TWO_STEPS, 4.0, options={"lean": lean})
    world.play([0, 1])
    world.train = replace(TWO_STEPS, lr=lr)
    world.server.extensions[0].setup = replace(world.server.extensions[0].setup, train=world.train)
    assert world.play([0, 1], steps=steps) == [3.25]
    assert (world.own(0), world.own(1), world.common) == (3.0, -1.5, 0.75)


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


def test_a_client_that_solves_its_problem_keeps_the_gradient_where_it_ends() -> None:
    world = Quadratics("feddyn", A, B, TrainConfig(lr=0.2, local_steps=200), options={"coefficient": 0.5})
    world.play([0, 1, 2, 3], [1, 2])
    for client in (1, 2):
        ends = float(world.ups[client][MODEL]["w"].data[0])
        assert world.own(client) == pytest.approx(A[client] * (ends - B[client]), abs=1e-4)


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


def test_the_means_weights_do_not_change_what_feddyn_remembers() -> None:
    train = TrainConfig(lr=0.5, local_steps=1)
    options = {"coefficient": 0.5}
    world = Quadratics("feddyn", (1.0, 1.0), (0.0, 6.0), train, 4.0, options=options, weights="size", samples=[3, 1])
    # θ_i are 2 and 5 as above: their mean is now 2.75, and h is still 0.25.
    assert world.play([0, 1]) == [2.25]
    assert world.common == 0.25


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
    ("fedmlb+scaffold", {}),
    ("fedbr+scaffold", {"alpha": 2}),  # visits start from blocks that the server has never had
    ("feddyn", {}),
    ("fedmlb+fedprox+feddyn", {"mu": 0.01}),
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
        (("scaffold", {}), {"up_slots": {CONTROL: ({"kind": "quantize", "bits": 4},)}}),
        (("scaffold", {}), {"up_slots": {CONTROL: ({"kind": "randk", "ratio": 0.2},)}, "down": ({"kind": "sign"},)}),
        (("scaffold", {"lean": True}), {"up": ({"kind": "quantize", "bits": 4},), "down": ({"kind": "sign"},)}),
        (("scaffold", {"lean": True}), {"up": ({"kind": "topk", "ratio": 0.1},), "error_feedback": True}),
        (("feddyn", {}), {"up": ({"kind": "quantize", "bits": 4},), "down": ({"kind": "sign"},)}),
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


def test_where_errors_are_fed_back_the_rest_of_the_servers_memory_is_in_the_residuals(tmp_path: Path) -> None:
    codec = {"up_slots": {CONTROL: ({"kind": "topk", "ratio": 0.1},)}, "error_feedback": True}
    how: dict[str, Any] = {"clients": 5, "participants": 2, "rounds": 8, "train": BRIEF, "partition": IID}
    run = play(tmp_path, "scaffold", **how, codec=codec).federation
    controls, residuals = (np.mean(own(run, slot), axis=0) for slot in (CONTROL, f"{RESIDUAL}{CONTROL}"))
    assert np.abs(common(run) - controls).max() > 0.1 * np.abs(common(run)).max()
    assert np.abs(common(run) - (controls - residuals)).max() < 1e-5 * np.abs(common(run)).max()


def test_lean_scaffold_sends_less_and_ends_in_nearly_the_same_model(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 4, "train": BRIEF, "partition": IID}
    full, lean = (play(tmp_path / str(lean), "scaffold", lean=lean, **how) for lean in (False, True))
    assert np.abs(full.model - lean.model).max() < 1e-5 < 1e-2 < np.abs(full.model - full.start).max()
    query = "SELECT direction, SUM(nbytes) FROM transfers WHERE slot = 'control' GROUP BY direction ORDER BY direction"
    assert full.rows(query) == [("down", 16 * 5000), ("up", 16 * 5000)]
    assert lean.rows(query) == [("down", 16 * 5000)]


def test_feddyns_first_round_goes_twice_as_far_as_fedavgs_where_all_take_part(tmp_path: Path) -> None:
    # θ = mean - h/α, and -h/α is the mean's way from where the round started.
    one_step = replace(BRIEF, local_steps=1)
    runs = [play(tmp_path / name, name, rounds=1, train=one_step, weights="uniform") for name in ("fedavg", "feddyn")]
    fedavg, feddyn = (run.model.astype(np.float64) - run.start for run in runs)
    assert np.abs(feddyn - 2 * fedavg).max() < 1e-6 < 1e-3 < np.abs(fedavg).max()


def test_scaffold_covers_the_blocks_that_go_up(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 3, "train": BRIEF, "partition": IID}
    run = play(tmp_path / "run", "scaffold", travels=("without:head", "without:head"), **how)
    body = ["conv1", "conv2", "conv3"]
    keys = run.rows("SELECT DISTINCT direction, key FROM transfers WHERE slot = 'control' ORDER BY direction, key")
    assert keys == [(way, key) for way in ("down", "up") for key in body]
    kept = client_state.read(state_file(run.federation, 0))
    assert {slot: list(named) for slot, named in kept.items()} == {CONTROL: body, MODEL: ["head"]}


def test_nothing_goes_up_and_scaffold_has_nothing_to_say(tmp_path: Path) -> None:
    run = play(tmp_path, "scaffold", travels=(None, "nothing"), rounds=2, train=BRIEF)
    assert run.rows("SELECT DISTINCT slot FROM transfers WHERE slot != ''") == [("model",)]
    assert np.array_equal(run.model, run.start)


# --- the client side --------------------------------------------------------------------------------------------------


FORMATS = [torch.contiguous_format, torch.channels_last]
TRAIN = TrainConfig(lr=0.1, momentum=0.5, weight_decay=0.01, clip=0.5)


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def convolutions(memory_format: torch.memory_format) -> BlockModel:
    def make() -> list[Block]:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 2), nn.Flatten())
        return [("body", body), ("head", nn.Linear(8, 3))]

    return BlockModel(make, CPU, memory_format)


def trained(
    net: BlockModel, correction: GradientCorrection | None, steps: int, down: Payload, state: Payload
) -> tuple[Payload, Payload]:
    """A visit from where the net stands; what goes up and what is kept beside the model."""
    about = replace(visit(net), step_sum=TRAIN.step_sum(steps))
    corrections = [] if correction is None else [correction]
    for one in corrections:
        one.begin(net, down, state, about)
    step = Sgd(net, TRAIN, 0.1, [one.correct for one in corrections], [one.correct_unclipped for one in corrections])
    for seed in range(steps):
        step(cross_entropy, *batch(seed=seed))
    return ({}, {}) if correction is None else correction.end(net, about)[:2]


def zeros(net: BlockModel) -> Payload:
    net.scratch("zero").zero_()
    return {CONTROL: net.views(net.layout.names, of=net.scratch("zero"))}


CORRECTIONS: list[tuple[type[GradientCorrection], Options]] = [
    (ScaffoldCorrection, ScaffoldOptions()),
    (FedDynCorrection, FedDynOptions()),
]


@pytest.mark.parametrize(("correction", "options"), CORRECTIONS)
def test_the_first_step_of_a_new_client_is_plain_to_the_bit(
    correction: type[GradientCorrection], options: Options
) -> None:
    plain, corrected = tower(), tower()
    # SCAFFOLD adds nothing without controls, however many steps it makes.
    steps = 4 if correction is ScaffoldCorrection else 1
    trained(plain, None, steps, {}, {})
    trained(corrected, correction(options), steps, zeros(corrected), {})
    assert torch.equal(plain.flat, corrected.flat) and torch.equal(plain.grad, corrected.grad)


def test_scaffold_adds_the_difference_of_controls() -> None:
    net = tower()
    common, own = whole(net)[MODEL], {key: vector for key, vector in whole(tower(seed=1))[MODEL].items() if key != "b2"}
    correction = ScaffoldCorrection(ScaffoldOptions(lean=False))
    correction.begin(net, {CONTROL: common}, {CONTROL: own}, visit(net))
    net.grad.fill_(1.0)
    correction.correct(net)
    other = tower(seed=1)
    other.flat[other.slices["b2"]] = 0.0  # b2 had no control yet
    assert torch.allclose(net.grad, 1 + net.flat - other.flat, atol=1e-6)


def test_scaffold_sends_what_it_keeps_less_what_it_had() -> None:
    net = tower()
    _, first = trained(net, ScaffoldCorrection(ScaffoldOptions(lean=False)), 3, zeros(net), {})
    kept = {CONTROL: {key: Vector(vector.data.copy()) for key, vector in first[CONTROL].items()}}
    up, second = trained(net, ScaffoldCorrection(ScaffoldOptions(lean=False)), 3, zeros(net), kept)
    for key in net.layout.names:
        change = second[CONTROL][key].data - kept[CONTROL][key].data
        assert np.array_equal(up[CONTROL][key].data, change)
        assert np.abs(change).max() > 1e-3
    assert trained(net, ScaffoldCorrection(ScaffoldOptions(lean=True)), 3, zeros(net), kept)[0] == {}


def test_feddyn_adds_a_pull_back_less_what_it_keeps() -> None:
    net = tower()
    correction = FedDynCorrection(FedDynOptions(coefficient=0.5, clipped="everything"))
    correction.begin(net, {}, {KEPT: whole(net)[MODEL]}, visit(net))
    start = net.flat.clone()
    net.flat.add_(2.0)
    net.grad.fill_(1.0)
    correction.correct(net)
    correction.correct_unclipped(net)
    assert torch.allclose(net.grad, 1 - start + 1.0, atol=1e-6)  # 0.5 · 2 = 1


def test_feddyns_two_forms_add_the_same() -> None:
    grads = []
    for clipped in ("everything", "ce+linear"):
        net = tower()
        correction = FedDynCorrection(FedDynOptions(coefficient=0.5, clipped=clipped))
        correction.begin(net, {}, {KEPT: whole(tower(seed=1))[MODEL]}, visit(net))
        shifted(net)
        net.grad.fill_(1.0)
        correction.correct(net)
        correction.correct_unclipped(net)
        grads.append(net.grad.clone())
    assert torch.allclose(grads[0], grads[1], atol=1e-6)


# --- memory formats and buffers ---------------------------------------------------------------------------------------


def test_a_vector_like_the_model_takes_and_gives_numbers_in_torchs_order() -> None:
    nets = [convolutions(memory_format) for memory_format in FORMATS]
    numbers = {key: Vector(np.arange(nets[0].layout.sizes[key], dtype=np.float32)) for key in ("body", "head")}
    for net in nets:
        vector = net.scratch("mine")
        net.load(numbers, into=vector)
        for key, sent in net.views(("body", "head"), of=vector).items():
            assert np.array_equal(sent.data, numbers[key].data)
        # It lies as the model itself would, beside which it is computed with.
        net.load(numbers)
        assert torch.equal(vector, net.flat)
    assert not torch.equal(nets[0].flat, nets[1].flat)


def test_what_is_read_of_a_vector_outlives_what_is_read_of_the_model() -> None:
    net = convolutions(torch.channels_last)
    vector = net.scratch("mine").fill_(3.0)
    sent = net.views(["body"], of=vector)["body"]
    net.views(["body"])
    assert set(sent.data.tolist()) == {3.0}


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("correction", "options"), CORRECTIONS)
def test_corrections_leave_buffers_alone(
    correction: type[GradientCorrection], options: Options, memory_format: torch.memory_format
) -> None:
    net = convolutions(memory_format)
    about = replace(visit(net), step_sum=1.0)
    one = correction(options)
    one.begin(net, zeros(net), {}, about)
    before = net.buffers.clone()
    shifted(net)
    one.correct(net)
    up, kept, _ = one.end(net, about)
    assert torch.equal(net.buffers, before)
    assert all(list(named) == ["body", "head"] for payload in (up, kept) for named in payload.values())
