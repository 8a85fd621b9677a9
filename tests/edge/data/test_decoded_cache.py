"""A set is decoded once, hashed by content, mapped by everybody, whoever is killed over it."""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from edge.data import decoded_cache, parquet_images
from edge.data.decoded_cache import open_data
from edge.data.registry import Data, DataError
from edge.protocol.config import DataConfig
from tests.edge.data import describer
from tests.edge.data.made_up import PIXELS, write_idx, write_parquet

pytestmark = pytest.mark.usefixtures("no_data_folder")


def mnist(root: Path, cache: Path) -> Data:
    return open_data(DataConfig("mnist", root=str(root)), cache)


def test_digits_split_1437_to_360_with_every_class_in_proportion(tmp_path: Path) -> None:
    data = open_data(DataConfig("digits"), tmp_path)
    assert (data.train.x.shape, data.test.x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (str(data.train.x.dtype), int(data.train.x.max())) == ("uint8", 16)
    assert np.bincount(data.train.y).tolist() == [142, 146, 142, 146, 145, 145, 145, 143, 139, 144]
    assert np.bincount(data.test.y).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert data.sha256.startswith("7ea0123ced2b")  # the same split for everybody


def test_equal_pixels_hash_alike_from_parquet_and_from_torchvisions_files(tmp_path: Path) -> None:
    parquet = mnist(write_parquet(tmp_path / "parquet"), tmp_path / "cache")
    official = mnist(write_idx(tmp_path / "idx"), tmp_path / "cache")
    assert parquet.sha256 == official.sha256
    assert official.train.x[:, 0].tolist() == PIXELS["train"].tolist()
    assert official.test.y.tolist() == [2, 6, 5, 3]
    assert parquet.source == f"Parquet (lossless images) in {tmp_path}/parquet/mnist"
    assert official.source == f"torchvision's MNIST files in {tmp_path}/idx"


def test_tensors_beside_mnists_files_are_neither_read_nor_kept_for_others(tmp_path: Path) -> None:
    genuine, strange = write_idx(tmp_path / "genuine"), write_idx(tmp_path / "strange")
    (strange / "MNIST" / "processed").mkdir()
    zeros = torch.zeros(6, 28, 28, dtype=torch.uint8), torch.full((6,), 7)
    for part in ("training", "test"):  # which torchvision prefers
        torch.save(zeros, strange / f"MNIST/processed/{part}.pt")
    first, second = (mnist(root, tmp_path / "cache") for root in (strange, genuine))
    assert first.train.y.tolist() == second.train.y.tolist() == [3, 1, 4, 1, 5, 9]
    assert first.train.x[:, 0].tolist() == PIXELS["train"].tolist()
    assert first.sha256 == second.sha256


def test_torchvision_opens_copies_of_the_pickles_that_were_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folder may be anyone's, who may change a file after it was looked at."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    names = ("train", "test", "meta")
    for name in names:
        (folder / name).write_text(name)

    class Cifar:
        train_list, test_list = ([[name, hashlib.md5(name.encode()).hexdigest()]] for name in ("train", "test"))
        meta: ClassVar = {"filename": "meta", "md5": hashlib.md5(b"meta").hexdigest()}
        data, targets = np.zeros((1, 32, 32, 3), np.uint8), (5,)

        def __init__(self, root: str, train: bool, download: bool) -> None:
            for name in names:
                (folder / name).write_text("changed meanwhile")
                assert (Path(root) / "cifar-100-python" / name).read_text() == name

    monkeypatch.setattr("torchvision.datasets.CIFAR100", Cifar)
    assert open_data(DataConfig("cifar100", root=str(tmp_path)), tmp_path / "cache").train.y.tolist() == [5]


def test_writers_are_numbered_in_sorted_order_over_both_splits(tmp_path: Path) -> None:
    root = write_parquet(tmp_path, "femnist")
    data = open_data(DataConfig("femnist", root=str(root)), tmp_path / "cache")
    assert data.train.ids is not None
    assert data.test.ids is not None
    # w1, w2, w5, w9 are 0, 1, 2, 3.
    assert data.train.ids.tolist() == [1, 0, 3, 0, 1, 1]
    assert data.test.ids.tolist() == [3, 1, 2, 0]


def test_the_second_opening_reads_no_source_file_and_maps_arrays_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, cache = write_parquet(tmp_path / "here"), write_parquet(tmp_path / "there"), tmp_path / "cache"
    first = mnist(here, cache)
    monkeypatch.setattr(parquet_images, "read", None)  # calling it would fail
    assert mnist(there, cache).train.y.tolist() == [3, 1, 4, 1, 5, 9]  # a copy elsewhere shares the decoded set
    monkeypatch.setattr(decoded_cache, "_key", None)
    again = mnist(here, cache)
    assert again.sha256 == first.sha256
    assert again.train.x.tolist() == first.train.x.tolist()
    with pytest.raises(ValueError, match="read-only"):
        again.train.x[0] = 0
    assert not again.train.x.flags.owndata


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "data")
    before = mnist(root, tmp_path / "cache")
    file = root / "mnist/test.parquet"
    (root / "mnist/train.parquet").replace(file)
    pq.write_table(pq.read_table(file), root / "mnist/train.parquet")
    after = mnist(root, tmp_path / "cache")
    assert (before.test.y.tolist(), after.test.y.tolist()) == ([2, 6, 5, 3], [3, 1, 4, 1, 5, 9])
    assert before.sha256 != after.sha256


