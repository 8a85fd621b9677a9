"""Whatever ``fedbr run`` takes goes through a decision and all commands on runs, or is refused with the reason.

Each method, family of codecs, kind of aggregators, round policy, part of the model and kind of evaluation is in some
row, together with several of the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from scenarios.cli import main
from scenarios.studies.decide import analysis, variations
from tests.scenarios.in_this_process import BOARDS
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

BRIEF = (BOARDS, "fleet.jitter=0.2", "data.clients=6", "rounds.participants=3", "train.local_steps=2")
FOUR_BITS = 'codec.up={kind="quantize",bits=4}'
SPARSE = 'codec.up={kind="topk",ratio=0.2}'
DEADLINE = ("rounds.policy=deadline", "rounds.deadline=900 ms")
TWO_TIERS = ("fleet.tiers.count=4", "fleet.tiers.above.count=2", "tiers.interval=[1,2]")
REPLAYED = (
    ("fedavg", 'codec.up=[{kind="topk",ratio=0.2},{kind="fp16"}]', "codec.down.kind=bf16", *DEADLINE),
    ("fedavg", "codec.up.kind=powersgd", "rounds.policy=over_select", "eval.on=both"),
    ("fedavg", "server=fedadam", "aggregate.sum=fixed_point", "fleet.tiers.count=2", "tiers.interval=2"),
    ("fedprox+scaffold", FOUR_BITS, 'codec.up_slots.control={kind="quantize",bits=8}', *TWO_TIERS),
    ("fedprox", "fleet.tiers.count=2", "tiers.interval=2", "eval.aggregators=true", "eval.on=both"),
    ("fedprox", "fleet.tiers.count=2", "tiers.upwards=asynchronous", "codec.wan.kind=fp16"),
    ("feddyn", "codec.up.kind=sign", *DEADLINE, "rounds.on_late=finish"),
    ("fedmlb", FOUR_BITS, "fleet.tiers.count=2", "rounds.policy=over_select"),
    ("fedbr", SPARSE, "codec.down.kind=fp16", 'eval.metrics=["accuracy","loss","class-accuracy"]'),
    ("fednova", "codec.up.kind=bf16", "codec.down.kind=quantize", *DEADLINE),
    ("calibrated", 'codec.up=[{kind="quantize",bits=8},{kind="zstd"}]'),
    (
        "fedavg-kd",
        "data.validation=0.2",
        "eval.on=both",
        "eval.select=validation",
        "codec.down=[{kind='topk',ratio=0.5}]",
    ),
    ("fedavg-fitnet", "fleet.tiers.count=2"),
    ("fedntd", FOUR_BITS, "rounds.policy=over_select"),
    ("fedgkd", 'codec.up=[{kind="randk"},{kind="quantize"}]'),
    ("moon", SPARSE, "eval.on=both"),
    ("mixup", 'codec.up=[{kind="quantize",levels=3,norm="l2"},{kind="elias"}]'),
    ("stochdepth", "model.name=resnet18", "model.width=2"),
    ("fedalign", "model.name=resnet18", "model.width=2", FOUR_BITS),
    ("gradaug",),
    ("local", *DEADLINE),
    ("central",),
    ("fedper", FOUR_BITS, "fleet.tiers.count=2", "eval.adapt.epochs=1"),
    ("pfedme", "codec.up.kind=fp16", "rounds.policy=over_select"),
    ("ifca", "codec.down.kind=fp16", FOUR_BITS),
    ("pfedmb", FOUR_BITS),
    ("heterofl", "submodel.rate=client", FOUR_BITS, "eval.on=both"),
    ("heterofl", "submodel.rate=memory", "model.norm=batch", "rounds.policy=over_select"),
    ("fedrolex", "submodel.rate=client", "codec.up.kind=fp16", *DEADLINE),
    ("fedrolex", "submodel.rate=round", "codec.down.kind=bf16", "codec.of=weights", "eval.on=clients"),
    ("fjord", "submodel.rate=client", "codec.up.kind=powersgd", "eval.on=both"),
    ("fjord", "submodel.rate=deadline", "rounds.policy=deadline", "rounds.deadline=2 s", "model.norm=batch"),
    ("depthfl", "submodel.rate=client", FOUR_BITS, "eval.on=both"),
    ("flexlora", "submodel.rate=memory", "adapter.kind=lora", "adapter.train=['conv3']", "train.instructions=native"),
    ("flora", "submodel.rate=memory", "adapter.kind=lora", "adapter.train=['conv3']", "train.instructions=native"),
)
TRAINED_ANEW = (
    ("fedavg", 'codec.up={kind="quantize",bits=4}', "rounds.policy=fedbuff", "rounds.buffer=2"),
    ("fedavg", "rounds.policy=fedasync", "codec.up.kind=ternary"),
    ("fedbr", "eval.charged=true", "eval.on=both"),
    ("fedfomo", FOUR_BITS),
    ("fedamp", *DEADLINE),
    ("fjord", "submodel.rate=round", "eval.charged=true", "eval.on=both"),
)
"""Their visits depend on times, or on updates, which no replay has"""
SHORT = ("fedbr",)
"""Methods whose rows are in every run of the suite"""
ROWS = [pytest.param(row, marks=() if row[0] in SHORT else pytest.mark.long) for row in (*REPLAYED, *TRAINED_ANEW)]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variations, "AXES", {"links": (variations.with_links, (0.5, 1.0), "all links ×")})
    monkeypatch.setattr(variations, "REPLAYED", {})
    monkeypatch.setattr(analysis, "MAPPED", (1.0,))


@pytest.mark.parametrize("words", ROWS, ids=lambda words: " ".join(words[:2]))
def test_a_run_goes_through_a_decision_and_every_command(
    words: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*args: str) -> tuple[int, str, str]:
        code = main.run_command(args)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    def result(*args: str) -> dict[str, Any]:
        code, out, err = command(*args, "--json")
        assert code == 0, (args[0], err)
        return dict(json.loads(out))

    method, *settings = words
    scenario = ("digits", f"method={method}", *BRIEF, *settings, "rounds.max=2", "train.lr=0.1,0.05")
    decided = result(
        "decide", *scenario, "--out", str(tmp_path), "--seeds", "1", "--draws", "1", "--budget", "rounds=9"
    )
    assert decided["chosen"] in decided["finalists"]
    assert decided["test"]["mean"] is not None
    run = decided["runs"][0]["run_dir"]
    assert result("diff", "--again", run)["difference"] is None
    for clients in ("local", "evaluated"):
        measured = result("replay", run, "--measure", "accuracy", "--clients", clients)
        assert measured["by_client"], clients
    assert result("audit", run)["rows"]
    assert command("report", run, "-o", str(tmp_path / "report.html"))[0] == 0
    code, out, err = command("replay", run, "--json")
    if words in TRAINED_ANEW:
        assert (code, "cannot be replayed" in err) == (2, True), err
    else:
        before, again = json.loads(out)["virtual_seconds"]
        assert before == again


def test_every_method_is_in_the_table() -> None:
    names = {name for row in (*REPLAYED, *TRAINED_ANEW) for name in row[0].split("+")}
    assert {*OBJECTIVES, *CORRECTIONS} - names == set()
