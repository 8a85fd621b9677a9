"""Coordinators that are killed at the worst moments: runs go on from what was committed, to the same hash chain.

Each is a real process that sends itself SIGKILL when one named function is called for the n-th time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli.main import run_command
from tests import warm
from tests.ledgers import virtual_rows
from tests.scenarios.runs import QUICK, changed, committed, killed, resumed, undisturbed

Instant = tuple[str, str, int]
"""What is called, whether the kill comes before or after it, and at which call."""
BEFORE_COMMIT = ("coordinator.records.store:Ledger.commit", "before", 2)
"""The checkpoint is written, and the ledger does not know of it."""
BEFORE_PRUNING = ("coordinator.records.store:Ledger.commit", "after", 2)
"""The round is committed, and what it made obsolete still lies there."""
IN_TRANSACTION = ("coordinator.records.store:Ledger._drop_checkpoints", "before", 1)
"""All rows of the round are in, and the transaction is open."""
IN_EVALUATION = ("coordinator.rounds.evaluation:Evaluation.wait", "before", 2)
"""Workers score the model, and train for the next round."""
AMONG_REPLIES = ("coordinator.rounds.pool_trainer:PoolTrainer.validate", "before", 3)
"""Two clients of the round have answered, and perhaps kept something; others are being trained."""
IN_STATE_FILE = ("os:fsync", "before", 5)
"""The coordinator keeps for a client what it has sent it; a probe of the disk, the description and two checkpoints came
before."""
IN_CHECKPOINT = ("os:fsync", "before", 6)
"""The files before it: a probe of the disk, scenario.toml, environment.json, description.msgpack, and the first
checkpoint."""
IN_LEDGER = ("coordinator.records.store:Ledger._set", "before", 1)
"""Its tables are being made."""
BEFORE_SUMMARY = ("coordinator.records.store:Ledger.finish", "before", 1)
BEFORE_CLOSING = ("coordinator.records.store:Ledger.finish", "after", 1)
"""The summary is there, and the write-ahead log still lies beside the ledger."""
IN_REPORT = ("os:fsync", "before", 6)
"""The report is begun; the files before it are those of `IN_CHECKPOINT`."""


FIVE = (*QUICK, "rounds.max=5")


def begin(out: Path, *overrides: str) -> list[str]:
    how = ("--workers", "2", "--quiet", "--out", str(out), "--run-id", "cut")
    return ["run", "digits", *changed(FIVE, *overrides), *how]


def go_on(folder: Path) -> list[str]:
    return ["resume", str(folder), "--workers", "2", "--quiet"]


def files(folder: Path) -> list[str]:
    """All files of a run but its logs, of which each worker that was ever started has one."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.parent.name != "logs")


Kill = tuple[Instant, int, str]
"""An instant, how many rounds are committed then, and what else lies in the folder."""
SYNCHRONOUS: list[Kill] = [
    (IN_EVALUATION, 1, "ledger.sqlite-wal"),
    (BEFORE_PRUNING, 3, "checkpoints/round-000000.safetensors"),
    (BEFORE_SUMMARY, 5, "ledger.sqlite-wal"),
]
KEEPING: list[Kill] = [
    (AMONG_REPLIES, 0, "state/*-0.safetensors"),
    (BEFORE_COMMIT, 1, "checkpoints/round-000001.safetensors"),
    (IN_STATE_FILE, 3, "state/global-3.*.part"),
]
ASYNCHRONOUS: list[Kill] = [
    (IN_CHECKPOINT, 1, "checkpoints/round-000001.safetensors.part"),
    (IN_TRANSACTION, 1, "checkpoints/round-000001.safetensors"),
]


