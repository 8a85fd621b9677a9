"""Any torch module as a model: cut by its children where these are all that its forward does, refused otherwise."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edge.data.registry import DATASETS
from edge.models.registry import model, module_row
from edge.models.user_module import check_chain, check_module, make_module, stages_of
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.training.blocks import build
from tests.plugins.own_rows import CONV_NET, NETS, PARTS, image_row
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


def test_blocks_may_be_named_by_their_children_alone() -> None:
    row = module_row("net", "x:Net", ["conv+norm", ["act", "deep"], "fc"], kind="tokens")
    assert row.blocks == ("conv+norm", "act+deep", "fc")
    assert row.children == (("conv", "norm"), ("act", "deep"), ("fc",))
    assert (row.kind, row.shape, row.flexible, row.on("cpu").memory_format) == ("tokens", (), True, "contiguous")
    for bad in ((), ("a", "a"), ("a", ""), ("a+", "b"), ("a,b",)):
        with pytest.raises(ValueError, match="blocks = "):
            module_row("net", "x:Net", bad)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "Residual",
            r"its forward \(.*, line \d+\) is not its children conv, norm, act, deep, flat, fc one after another; make",
        ),
        ("DropsInTraining", r"its forward \(.*own_nets.py, line \d+\) is not its children"),
        ("NeedsMore", "needs 'hidden'; arguments are classes, channels, width. Give it a default"),
        ("broken", "called with classes=10, it raised RuntimeError: no model for 10 classes"),
        ("Tied", "blocks first and second share the parameter first.weight"),
        ("Scaled", "no block holds the parameters scale"),
        ("Cumulative", "norm has momentum = None, and its count of batches does not travel"),
        ("Residuall", "has no 'Residuall'; did you mean 'Residual'?"),
        ("Lazy", "the size of fc.weight, fc.bias is not known before its first use; give it"),
    ],
)
def test_a_module_that_is_no_chain_of_blocks_is_refused_with_the_reason(name: str, complaint: str) -> None:
    flat = name in ("Tied", "Scaled")
    row = module_row(name, f"{NETS}:{name}", FLAT, kind="features") if flat else image_row(name)
    row = replace(row, width=None) if name == "broken" else row
    x = torch.zeros(2, 5) if flat else torch.linspace(-1, 1, 128).view(2, 1, 8, 8)
    with pytest.raises(ValueError, match=f"model.name = '{name}': {NETS}:{name}: .*{complaint}"):
        check_chain(row, make_module(row, 10, x.shape[1], row.width), x, 10)


def test_children_that_are_not_there_blocks_without_parameters_and_wrong_outputs_are_named() -> None:
    net = make_module(CONV_NET, 10, 1, 4)
    for parts, complaint in (
        ({**PARTS, "head": "flat+fcc"}, "has no child 'fcc'; did you mean 'fc'"),
        ({"stem": "conv+norm", "act": "act", "deep": "deep", "head": "flat+fc"}, "block act has no parameters; join"),
    ):
        with pytest.raises(ValueError, match=complaint):
            stages_of(module_row("net", f"{NETS}:ConvNet", parts), net)
    with pytest.raises(ValueError, match=r"gives \(2, 10\) for 2 examples, not \(2, 11\)"):
        check_chain(CONV_NET, net, torch.ones(2, 1, 8, 8), 11)
    with pytest.raises(ValueError, match=r"cannot take examples of shape \(3, 8, 8\)"):
        check_chain(CONV_NET, net, torch.ones(2, 3, 8, 8), 10)


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


@pytest.mark.parametrize("method", ["fedavg", "fedbr", "fedmlb", "scaffold"])
def test_methods_train_it_as_they_train_shipped_models(tmp_path: Path, method: str) -> None:
    run = play(
        tmp_path,
        method,
        model=ModelConfig(OWN),
        clients=3,
        rounds=3,
        partition=PartitionConfig("iid"),
        train=TrainConfig(lr=0.1, batch=16, local_epochs=2),
    )
    accuracies = [accuracy for (accuracy,) in run.rows("SELECT accuracy FROM rounds")]
    assert accuracies[-1] > 0.5, "one in ten is chance"
    assert np.isfinite(run.model).all()


def test_a_strided_convolution_of_few_channels_gives_its_own_gradients() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(block for _, block in build(ModelConfig("tests.plugins.own_rows:STRIDED"), 10, 1)))
    x = torch.randn(20, 1, 32, 32)
    exact = deepcopy(net).double()
    torch.autograd.backward(torch.logsumexp(exact(x.double()), 1).sum())
    net.to(memory_format=torch.channels_last)
    torch.autograd.backward(torch.logsumexp(net(x.contiguous(memory_format=torch.channels_last)), 1).sum())
    for mine, other in zip(net.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        np.testing.assert_allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-4)
