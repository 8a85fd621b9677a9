"""A run from Python: its tables, model and figures, stopping and resuming it, and what other tools are told of it.

Training is done in this process (`tests.scenarios.in_this_process`).
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import fedbr
from coordinator.records.schema import EvaluationRow, RoundRow, VisitRow
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

SMALL: dict[str, Any] = {"train": {"local_steps": 2}, "rounds.max": 3, "rounds.participants": 2, "device": "cpu"}


class Recorded:
    """One undisturbed run, and what its callbacks were told."""

    def __init__(self, out: Path) -> None:
        self.out, self.told = out, list[fedbr.CommittedRound]()
        board, tracker = fedbr.TensorBoard(out / "board"), fedbr.MLflow(str(out / "mlruns"), "digits")
        self.tracker = tracker
        self.run = made(out, "whole", [self.told.append, board, tracker], checkpoints={"keep": [1]})


def made(out: Path, name: str, on_round: Any = (), method: str = "fedbr", **overrides: Any) -> fedbr.Run:
    return fedbr.run("digits", out=out, run_id=name, method=method, on_round=on_round, **SMALL, **overrides)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("runs"))


def test_a_run_says_how_it_ended(recorded: Recorded) -> None:
    run = recorded.run
    assert run.folder == recorded.out / "digits" / "whole"
    assert (run.stopped_by, run.summary["rounds"], run.summary["method"]) == ("rounds", 3, "fedbr")
    assert run.accuracy == run.summary["accuracy"]
    assert run.scenario["train"]["local_steps"] == 2
    assert run.environment["data"]["name"] == "digits"
    assert "<th>rounds</th><td>3, round limit</td>" in run._repr_html_()


def test_tables_have_the_ledgers_columns_and_types(recorded: Recorded) -> None:
    run = recorded.run
    assert run.rounds.column_names == list(RoundRow._fields)
    assert run.visits.column_names == list(VisitRow._fields)
    assert run.rounds["round"].to_pylist() == [0, 1, 2]
    assert run.visits["round"].to_pylist() == [0, 0, 1, 1, 2, 2]
    sent = sum(run.transfers["nbytes"].to_pylist())
    assert sent == run.summary["bytes_down"] + run.summary["bytes_up"]
    assert (run.evaluations.column_names, run.evaluations.num_rows) == (list(EvaluationRow._fields), 0)
    assert run.choices.column_names[:2] == ["round", "client"]
    assert run.choices.num_rows == 6
    frame = run.rounds.to_pandas()
    assert frame["joules"].sum() == run.summary["joules"]


def test_callbacks_are_told_each_round_once(recorded: Recorded) -> None:
    assert [round.round for round in recorded.told] == [1, 2, 3]
    assert [round.accuracy for round in recorded.told] == recorded.run.rounds["accuracy"].to_pylist()
    assert recorded.told[-1].total_bytes_up == recorded.run.summary["bytes_up"]
    assert recorded.told[-1].virtual_seconds == recorded.run.summary["virtual_seconds"]


def test_the_model_has_the_runs_accuracy(recorded: Recorded) -> None:
    inputs, labels = recorded.run.test_set()
    hits = {
        round: int((recorded.run.model(round)(inputs).argmax(1) == labels).sum()) / len(labels) for round in (None, 1)
    }
    assert hits[None] == recorded.run.accuracy
    assert hits[1] == recorded.run.rounds["accuracy"][0].as_py()
    model = recorded.run.model()
    assert list(dict(model.named_children())) == ["conv1", "conv2", "conv3", "head"]
    assert not model.training


def test_tensorboard_reads_what_its_callback_wrote(recorded: Recorded) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (recorded.out / "board" / "digits" / "whole").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    values = {(value.tag, event.step): value.tensor.float_val[0] for event in events for value in event.summary.value}
    assert [values["accuracy", step] for step in (1, 2, 3)] == pytest.approx(
        recorded.run.rounds["accuracy"].to_pylist()
    )
    assert values["total_bytes_up", 3] == recorded.run.summary["bytes_up"]


def test_mlflow_reads_what_its_callback_logged(recorded: Recorded) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=str(recorded.out / "mlruns"))
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    recorded.tracker.on_end(None)  # as a later run that failed before its start
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.params["train.local_steps"]) == ("FINISHED", "2")
    assert run.data.tags["fedbr.folder"] == str(recorded.run.folder)
    logged = client.get_metric_history(run.info.run_id, "virtual_seconds")
    assert [(metric.step, metric.value) for metric in logged] == list(
        enumerate(recorded.run.rounds["end_s"].to_pylist(), 1)
    )


def test_ctrl_c_returns_the_run_which_can_be_resumed(recorded: Recorded) -> None:
    before = signal.getsignal(signal.SIGINT)
    run = made(recorded.out, "interrupted", lambda round: signal.raise_signal(signal.SIGINT))
    assert (run.stopped_by, run.summary["rounds"]) == ("user", 1)
    assert signal.getsignal(signal.SIGINT) is before
    told: list[int] = []
    resumed = fedbr.resume(run, on_round=lambda round: told.append(round.round))
    assert (resumed.folder, resumed.stopped_by, told) == (run.folder, "rounds", [2, 3])
    assert resumed.summary["model_sha256"] == recorded.run.summary["model_sha256"]
    longer = fedbr.resume(resumed, rounds={"max": 4})
    assert (longer.stopped_by, longer.summary["rounds"]) == ("rounds", 4)


def test_a_second_ctrl_c_is_a_keyboard_interrupt(recorded: Recorded) -> None:
    def impatient(round: fedbr.CommittedRound) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(KeyboardInterrupt):
        made(recorded.out, "impatient", impatient)
    assert set(psutil.Process().children(recursive=True)) <= before
    left = fedbr.open(recorded.out / "digits" / "impatient")
    assert isinstance(left, fedbr.Run)
    assert (left.stopped_by, left.summary["rounds"]) == (None, 1)


@pytest.mark.long
def test_the_how_to_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    page = ModuleType("__main__")  # classes of the page have their source in it, as those of a script
    page.__file__ = str(tmp_path / "page.py")
    Path(page.__file__).write_text("".join(blocks))
    monkeypatch.setitem(sys.modules, "__main__", page)
    names = vars(page)
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert (tmp_path / "curves.svg").read_text().startswith('<svg role="img" xmlns="http://www.w3.org/2000/svg"')
    assert "fedbr, fedavg" in (tmp_path / "both.html").read_text()
    assert (tmp_path / "board" / "digits").is_dir()
    assert "my_method_" in names["own"].summary["method"]
    assert names["recorded_s"] < names["replayed_s"]
    assert [run.folder for run in names["again"]] == [run.folder for run in names["compared"]]
    assert [row["settings"] for row in names["swept"].result["rows"]] == [
        {"method": method, "train.lr": lr} for method in ("fedavg", "local") for lr in ("0.05", "0.1")
    ]
    assert (len(names["swept"]), len(fedbr.open(names["swept"].folder))) == (8, 8)  # type: ignore[arg-type]
    with pytest.raises(fedbr.ReportError, match="figure 'curve', did you mean 'curves'"):
        names["run"].plot("curve")
