"""``fedbr check`` foresees the first round of ``fedbr run``, to the digit: bytes, FLOPs, seconds and joules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedbr
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.run_folder import RunFolder
from scenarios.studies.forecast.check import run_check
from tests.crossed import every

pytestmark = pytest.mark.usefixtures("warm_workers")
SHORT = ("rounds.max=1", "train.local_epochs=1", "model.width=4")
WORLDS = {
    "fedbr": (),
    "codecs": ("method=fedavg", 'codec.up={kind="quantize",bits=4}', 'codec.down={kind="quantize",bits=8}'),
    "deadline": ("method=fedavg", "rounds.policy=deadline", "rounds.deadline=150 ms", "rounds.on_late=complete"),
    "tiers": ("method=scaffold", "fleet.tiers={count=3,price=2}"),
    "calibrated devices": ("method=fedavg", "fleet.devices={raspberry-pi-4=1.0}"),
    "sub-models by deadline": ("method=heterofl", "submodel.rate=deadline", "submodel.deadline=150 ms"),
    "charged evaluations": ("method=fedper", "eval.charged=true"),
    "who comes and goes": (
        *(
            "method=fedavg",
            "fleet.availability={kind='renewal',on='2 s',off='9 s'}",
        ),
        *("fleet.crashes_per_hour=300", "fleet.server.down=3 Mbit/s", "fleet.bandwidth.kind=ou"),
    ),
}


@pytest.mark.parametrize("world", every(2, WORLDS))
def test_the_first_round_is_foreseen(world: str, tmp_path: Path) -> None:
    words = [*SHORT, *WORLDS[world]]
    foreseen = run_check(load("digits", parse_all(words)), tmp_path).estimate
    given: dict[str, Any] = parse_all(words)
    run = RunFolder(Path(fedbr.run("digits", out=tmp_path, workers=1, **given).folder))

    columns = ("bytes_down", "bytes_up", "nominal_bytes", "flops", "joules", "busy_s", "end_s")
    (row,) = run.query(f"SELECT {', '.join(columns)} FROM rounds WHERE round = 0")
    first = dict(foreseen.first_round)
    seconds = first.pop("virtual_seconds")
    assert {name: first[name] for name in columns[:-1]} == {name: row[name] for name in columns[:-1]}
    assert (seconds, foreseen.rounds_played) == (row["end_s"], 1)
    if world == "tiers":
        (sent,) = run.query("SELECT SUM(nbytes) AS nbytes, SUM(price) AS price FROM aggregators")
        assert (first["wan_bytes"], first["price"]) == (sent["nbytes"], sent["price"])
