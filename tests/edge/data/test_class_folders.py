"""Any folder of class folders is a data set: which classes and images it has, and how they are stored."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edge.data.augment import prepare, profile_for
from edge.data.decoded_cache import found_row, open_data
from edge.data.images import decode
from edge.data.registry import DATASETS, ClassFolders, DataError, DataSet
from edge.protocol.config import DataConfig
from tests.edge.data.made_up import torchvision_functions

IMAGENET = DATASETS["imagenet200"]
SMALL = replace(IMAGENET, stored=(3, 16, 16), shape=(3, 14, 14), class_folders=ClassFolders(2, seed=1993))


def paint(file: Path, shade: int, size: tuple[int, int] = (24, 20)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 0, 0)).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, of which one has no test images and one has three training images."""
    below = tmp_path / "sets" / "imagenet200"
    for shade, name in (
        (10, "n01/a.JPEG"),
        (20, "n02/c.png"),
        (30, "n02/b.JPEG"),
        (40, "n02/d.JPEG"),
        (50, "n03/e.jpg"),
    ):
        paint(below / "train" / name, shade)
    paint(below / "val/n03/f.JPEG", 60, (20, 24))
    paint(below / "val/n01/g.JPEG", 70)
    (below / "train/n01/notes.txt").write_text("no image")
    (below / "train/.hidden").mkdir()
    return below.parent


def test_a_folder_has_the_classes_that_it_has_and_is_no_whole_set(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "imagenet200", SMALL)
    config, cache = DataConfig("imagenet200", root=str(root)), tmp_path / "cache"
    assert found_row(config, cache).classes == 3
    data = open_data(config, cache)
    # The first two of n02 by name: b and c.
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 1, 1, 2], [0, 2])
    assert np.abs(data.train.x[:, 0, 8, 8].astype(int) - [10, 30, 20, 50]).max() <= 2
    assert np.abs(data.test.x[:, 0, 8, 8].astype(int) - [70, 60]).max() <= 2
    assert data.train.x.shape == (4, 3, 16, 16)
    assert data.source == (
        "3 class folders (scaled to 16x16; a subset: 4 of 100,000 training and 2 of 10,000 test examples) in "
        f"{root / 'imagenet200'}"
    )
    assert prepare(torch.from_numpy(data.test.x.copy()), profile_for(data.row)).shape == (2, 3, 14, 14)
    # Another image is another set.
    paint(root / "imagenet200/train/n01/h.png", 80)
    assert open_data(config, cache).train.y.tolist() == [0, 0, 1, 1, 2]


def test_an_image_is_stored_as_resizing_and_a_centre_crop_leave_it(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (37, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    TF = torchvision_functions()
    expected = TF.center_crop(TF.resize(Image.fromarray(pixels), 16), [16, 16])
    with (tmp_path / "wide.png").open("rb") as file:
        stored = decode(SMALL, "wide", file)
    assert np.array_equal(stored, np.asarray(expected).transpose(2, 0, 1))
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "grey.png")
    with (tmp_path / "grey.png").open("rb") as file:
        grey = decode(SMALL, "grey", file)
    assert np.array_equal(grey[0], grey[2])


def sparse(file: Path) -> None:
    Image.new("RGB", (4, 4)).save(file)
    os.truncate(file, 50_000_000)


def endless(file: Path) -> None:
    file.touch()
    os.truncate(file, 10**13)


def banner(width: int, height: int) -> Callable[[Path], None]:
    """Writes an image of few bytes, black throughout."""
    return lambda file: Image.new("1", (width, height)).save(file)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is a device, a pipe or a folder, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a device, a pipe or a folder, not a file"),
        (Path.mkdir, "is a device, a pipe or a folder, not a file"),
        (sparse, "is 50,000,000 bytes long, of which 4,096 are on the disk"),
        (endless, "is 10,000,000,000,000 bytes long; the most is 64,000,000"),
        (banner(1, 12_000), "the image is 1x12000, 256x3072000 when it is scaled; the most is 16,000,000 pixels"),
        (banner(12_000, 1), "the image is 12000x1, 3072000x256 when it is scaled; the most is 16,000,000 pixels"),
    ],
)
def test_what_is_no_image_or_would_take_the_memory_is_refused_by_name(make: Any, said: str, root: Path) -> None:
    file = root / "imagenet200" / "train" / "n01" / "b.png"
    make(file)
    with pytest.raises(DataError) as caught:
        open_data(DataConfig("imagenet200", root=str(root)), root / "cache")
    assert str(caught.value) == f"{file}: {said}"


def test_a_folder_for_each_client_is_a_natural_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cams = DataSet("cams", "Cameras", 3, (3, 16, 16), (3, 16, 16), "plain", "own", id_column="client",
                   class_folders=ClassFolders())  # fmt: skip
    monkeypatch.setitem(DATASETS, "cams", cams)
    for camera, name, count in (("cam01", "cat", 6), ("cam01", "dog", 1), ("cam02", "dog", 5)):
        for number in range(count):
            paint(tmp_path / "sets" / "cams" / camera / name / f"{number}.png", 10 * number + len(name))
    config, cache = DataConfig("cams", root=str(tmp_path / "sets")), tmp_path / "cache"
    assert found_row(config, cache).classes == 2
    data = open_data(config, cache)
    # Of five images and of six the fifth is a test image.
    assert data.train.ids is not None
    assert data.test.ids is not None
    assert data.train.ids.tolist() == [0] * 6 + [1] * 4
    assert data.train.y.tolist() == [0] * 5 + [1] + [1] * 4
    assert (data.test.ids.tolist(), data.test.y.tolist()) == ([0, 1], [0, 1])
    assert [int(image[0, 8, 8]) for image in data.test.x] == [43, 43]
    before = data.sha256
    shutil.move(tmp_path / "sets/cams/cam01/dog", tmp_path / "sets/cams/cam03/dog")
    assert open_data(config, cache).sha256 != before
