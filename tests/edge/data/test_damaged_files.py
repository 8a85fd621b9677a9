"""Data files that are damaged, or were made to do harm: one message that names file and row, and nothing half made."""

from __future__ import annotations

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from edge.data.decoded_cache import open_data
from edge.data.parquet_images import read_split
from edge.data.registry import DataError, DataSet
from edge.protocol.config import DataConfig
from tests import peak, warm
from tests.edge.data.made_up import (
    COLOUR,
    GREY,
    RAMP,
    png,
    write,
    write_idx,
)

pytestmark = pytest.mark.usefixtures("no_data_folder")


def refusal(root: Path, name: str = "mnist") -> str:
    """What is said of a set; the cache must hold no array of it afterwards."""
    cache = root / "cache"
    with pytest.raises(DataError) as caught:
        open_data(DataConfig(name, root=str(root)), cache)
    assert [path.name for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock")] == []
    return str(caught.value)


# --- images -----------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that announces so many pixels."""
    header = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = BytesIO()
    image.save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("image", "complaint", "row"),
    [
        (bomb(12_000, 12_000), "the image is 12000x12000, grey has 3x2", GREY),  # of which Pillow would warn
        (bomb(60_000, 60_000), "not a readable image: Image size (3600000000 pixels) exceeds limit of ", GREY),
        (encoded(Image.new("RGB", (3, 2))), "the image is of mode RGB, grey takes L, 1, P", GREY),
        (encoded(Image.new("L", (3, 2)), "TIFF"), "not a readable image: cannot identify image file", GREY),
        # Pixels that are not opaque are no colours.
        (
            encoded(Image.new("RGBA", (3, 2))),
            "the image is of mode RGBA, colour takes RGB, L, 1, P, CMYK, YCbC",
            COLOUR,
        ),
    ],
)
def test_an_image_that_must_not_be_decoded_is_refused_by_its_row(
    tmp_path: Path, image: bytes, complaint: str, row: DataSet
) -> None:
    file = write(tmp_path / "train.parquet", [encoded(Image.new("L", (3, 2))), image], [0, 1])
    with pytest.raises(DataError) as caught:
        read_split(row, file)
    assert str(caught.value).startswith(f"{file}, row 1: {complaint}")
    assert "<_io" not in str(caught.value)


# --- Parquet ----------------------------------------------------------------------------------------------------------


