"""What every kind of experiment keeps: its runs, files and keys, and how it goes on after whatever has ended it."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.run import RunFailed
from scenarios.cli import main
from scenarios.cluster import ray_engine
from scenarios.config.errors import ScenarioError
from scenarios.experiment import compare, executors, sweep
from scenarios.experiment.experiment import Experiment
from scenarios.experiment.grid import grid_of
from scenarios.experiment.run_set import NamedSummary
from scenarios.papers import reproduce
from scenarios.run.run_folder import RunFolder
from tests.crossed import every
from tests.scenarios.experiment import recorded_process
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

REFUSED, FAILED, STOPPED = 2, 3, 4
"""Exit codes"""


@dataclass(frozen=True)
class Kind:
    """An experiment of two runs, as a command line."""

    words: tuple[str, ...]
    runs: tuple[str, str]
    """Their names, in the order of the plan"""
    keys: frozenset[str]
    """Of its result; those of every result aside (`EVERY`)"""
    tables: dict[str, int] = field(default_factory=dict)
    """CSV file -> its rows"""
    others: tuple[str, ...] = ("report.html",)
    place: str = "digits/a"
    """Of its folder, in that of ``--out``"""
    mark: str = "study.json"
    result: str = "study.json"
    study: str = ""
    """Its kind, as its files name it; by default its name here"""


EVERY = frozenset({"study", "folder", "runs", "warnings"})
SHORT = ("rounds.max=2", "train.local_steps=2")
HELD_OUT = ("data.validation=0.2",)
COMPARED = ("digits", "method=fedavg,fedprox", *SHORT)
TWO = ("fedavg-seed0", "fedprox-seed0")
SWEPT = frozenset({"scenario", "overrides", "axes", "seeds", "targets", "rows", "tests"})
KINDS = {
    "compare": Kind(
        ("compare", *COMPARED),
        ("fedavg", "fedprox"),
        SWEPT - {"overrides"} | {"target_accuracy", "at_common_bytes", "at_common_seconds"},
        {"sweep.csv": 2, "pairs.csv": 5, "runs.csv": 2},
        ("report.html", "sweep.md", "sweep.tex"),
        mark="compare.json",
        result="compare.json",
    ),
    "sweep": Kind(
        ("sweep", *COMPARED, "--seeds", "1", "--at", "bytes=1 MB,1 GB", "--at", "seconds=1 h"),
        TWO,
        SWEPT | {"at"},
        # a pair in two accuracies, and in three amounts to a target; two methods at three amounts
        {"sweep.csv": 2, "pairs.csv": 5, "runs.csv": 2, "at.csv": 2 * 3},
        ("report.html", "sweep.md", "sweep.tex", "curves.csv"),
    ),
    "reproduce": Kind(
        ("reproduce", "fedbr:fig3", "row=FedAvg,FedBR", "panel=c", *SHORT),
        ("cifar10-fedavg-seed0", "cifar10-fedbr-seed0"),
        frozenset({"name", "title", "source", "scale", "seeds", "cells", "notes"}),
        {"table.csv": 2},
        place="fedbr-fig3-tiny/a",
        study="fedbr:fig3 tiny",
    ),
}


@dataclass(frozen=True)
class Made:
    """An experiment that nobody disturbed."""

    name: str
    out: Path

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def study(self) -> str:
        return self.kind.study or self.name

    @property
    def folder(self) -> Path:
        return self.out / self.kind.place

    def command(self, out: Path, *more: str) -> int:
        words = ("--out", str(out), "--run-id", "a", "--workers", "2", "--json")
        return main.run_command([*self.kind.words, *words, *more])

    def written(self, out: Path | None = None) -> dict[str, Any]:
        """Its result's file."""
        return dict(json.loads(((out or self.out) / self.kind.place / self.kind.result).read_text()))

    def stamps(self, out: Path) -> list[int]:
        """When the ledger of each run was written."""
        return [(out / self.kind.place / name / "ledger.sqlite").stat().st_mtime_ns for name in self.kind.runs]


def names(result: dict[str, Any]) -> list[str]:
    return [Path(run["run_dir"]).name for run in result["runs"]]


def virtual(result: Any) -> Any:
    """A result without what is this machine's."""
    if isinstance(result, dict):
        apart = ("run_dir", "folder", "wall_seconds")
        return {key: virtual(value) for key, value in result.items() if key not in apart}
    return [virtual(each) for each in result] if isinstance(result, list) else result


@pytest.fixture(scope="module")
def experiments() -> dict[str, Made]:
    """The experiments that have been made, by their kinds."""
    return {}