def test_a_cache_that_is_damaged_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    open_data(DataConfig("digits"), tmp_path)
    (folder,) = (tmp_path / "data/v1").glob("digits-*")
    (folder / "train_x.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=rf"{folder}: the decoded set is damaged .*; remove this folder and run again"):
        open_data(DataConfig("digits"), tmp_path)
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(DataError, match=f"cannot write to the cache {tmp_path}/cache/data"):
        open_data(DataConfig("digits"), tmp_path / "cache")


def test_a_download_lands_in_the_cache_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, wanted = importlib.import_module("torchvision.datasets").MNIST, []

    def fake(root: str, train: bool, download: bool) -> Any:
        if download:
            wanted.append(write_idx(Path(root)))
        return real(root, train=train, download=False)

    monkeypatch.setattr("torchvision.datasets.MNIST", fake)
    data = open_data(DataConfig("mnist"), tmp_path)
    assert data.source == f"torchvision's MNIST files in {tmp_path}/mnist"
    open_data(DataConfig("mnist"), tmp_path)
    assert len(wanted) == 1


def test_the_real_femnist_has_105_writers(tmp_path: Path) -> None:
    root = Path(os.environ.get("FEDBR_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (root / "femnist" / "train.parquet").is_file():
        pytest.skip(f"no femnist below {root}; name a folder in FEDBR_TEST_DATA")
    data = open_data(DataConfig("femnist", root=str(root)), tmp_path)
    assert (len(data.train.y), len(data.test.y)) == (14708, 1685)
    assert data.train.ids is not None
    assert np.bincount(data.train.ids).size == 105
    # The statistics written into its profile.
    pixels = data.train.x / 255
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (0.9612, 0.1656)


# --- several processes ------------------------------------------------------------------------------------------------


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([describer.__name__, "sklearn.datasets"])


class Describer:
    """A process of its own that describes the shipped scenario, once it is told to."""

    def __init__(self, folder: Path, stuck: str = "nowhere") -> None:
        self._told, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=describer.work, args=(folder, stuck, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def go(self) -> None:
        assert self._told.recv() == "ready"
        self._told.send("go")

    def said(self) -> str:
        """The hash of the data; EOFError if it has died."""
        said = str(self._told.recv())
        self.process.join(60)
        assert self.process.exitcode == 0
        return said


Describers = Callable[..., Describer]


@pytest.fixture
def describers() -> Iterator[Describers]:
    """Starts describers; none outlives the test, however that ends."""
    started: list[Describer] = []

    def start(folder: Path, stuck: str = "nowhere") -> Describer:
        started.append(Describer(folder, stuck))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join()


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines() if (folder / "log").exists() else []


def hidden(folder: Path) -> list[Path]:
    """Locks, and what is not whole."""
    return [path for path in (folder / "cache").rglob("*") if path.name.startswith(".") or path.suffix == ".part"]


@pytest.mark.long
def test_one_that_is_killed_while_it_builds_neither_blocks_the_other_nor_leaves_anything(
    describers: Describers, tmp_path: Path
) -> None:
    slow, other = describers(tmp_path, "read"), describers(tmp_path)
    slow.go()
    limit = time.monotonic() + 60
    while "read" not in log(tmp_path):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert len(hidden(tmp_path)) == 2  # a lock, and the folder that is being filled
    other.go()
    slow.process.kill()
    slow.process.join()
    assert len(other.said()) == 64
    assert log(tmp_path) == ["flops_per_example", "read", "read", "partition_data"]
    assert hidden(tmp_path) == []
