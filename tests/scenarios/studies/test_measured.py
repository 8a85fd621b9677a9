"""Rounds that were measured on real devices come from a file of anyone's: what is no such file is refused by name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, cast

import pytest

from scenarios.cli import main
from scenarios.config.errors import ScenarioError
from scenarios.studies.measured import ObservedTimes, read, tau
from tests.scenarios.runs import refused


def endless(file: Path) -> None:
    file.write_text("round,seconds\n")
    os.truncate(file, 10**12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, ": is a device or a pipe, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), ": is a device or a pipe, not a file"),
        (lambda file: None, ": cannot be read: No such file or directory"),
        (endless, ": is larger than 64,000,000 bytes"),
        (lambda file: file.write_bytes(b"\xff"), ": is no CSV file: 'utf-8' codec can't decode byte 0xff"),
        (lambda file: file.write_text("round,second\n"), ": has no column 'seconds'; did you mean 'second'?"),
        (
            lambda file: file.write_text("round,seconds\n1,1e300\n"),
            ", line 2: round '1', seconds '1e300': rounds count",
        ),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(make: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    make(file)
    with pytest.raises(ScenarioError) as caught:
        read(file)
    assert str(caught.value).startswith(f"--measured {file}{said}")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("round,seconds,client\n1,2,a\n1,2,b\n1,3,a\n", ", line 4: round '1', seconds '3': rounds count"),
        ("round,seconds,method\n1,2,fedavg\n1,2,fedavg\n", ", line 3: round '1', seconds '2': rounds count"),
    ],
)
def test_a_visit_or_round_is_there_once(rows: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(rows)
    with pytest.raises(ScenarioError) as caught:
        read(file)
    assert str(caught.value).startswith(f"--measured {file}{said}")


def test_rows_name_methods_and_clients(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("round,method,client,seconds\n1,fedavg,,4\n1,fedavg,pump-3,3\n2,,,5\n")
    assert read(file) == {"fedavg": ObservedTimes({1: 4.0}, {"pump-3": {1: 3.0}}), "": ObservedTimes({2: 5.0})}


def test_kendalls_tau_counts_pairs_in_order() -> None:
    assert tau([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx((5 - 1) / 6)
    assert tau([1, 2], [5, 4]) == -1.0
    assert tau([1, 2, 3], [7, 7, 9]) == pytest.approx(2 / math.sqrt(3 * 2))  # a tie counts for neither
    assert tau([1, 2, 3], [7, 7, 7]) is None


def test_runs_are_set_beside_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenarios.studies.measured.DRAWS", 8)
    words = (
        *("compare", "digits", "method=fedavg,fedmlb", "rounds.max=3", "train.local_steps=1", "data.clients=6"),
        *("rounds.participants=3", "--workers", "1", "--quiet", "--json", "--out", str(tmp_path), "--run-id", "both"),
    )

    def compared(*more: str) -> dict[str, Any]:
        assert main.run_command([*words, *more]) == 0
        return cast(dict[str, Any], json.loads(capsys.readouterr().out))

    alone = compared()
    folder = tmp_path / "digits" / "both"  # its runs are there, and are what was measured
    measured = compared("--measured", str(folder))
    assert alone.keys() | {"measured", "ranks", "ranks_notes"} == measured.keys()
    beside = measured["measured"]["fedmlb"]
    assert (beside["rounds"], beside["median_ratio"], beside["median_error"]) == (3, 1.0, 0.0)
    of = [(each["of"], each["run"], round(each["tau"], 9)) for each in measured["ranks"]]
    assert of[:2] == [("methods", None, 1.0), ("rounds", "fedavg", 1.0)]
    assert ("clients", "fedmlb", 1.0) in of
    assert all(-1 <= each["low"] <= each["high"] <= 1 and each["draws"] == 8 for each in measured["ranks"])
    assert measured["ranks_notes"] == []

    assert main.run_command([*(word for word in words if word != "--json"), "--report", "--measured", str(folder)]) == 0
    for text in (capsys.readouterr().out, (folder / "report.html").read_text()):
        assert "are they predicted in the measured order?" in text.lower()

    log = tmp_path / "log.csv"
    fast, slow = sorted(measured["runs"], key=lambda run: float(run["virtual_seconds"]))
    assert fast["virtual_seconds"] < slow["virtual_seconds"]
    log.write_text(f"method,round,seconds\n{slow['name']},1,1\n{fast['name']},1,2\n")
    ranks = compared("--measured", str(log))["ranks"]
    assert [(each["of"], each["tau"]) for each in ranks] == [("methods", -1.0)]
    log.write_text("method,round,seconds\nfedmbl,1,1\n")
    assert (
        refused(capsys, *words, "--measured", str(log)) == f"--measured {log}: method 'fedmbl': did you mean 'fedmlb'?"
    )
