"""Any torch module as a model: cut by its children where these are all that its forward does, refused otherwise."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edge.data.registry import DATASETS
from edge.models.registry import model, module_row
from edge.models.user_module import check_chain, check_module, make_module
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.training.blocks import build
from tests.plugins.own_rows import CONV_NET, NETS, image_row
from tests.toy import play

ROOT = Path(__file__).parents[3]
OWN = "tests.plugins.own_rows:CONV_NET"
FLAT = ("first", "second", "head")


def test_a_module_is_cut_into_its_children_and_gets_the_arguments_that_it_has() -> None:
    blocks = build(ModelConfig(OWN), 10, 1)
    assert [name for name, _ in blocks] == ["stem", "deep", "head"]
    # conv 4 * (9 + 1) and norm 2 * 4; 8 * (4 * 9 + 1); 10 * (8 * 3 * 3 + 1)
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for _, block in blocks]
    assert sizes == [48, 296, 730]
    wider = build(ModelConfig(OWN, width=6), 7, 3)
    assert wider[0][1].get_parameter("0.weight").shape == (6, 3, 3, 3)
    assert wider[-1][1].get_parameter("1.weight").shape == (7, 72)
    check_module(ModelConfig(OWN), DATASETS["digits"])
    with pytest.raises(ValueError, match=r"model\.blocks = 'balanced:2': ConvNet takes 'stages' alone"):
        CONV_NET.block_count("balanced:2")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "Residual",
            r"its forward \(.*, line \d+\) is not its children conv, norm, act, deep, flat, fc one after another; make",
        ),
        ("NeedsMore", "needs 'hidden'; arguments are classes, channels, width. Give it a default"),
        ("Tied", "blocks first and second share the parameter first.weight"),
        ("Scaled", "no block holds the parameters scale"),
        ("Cumulative", "norm has momentum = None, and its count of batches does not travel"),
        ("Residuall", "has no 'Residuall'; did you mean 'Residual'?"),
    ],
)
def test_a_module_that_is_no_chain_of_blocks_is_refused_with_the_reason(name: str, complaint: str) -> None:
    flat = name in ("Tied", "Scaled")
    row = module_row(name, f"{NETS}:{name}", FLAT, kind="features") if flat else image_row(name)
    row = replace(row, width=None) if name == "broken" else row
    x = torch.zeros(2, 5) if flat else torch.linspace(-1, 1, 128).view(2, 1, 8, 8)
    with pytest.raises(ValueError, match=f"model.name = '{name}': {NETS}:{name}: .*{complaint}"):
        check_chain(row, make_module(row, 10, x.shape[1], row.width), x, (10,))


def test_neither_a_row_nor_a_bare_class_brings_torch_into_the_process_that_reads_scenarios() -> None:
    code = (
        "import sys; from scenarios.config.load import load\n"
        f"own = {{'model.name': '{OWN}', 'travels.down': 'without:head', 'method': 'fedavg'}}\n"
        "print(load('digits', own).model.blocks)\n"
        f"try: load('digits', {{'model.name': '{NETS}:ConvNet'}})\n"
        "except ValueError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    blocks, error, is_loaded = told.splitlines()
    assert (blocks, is_loaded) == ("('stem', 'deep', 'head')", "False")
    assert f"module_row('my-model', '{NETS}:ConvNet', blocks=('conv', 'head'))" in error
    with pytest.raises(ValueError, match="cannot load 'no_such_module:Net'"):
        model("no_such_module:Net")


def test_methods_train_it_as_they_train_shipped_models(tmp_path: Path) -> None:
    train, partition = TrainConfig(lr=0.1, batch=16, local_epochs=2), PartitionConfig("iid")
    run = play(tmp_path, "fedbr", model=ModelConfig(OWN), clients=3, rounds=3, partition=partition, train=train)
    accuracies = [accuracy for (accuracy,) in run.rows("SELECT accuracy FROM rounds")]
    assert accuracies[-1] > 0.5, "one in ten is chance"
    assert np.isfinite(run.model).all()
