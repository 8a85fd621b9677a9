"""SplitFed V2 in plain torch, beside a run of it: modules and optimizers of each client, and of one server part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.training.batches import LocalBatches
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.run.setup import RunInputs
from tests.scenarios.runs import run_with

STEPS, ROUNDS = 3, 2
WORDS = (
    *("method=fedavg", f"train.local_steps={STEPS}", "train.batch=20", "train.momentum=0.9", f"rounds.max={ROUNDS}"),
    *("rounds.participants=6", "rounds.policy=deadline", "rounds.deadline=0.4 s", "checkpoints.keep=every:1"),
    *("train.memory_format=contiguous", "train.weight_decay=0", "train.clip=0", "train.lr_decay=1"),
    *("split.after=conv2", "split.kind=splitfed-v2"),
)
Model = dict[str, NDArray[np.float32]]


def side(model: Model, names: list[str]) -> nn.Sequential:
    """The blocks of these names of the CNN for digits, with their numbers."""
    shapes = {"conv1": (1, 16), "conv2": (16, 32), "conv3": (32, 32)}
    layers: list[nn.Module] = []
    for name in names:
        own = nn.Conv2d(*shapes[name], 3, padding=1) if name in shapes else nn.Linear(128, 10)
        nn.utils.vector_to_parameters(torch.from_numpy(model[name].copy()), own.parameters())
        pools = [] if name in ("conv1", "head") else [nn.MaxPool2d(2)]
        layers += [own, *pools, *([] if name == "head" else [nn.ReLU()]), *([nn.Flatten()] if name == "conv3" else [])]
    return nn.Sequential(*layers)


def numbers(trained: nn.Sequential, names: list[str]) -> Model:
    layers = [layer for layer in trained if isinstance(layer, nn.Conv2d | nn.Linear)]
    vectors = (nn.utils.parameters_to_vector(layer.parameters()).detach().numpy() for layer in layers)
    return dict(zip(names, vectors, strict=True))


def arrivals(ledger: Path, round: int) -> tuple[list[int], list[int]]:
    """(the client of each step in order of arrival, clients that count)."""
    columns = "client, kind, down_end_s, compute_end_s, flops"
    visits = [tuple(row) for row in read(ledger, f"SELECT {columns} FROM visits WHERE round = {round}")]
    whole, reached = max(visit[-1] for visit in visits), list[tuple[float, int]]()
    for client, _, begin, end, flops in visits:
        made = STEPS * flops / whole
        reached += [(begin + (step + 0.5) * (end - begin) / made, client) for step in range(int(made + 0.5))]
    return [client for _, client in sorted(reached)], sorted(visit[0] for visit in visits if visit[1] == "train")


def trained(trainer: LocalTrainer, model: Model, round: int, order: list[int], counted: list[int]) -> Model:
    """The model after a round: each client's front averaged by its examples, and the one server part."""
    config, indices = trainer.job.train, trainer.client_indices.train

    def optimizer(of: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(of.parameters(), lr=config.lr, momentum=0.9)

    server = side(model, ["conv3", "head"])
    of_server = optimizer(server)
    fronts = {client: side(model, ["conv1", "conv2"]) for client in {*order}}
    of_fronts = {client: optimizer(front) for client, front in fronts.items()}
    keys = {client: (trainer.job.seed, round, client) for client in fronts}
    batches = {
        client: iter(LocalBatches(trainer.train_set, indices[client], config, keys[client])()) for client in keys
    }
    for client in order:
        x, y = next(batches[client])
        sent = fronts[client](x)
        came = sent.detach().requires_grad_()
        of_server.zero_grad()
        of_fronts[client].zero_grad()
        torch.autograd.backward(F.cross_entropy(server(came), y))
        torch.autograd.backward(sent, came.grad)
        of_server.step()
        of_fronts[client].step()
    ends = [numbers(fronts[client], ["conv1", "conv2"]) for client in counted]
    weights = [len(indices[client]) for client in counted]
    means = {name: np.average([end[name] for end in ends], axis=0, weights=weights) for name in ends[0]}
    return {name: mean.astype(np.float32) for name, mean in means.items()} | numbers(server, ["conv3", "head"])


def test_a_run_has_the_numbers_of_plain_torch(launcher: WorkerLauncher, tmp_path: Path) -> None:
    folder = Path(run_with(tmp_path, launcher, 2, *WORDS)["run_dir"])
    trainer = LocalTrainer(RunInputs(load(str(folder / "scenario.toml"), {})).job)
    _, payload = trainer.describe(data=True)
    model: Model = {name: vector.data.copy() for name, vector in payload["model"].items()}
    interrupted = 0
    for round in range(ROUNDS):
        order, counted = arrivals(folder / "ledger.sqlite", round)
        interrupted += len({*order}) * STEPS - len(order)
        model = trained(trainer, model, round, order, counted)
        kept = load_file(folder / "checkpoints" / f"round-{round:06d}.safetensors")
        for name, vector in model.items():
            assert kept[f"model|{name}"] == pytest.approx(vector, abs=1e-5), (round, name)
    assert interrupted > 0
