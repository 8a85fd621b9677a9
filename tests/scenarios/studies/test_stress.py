"""``fedbr stress``: the whole system, with workers that answer at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.studies.stress import (
    LEDGER,
    RESULT,
    StressPlan,
    StressResult,
    repeated,
    stress,
)
from tests.crossed import every
from tests.edge.protocol.mutations import DESCRIPTION
from tests.scenarios.runs import never

CODEC = 'codec.up={kind="quantize", bits=4}'
NEEDS = {
    "stochdepth": ("model.name=tests.plugins.residual:ROW",),
    "flexlora": ("adapter.kind=lora", "train.instructions=native"),
    "flora": ("adapter.kind=lora", "train.instructions=native"),
}
"""Method -> what else its scenario takes"""
SMALL: dict[str, Any] = {"clients": 24, "participants": 6, "rounds": 2}
SPREAD = [name for name, spec in OBJECTIVES.items() if not spec.gathers_data]
"""Methods whose cohorts have several clients"""
JOINED = [*SPREAD, *(f"fedavg+{name}" for name in CORRECTIONS), "fedbr+scaffold"]


def stressed(
    launcher: WorkerLauncher, *overrides: str, out: Path | None = None, workers: int = 1, **scale: int
) -> StressResult:
    """A small run."""
    plan = StressPlan.of("digits", parse_all(["method=fedavg", *overrides]), **{**SMALL, **scale})
    return stress(plan, out, Host(Path(), workers, "cpu"), launcher, never)


@pytest.mark.long
@pytest.mark.parametrize("method", every(4, JOINED))
def test_workers_answer_the_visits_of_every_method(method: str, launcher: WorkerLauncher) -> None:
    result = stressed(launcher, f"method={method}", *NEEDS.get(method, ()))

    assert (result.rounds, result.stopped_by, result.visits) == (2, "rounds", 12)
    assert [each.visits for each in result.by_round] == [6, 6]
    assert result.nbytes_per_second > 0


@pytest.mark.parametrize(
    "overrides",
    every(
        2,
        [
            ("method=fedbr", CODEC),
            ("method=fedavg+scaffold", CODEC, "codec.error_feedback=true"),
            ("aggregate.sum=fixed_point", CODEC),
            ('codec.up=[{kind="quantize"}, {kind="zstd"}]', 'codec.down={kind="quantize", bits=8}'),
            ("rounds.policy=fedasync", "method=fedbr"),
            ("fleet.tiers.count=3",),
            ("eval.on=clients", "eval.every=1", "eval.metrics=['class-accuracy']"),
            ("method=heterofl", "submodel.rate=client", "train.local_epochs=1"),
        ],
        is_one=True,
    ),
    ids=" ".join,
)
def test_codecs_sums_policies_and_evaluations_are_those_of_a_run(
    overrides: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    result = stressed(launcher, *overrides, out=tmp_path / "new", workers=2, rounds=3)

    assert (result.rounds, result.stopped_by) == (3, "rounds")
    rows = read(tmp_path / "new" / LEDGER, "SELECT model_sha256, bytes_down, bytes_up FROM rounds")
    # Each round makes another model, which the next one sends.
    assert len({row["model_sha256"] for row in rows}) == 3
    assert all(row["bytes_up"] > 0 for row in rows)
    assert json.loads((tmp_path / "new" / RESULT).read_text()) == json.loads(json.dumps(asdict(result)))


@pytest.mark.parametrize("overrides", [(CODEC,), ("rounds.policy=fedbuff",)], ids=str)
def test_virtual_time_and_charged_bytes_are_those_of_a_run_that_trains(
    overrides: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    words = ("method=fedavg", "data.clients=12", "rounds.participants=4", "rounds.max=3", *overrides)
    trained = runner.run(load("digits", parse_all(words)), Host(tmp_path, 1, "cpu", "run"), launcher, never, False)
    answered = stressed(launcher, *words[1:2], *overrides, out=tmp_path / "out", clients=12, participants=4, rounds=3)

    query = "SELECT start_s, end_s, bytes_down, bytes_up, joules, participants FROM rounds"
    ledgers = Path(trained["run_dir"]) / "ledger.sqlite", tmp_path / "out" / LEDGER
    run, stress = ([tuple(row) for row in read(ledger, query)] for ledger in ledgers)
    assert stress == run
    assert answered.virtual_seconds == trained["virtual_seconds"]


def test_clients_beyond_those_of_the_data_repeat_these_in_turn() -> None:
    many = repeated(DESCRIPTION, 7)

    assert many.samples.tolist() == [5, 7, 5, 7, 5, 7, 5]
    assert many.histogram.tolist() == [[2, 3], [3, 4], [2, 3], [3, 4], [2, 3], [3, 4], [2, 3]]
    assert many.validation_samples.tolist() == [0] * 7


def test_the_command_prints_flat_numbers_and_a_page_and_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm_workers: None
) -> None:
    before = set(psutil.Process().children(recursive=True))
    scale = ("--clients", "30", "--participants", "5", "--rounds", "2", "--workers", "2")
    words = ("stress", "digits", "method=fedavg", *scale)
    assert main.run_command([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)

    kinds = {"str": str, "int": int, "float": float}
    by_round = result.pop("by_round")
    assert {name: type(value) for name, value in result.items()} == {
        name: kinds[kind] for name, kind in StressResult.__annotations__.items() if name != "by_round"
    }
    assert (result["clients"], result["described_clients"], result["workers"], len(by_round)) == (30, 10, 2, 2)
    assert result["coordinator_cpu_seconds_per_visit"] > 0
    assert 0 < result["clock_share"] < 1
    assert result["worker_private_nbytes"] > 1 << 20
    assert main.run_command([*words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "30 clients, those of 10 repeated, 5 a round, policy sync" in printed.out
    assert printed.err.splitlines()[-1].startswith("fedavg 2/2")
    assert "open descriptors" in (tmp_path / "out" / "stress.html").read_text()
    assert set(psutil.Process().children(recursive=True)) <= before
