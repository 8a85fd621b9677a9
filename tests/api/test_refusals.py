"""Arguments of Python functions that are refused: each message names the argument, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbr
from tests.scenarios.runs import check_message

ANY: Any = fedbr
"""For arguments of types that no checker admits"""
SEVERAL = "compare and sweep take several, as method=fedavg,fedprox"
CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: ANY.run("digits", lr=0.1), "unknown key lr, did you mean 'train.lr'?"),
    (lambda: ANY.run("digits", n_workers=5), "unknown key n_workers: no key of a scenario; use workers"),
    (
        lambda: fedbr.run("digits", method=["fedavg", "fedprox"]),
        f"method = ['fedavg', 'fedprox']: a run takes one; {SEVERAL}",
    ),
    (
        lambda: ANY.run("digits", train={"lr": 1}, **{"train.lr": 2}),
        "train.lr: is given twice; a key has one value",
    ),
    (
        lambda: ANY.run("digits", **{"stop.target_accuracy": 90}),
        "stop.target_accuracy = 90: is above 1; say 0.9 or '90 %'",
    ),
    (lambda: ANY.run("digits", **{"train.lx": 1}), "unknown key train.lx, did you mean 'train.lr'?"),
    (lambda: ANY.run("digits", **{"train.lr": "0.05x"}), "train.lr = '0.05x' .."),
    (lambda: fedbr.run("digits", workers=0), "workers = 0: must be an integer of at least 1"),
    (lambda: fedbr.run("digits", workers=100_000), "workers = 100000: this machine has .."),
    (lambda: fedbr.sweep("digits", {"train.lr": [0.1, 0.2]}, workers=100_000), "workers = 100000: this machine has .."),
    (
        lambda: fedbr.run("digits", method=None),
        "method = None: has no such value; leave the key out for its default",
    ),
    (lambda: ANY.run("digits", out=5), "out = 5: must be a path, such as 'runs'"),
    (lambda: fedbr.run("digits", run_id="a/b"), "run_id = 'a/b': must be the name of a folder .."),
    (
        lambda: ANY.run("digits", on_round=5),
        "on_round = 5: must be a function of a CommittedRound, a fedbr.Callback, or several",
    ),
    (lambda: ANY.run(5), "scenario = 5: must be a name, the path of a file, or a mapping"),
    (lambda: ANY.resume(None), "None: must be a run, or the path of its folder"),
    (lambda: fedbr.compare("digits", "fedavg,fedavg"), "method = fedavg: is named twice .."),
    (lambda: fedbr.sweep("digits", {}, seeds=1), "seeds = 1: nothing varies .."),
    (lambda: fedbr.sweep("digits", {"seed": [1]}, zipped=True), "zipped: seed = 1: every cell has all seeds .."),
    (
        lambda: fedbr.sweep("digits", {"train.lr": [0.1]}, targets=[2]),
        "targets = 2: must be an accuracy above 0 ..",
    ),
    (
        lambda: ANY.sweep("digits", {"train.lr": 0.1}),
        "train.lr = 0.1: write a list of values, such as [0.1]",
    ),
    (
        lambda: fedbr.sweep("digits", {"method": "fedavg"}),
        "method = 'fedavg': write a list of values, such as ['fedavg']",
    ),
    (
        lambda: fedbr.sweep("digits", {"method": ["fedavg"]}, seeds=0),
        "seeds = 0: must be an integer of at least 1",
    ),
    (lambda: fedbr.ls("nowhere"), "nowhere: no such folder"),
    (lambda: ANY.diff("digits", 5), "5: must be a run, its folder, or a scenario"),
    (lambda: fedbr.open(""), "'': must be a run, or the path of its folder"),
    (lambda: fedbr.open("."), ". is not a run folder .."),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_an_argument_is_refused_with_what_is_meant(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedbr.ScenarioError) as refused:
        call()
    check_message(str(refused.value), message)
    assert list(tmp_path.iterdir()) == []
