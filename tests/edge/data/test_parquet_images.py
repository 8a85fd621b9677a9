"""Parquet in, arrays out; and whatever does not fit is refused with its file and row."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from edge.data.parquet_images import read, read_split
from edge.data.registry import DataError
from tests.edge.data.made_up import COLOUR, GREY, RAMP, WRITERS, png, write


def test_a_grey_image_keeps_its_rows_and_columns(tmp_path: Path) -> None:
    split = read_split(GREY, write(tmp_path / "train.parquet", [png(RAMP), png(RAMP + 10)], [3, 0]))
    assert split.x.tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[10, 11, 12], [13, 14, 15]]]]
    assert split.y.tolist() == [3, 0]
    assert split.ids is None


def test_colours_come_first_and_a_grey_image_has_three_equal_channels(tmp_path: Path) -> None:
    pixels = np.stack([RAMP, RAMP + 50, RAMP + 100], axis=2)  # (height, width, channels)
    file = write(tmp_path / "train.parquet", [png(pixels)], [1], image="img", label="fine_label")
    assert read_split(COLOUR, file).x[0, :, 0, 0].tolist() == [0, 50, 100]
    split = read_split(COLOUR, write(tmp_path / "grey.parquet", [png(RAMP)], [1]))
    assert split.x[0].tolist() == [RAMP.tolist()] * 3


def test_natural_ids_stay_beside_their_examples(tmp_path: Path) -> None:
    file = write(tmp_path / "train.parquet", [png(RAMP)] * 3, [0, 1, 2], writer_id=["b", "a", "b"])
    ids = read_split(WRITERS, file).ids
    assert ids is not None
    assert ids.tolist() == ["b", "a", "b"]
    file = write(tmp_path / "train.parquet", [png(RAMP)] * 2, [0, 1], writer_id=["a", None])
    with pytest.raises(DataError, match="row 1: the client's id is missing"):
        read_split(WRITERS, file)


def test_row_groups_that_end_within_a_batch_are_read_in_their_order(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", [png(RAMP + n) for n in range(7)], [n % 4 for n in range(7)])
    pq.write_table(pq.read_table(whole), tmp_path / "train.parquet", row_group_size=3)
    split = read_split(GREY, tmp_path / "train.parquet")
    assert split.x[:, 0, 0, 0].tolist() == list(range(7))
    assert split.y.tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_jpeg_is_named_because_it_loses_pixels(tmp_path: Path) -> None:
    out = BytesIO()
    Image.fromarray(RAMP).save(out, "JPEG")
    train = write(tmp_path / "train.parquet", [out.getvalue()], [0])
    test = write(tmp_path / "test.parquet", [png(RAMP)], [0])
    assert read(GREY, (train, train)).form == "JPEG images"
    assert read(GREY, (train, test)).form == "JPEG images, lossless images"


@pytest.mark.parametrize(
    ("image", "labels", "complaint"),
    [
        (b"", [0, 1], "row 1: the image is empty"),
        (b"no image at all", [0, 1], "row 1: not a readable image"),
        (png(RAMP)[:40], [0, 1], "row 1: not a readable image"),
        (png(RAMP.T.copy()), [0, 1], "row 1: the image is 2x3, grey has 3x2"),
        (png(RAMP), [0, 4], r"row 1: label is 4, grey has 0\.\.3"),
        (png(RAMP), [0, None], "row 1: label is missing"),
        (png(RAMP), ["0", "1"], "column label must hold integers, not string"),
    ],
)
def test_a_bad_image_or_label_is_named_by_file_and_row(
    tmp_path: Path, image: bytes | None, labels: list[Any], complaint: str
) -> None:
    file = write(tmp_path / "train.parquet", [png(RAMP), image], labels)
    with pytest.raises(DataError, match=rf"train\.parquet.*{complaint}"):
        read_split(GREY, file)


def test_columns_that_are_missing_of_another_kind_or_empty_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column img or image; it has label, picture"):
        read_split(GREY, write(tmp_path / "a.parquet", [png(RAMP)], [0], image="picture"))
    with pytest.raises(DataError, match="no column writer_id; it has image, label"):
        read_split(WRITERS, write(tmp_path / "b.parquet", [png(RAMP)], [0]))
    pq.write_table(pa.table({"image": ["text"], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column image must be a struct with binary `bytes`, not string"):
        read_split(GREY, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no examples"):
        read_split(GREY, write(tmp_path / "train.parquet", [], pa.array([], type=pa.int64())))
