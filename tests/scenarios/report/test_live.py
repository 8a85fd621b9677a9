"""What is shown while runs work: a live table that fits a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished
from scenarios.config.load import load
from scenarios.config.overrides import parse_all, parsed
from scenarios.report.columns import column_groups, widths
from scenarios.report.live import LiveTable, ParallelTable

FOLDER = Path("runs/digits/x")


def progress(
    number: int, accuracy: float | None, alphas: dict[float, int] | None = None, bottleneck: str = "own link"
) -> RoundFinished:
    spent: dict[str, Any] = dict.fromkeys(RoundRow._fields, 0) | {"busy_s": 450.0, "model_sha256": ""}
    spent |= {
        "round": number - 1,
        "end_s": 90.0 * number,
        "participants": 5,
        "accuracy": accuracy,
        "score": None,
        "epsilon": None,
    }
    spent |= {"test_loss": None, "train_loss": None, "critical": 3, "bottleneck": bottleneck}
    return RoundFinished(RoundRow(**spent), number, 1_230_000 * number, 4_560_000 * number, alphas or {})


def shown(show: LiveTable) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(show.render())
    return capture.get().splitlines()


def begun(rounds: int = 3, label: str = "fedbr", method: str = "fedbr") -> tuple[LiveTable, io.StringIO]:
    """What is shown of a run that has begun, in plain lines."""
    stream = io.StringIO()
    show = LiveTable([label], stream=stream)
    show.on_start(FOLDER, load("digits", parsed([f"rounds.max={rounds}"]), method=method))
    return show, stream


def test_the_table_shows_every_method_and_the_last_rounds_of_the_one_at_work() -> None:
    show = LiveTable(["fedavg", "fedmlb+fedprox"], stream=io.StringIO(), quiet=True)
    show.on_start(FOLDER, load("digits", parsed(["rounds.max=40"]), method="fedbr"))
    for number in range(1, 31):
        show.on_round(progress(number, number / 40, {1: 2, 3: 3}))
    lines = shown(show)

    assert lines[0].startswith("fedavg")
    assert "30/40  75.00 %" in lines[0]
    assert "ETA" in lines[0]
    assert lines[1].split() == ["fedmlb+fedprox", "queued"]
    assert " ".join(lines[3].split()) == "round accuracy virtual down up clients bottleneck wall alpha 1.."
    assert [line.split()[0] for line in lines[4:]] == [str(number) for number in range(21, 31)]
    assert lines[-1].split()[1:8] == ["75.00", "%", "45", "min", "36.9", "MB", "137"]
    assert lines[-1].rstrip().endswith("2/0/3")
    assert max(map(len, lines)) <= 80


def test_where_there_is_no_terminal_each_round_is_one_plain_line() -> None:
    stream = io.StringIO()
    show = LiveTable(["fedbr"], stream=stream)
    with show:
        show.on_start(FOLDER, load("digits", parsed(["rounds.max=2"])))
        show.on_round(progress(1, 0.5, {2: 5}))
        show.on_round(progress(2, 0.8125, {1: 4, 3: 1}))
    first, second, third = stream.getvalue().splitlines()

    assert first == "digits: fedbr, run folder runs/digits/x"
    assert second.startswith(
        "fedbr 1/2  accuracy 50.00 %  virtual 1.5 min  down 1.23 MB  up 4.56 MB  clients 5  bottleneck own link  wall "
    )
    assert second.endswith("alpha 0/5/0")
    assert third.startswith("fedbr 2/2  accuracy 81.25 %")
    assert third.endswith("alpha 4/0/1")


def test_the_time_left_is_that_of_rounds_after_the_first_which_began_with_the_start_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("scenarios.report.live.time", SimpleNamespace(monotonic=lambda: now[0]))
    stream = io.StringIO()
    for stop in ([], ["stop.target_accuracy=0.9"]):
        show = LiveTable(["fedbr"], stream=stream)
        show.on_start(FOLDER, load("mnist-cnn", parse_all(["rounds.max=10", "stop={}", *stop])))
        for number, seconds in ((4, 14.0), (5, 2.0), (6, 2.0)):  # of a run that is resumed after round 3
            now[0] += seconds
            show.on_round(progress(number, 0.5))
    lines = [line.partition("  wall ")[2] for line in stream.getvalue().splitlines() if "  wall " in line]
    assert lines == [
        "14 s",
        "16 s  ETA 10 s",
        "18 s  ETA 8 s",
        "14 s",
        "16 s  ETA at most 10 s",
        "18 s  ETA at most 8 s",
    ]


def test_runs_at_the_same_time_go_on_side_by_side() -> None:
    stream = io.StringIO()
    show = ParallelTable(["a", "b", "c"], stream=stream)
    for name in ("b", "a"):
        show.about(name)
        show.on_start(FOLDER, load("digits", parsed(["rounds.max=2"]), method="fedavg"))
    show.about("b")
    show.on_round(progress(1, 0.5))
    assert [line.split()[:3] for line in shown(show)] == [
        ["a", "starting", "0"],
        ["b", "1/2", "50.00"],
        ["c", "queued"],
    ]
    assert stream.getvalue().splitlines()[-1].startswith("b 1/2  accuracy 50.00 %")
    for name in ("b", "c"):  # before its last round, and before it began
        show.about(name, has_ended=True)
    assert [line.split()[:2] for line in shown(show)] == [["a", "starting"], ["b", "1/2"], ["c", "ended"]]
    assert "ETA" not in "".join(shown(show))


# --- narrow terminals: whole columns go, and no number is cut or loses its unit ---------------------------------------


def test_columns_that_do_not_fit_stand_in_a_table_below_with_the_first_again() -> None:
    assert widths([["a", "bcd"], ["ef\nghij", ""]]) == [4, 3]
    assert column_groups([5, 10, 10, 10], width=31, gap=2) == [[0, 1, 2], [0, 3]]
    assert column_groups([5, 10, 10, 10], width=41, gap=2) == [[0, 1, 2, 3]]
    assert column_groups([5, 50, 10], width=20, gap=2) == [[0, 1], [0, 2]]
    assert column_groups([5], width=2, gap=2) == [[0]]
