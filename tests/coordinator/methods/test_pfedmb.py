"""pFedMB's server: means of branches by hand; and what whole runs send, keep, cost and record."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.block_exchange import exchanged_keys
from coordinator.aggregation.server import GLOBAL, ServerContext
from coordinator.methods.pfedmb import PFedMBServer, branched_layout
from coordinator.records.store import read
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.visit import VisitPricing
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.pfedmb import ALL_LAYERS, ALPHA, PFedMBOptions, branched_keys, mixing_flops, weighted_layers
from edge.protocol.payload import FORWARD, INPUT_GRADIENT, MODEL, BlockShape, LayerShape, Layout, Vector
from edge.training.trainer import LocalTrainer
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run import builder
from tests.toy import Run, cache_folder, loaded, play, state_file, vector

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
IID = PartitionConfig("iid")
HEAD = LayerShape("head/branch1", 1), LayerShape("head/branch2", 1), LayerShape("head/branch_weights", 2)
LAYOUT = Layout((BlockShape("norm", 1, 0, (LayerShape("norm", 1),)), BlockShape("head", 4, 0, HEAD)))
UP = ("norm", "head/branch1", "head/branch2")


def server(**given: Any) -> PFedMBServer:
    """Of two clients with 1 and 3 examples; the model's numbers are 0."""
    context = ServerContext(
        layout=LAYOUT,
        initial={MODEL: {key: Vector(np.zeros(size, np.float32)) for key, size in LAYOUT.sizes.items()}},
        options=PFedMBOptions(branches=2, **given),
        weights="size",
        down=UP,
        up=UP,
        seed=0,
        samples=np.array([1, 3]),
        histogram=np.ones((2, 1), np.int64),
    )
    return PFedMBServer(context)


def stepped(server: PFedMBServer, *updates: tuple[tuple[float, ...], tuple[float, ...]]) -> list[float]:
    """The model after updates of clients 0, 1, ..: (norm, branch 1, branch 2), (alpha 1, alpha 2)."""
    (layer,) = server.sent
    for client, (model, alpha) in enumerate(updates):
        sent = {key: vector(number) for key, number in zip(UP, model, strict=True)}
        server.accumulate(Update(client, 0, {}, {MODEL: sent, ALPHA: {layer: vector(*alpha)}}))
    server.step()
    return [float(server.models[GLOBAL][key].data[0]) for key in UP]


TWO = ((4.0, 4.0, 4.0), (0.75, 0.25)), ((8.0, 8.0, 8.0), (0.25, 0.75))


def test_branches_are_averaged_with_their_weights_and_all_else_by_size() -> None:
    # (1 * 4 + 3 * 8) / 4; branch 1: (0.75 * 4 + 0.75 * 8) / 1.5; branch 2: (0.25 * 4 + 2.25 * 8) / 2.5
    for shared in (False, True):
        assert stepped(server(shared_alpha=shared), *TWO) == pytest.approx([7, 6, 7.6])
    assert stepped(server(aggregation="plain"), *TWO) == [7, 7, 7]


def test_equal_weights_are_a_plain_mean_and_one_client_replaces() -> None:
    equal = [(model, (0.5, 0.5)) for model, _ in TWO]
    assert stepped(server(), *equal) == stepped(server(aggregation="plain"), *equal) == [7, 7, 7]
    assert stepped(server(), TWO[0]) == [4, 4, 4]


def test_a_branch_that_nobody_uses_keeps_its_numbers() -> None:
    # A weight below 0, of alpha_param = "free", counts as 0.
    assert stepped(server(), ((4.0, 4.0, 4.0), (1.0, 0.0)), ((8.0, 8.0, 8.0), (1.0, -0.5))) == [7, 7, 0]
    assert stepped(server(), ((4.0, 4.0, 4.0), (1.0, 1e-13))) == [4, 4, 0]


def test_an_update_that_counts_as_no_change_weighs_as_uniform_branches() -> None:
    # branch 1: (0.5 * 4 + 0.75 * 8) / 1.25
    assert stepped(server(), ((4.0, 4.0, 4.0), (0.0, 0.0)), TWO[1]) == pytest.approx([7, 6.4, (2 + 18) / 2.75])


def test_permuted_branches_permute_the_mean() -> None:
    swapped = [((norm, two, one), alpha[::-1]) for (norm, one, two), alpha in TWO]
    norm, one, two = stepped(server(), *TWO)
    assert stepped(server(), *swapped) == [norm, two, one]


