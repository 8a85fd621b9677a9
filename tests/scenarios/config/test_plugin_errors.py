"""Errors in a user's rows: one message with the row, the place, the client and the round, and never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, WorkerTraceback
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run import runner
from scenarios.run.host import Host
from tests.plugins import raising
from tests.scenarios.runs import QUICK, never

ROWS = "tests.plugins.raising"
RAISING = Path(raising.__file__)


def line_of(file: Path, text: str) -> int:
    """The number of the line of a file that has this text."""
    return next(i for i, line in enumerate(file.read_text().splitlines(), 1) if text in line)


def run(out: Path, launcher: WorkerLauncher, *overrides: str) -> None:
    shape = ("data.clients=4", "rounds.participants=4", "rounds.max=2")
    runner.run(
        load("digits", parse_all([*QUICK, *shape, *overrides])), Host(out, 1, "cpu", "run"), launcher, never, True
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            f"method={ROWS}:CHOICE",
            r"choose \(/.*/raising.py, line \d+\), client 3, round 1: KeyError: 'three'",
        ),
        (
            f"method={ROWS}:SUM",
            r"accumulate \(/.*/raising.py, line \d+\), client 0, round 1: ZeroDivisionError: float .*",
        ),
        (
            f"method={ROWS}:WEIGHT",
            r"it gives what check_weight \(weighted_sum.py, line \d+\) cannot use, client 0, round 1: ValueError: an "
            "aggregation weight of -1: must be finite, and 0 or more",
        ),
        (
            f"server={ROWS}:IN_PLACE",
            r"step \(/.*/raising.py, line \d+\), round 1: ValueError: assignment destination .*",
        ),
        (
            f"server={ROWS}:SHORT",
            r"it gives what _optimised \(server.py, line \d+\) cannot use, round 1: ValueError: the server optimizer's "
            r"step gives float32 \(159,\) for conv1, not float32 \(160,\)",
        ),
    ],
)
def test_an_error_in_a_round_names_row_place_client_and_round(
    override: str, message: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    key, _, row = override.partition("=")
    folder = tmp_path / "digits" / "run"
    with pytest.raises(RunFailed) as raised:
        run(tmp_path, launcher, override)
    assert re.fullmatch(f"{key} = '{row}': {message}\nrun folder: {re.escape(str(folder))}", str(raised.value))
    assert "Traceback" in (folder / "logs" / "coordinator.log").read_text()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "SERVER",
            r"method = '.*:SERVER': __init__ \(/.*/raising.py, line \d+\): RuntimeError: not today",
        ),
        (
            "NUMBER",
            r"method = '.*:NUMBER': it gives what method_server \(.*\) cannot use: TypeError: 'int' object is not .*",
        ),
        ("NO_CLIENT", "method: cannot make the client side '.*:Client': ModuleNotFoundError: .*no_such_module'"),
        ("NO_CLIENT_SIDE", "method: cannot make the client side '.*:NoSum': .*"),
        ("NO_WRAPPER", "method: wrap_model '.*:wrap': ModuleNotFoundError: No module named '.*no_such_module'"),
    ],
)
def test_an_error_before_the_first_round_is_one_of_the_scenario(
    row: str, message: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError) as raised:
        run(tmp_path, launcher, f"method={ROWS}:{row}")
    assert re.fullmatch(f"digits: {message}", str(raised.value))
    assert list((tmp_path / "digits").iterdir()) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "FORGETS",
            r"begin of Forgets \(/.*/leaking_client.py, line \d+\) has not loaded the model's conv1, conv2, conv3, "
            r"head; call super\(\).begin\(net, down, state, visit\) first, or load them with net.load",
        ),
        (
            "UNDECLARED",
            r"end of Undeclared \(/.*/raising_client.py, line \d+\) gives the number 'margin', which its spec does not "
            r"name; add reports=\('margin',\), or record it with self.log\('margin', ..\)",
        ),
        (
            "UNGIVEN",
            r"end of ClientUpdate does not give the number 'margin', which its spec names in reports",
        ),
        (
            "COUNTED",
            r"end of Counted \(/.*/raising_client.py, line \d+\) gives the number 'steps', which is counted for every "
            "method; rename it",
        ),
    ],
)
def test_a_client_side_that_breaks_its_contract_ends_the_run_with_one_sentence(
    row: str, message: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    with pytest.raises(RunFailed) as raised:
        run(tmp_path, launcher, f"method={ROWS}:{row}")
    assert re.fullmatch(rf"client \d, round 1, train: method: {message}\nrun folder: .*", str(raised.value))


@pytest.mark.parametrize(
    ("overrides", "message", "last"),
    [
        (
            (f"data.name={ROWS}:UNREAD", "model.name=mlp"),
            f"data set unread: its reader {ROWS}: ZeroDivisionError: division by zero",
            "return 1 / row.pad",
        ),
        (
            (f"data.partition.kind={ROWS}:UNSPLIT",),
            f"data.partition.kind = {ROWS}:UNSPLIT: KeyError: 'absent'",
            'return table["absent"]',
        ),
    ],
)
def test_an_error_of_a_reader_or_a_partition_names_its_last_line_and_has_its_traceback(
    overrides: tuple[str, ...], message: str, last: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError) as raised:
        run(tmp_path, launcher, *overrides)
    assert str(raised.value) == f"digits: {message} ({RAISING}, line {line_of(RAISING, last)})"
    assert isinstance(raised.value.__cause__, WorkerTraceback)
    assert f'raising.py", line {line_of(RAISING, last)}, in ' in str(raised.value.__cause__)


def test_an_error_in_training_names_its_last_line_and_has_its_traceback(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    file = RAISING.with_name("raising_client.py")
    place = f"{file}, line {line_of(file, 'raise LookupError')}"
    with pytest.raises(RunFailed, match=re.escape(f"LookupError: no loss ({place})")) as raised:
        run(tmp_path, launcher, f"method={ROWS}:UNTRAINED")
    assert isinstance(raised.value.__cause__, PoolError)
    told = raised.value.__cause__.__cause__
    assert isinstance(told, WorkerTraceback)
    assert re.findall(r'File "(.*)", line', str(told)) == [str(file)]  # no frame of the product


@pytest.mark.parametrize(
    ("text", "error"), [("x = {}['no']", "KeyError: 'no'"), ("def f(:", "SyntaxError: invalid sy")]
)
def test_an_error_of_a_module_that_is_loaded_names_the_line(
    text: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_made.py").write_text(f"import sys\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ScenarioError) as raised:
        load("digits", parsed(["method=half_made:SPEC"]))
    assert error in str(raised.value)
    assert str(raised.value).endswith(f" ({tmp_path / 'half_made.py'}, line 2)")
    assert type(raised.value.__cause__).__name__ == error.partition(":")[0]
