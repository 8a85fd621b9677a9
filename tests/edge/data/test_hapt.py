"""HAPT: windows of one activity, a split by time in which nothing overlaps, and a model and statistics for series."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from edge.data.augment import fitted, profile_for
from edge.data.hapt import SIGNALS, files, read
from edge.data.registry import DATASETS, DataError, Split
from edge.protocol.config import ModelConfig
from edge.training.batches import Loader
from edge.training.blocks import build
from edge.training.counts import flops_per_example
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all

CPU = torch.device("cpu")
HAPT = DATASETS["hapt"]
WALKING, SITTING, STANDING, STAND_TO_SIT = 1, 4, 5, 7
RECORDINGS = {
    (1, 1): [(WALKING, 320), (-1, 10), (SITTING, 128), (STAND_TO_SIT, 128), (SITTING, 127)],
    (2, 1): [(WALKING, 128)],
    (3, 2): [(STANDING, 256)],
}
"""(experiment, person) -> its activities, each with its number of samples"""


def signals(experiment: int, samples: int) -> np.ndarray:
    """(samples, 6): the first is 1,000 times the experiment and the sample's number, the last its negative."""
    numbers = 1_000.0 * experiment + np.arange(samples)
    return np.stack([numbers, *np.zeros((4, samples)), -numbers], axis=1)


def write_parquet(root: Path) -> Path:
    """The recordings as one table."""
    columns: dict[str, list[float]] = {name: [] for name in ("user", "sequence", "label", *SIGNALS)}
    for (experiment, person), activities in RECORDINGS.items():
        labels = np.repeat(*np.transpose(activities))
        columns["user"] += [person] * len(labels)
        columns["sequence"] += range(len(labels))
        columns["label"] += labels.tolist()
        for name, channel in zip(SIGNALS, signals(experiment, len(labels)).T, strict=True):
            columns[name] += channel.tolist()
    (root / "hapt").mkdir(parents=True)
    pq.write_table(pa.table(columns), root / "hapt" / "hapt.parquet")
    return root


def write_raw(root: Path) -> Path:
    """The recordings as the authors' files."""
    raw, lines = root / "hapt" / "RawData", []
    raw.mkdir(parents=True)
    for (experiment, person), activities in RECORDINGS.items():
        first, name = 1, f"exp{experiment:02}_user{person:02}.txt"
        for activity, samples in activities:
            if activity > 0:
                lines.append(f"{experiment} {person} {activity} {first} {first + samples - 1}")
            first += samples
        both = signals(experiment, first - 1)
        np.savetxt(raw / f"acc_{name}", both[:, :3])
        np.savetxt(raw / f"gyro_{name}", both[:, 3:])
    (raw / "labels.txt").write_text("\n".join(lines))
    return root


def firsts(split: Split) -> list[tuple[int, int, float]]:
    """(person, class, first number) of each window."""
    assert split.ids is not None
    return list(zip(split.ids.tolist(), split.y.tolist(), split.x[:, 0, 0].tolist(), strict=True))


@pytest.mark.parametrize("write", [write_parquet, write_raw])
def test_the_last_windows_of_each_activity_are_tested_and_none_of_training_overlaps_one(
    tmp_path: Path, write: object
) -> None:
    assert callable(write)
    decoded = read(HAPT, files([tmp_path / "elsewhere", write(tmp_path)]))
    # Walking: windows at 0, 64, 128, 192 and, in the second recording, 0. 30 % of five are two; 128 overlaps 192.
    # Sitting: one window, and a part too short for another. Standing: at 0, 64, 128, of which one is tested.
    assert firsts(decoded.train) == [(1, 0, 1000), (1, 0, 1064), (1, 3, 1330), (2, 4, 3000)]
    assert firsts(decoded.test) == [(1, 0, 1192), (1, 0, 2000), (2, 4, 3128)]
    assert (decoded.train.x.dtype.name, decoded.train.x.shape) == ("float32", (4, 6, 128))
    assert decoded.train.x[0, 5].tolist() == [-1000 - sample for sample in range(128)]
    more = read(DATASETS["hapt-transitions"], files([tmp_path]))
    assert [window for window in firsts(more.train) if window not in firsts(decoded.train)] == [(1, 6, 1458)]
    assert firsts(more.test) == firsts(decoded.test)


# --- series of any set ------------------------------------------------------------------------------------------------