def test_keys_of_branches_are_told_from_other_layers() -> None:
    sizes = {"a/0.branch1": 6, "a/0.branch2": 6, "a/0.branch_weights": 2, "a/branch1": 5, "b/branch1": 3}
    assert list(branched_keys(sizes)) == ["a/0"]
    assert branched_keys(sizes)["a/0"].branches == ("a/0.branch1", "a/0.branch2")
    assert list(weighted_layers(sizes, shared=True)) == [ALL_LAYERS]
    assert mixing_flops(sizes) == 4 * 12
    assert branched_keys({"a": 1}) == weighted_layers({"a": 1}, shared=True) == {}


def test_all_but_the_branch_weights_travels() -> None:
    assert exchanged_keys("without-layers:branch_weights", LAYOUT) == UP


def test_the_costs_of_methods_count_every_number_of_a_block_as_branched() -> None:
    """Two blocks with the layers of one each: 5 times 3 and 4 numbers, and 5 weights."""
    plain = Layout((BlockShape("body", 3, 2), BlockShape("head", 4)))
    made = branched_layout(plain, PFedMBOptions())
    assert made.names == plain.names
    assert made.nbytes() == 4 * (5 * 3 + 5 + 2 + 5 * 4 + 5)
    assert [len(keys.branches) for keys in branched_keys(made.sizes).values()] == [5, 5]
    assert branched_layout(plain, PFedMBOptions(branches=1)) == plain


# --- whole runs -------------------------------------------------------------------------------------------------------


def pfedmb(folder: Path, method: str = "pfedmb", **how: Any) -> Run:
    return play(folder, method, **{"branches": 3, "clients": 3, "partition": IID, "train": BRIEF, **how})


def test_weights_are_recorded_as_the_clients_keep_them(tmp_path: Path) -> None:
    run = pfedmb(tmp_path, rounds=2, alpha_lr=1.0)
    rows = run.rows("SELECT round, client, layer, branch, weight FROM pfedmb ORDER BY rowid")
    layers = ["conv1/0", "conv2/0", "conv3/0", "head"]
    of_visits = [(round, client) for round in (0, 1) for client in range(3)]
    expected = [(*visit, layer, branch) for visit in of_visits for layer in layers for branch in (1, 2, 3)]
    assert [row[:4] for row in rows] == expected
    for client in range(3):
        file = state_file(run.federation, client)
        assert file is not None
        kept = client_state.read(file)[MODEL]
        assert list(kept) == [*(f"{layer}.branch_weights" for layer in layers[:3]), "head/branch_weights"]
        softmax = [np.exp(each.data) / np.exp(each.data).sum() for each in kept.values()]
        recorded = [row[4] for row in rows if row[:2] == (1, client)]
        assert np.allclose(np.concatenate(softmax), recorded, atol=1e-6)
    assert len({row[4] for row in rows}) > 20
    assert all(np.all(each.data == 0) for key, each in run.federation.server.model.items() if "branch_weights" in key)


def test_branches_multiply_the_model_and_weights_add_a_few_bytes(tmp_path: Path) -> None:
    """The CNN on digits of width 4: 1250 parameters, all in four linear layers."""
    slots = "SELECT direction, slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY direction, slot"
    sent = pfedmb(tmp_path / "own", rounds=1).rows(slots)
    assert sent == [("down", "model", 3 * 3 * 5000), ("up", "alpha", 3 * 4 * 3 * 4), ("up", "model", 3 * 3 * 5000)]
    shared = pfedmb(tmp_path / "shared", rounds=1, shared_alpha=True)
    assert shared.rows(slots)[1] == ("up", "alpha", 3 * 4 * 3)
    assert {layer for (layer,) in shared.rows("SELECT layer FROM pfedmb")} == {ALL_LAYERS}


def flops(run: Run) -> tuple[float, int]:
    """FLOPs and steps of the first visit: as planned, and compared with the worker's count."""
    ((found, steps),) = run.rows("SELECT flops, steps FROM visits WHERE client = 0 AND round = 0")
    return found, steps


