"""Tiny-ImageNet: its own archive, copies as Parquet, and that a subset says what it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.data.decoded_cache import open_data
from edge.data.registry import DATASETS, DataError
from edge.data.tinyimagenet import read
from edge.protocol.config import DataConfig
from tests.edge.data.made_up import TINY, TINY_MEMBERS, picture, write_zip


def test_the_archive_gives_what_an_image_folder_gives(tmp_path: Path) -> None:
    decoded = read(TINY, [write_zip(tmp_path / "tiny-imagenet-200.zip", TINY_MEMBERS)])
    # Classes by WordNet id; within one, _0, _10, _2: file names are text.
    assert decoded.train.y.tolist() == [0, 0, 0, 1]
    assert np.abs(decoded.train.x[:, 0, 9, 9].astype(int) - [10, 20, 40, 30]).max() <= 2
    assert decoded.train.x[1, :, 9, 9].tolist() == [20, 20, 20], "a grey image has three equal channels"
    assert decoded.test.y.tolist() == [1, 0]
    assert np.abs(decoded.test.x[:, 0, 9, 9].astype(int) - [50, 60]).max() <= 2
    assert decoded.test.x.shape == (2, 3, 64, 64)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"wnids.txt": b"n01\nn02\nn03\n"}, "wnids.txt names 3 classes, tinyimagenet has 2"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn02\nval_1.JPEG\n"}, "line 2: must name an image and its class"),
        (  # which would unpack without end
            {"val/images/val_1.JPEG": bytes(20_000_000)},
            ", tiny-imagenet-200/val/images/val_1.JPEG: is 20,000,000 bytes long; the most is 10,000,000",
        ),
        (
            {"val/images/val_1.JPEG": picture(0, side=32)},
            "tiny-imagenet-200/val/images/val_1.JPEG: the image is 32x32, tinyimagenet has 64x64",
        ),
    ],
)
def test_an_archive_that_does_not_fit_is_named(tmp_path: Path, change: dict[str, bytes], complaint: str) -> None:
    file = write_zip(tmp_path / "tiny.zip", TINY_MEMBERS | change)
    with pytest.raises(DataError) as refusal:
        read(TINY, [file])
    assert str(refusal.value).startswith(str(file))
    assert complaint in str(refusal.value)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"tiny\.zip: not Tiny-ImageNet's archive, or damaged: File is not a zip file"):
        read(TINY, [file])


def test_a_subset_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(tmp_path / "tiny-imagenet-200.zip", TINY_MEMBERS)
    config, cache = DataConfig("tinyimagenet", root=str(tmp_path)), tmp_path / "cache"
    monkeypatch.setitem(DATASETS, "tinyimagenet", TINY)
    whole = open_data(config, cache)
    assert whole.source == f"tiny-imagenet-200.zip (JPEG images) in {tmp_path}"
    monkeypatch.setitem(DATASETS, "tinyimagenet", replace(TINY, counts=(100_000, 2)))
    assert open_data(config, cache).source == (
        f"tiny-imagenet-200.zip (JPEG images; a subset: 4 of 100,000 training and 2 of 2 test examples) in {tmp_path}"
    )