@pytest.fixture(params=KINDS)
def made(
    request: pytest.FixtureRequest, experiments: dict[str, Made], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    kind = str(request.param)
    if kind not in experiments:
        experiments[kind] = Made(kind, tmp_path_factory.mktemp(kind))
        assert experiments[kind].command(experiments[kind].out, "--report") == 0
    return experiments[kind]


@pytest.fixture
def copies(made: Made, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Runs are copies of those of `made`, in this process and in others."""
    monkeypatch.setenv(recorded_process.RECORDED, str(made.folder))
    monkeypatch.setenv("FAKE_RUN_PROCESS", recorded_process.__name__)
    monkeypatch.setattr(ray_engine, "DRIVER", "tests.scenarios.cluster.fake_ray_driver")
    monkeypatch.setattr(executors, "RUN_PROCESS", recorded_process.__name__)
    monkeypatch.setattr(executors, "make_run", recorded_process.make_run)
    return monkeypatch


def test_its_folder_has_a_run_per_row_its_tables_its_report_and_the_result(made: Made) -> None:
    kind, result = made.kind, made.written()
    assert {path.name for path in made.folder.iterdir()} == {*kind.runs, *kind.tables, *kind.others, kind.result}
    assert names(result) == list(kind.runs)
    for name, run in zip(kind.runs, result["runs"], strict=True):
        recorded = RunFolder(made.folder / name)
        assert recorded.summary is not None
        assert {key: run[key] for key in recorded.summary} == {**recorded.summary, "run_dir": str(recorded.folder)}
    assert result.keys() - EVERY == kind.keys
    assert json.loads((made.folder / kind.mark).read_text())["study"] == result["study"] == made.study
    for name, rows in kind.tables.items():
        table = list(csv.DictReader((made.folder / name).read_text().splitlines()))
        assert len(table) == rows
        assert all(None not in row and None not in row.values() for row in table)
    (page,) = made.folder.glob("*.html")
    assert "</table>" in page.read_text()


def test_what_is_finished_stays_and_what_was_killed_or_is_missing_is_made(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made.out, tmp_path, dirs_exist_ok=True)
    first, second = (tmp_path / made.kind.place / name for name in made.kind.runs)
    before = made.stamps(tmp_path)
    assert made.command(tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert made.stamps(tmp_path) == before
    assert made.written(tmp_path) == {"study": made.study, **printed}
    shutil.rmtree(first)
    with sqlite3.connect(second / "ledger.sqlite") as db:
        db.execute("DELETE FROM meta WHERE key = 'summary'")  # as a run that was killed leaves it
    db.close()
    assert made.command(tmp_path) == 0
    assert all(new != old for new, old in zip(made.stamps(tmp_path), before, strict=True))
    assert virtual(made.written(tmp_path)) == virtual(made.written())


def test_a_user_who_stops_it_has_the_runs_so_far_and_the_same_command_goes_on(
    made: Made, copies: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop_after(*arguments: Any) -> NamedSummary:
        result = recorded_process.make_run(*arguments)
        signal.raise_signal(signal.SIGINT)
        return result

    first, second = made.kind.runs
    with copies.context() as patch:
        patch.setattr(executors, "make_run", stop_after)
        assert made.command(tmp_path, "--report") == STOPPED
    result, left = made.written(tmp_path), {"runs_ended": 1, "runs": 2, "rounds_done": 2, "rounds_left": 2}
    assert names(result) == [first]
    assert made.name == "compare" or result["missing"] == [second]  # the keys of a comparison are those of its table
    assert {key: result["left"][key] for key in left} == left
    assert not list((tmp_path / made.kind.place).glob("*.html"))
    capsys.readouterr()
    assert made.command(tmp_path) == 0
    assert virtual(made.written(tmp_path)) == virtual(made.written())


@pytest.mark.parametrize("made", every(2, KINDS, first=1), indirect=True)
def test_a_run_that_fails_is_named_and_costs_the_others_nothing(
    made: Made, copies: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made.kind.runs

    def fail_first(run: Any, *others: Any) -> NamedSummary:
        if run.name == first:
            raise RunFailed("no room")
        return recorded_process.make_run(run, *others)

    copies.setattr(executors, "make_run", fail_first)
    assert made.command(tmp_path, "--report") == FAILED
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err.endswith(f"fedbr: {first} failed: no room\n")
    assert result["failed"] == {first: "no room"}
    assert made.name == "compare" or result["missing"] == [first]
    assert names(result) == [second]
    assert made.written(tmp_path) == {"study": made.study, **result}
    assert list((tmp_path / made.kind.place).glob("*.html"))


@pytest.mark.parametrize(
    ("made", "place"),
    every(2, [("compare", "--parallel 2"), ("sweep", "--on auto --workers 1")]),
    indirect=["made"],
)
def test_runs_that_are_made_at_the_same_time_have_the_scenarios_of_the_plan(
    place: str, made: Made, copies: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert made.command(tmp_path, *place.split()) == 0
    assert virtual(made.written(tmp_path)) == virtual(made.written())


def test_a_folder_of_other_runs_or_of_no_such_experiment_is_refused(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made.command(made.out, "train.batch=8") == REFUSED
    first = made.folder / made.kind.runs[0]
    assert capsys.readouterr().err == f"fedbr: {first} was made with train.batch 16, now 8; choose another --run-id\n"
    (tmp_path / made.kind.place).mkdir(parents=True)
    assert made.command(tmp_path) == REFUSED
    assert f"exists already and is no {made.study} study; choose another --run-id" in capsys.readouterr().err


# --- seeds ------------------------------------------------------------------------------------------------------------

FEDAVG = "method=fedavg"
PLANS: dict[str, Callable[[Sequence[str]], Experiment]] = {
    "sweep": lambda words: sweep.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "compare": lambda words: compare.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "judged": lambda words: sweep.plan(
        grid_of("digits", [*HELD_OUT, "train.lr=0.1,1", *words]), seeds=3, judge="validation"
    ),
    "reproduce": lambda words: reproduce.plan(
        "fedbr:fig3", "tiny", grid_of("fedbr:fig3", ["row=FedAvg", "panel=a", *words]), seeds=3
    ),
}


@pytest.mark.parametrize("command", PLANS)
def test_seeds_have_partitions_and_fleets_of_their_own_unless_a_key_fixes_one(command: str) -> None:
    def seeds(*words: str) -> list[tuple[int, int | None, int | None]]:
        scenarios = [run.loaded.scenario for run in PLANS[command](words).run_set.runs]
        return list(dict.fromkeys((each.seed, each.data.partition.seed, each.fleet.seed) for each in scenarios))

    assert seeds() == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert seeds("data.partition.seed=0") == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    assert seeds("fleet.seed=0") == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]
    with pytest.raises(ScenarioError, match=r"unknown key train\.batsh"):
        PLANS[command](["train.batsh=2"])