def test_two_phases_are_two_phases_on_the_clock(tmp_path: Path) -> None:
    """2 and 2 steps of 32 examples; per step 3 * 1250 numbers are mixed, for 4 FLOPs each."""
    fedavg, _ = flops(play(tmp_path / "fedavg", clients=3, partition=IID, train=BRIEF, rounds=1))
    both, steps = flops(pfedmb(tmp_path / "both", rounds=1))
    assert (both, steps) == (2 * fedavg + 4 * 4 * 3 * 1250, 4)
    alone, steps = flops(pfedmb(tmp_path / "alone", rounds=1, alpha_epochs=0))
    assert (alone, steps) == (fedavg + 2 * 4 * 3 * 1250, 2)


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("pfedmb+fedprox", {"mu": 0.1, "alpha_epochs": 1}),
        ("pfedmb+calibrated", {"alpha_param": "project", "branch_bias": False}),
        ("pfedmb", {"server": "fedadam", "server_options": {"lr": 0.01}, "alpha_param": "clip_renorm"}),
        ("pfedmb", {"model": ModelConfig("digits-cnn", width=2, norm="batch"), "shared_alpha": True}),
        ("pfedmb", {"model": ModelConfig("text-cnn", width=4), "examples": "python-topics", "branches": 2}),
        ("pfedmb", {"travels": ("everything", "everything"), "alpha_param": "free", "shared_alpha": True}),
    ],
    ids=["fedprox", "calibrated", "fedadam", "statistics", "embedding", "everything"],
)
def test_it_costs_what_was_planned(method: str, how: dict[str, Any], tmp_path: Path) -> None:
    """A worker's count of other FLOPs ends a run; so does an embedding, through which no gradient of weights goes."""
    brief = replace(BRIEF, clip=1.0, momentum=0.5)
    run = pfedmb(tmp_path, method, rounds=1, clients=2, train=brief, eval_every=9, **how)
    assert run.rows("SELECT COUNT(*) FROM visits WHERE kind = 'train'") == [(2,)]
    sent = [(run.workers.bytes_down, run.workers.bytes_up)]
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM visits") == sent


def test_an_adaptation_is_charged_for_both_phases(tmp_path: Path) -> None:
    adapted = {"on": "clients", "charged": True, "adapt": {"epochs": 1}}
    run = pfedmb(tmp_path, rounds=1, evaluation=adapted).federation
    description = run.description
    samples, examples = (int(split[0]) for split in (description.samples, description.test_samples))
    steps, forward = math.ceil(samples / 32), float(description.flops[:, FORWARD].sum())
    step = float(description.flops.sum() - description.flops[0, INPUT_GRADIENT])
    ((flops, both),) = read(
        tmp_path / "ledger.sqlite", "SELECT flops, steps FROM visits WHERE kind = 'evaluate' LIMIT 1"
    )
    assert (flops, both) == (examples * forward + 2 * samples * step + 2 * steps * 4 * 3 * 1250, 2 * steps)
    weights = run.options.model_copy(update={"fine_tuning": "weights"})
    work = VisitPricing(run.job, run.method, weights, description, {}).evaluation({}, examples, samples).work
    assert (work.flops, work.steps) == (examples * forward + samples * step + steps * 4 * 3 * 1250, steps)


def test_buffered_updates_keep_their_weights(tmp_path: Path) -> None:
    run = pfedmb(tmp_path, rounds=2, rules=RoundPolicy("fedbuff", buffer=2), participants=2)
    assert run.rows("SELECT COUNT(*) FROM pfedmb") == [(2 * 2 * 4 * 3,)]
    assert np.isfinite(run.model).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("rounds.policy=fedasync",), 'method_options.aggregation = "alpha": a server step with one update'),
        (("rounds.policy=fedbuff", "rounds.buffer=1"), 'choose "plain", or fedbuff with rounds.buffer above 1'),
        (("method=pfedmb+scaffold",), "each client mixes the branches"),
        (("method=pfedmb+feddyn",), "averages each branch with other weights"),
        (("aggregate.sum=fixed_point",), "pfedmb needs individual updates"),
        (("method_options.branches=0",), "branches"),
    ],
)
def test_what_has_no_meaning_is_refused(given: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        load("digits", parse_all(["method=pfedmb", *given]))


def test_one_update_per_step_needs_a_plain_mean() -> None:
    assert load("digits", parsed(["method=pfedmb", "rounds.policy=fedasync", "method_options.aggregation=plain"]))


def test_memory_of_all_branches_is_checked() -> None:
    """Parameters, their copy and their gradients are B-fold, but for those of GroupNorm; activations are not."""
    known = loaded("pfedmb", model=ModelConfig("resnet18", width=2), branches=5)
    description, _ = LocalTrainer(builder.job(known, None, "cpu", Path(cache_folder()))).describe(False)
    convolutions = 9 * (2 + 4 * 4 + 8 + 3 * 16 + 32 + 3 * 64 + 128 + 3 * 256) + (8 + 32 + 128)
    linear, norms = convolutions + 17 * 10, 2 * (5 * 2 + 5 * 4 + 5 * 8 + 5 * 16)
    activations = known.scenario.train.batch * float(description.activations.sum())
    parameters = 5 * linear + norms + 21 * 5
    assert builder.training_nbytes(known, description) == 4 * (3 * parameters + activations)