def test_series_are_standardised_by_channel_for_all_or_for_each_client() -> None:
    x = np.zeros((4, 6, 128), np.float32)
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 1, 3, 5, 15
    x[:, 1] = 7
    train = Split(x, np.zeros(4, np.int64), np.array([0, 0, 2, 2]))
    tested = Split(x[[0, 1, 1]] + 1, np.zeros(3, np.int64), np.array([2, 1, 3]))
    tested.x[:, 1] = 7

    def first(augment: str, split: Split) -> list[float]:
        prepared, _ = Loader(split, fitted(profile_for(HAPT, augment), train), CPU).fetch(np.arange(len(split.y)))
        assert prepared.shape == (len(split.y), 6, 128)
        # A channel that never varies becomes 0, and is not divided by 0.
        still = 7 if augment == "plain" else 0
        assert bool((prepared[:, 1] == still).all())
        return [round(number, 4) for number in prepared[:, 0, 9].tolist()]

    # Mean 6, variance (25 + 9 + 1 + 81) / 4 = 29. Of client 0: mean 2, deviation 1; of client 2: 10 and 5.
    assert first("default", train) == [round((value - 6) / 29**0.5, 4) for value in (1, 3, 5, 15)]
    assert first("standardise-client", train) == [-1, 1, -1, 1]
    # Client 2's statistics are those of its training examples; clients 1 and 3 have none, so that those of all are
    # taken.
    assert first("standardise-client", tested) == [(2 - 10) / 5, *2 * [round((4 - 6) / 29**0.5, 4)]]
    assert first("plain", train) == [1, 3, 5, 15]
    with pytest.raises(DataError, match=r"data\.augment = standardise-client: breast-cancer does not say which client"):
        profile_for(DATASETS["breast-cancer"], "standardise-client")


def test_har_cnn_has_the_weights_and_multiply_adds_of_three_convolutions() -> None:
    def blocks(classes: int = 6) -> list[tuple[str, torch.nn.Module]]:
        return build(ModelConfig("har-cnn"), classes, 6)

    # Channels x width x five samples, and the biases.
    sizes = [sum(p.numel() for p in module.parameters()) for _, module in blocks()]
    assert (sizes, sum(sizes)) == ([992, 10_304, 41_088, 774], 53_158)
    assert sum(p.numel() for _, module in blocks(12) for p in module.parameters()) == 53_932
    # 128, 64 and 32 places; 1 MAC = 2 FLOPs, and each gradient as many.
    macs = [6 * 32 * 5 * 128, 32 * 64 * 5 * 64, 64 * 128 * 5 * 32, 128 * 6]
    assert (macs, sum(macs)) == ([122_880, 655_360, 1_310_720, 768], 2_089_728)
    assert flops_per_example(blocks, (6, 128), "series").tolist() == [[2 * n, 2 * n, 0, 2 * n] for n in macs]
    assert torch.nn.Sequential(*(module for _, module in blocks()))(torch.zeros(2, 6, 100)).shape == (2, 6)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["data.name=hapt"], "model.name = 'digits-cnn' takes images; hapt has series"),
        (["data.name=hapt", "model.name=mlp"], "model.name = 'mlp' takes features; hapt has series"),
        (["data.name=breast-cancer", "model.name=har-cnn"], "'har-cnn' takes series; breast-cancer has features"),
    ],
)
def test_a_model_for_other_examples_is_refused(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        load("digits", parse_all(overrides))


# --- the real set -----------------------------------------------------------------------------------------------------


def real_root() -> Path:
    root = Path(os.environ.get("FEDBR_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not files([root]):
        pytest.skip(f"no hapt below {root}; name a folder in FEDBR_TEST_DATA")
    return root


def test_the_real_set_has_every_activity_of_every_person_in_both_parts() -> None:
    decoded = read(HAPT, files([real_root()]))
    assert np.bincount(decoded.train.y).tolist() == [1174, 1060, 961, 1232, 1356, 1343]
    assert np.bincount(decoded.test.y).tolist() == [518, 463, 425, 542, 596, 589]
    for split, least, most in ((decoded.train, 195, 284), (decoded.test, 0, 999)):
        assert split.ids is not None
        counts = np.zeros((30, 6), np.int64)
        np.add.at(counts, (split.ids - 1, split.y), 1)
        assert counts.min() > 10
        assert least <= counts.sum(axis=1).min() <= counts.sum(axis=1).max() <= most
