"""``fedbr new``: every start works as it is written, nothing is overwritten, and no module is hidden."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.cli.new import KINDS, write
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from tests.crossed import every
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import refused


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a start of each kind, ``try_KIND``, from which Python imports."""
    folder = tmp_path_factory.mktemp("starts")
    for kind in KINDS:
        write(kind, f"try_{kind}", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        patch.setattr(sys, "dont_write_bytecode", True)
        yield folder


@pytest.mark.parametrize("kind", every(3, KINDS))
def test_the_tests_of_a_start_pass(kind: str, starts: Path) -> None:
    module = importlib.import_module(f"test_try_{kind}")
    tests = {name: getattr(module, name) for name in dir(module) if name.startswith("test_")}
    contract = tests.pop("test_the_contract_holds", None)
    assert bool(contract) == (kind not in ("device", "scenario"))
    for test in tests.values():
        test()
    if kind == "method" and contract:  # for the time; the runs below are of the others
        contract()


def test_all_starts_work_together_in_one_run(starts: Path) -> None:
    overrides = [
        "method=try_method:SPEC", "model.name=mlp", "data.name=try_dataset:ROW", "rounds.selection=try_selector:ROW",
        f"fleet.device_file={starts / 'try_device.toml'}", "fleet.devices={ try_device = 1.0 }", "rounds.max=2",
        "train.local_steps=2",
    ]  # fmt: skip
    folder = run(starts, overrides)
    # The selector takes the five clients first that were not there in the first round.
    ((clients,),) = read(folder / "ledger.sqlite", "SELECT COUNT(DISTINCT client) FROM visits")
    assert clients == 10


def run(starts: Path, overrides: list[str]) -> Path:
    loaded = load(str(starts / "try_scenario.toml"), parse_all(overrides))
    result = runner.run(loaded, Host(starts, 1, "cpu"), WorkerLauncher(), lambda: False, True)
    return Path(result["run_dir"])


def test_the_next_commands_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["new", "scenario", "field-day", "--out", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path}/a/field-day.toml",
        f"wrote {tmp_path}/a/test_field_day.py",
        "next:",
        f"  cd {tmp_path}/a",
        "  fedbr check field-day.toml",
        "  fedbr run field-day.toml",
        "  python -m pytest test_field_day.py",
    ]


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine_client.py").write_text("mine")
    message = refused(capsys, "new", "method", "mine", "--out", str(tmp_path))
    assert message == f"new method 'mine': {tmp_path}/mine_client.py: exists already; take another name or --out"
    assert [path.name for path in tmp_path.iterdir()] == ["mine_client.py"]
    assert (tmp_path / "mine_client.py").read_text() == "mine"
