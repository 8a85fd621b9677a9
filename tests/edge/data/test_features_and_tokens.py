"""Data that are no images: rows of numbers and sequences of tokens, from their reader to a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edge.data.augment import fitted, prepare, profile_for
from edge.data.decoded_cache import open_data
from edge.data.partitioning import partition_data
from edge.data.python_topics import passages
from edge.data.registry import DATASETS, DataError, DataSet, Decoded, Split
from edge.protocol.config import DataConfig, ModelConfig, PartitionConfig, TrainConfig
from edge.training.batches import Loader, LocalBatches
from edge.training.blocks import build
from edge.training.counts import count_blocks, flops_per_example
from tests.toy import play
from tests.toy_cache import cache_folder

CPU = torch.device("cpu")
TUMOURS, TOPICS = DATASETS["breast-cancer"], DATASETS["python-topics"]


def opened(name: str) -> Any:
    return open_data(DataConfig(name), Path(cache_folder()))


def test_the_tumours_are_standardised_by_the_statistics_of_the_training_part() -> None:
    data = opened("breast-cancer")
    assert (data.train.x.shape, data.test.x.shape, data.train.x.dtype) == ((455, 30), (114, 30), np.float32)
    assert np.bincount(np.concatenate([data.train.y, data.test.y])).tolist() == [212, 357]
    profile = fitted(profile_for(TUMOURS), data.train)
    x, y = Loader(data.train, profile, CPU).fetch(np.arange(455))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert x.mean(dim=0).abs().max() < 1e-5
    assert (x.std(dim=0, correction=0) - 1).abs().max() < 1e-5
    tested, _ = Loader(data.test, profile, CPU).fetch(np.arange(114))
    by_hand = (data.test.x[5, 3] - data.train.x[:, 3].mean()) / data.train.x[:, 3].std()
    assert float(tested[5, 3]) == pytest.approx(by_hand, rel=1e-4)
    # A feature that never varies becomes 0, and is not divided by 0.
    still = Split(np.full((4, 30), 7, np.float32), np.zeros(4, np.int64))
    assert Loader(still, fitted(profile_for(TUMOURS), still), CPU).fetch(np.arange(2))[0].abs().max() == 0
    raw = prepare(torch.tensor(data.test.x[:3]), profile_for(TUMOURS, "plain"))
    assert raw.tolist() == data.test.x[:3].tolist()


def test_the_topics_are_sequences_of_words_padded_with_zero() -> None:
    numbers = passages("One two, three! ONE 4", length=3, vocabulary=1024)
    assert numbers.shape == (2, 3)
    assert numbers[1, 0] == numbers[0, 0] > 0
    assert numbers[1, 1:].tolist() == [0, 0]
    data = opened("python-topics")
    assert (data.train.x.dtype, data.train.x.shape[1]) == (np.int32, 20)
    assert 0 <= data.train.x.min() < data.train.x.max() < 1024
    assert np.bincount(data.test.y, minlength=10).min() > 0
    loader = Loader(data.train, profile_for(TOPICS), CPU, torch.channels_last)
    x, _ = loader.fetch(np.arange(4))
    assert (x.dtype, x.tolist()) == (torch.int64, data.train.x[:4].tolist())
    # Examples that repeat are prepared once a visit, and come out the same.
    batches = LocalBatches(loader, np.arange(9), TrainConfig(batch=4, local_epochs=2), (0, 0, 0))
    assert sorted(map(tuple, torch.cat([x for x, _ in batches()])[:9].tolist())) == sorted(
        map(tuple, data.train.x[:9].tolist())
    )


def test_the_synthetic_clients_are_as_large_as_published_and_draw_as_the_recipe_says() -> None:
    data = opened("synthetic")
    assert data.train.ids is not None and data.test.ids is not None
    trained, tested = np.bincount(data.train.ids), np.bincount(data.test.ids)
    # 45 to 5,953 training examples: Hönig et al., ICML 2022. 662 tested of 6,615: ceil(6,615 / 10).
    assert (len(trained), trained.min(), trained.max(), tested.max()) == (30, 45, 5_953, 662)
    assert (-(-(trained + tested) // 10)).tolist() == tested.tolist()
    # The largest client: variances j^-1.2, and means that have standard deviation 1 about one number of its own.
    x = data.train.x[data.train.ids == int(trained.argmax())].astype(np.float64)
    assert x.var(axis=0)[[0, 1, 9, 59]] == pytest.approx([1, 2**-1.2, 10**-1.2, 60**-1.2], rel=0.06)
    assert x.mean(axis=0).std() == pytest.approx(1, abs=3 / np.sqrt(2 * 60))
    # A client of the partition is a client of the recipe, with its own test examples.
    partition = DataConfig("synthetic", clients=30, partition=PartitionConfig("natural"))
    shares = partition_data(partition, data)
    assert [*map(len, shares.train)] == trained.tolist()
    assert [*map(len, shares.test)] == tested.tolist()


X, Y = np.zeros((6, 3), np.float32), np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("kind", "x", "y", "complaint"),
    [
        ("features", X.astype(np.float64), Y, "x is float64 of shape (6, 3), not float32 of (6, 3)"),
        ("features", np.where(np.arange(6)[:, None] == 4, np.nan, X), Y, "example 4 has NaN or infinite numbers"),
        ("features", X, Y + 1, "y must hold int64 classes 0 .. 1; it holds 1 .. 2"),
        ("features", X, Y[:5], "y has 5 examples, x 6"),
        ("tokens", X.astype(np.int32) + 9, Y, "tokens 9 .. 9 are not within 0 .. 8"),
        ("features", X[:0], Y[:0], "there are none"),
    ],
)
def test_what_a_users_reader_gives_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, x: Any, y: Any, complaint: str
) -> None:
    split = Split(x, y)
    reader = SimpleNamespace(files=lambda places: (Path(__file__),), read=lambda row, files: Decoded(split, split, ""))
    row = DataSet("own", "own", 2, (3,), (3,), "plain", "me", reader="own_reader", kind=kind,
                  vocabulary=9 if kind == "tokens" else None)  # fmt: skip
    monkeypatch.setitem(sys.modules, "own_reader", reader)
    monkeypatch.setitem(sys.modules, "own_sets", SimpleNamespace(ROW=row))
    monkeypatch.setattr("inspect.getsource", lambda module: "its text")
    with pytest.raises(DataError) as caught:
        open_data(DataConfig("own_sets:ROW"), tmp_path)
    assert str(caught.value) == f"own_reader: training examples of own: {complaint}"


@pytest.mark.parametrize("function", ["read", "files"])
def test_an_error_in_a_users_reader_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def fails(*arguments: object) -> None:
        raise KeyError("column")

    reader = SimpleNamespace(files=lambda places: (Path(__file__),), read=None)
    setattr(reader, function, fails)
    row = DataSet("own", "own", 2, (3,), (3,), "plain", "me", reader="own_reader", kind="features")
    monkeypatch.setitem(sys.modules, "own_reader", reader)
    monkeypatch.setitem(sys.modules, "own_sets", SimpleNamespace(ROW=row))
    monkeypatch.setattr("inspect.getsource", lambda module: "its text")
    with pytest.raises(DataError) as caught:
        open_data(DataConfig("own_sets:ROW"), tmp_path)
    place = f"{__file__}, line {fails.__code__.co_firstlineno + 1}"
    assert str(caught.value) == f"data set own: its reader own_reader: KeyError: 'column' ({place})"


def test_flops_and_activations_are_counted_by_hand() -> None:
    # 2 FLOPs per weight and place; an embedding multiplies nothing, and tokens have no gradient.
    mlp = flops_per_example(lambda: build(ModelConfig("mlp"), 2, 30), (30,), "features")
    assert mlp.tolist() == [[3840, 3840, 0, 3840], [8192, 8192, 0, 8192], [256, 256, 0, 256]]
    text = flops_per_example(lambda: build(ModelConfig("text-cnn"), 10, 1024), (20,), "tokens")
    conv1, conv2, head = 2 * 20 * 3 * 16 * 32, 2 * 20 * 3 * 32 * 32, 2 * 32 * 10
    assert text.tolist() == [[0, 0, 0, 0], *([n, n, 0, n] for n in (conv1, conv2, head))]
    # Embedding: 20 tokens of 8 bytes. The last layer: its input, 32 numbers.
    kept = count_blocks(lambda: build(ModelConfig("text-cnn"), 10, 1024), (20,), "tokens").activations
    assert (kept[0], kept[-1]) == (40, 32)
    sizes = [sum(p.numel() for p in m.parameters()) for _, m in build(ModelConfig("text-cnn"), 10, 1024)]
    assert sizes == [16_384, 1_568, 3_104, 330]
    assert sum(p.numel() for _, m in build(ModelConfig("mlp"), 2, 30) for p in m.parameters()) == 6_274
    # One linear layer: 60 x 10 weights and 10 of the bias; 2 x 600 FLOPs.
    ((name, layer),) = build(ModelConfig("softmax"), 10, 60)
    assert (name, sum(weights.numel() for weights in layer.parameters())) == ("head", 610)
    counted = flops_per_example(lambda: build(ModelConfig("softmax"), 10, 60), (60,), "features")
    assert counted.tolist() == [[1200, 1200, 0, 1200]]


SETS = {
    "breast-cancer": (ModelConfig("mlp", width=16), TrainConfig(lr=0.1, batch=16), 2, 0.85),
    "python-topics": (ModelConfig("text-cnn"), TrainConfig(lr=0.3, batch=16, local_epochs=3), 5, 0.28),
}
"""Model, training, rounds, and an accuracy that is well above that of the largest class (0.63 and 0.14)."""


@pytest.mark.parametrize(("name", "method"), [("breast-cancer", "fedbr"), ("python-topics", "fedavg")])
def test_methods_learn_from_them(tmp_path: Path, name: str, method: str) -> None:
    model, train, rounds, enough = SETS[name]
    run = play(
        tmp_path, method, examples=name, model=model, train=train, clients=3, rounds=rounds,
        partition=PartitionConfig("iid"),
    )  # fmt: skip
    assert run.rows("SELECT MAX(accuracy) FROM rounds")[0][0] > enough
