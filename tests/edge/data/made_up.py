"""Made-up data sets in each format that is read."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from edge.data.registry import DATASETS, DataSet

GREY = DataSet("grey", "Grey 3x2", 4, (1, 2, 3), (1, 2, 3), "plain", "made up")
COLOUR = DataSet("colour", "Colour 3x2", 4, (3, 2, 3), (3, 2, 3), "plain", "made up")
WRITERS = DataSet("writers", "Grey 3x2", 4, (1, 2, 3), (1, 2, 3), "plain", "made up", id_column="writer_id")
RAMP = np.arange(6, dtype=np.uint8).reshape(2, 3)


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def write(file: Path, images: list[Any], labels: Any, image: str = "image", label: str = "label", **more: Any) -> Path:
    structs = [{"bytes": data, "path": None} for data in images]
    column = pa.array(structs, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pq.write_table(pa.table({image: column, label: labels, **more}), file)
    return file


# --- Tiny-ImageNet's archive ---

TINY = replace(DATASETS["tinyimagenet"], classes=2, counts=(4, 2))
VALIDATION = "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n"


def picture(shade: int, mode: str = "RGB", side: int = 64) -> bytes:
    """One flat colour, as a JPEG."""
    out = BytesIO()
    Image.new(mode, (side, side), shade if mode == "L" else (shade, 0, 0)).save(out, "JPEG", quality=95)
    return out.getvalue()


TINY_MEMBERS: dict[str, bytes] = {
    "wnids.txt": b"n02\nn01\n",
    "words.txt": b"n01\tgoldfish\n",
    "val/val_annotations.txt": VALIDATION.encode(),
    "train/n02/images/n02_0.JPEG": picture(30),
    "train/n01/images/n01_0.JPEG": picture(10),
    "train/n01/images/n01_2.JPEG": picture(40),
    "train/n01/images/n01_10.JPEG": picture(20, "L"),
    "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t9\t9\n",
    "val/images/val_1.JPEG": picture(60),
    "val/images/val_0.JPEG": picture(50),
    "test/images/test_0.JPEG": picture(70),
}


def write_zip(file: Path, members: Mapping[str, bytes]) -> Path:
    with ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return file


# --- MNIST as Parquet and in its own format ---

RNG = np.random.default_rng(5)
PIXELS = {
    "train": RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    "test": RNG.integers(0, 256, (4, 28, 28), np.uint8),
}
LABELS = {"train": [3, 1, 4, 1, 5, 9], "test": [2, 6, 5, 3]}
WRITER_IDS = {"train": ["w2", "w1", "w9", "w1", "w2", "w2"], "test": ["w9", "w2", "w5", "w1"]}


def write_parquet(root: Path, name: str = "mnist") -> Path:
    (root / name).mkdir(parents=True)
    for split in ("train", "test"):
        columns: dict[str, Any] = {"image": [{"bytes": png(x)} for x in PIXELS[split]], "label": LABELS[split]}
        if name == "femnist":
            columns["writer_id"] = WRITER_IDS[split]
        pq.write_table(pa.table(columns), root / name / f"{split}.parquet")
    return root


def write_idx(root: Path) -> Path:
    """MNIST's own format: a big-endian header, then raw bytes."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split, part in (("train", "train"), ("test", "t10k")):
        x, y = PIXELS[split], LABELS[split]
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, *x.shape) + x.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, len(y)) + bytes(y))
    return root


def torchvision_functions() -> Any:
    """Imported late: it takes seconds, which collecting would take in each process of a suite."""
    return importlib.import_module("torchvision.transforms.functional")
