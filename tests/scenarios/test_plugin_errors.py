"""Errors in a user's rows: one message with the row, the place, the client and the round, and never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.records.client_vectors import StoredVectors
from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from scenarios import plugin_errors, runner
from scenarios.cli import main
from scenarios.config.load import ScenarioError, load
from scenarios.host import Host
from tests.scenarios.runs import QUICK, never

ROWS = "tests.plugins.raising"


def run(out: Path, launcher: WorkerLauncher, *overrides: str) -> None:
    shape = ("data.clients=4", "rounds.participants=4", "rounds.max=2")
    runner.run(load("digits", [*QUICK, *shape, *overrides]), Host(out, 1, "cpu", "run"), launcher, never, True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"method={ROWS}:CHOICE", r"choose \(raising.py, line \d+\), client 3, round 1: KeyError: 'three'"),
        (f"method={ROWS}:SUM", r"accumulate \(raising.py, line \d+\), client 0, round 1: ZeroDivisionError: float .*"),
        (f"server={ROWS}:IN_PLACE", r"step \(raising.py, line \d+\), round 1: ValueError: assignment destination .*"),
        (
            f"server={ROWS}:SHORT",
            r"it gives what _optimised \(server.py, line \d+\) cannot use, round 1: ValueError: the server optimizer's "
            r"step gives float32 \(159,\) for conv1, not float32 \(160,\)",
        ),
    ],
)
def test_an_error_in_a_round_names_row_place_client_and_round(
    override: str, message: str, tmp_path: Path, trainers: WorkerLauncher
) -> None:
    key, _, row = override.partition("=")
    folder = tmp_path / "digits" / "run"
    with pytest.raises(RunFailed) as raised:
        run(tmp_path, trainers, override)
    assert re.fullmatch(f"{key} = '{row}': {message}\nrun folder: {re.escape(str(folder))}", str(raised.value))
    assert "Traceback" in (folder / "logs" / "coordinator.log").read_text()


def test_a_download_for_another_client_ends_the_run(tmp_path: Path, trainers: WorkerLauncher) -> None:
    with pytest.raises(RunFailed, match="round 1: the download of client 0 is for client 1"):
        run(tmp_path, trainers, f"method={ROWS}:NEXT")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("SERVER", r"method = '.*:SERVER': __init__ \(raising.py, line \d+\): RuntimeError: not today"),
        ("NUMBER", r"method = '.*:NUMBER': it gives what server \(.*\) cannot use: TypeError: 'int' object is not .*"),
        ("NO_CLIENT", "method: cannot make the client side '.*:Client': ModuleNotFoundError: .*no_such_module'"),
        ("NO_CLIENT_SIDE", "method: cannot make the client side '.*:NoSum': .*"),
        ("NO_WRAPPER", "method: wrap_model '.*:wrap': ModuleNotFoundError: No module named '.*no_such_module'"),
    ],
)
def test_an_error_before_the_first_round_is_one_of_the_scenario(
    row: str, message: str, tmp_path: Path, trainers: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError) as raised:
        run(tmp_path, trainers, f"method={ROWS}:{row}")
    assert re.fullmatch(f"digits: {message}", str(raised.value))
    assert list((tmp_path / "digits").iterdir()) == []


def test_an_error_while_a_scenario_is_read_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["check", "digits", f"method={ROWS}:BLOCKS"]) == 2
    expected = (
        rf"fedbr: digits: method = '{ROWS}:BLOCKS': no_blocks \(raising.py, line \d+\): FileNotFoundError: no .*\n"
    )
    assert re.fullmatch(expected, capsys.readouterr().err)


def test_errors_that_no_row_raised_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), plugin_errors.named({"method": f"{ROWS}:SUM"}, RunFailed):
        StoredVectors(tmp_path, {(0, "last"): "0-last-1.safetensors"}).get(0, "last")
    with pytest.raises(KeyError), plugin_errors.named({"method": "fedavg"}, RunFailed):
        raise KeyError("ours")
