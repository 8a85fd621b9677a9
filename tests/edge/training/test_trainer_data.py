"""The examples that a trainer has of each client, and their counts in the answer to describe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edge.protocol.config import DataConfig, Job, PartitionConfig
from edge.training.trainer import LocalTrainer
from tests.toy import DIGITS_CNN, TRAIN, cache_folder, play

DATA = DataConfig("digits", clients=4, partition=PartitionConfig("iid"))


def trainer(data: DataConfig) -> LocalTrainer:
    objective = "edge.training.client_update:ClientUpdate"
    return LocalTrainer(Job("", 0, "cpu", cache_folder(), DIGITS_CNN, data, TRAIN, objective))


def test_held_out_examples_are_counted_apart_and_never_trained_on() -> None:
    # 1437 // 4 = 359 examples for each client; a quarter of them, rounded down, is 89.
    worker = trainer(replace(DATA, validation=0.25))
    profile, _ = worker.describe(data=True)
    assert profile.samples.tolist() == [270] * 4
    assert profile.validation_samples.tolist() == [89] * 4
    assert profile.histogram.sum(axis=1).tolist() == [270] * 4
    for trained, held in zip(worker.client_indices.train, worker.client_indices.validation, strict=True):
        assert np.intersect1d(trained, held).size == 0
    plain, _ = trainer(DATA).describe(data=True)
    assert plain.validation_samples.tolist() == [0] * 4
    assert plain.samples.tolist() == [359] * 4


def test_a_job_with_graphs_trains_on_a_cpu_without(tmp_path: Path) -> None:
    """As for measurements of a run that was on a GPU."""
    runs = [play(tmp_path / str(graphs), rounds=1, train=replace(TRAIN, graphs=graphs)) for graphs in (False, True)]
    assert runs[0].model.tobytes() == runs[1].model.tobytes()
