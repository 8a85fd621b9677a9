"""Runs that show nothing of what was asked for end without an error, and with a warning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.protocol.config import ModelProfile
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.report import terminal
from scenarios.report.run_reader import open_runs
from scenarios.run import run_problems
from scenarios.run.run_records import SummaryRecord
from scenarios.run.setup import Setup
from tests.observers import Listener
from tests.scenarios.in_this_process import pool_in_this_process, summary_of_run

__all__ = ["pool_in_this_process"]


def warnings(
    rule: str, *overrides: str, rounds: int = 0, cut: dict[str, Any] | None = None, **visits: int
) -> list[str]:
    """The warnings of a run that this rule has ended."""
    kinds = dict.fromkeys(("train", "zeroed", "listen", "late", "lost"), 0) | visits
    summary: Any = {"stopped_by": rule, "rounds": rounds, "visits": kinds, "cut_round": cut}
    summary |= {"metric": "accuracy", "best_score": None, "baselines": {}}
    return run_problems.found(load("digits", parse_all(overrides)), summary)


def ended(out: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a real run, and the notes before its start."""
    notes: list[str] = []
    watch = Listener(on_note=notes.append)
    return summary_of_run(out, "rounds.max=1", *overrides, observers=[watch]) | {"notes": notes}


def test_a_run_in_which_no_visit_is_in_time_says_so(tmp_path: Path) -> None:
    result = ended(tmp_path, "rounds.policy=deadline", "rounds.deadline=1 ms")
    assert result["warnings"] == ["no visit has counted (5 late), so that the model is the one that the run began with"]
    assert (result["rounds"], result["notes"]) == (1, [])


def test_a_run_without_any_exchange_says_so_before_and_after(tmp_path: Path) -> None:
    alone = "travels: no block is downloaded or uploaded, so that clients train on their own, as method = local"
    result = ended(tmp_path, "travels.up=nothing", "travels.down=nothing")
    assert result["warnings"] == result["notes"] == [alone]


TOO_SMALL = [
    (["budget.bytes=5 B"], "budget.bytes = 5 B is too small for one round, whose 5 visits take at most 617 kB"),
    (["budget.joules=1 mJ"], "budget.joules = 1 mJ is too small for one round, whose 5 visits take at most 6.27 J"),
    (
        ["budget.flops=9 FLOP"],
        "budget.flops = 9 FLOP is too small for one round, whose 5 visits take at most 864 MFLOP",
    ),
    (
        ["budget.virtual_seconds=1 ms"],
        "budget.virtual_seconds = 1 ms is too small for one round, which lasts for 371 ms",
    ),
    (["budget.client.bytes=1 kB"], "budget.client.bytes = 1 kB is too small for one visit, which takes at most 123 kB"),
    (
        ["budget.bytes=1 kB", "rounds.policy=fedbuff"],
        "budget.bytes = 1 kB is too small for one round, of which a visit takes at most 123 kB",
    ),
    (
        ["budget.virtual_seconds=1 ms", "rounds.policy=fedasync"],
        "budget.virtual_seconds = 1 ms is too small for one round",
    ),
    (["fleet.tiers.count=2", "budget.wan_bytes=1 kB"], "budget.wan_bytes = 1 kB is too small for one round"),
    (
        ["fleet.tiers={count=2,price=1}", "budget.price=1e-9"],
        "budget.price = 1e-09 is too small for one round",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), TOO_SMALL)
def test_a_budget_that_allows_no_round_is_refused_with_what_a_round_takes(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as refused:
        ended(tmp_path, "method=fedavg", *overrides)
    assert str(refused.value) == f"digits: {message}; choose more, or leave it out"
    assert list(tmp_path.rglob("ledger.sqlite")) == []


def test_a_last_round_that_lacks_clients_says_so_without_a_budget() -> None:
    cut = {"round": 3, "participants": 1, "accuracy": None, "cut_by": "clients"}
    assert warnings("clients", rounds=3, cut=cut, train=1) == [
        "lack of clients cut round 3, the last: 1 client has made it (rounds.min_fraction)"
    ]


def test_a_last_round_that_a_budget_has_cut_is_marked_in_warning_summary_labels_and_table(tmp_path: Path) -> None:
    # A round of five visits moves 617,230 B: two of them fit in what the first round leaves.
    words = ("rounds.max=9", "budget.bytes=900 kB", "rounds.participants=5")
    whole = ended(tmp_path, *words)
    assert (whole["stopped_by"], whole["rounds"], whole["cut_round"], whole["warnings"]) == ("bytes", 1, None, [])
    cut = ended(tmp_path, *words, "rounds.min_fraction=0.4")
    accuracy = cut["accuracy"]
    assert cut["cut_round"] == {"round": 2, "participants": 2, "accuracy": accuracy, "cut_by": "bytes"}
    assert cut["warnings"] == [
        f"budget.bytes cut round 2, the last: 2 clients have made it (rounds.min_fraction), and gave "
        f"{100 * accuracy:.2f} %"
    ]
    assert terminal.method_name(SummaryRecord.model_validate(cut)) == "fedavg\nround 2 cut"
    labels = [run.label for run in open_runs([Path(whole["run_dir"]), Path(cut["run_dir"])])]
    assert [label.endswith(", last round cut") for label in labels] == [False, True]


def test_more_threads_than_cores_are_told_and_far_more_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_problems, "default_workers", lambda: 2)
    many, few = (load("digits", parsed(["train.instructions=native", f"train.threads={count}"])) for count in (500, 3))
    with pytest.raises(ScenarioError, match="threads = 500: no round would end on 2 cores; choose at most 2"):
        run_problems.check_machine(many, "cpu")
    run_problems.check_machine(few, "cpu")
    run_problems.check_machine(many, "cuda:0")  # which uses none of them
    monkeypatch.setattr(Setup, "travels", (("head",), ("head",)))
    profile: ModelProfile = SimpleNamespace(layout=None)  # type: ignore[assignment]
    assert run_problems.foreseen(Setup.of(few, profile), "cpu") == [
        "train.threads = 3: there are only 2 cores, so that rounds take longer than with 2"
    ]
