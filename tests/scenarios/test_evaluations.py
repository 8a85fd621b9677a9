"""A user's metric on clients in real processes: killed, resumed, verified, reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from pathlib import Path

from tests import warm
from tests.ledgers import virtual_rows

ROOT = Path(__file__).parent.parent.parent
ROW = """
from edge.training.metrics.registry import MetricRow
ENTROPY = MetricRow("entropy", "entropy of the prediction", "my_metric_torch:Entropy", "lower")
"""
TORCH = """
import torch
from edge.training.metrics.metric import Metric
class Entropy(Metric):
    def measure(self, net, x, y, logits):
        p = logits.softmax(1)
        return {"": (float(-(p * p.log()).sum()), len(y))}
"""
METRICS = 'eval.metrics=["my_metric:ENTROPY"]'
RUN = ("run", "digits", "method=fedavg", "rounds.max=3", "train.local_epochs=1", "eval.every=2")
CLIENTS = ("eval.on=both", "eval.adapt.epochs=1", METRICS)


def fedbr(folder: Path, *words: str, meddler: tuple[str, ...] = ()) -> tuple[int, str, str]:
    path = os.pathsep.join([str(ROOT), str(folder)])
    ended = warm.run(words, meddler=meddler, env={**os.environ, "PYTHONPATH": path})
    return ended.returncode, ended.stdout, ended.stderr


def test_a_metric_whose_class_cannot_be_loaded_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "my_metric.py").write_text(ROW)
    code, told, error = fedbr(tmp_path, *RUN, METRICS, "--out", str(tmp_path / "out"), "--workers", "1", "--quiet")
    assert (code, told) == (2, "")
    assert error == (
        "fedbr: digits: eval.metrics: cannot load 'my_metric_torch:Entropy': ModuleNotFoundError: No module named "
        f"'my_metric_torch'; searched {ROOT}, {tmp_path}\n"
    )


def test_a_users_metric_on_clients_survives_a_kill_and_is_verified(tmp_path: Path) -> None:
    (tmp_path / "my_metric.py").write_text(ROW)
    (tmp_path / "my_metric_torch.py").write_text(TORCH)
    begin = (*RUN, *CLIENTS, "--out", str(tmp_path), "--workers", "2", "--json")
    code, told, error = fedbr(tmp_path, *begin, "--run-id", "whole")
    assert code == 0, error
    killing = ("kill", "coordinator.records.store:Ledger.commit", "after", "2")
    assert fedbr(tmp_path, *begin, "--run-id", "cut", meddler=killing)[0] == -signal.SIGKILL
    whole, folder = (tmp_path / "digits" / name for name in ("whole", "cut"))
    code, again, error = fedbr(tmp_path, "resume", str(folder), "--workers", "1", "--json")
    assert code == 0, error

    rows = virtual_rows(folder)
    assert rows == virtual_rows(whole)
    # After round 1 and the last; ten clients and the global model, whose accuracy and loss the rounds have.
    assert [(row[0], row[1], row[2]) for row in rows["evaluations"]] == [
        (round, client, metric)
        for round in (1, 2)
        for client in range(-1, 10)
        for metric in ("accuracy", "loss", "entropy")
        if client >= 0 or metric == "entropy"
    ]
    assert json.loads(again)["evaluation"] == json.loads(told)["evaluation"]
    by_device = json.loads(told)["evaluation"]["by_device"]
    assert {device: of["clients"] for device, of in by_device.items()} == {
        "raspberry-pi-4": 4, "jetson-nano": 3, "phone-mid": 3
    }  # fmt: skip
    assert list(json.loads(told)["best_round"]["by_device"]) == list(by_device)
    last = [row[3] for row in rows["evaluations"] if (row[0], row[2]) == (2, "accuracy")]
    assert json.loads(told)["evaluation"]["worst_decile"] == min(last)
    assert sorted(path.name for path in (folder / "sources").iterdir()) == ["my_metric.py", "my_metric_torch.py"]

    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("UPDATE evaluations SET value = 7.5 WHERE round = 1 AND client = 3 AND metric = 'loss'")
        db.commit()
    code, told, _ = fedbr(tmp_path, "diff", "--again", str(folder), "--workers", "1")
    assert code == 3
    assert "the first 1 of 3 rounds are the same, then round 2: evaluations, row 11: value is " in told
    assert " instead of 7.5\n" in told