@pytest.mark.parametrize(
    ("overrides", "kills"),
    [
        pytest.param(("method=fedavg",), SYNCHRONOUS, id="fedavg", marks=pytest.mark.long),
        pytest.param(
            ("method=fedbr", "method_options.broadcast=everyone", "method_options.period=2"), KEEPING, id="fedbr"
        ),
        pytest.param(
            (
                *("method=fedavg", "rounds.policy=fedbuff", "rounds.buffer=3", "eval.on=both"),
                *("fleet.transport.sharing=windows", "fleet.server.up=10 Mbit/s"),
            ),
            ASYNCHRONOUS,
            id="fedbuff",
        ),
        pytest.param(
            ("method=fedavg+scaffold", "fleet.tiers.count=3", "tiers.interval=2", "eval.aggregators=true"),
            SYNCHRONOUS[:2],
            id="tiers",
            marks=pytest.mark.long,
        ),
        pytest.param(
            (
                *("method=fedavg", "rounds.policy=deadline", "rounds.deadline=300 ms", "rounds.on_late=complete"),
                *("fleet.transport.slow_start=true", "fleet.bandwidth.kind=ou", "fleet.jitter=0.5"),
            ),
            SYNCHRONOUS[:2],
            id="late visits",
            marks=pytest.mark.long,
        ),
        pytest.param(
            (
                *("method=fedavg", "rounds.selection=oort", "fleet.crashes_per_hour=1800", "budget.client.joules=8 J"),
                *("rounds.min_fraction=0", "eval.on=both", "eval.charged=true", "eval.adapt.epochs=1"),
            ),
            SYNCHRONOUS[:2],
            id="charged evaluation",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("method=fedavg", "rounds.policy=fedbuff", "rounds.buffer=3", "rounds.selection=oort"),
            [(BEFORE_PRUNING, 2, "checkpoints/round-000000.safetensors")],
            id="fedbuff-oort",
            marks=pytest.mark.long,
        ),
    ],
)
def test_killed_at_one_bad_moment_after_the_other_a_run_still_ends_in_the_same_chain(
    overrides: tuple[str, ...], kills: list[Kill], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    whole, folder = undisturbed(tmp_path, launcher, "rounds.max=5", *overrides), tmp_path / "digits" / "cut"
    words = begin(tmp_path, *overrides)
    for instant, rounds, left in kills:
        killed(instant, *words)
        assert (committed(folder), list(folder.glob(left)) != []) == (rounds, True), instant
        words = go_on(folder)
    assert resumed(folder, launcher)["rounds"] == 5

    assert virtual_rows(folder) == virtual_rows(whole)
    assert files(folder) == files(whole)
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == ["cut", "whole"]


def test_a_run_that_is_killed_while_its_folder_is_made_can_be_begun_again(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    folder, words = tmp_path / "digits" / "cut", begin(tmp_path, "method=fedavg", "rounds.max=2")
    in_scenario, in_environment = ("os:fsync", "before", 2), ("os:fsync", "before", 3)
    killed(in_scenario, *words)
    assert not folder.exists()
    killed(in_environment, *words)  # the same words again: nothing was there to be resumed
    assert files(folder) == ["environment.json.part", "scenario.toml"]
    killed(IN_LEDGER, *go_on(folder))
    assert resumed(folder, launcher)["rounds"] == 2
    whole = undisturbed(tmp_path, launcher, "method=fedavg", "rounds.max=2")
    assert virtual_rows(folder) == virtual_rows(whole)
    assert files(folder) == files(whole)
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == ["cut", "whole"]


def test_a_committed_round_is_on_the_disk(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from coordinator.records.store import Ledger; "
    code += "print(Ledger(Path(sys.argv[1]), 'genesis')._db.execute('PRAGMA synchronous').fetchone())"
    told = subprocess.run([sys.executable, "-c", code, tmp_path / "ledger"], capture_output=True, text=True, check=True)
    assert told.stdout == "(2,)\n"  # FULL


HOST_KEYS = {"run_dir": "", "wall_seconds": 0.0}
"""What of a summary may differ between two runs of one scenario."""
OF_ONE_ROUND = ("method=fedavg", "rounds.max=1")


@pytest.fixture(scope="module")
def whole_of_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], list[str]]:
    """What an undisturbed run of one round says as JSON, and its files, with a report."""
    out = tmp_path_factory.mktemp("undisturbed")
    words = [*begin(out, *OF_ONE_ROUND), "--json"]
    ended = warm.run(words, env={name: value for name, value in os.environ.items() if name != "FEDBR_REPORT"})
    return json.loads(ended.stdout), files(out / "digits" / "cut")


@pytest.mark.usefixtures("reports", "warm_workers")
@pytest.mark.parametrize(
    ("instant", "left"),
    [
        pytest.param(BEFORE_CLOSING, "ledger.sqlite-wal", id="after the summary"),
        pytest.param(IN_REPORT, "report.html.part", id="in the report", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_after_its_last_round_is_resumed_to_its_end(
    instant: Instant,
    left: str,
    whole_of_one: tuple[dict[str, object], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, words = tmp_path / "digits" / "cut", begin(tmp_path, *OF_ONE_ROUND)
    killed(instant, *words)
    assert (folder / left).exists()
    assert not (folder / "report.html").exists()
    assert run_command([*go_on(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["run_dir"], result["rounds"], result["stopped_by"]) == (str(folder), 1, "rounds")
    assert {**result, **HOST_KEYS} == {**whole_of_one[0], **HOST_KEYS}
    assert files(folder) == whole_of_one[1]
