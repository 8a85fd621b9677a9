"""DepthFL's table: what is printed, and what stands for it at each scale."""

from __future__ import annotations

import pytest

from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.experiment.grid import Grid
from scenarios.papers import depthfl, reproduce, tables
from scenarios.papers.spec import SCALES

NAME = "depthfl:2"


def test_the_figure_holds_the_global_models_of_the_source() -> None:
    values = {cell["row"]: cell["published"] for cell in tables.catalogue(NAME)}
    assert values == {"HeteroFL": 0.5761, "DepthFL (FedAvg)": 0.7267, "DepthFL": 0.7606}


def test_the_papers_scale_is_the_authors_code() -> None:
    setting = depthfl.FIGURES[NAME].settings["cifar100-iid"]["paper"]
    assert setting.changed == ""
    scenario = load(setting.scenario, parse_all(setting.overrides), "heterofl").scenario
    train, rounds = scenario.train, scenario.rounds
    assert (scenario.data.name, scenario.data.clients, scenario.data.partition.kind) == ("cifar100", 100, "iid")
    assert (scenario.model.name, scenario.model.width, scenario.model.norm) == ("resnet18", 64, "batch")
    assert (train.lr, train.lr_decay, train.weight_decay, train.momentum, train.clip) == (0.1, 0.998, 1e-3, 0, 0)
    assert (train.batch, train.local_epochs, rounds.participants, rounds.max) == (50, 5, 10, 1000)


@pytest.mark.parametrize("scale", SCALES)
def test_a_fourth_of_the_clients_each_has_a_fourth_more(scale: str) -> None:
    heterofl, fedavg, whole = (run.loaded for run in reproduce.plan(NAME, scale, Grid(NAME), 1).run_set.runs)
    for loaded in (heterofl, fedavg, whole):
        submodel = loaded.scenario.submodel
        assert (submodel.rate, submodel.levels, submodel.shares) == ("client", (1.0, 0.75, 0.5, 0.25), ())
        assert loaded.scenario.aggregate.weights == "uniform"
        assert loaded.scenario.rounds.max == depthfl.ROUNDS[scale]
    assert [loaded.scenario.method for loaded in (heterofl, fedavg, whole)] == ["heterofl", "depthfl", "depthfl"]
    options = [loaded.options.model_dump() for loaded in (fedavg, whole)]
    assert [each["distil"] for each in options] == [False, True]
    assert options[1]["ramp"] / depthfl.ROUNDS[scale] == pytest.approx(300 / 1000)
