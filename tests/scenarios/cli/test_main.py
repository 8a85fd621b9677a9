"""The command line as a user meets it: what it prints, how it ends, and that nothing is left running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.report import html
from scenarios.run.host import StopFlag
from tests import warm
from tests.scenarios.runs import fedbr, refused

TINY = ["digits", "train.local_epochs=1", "rounds.max=2", "--workers", "1"]
RUN_KEYS = {
    "run_dir", "method", "seed", "data", "rounds", "accuracy", "best_accuracy", "evaluation", "best_round",
    "metric", "privacy", "phases", "steps", "score", "best_score", "target", "baselines", "virtual_seconds",
    "bytes_down", "bytes_up", "nominal_bytes", "flops", "nominal_flops", "joules", "joules_by_part", "paid",
    "carbon",
    "target_accuracy",
    "time_to_target_s", "bytes_to_target", "rounds_to_target", "wasted_bytes", "wasted_seconds", "wasted_joules",
    "clients_left_out", "method_notes", "bottlenecks", "visits", "seconds_by_basis", "stopped_by", "wall_seconds",
    "cut_round", "model_sha256", "warnings", "aggregators",
}  # fmt: skip


@pytest.mark.usefixtures("reports", "warm_workers")
def test_a_run_as_json_is_one_object_with_exactly_the_promised_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(["run", *TINY, "--out", str(tmp_path), "--run-id", "a", "--seed", "3", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert set(result) == RUN_KEYS
    assert result["evaluation"] is None
    assert result["aggregators"] is None
    assert result["best_round"]["selected_by"] == "accuracy"
    assert result["best_round"]["accuracy"] == result["best_accuracy"]
    assert (result["rounds"], result["seed"], result["stopped_by"]) == (2, 3, "rounds")
    assert result["visits"] == {"train": 10} | dict.fromkeys(
        ("zeroed", "listen", "late", "lost", "cut", "refused", "failed"), 0
    )
    assert list(result["bottlenecks"]) == ["own link", "server link", "compute", "waiting"]
    assert sum(result["bottlenecks"].values()) == 2
    assert list(result["seconds_by_basis"]) == ["assumed", "derived", "inference", "read"]
    assert (result["wasted_bytes"], result["wasted_seconds"], result["wasted_joules"]) == (0, 0.0, 0.0)
    assert result["run_dir"] == str(tmp_path / "digits" / "a")
    assert captured.err == ""
    assert {path.name for path in (tmp_path / "digits" / "a").iterdir()} == {
        "scenario.toml", "environment.json", "description.msgpack", "ledger.sqlite", "checkpoints", "state", "logs",
        "report.html",
    }  # fmt: skip


def test_an_unknown_key_ends_a_real_process_with_2_and_one_line() -> None:
    words = fedbr("run", "digits", "train.learning_rat=0.1")
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == "fedbr: command line: unknown key train.learning_rat, did you mean 'train.lr'?\n"


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        ("from scenarios.cli import main; main.run_command(['--help'])", "numpy zmq"),
        (
            "import scenarios.report.html; from scenarios.studies import replay, stress",
            "torch matplotlib jinja2 pyarrow",
        ),
        (
            "from edge.data.locate import find_data; find_data('digits'); find_data('mnist', '/nowhere')",
            "torch torchvision sklearn pyarrow",
        ),
    ],
)
def test_nothing_slow_is_loaded_before_it_is_needed(code: str, slow: str) -> None:
    code += f"; import sys; print(sorted({{*{slow.split()}}} & {{*sys.modules}}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_words_that_are_no_text_and_a_data_folder_of_nobody_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert refused(capsys, "run", "digits", "method=fed\udcff") == "'method=fed\\udcff': must be UTF-8"
    named = refused(capsys, "run", "digits", "--out", str(tmp_path), "--run-id", "a\nb")
    assert named == r"--run-id 'a\nb': must be the name of a folder, without slashes and control characters"
    monkeypatch.setenv("FEDBR_DATA", "~nobody-here/x")
    assert refused(capsys, "list", "datasets").startswith("$FEDBR_DATA = '~nobody-here/x': ")


@pytest.mark.parametrize(("umask", "folder", "file"), [(0o000, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_what_a_command_makes_only_its_user_changes(tmp_path: Path, umask: int, folder: int, file: int) -> None:
    for words in (
        ["run", *TINY, "--out", str(tmp_path), "--quiet"],
        ["worker", "--new-keys", "mine", "--out", str(tmp_path)],
    ):
        warm.run(words, umask=umask).check_returncode()
    modes = {path: path.lstat().st_mode & 0o777 for path in (tmp_path / "digits").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {folder}
    assert {mode for path, mode in modes.items() if path.is_file()} == {file}
    assert (tmp_path / "mine.key").stat().st_mode & 0o777 == 0o600


CUT = ["digits", "rounds.max=1", "--workers", "1", "--run-id", "a"]
"""A run of one round."""


@pytest.mark.usefixtures("reports", "warm_workers")
def test_a_run_is_not_lost_where_its_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    assert main.run_command(["run", *CUT, "--out", str(tmp_path / "shown")]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[1].startswith("fedbr 1/1  accuracy ")
    monkeypatch.setattr(html, "build", full)
    assert main.run_command(["run", *CUT, "--out", str(tmp_path / "full"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["stopped_by"] == "rounds"
    assert captured.err == "fedbr: warning: there is no report: [Errno 28] No space left on device\n"


def test_ctrl_c_where_nothing_is_kept_ends_with_4_too_and_a_second_one_at_once_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scenarios.studies.stress.stress", interrupted)
    assert main.run_command(["stress", "digits", "--rounds", "1"]) == 4
    assert capsys.readouterr() == ("", "fedbr: stopped\n")
    interrupt, before = StopFlag(), signal.getsignal(signal.SIGINT)
    with interrupt.watching():
        assert not interrupt()
        signal.raise_signal(signal.SIGINT)
        assert interrupt()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGINT) == before


def test_a_folder_is_no_scenario_and_that_of_a_run_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "run", str(tmp_path)) == f"{tmp_path}: is a folder; name a scenario or a TOML file"
    for name in ("scenario.toml", "ledger.sqlite"):
        (tmp_path / name).touch()
    message = f"{tmp_path}: is a run folder; to go on with its run: fedbr resume {tmp_path}"
    assert refused(capsys, "run", str(tmp_path)) == message