READ = "from edge.data.parquet_images import read_split; from tests.edge.data.made_up import GREY, WRITERS"
ROWS, LONG_NBYTES = 500, 1 << 18
PLAIN, DICTIONARY = {"use_dictionary": False}, {"dictionary_pagesize_limit": 1 << 30}
DELTA = {**PLAIN, "column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}}
ID_DELTA = {**PLAIN, "column_encoding": {"writer_id": "DELTA_BYTE_ARRAY"}}


def write_long(file: Path, how: dict[str, Any], image: bytes = b"", rows: int = ROWS, **more: str) -> Path:
    """A file of little for a table of 131 MB."""
    struct = {"bytes": image or bytes(LONG_NBYTES)} | ({"path": more.pop("path")} if "path" in more else {})
    columns = {"image": [struct] * rows, **{name: [text] * rows for name, text in more.items()}}
    pq.write_table(pa.table({**columns, "label": [0] * rows}), file, compression="zstd", **how)
    assert file.stat().st_size < 100_000
    return file


@pytest.mark.parametrize(
    ("how", "more", "said"),
    [
        (PLAIN, {}, ": column image.bytes would unpack from 10,"),
        (DELTA, {}, ", row 0: not a readable image"),
        (ID_DELTA, {"image": png(RAMP), "writer_id": "x" * LONG_NBYTES}, ", row 0: the client's id is 262,144 bytes"),
    ],
)
def test_a_column_that_would_unpack_to_far_more_than_its_file_costs_little(
    tmp_path: Path, how: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    file = write_long(tmp_path / "train.parquet", how, **more)
    complaint, grown_mb = peak.refusal(READ, f"read_split({'WRITERS' if 'writer_id' in more else 'GREY'}, path)", file)
    assert complaint.startswith(f"{file}{said}")
    assert grown_mb < 80


# --- files of the makers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("t10k-images-idx3", lambda raw: raw[:100], "announces 4 x 28 x 28 bytes, but 84 follow"),
        ("train-labels-idx1", lambda raw: raw[:4] + b"\xff" * 4 + raw[8:], "announces 4294967295 bytes, but 6 follow"),
        ("train-labels-idx1", lambda raw: b"\0\0\x0d" + raw[3:], "not an idx file of bytes"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, name: str, change: Any, complaint: str) -> None:
    file = write_idx(tmp_path) / f"MNIST/raw/{name}-ubyte"
    file.write_bytes(change(file.read_bytes()))
    assert refusal(tmp_path) == f"{file}: {complaint}"


@pytest.mark.parametrize(
    ("name", "head", "count", "said"),
    [
        (
            "train-images-idx3",
            struct.pack(">4i", 0x803, 8_000_000, 28, 28),
            8_000_000 * 784,
            "is 6,272,000,016 byte",
        ),
        (
            "train-images-idx3",
            struct.pack(">4i", 0x803, 4, 4000, 4000),
            64_000_000,
            "is 64,000,016 bytes long, of wh",
        ),
    ],
)
def test_an_idx_file_is_refused_by_its_header_before_its_examples_are_read(
    tmp_path: Path, name: str, head: bytes, count: int, said: str
) -> None:
    file = write_idx(tmp_path) / f"MNIST/raw/{name}-ubyte"
    file.write_bytes(head)
    os.truncate(file, len(head) + count)
    assert refusal(tmp_path).startswith(f"{file}: {said}")


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n(S'touch /tmp/never'\ntR.", b"\x80\x04" + bytes(9)])
def test_a_pickle_that_is_not_its_makers_is_named_and_never_opened(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(content)
    assert refusal(tmp_path, "cifar100") == (
        f"{folder}/train: damaged: its {len(content)} bytes have not the MD5 of cifar100's file"
    )


# --- the archive ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [ZIP_DEFLATED, ZIP_BZIP2])
def test_a_member_whose_header_lies_about_its_length_is_not_unpacked_either(tmp_path: Path, how: int) -> None:
    file, name = tmp_path / "tiny-imagenet-200.zip", "tiny-imagenet-200/wnids.txt"
    with ZipFile(file, "w", how) as archive:
        archive.writestr(name, bytes(300_000_000))
        archive.getinfo(name).file_size = 100
    imports = "from edge.data.tinyimagenet import read; from edge.data.registry import DATASETS"
    complaint, grown_mb = peak.refusal(imports, "read(DATASETS['tinyimagenet'], [path])", file)
    assert file.stat().st_size < 400_000
    assert complaint == (
        f"{file}: not Tiny-ImageNet's archive, or damaged: Bad CRC-32 for file {name!r}"
        if how == ZIP_DEFLATED
        else f"{file}, {name}: must be stored or deflated, as tiny-imagenet-200.zip's members are"
    )
    assert grown_mb < 100


# --- who holds what ---------------------------------------------------------------------------------------------------


# --- the command ------------------------------------------------------------------------------------------------------

SETTING = ["data.name=mnist", "model.name=cnn", "method=fedavg", "method_options={}", "data.clients=2"]


def test_the_command_ends_with_2_and_one_line(tmp_path: Path) -> None:
    file = write_idx(tmp_path) / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    said = f"{file}: announces 6 x 28 x 28 bytes, but 4703 follow"
    words = ["check", "digits", *SETTING, "rounds.participants=1", f"data.root={tmp_path}"]
    ended = warm.run(words, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"fedbr: digits: {said}\n")
    assert list((tmp_path / "cache").rglob("*.npy")) == []
