"""Differences between a run's data and the published set: missing examples, and images recompressed as JPEG.

They follow from the run's ``environment.json``; the data are not read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PublishedData:
    """A set as its authors published it."""

    train: int
    test: int
    is_lossless: bool


SETS = {
    "mnist": PublishedData(60_000, 10_000, True),
    "cifar10": PublishedData(50_000, 10_000, True),
    "cifar100": PublishedData(50_000, 10_000, True),
    "tinyimagenet": PublishedData(100_000, 10_000, False),
}


def differences(folder: Path) -> list[str]:
    """The differences in words; empty for a set that is not in `SETS`."""
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    data, known = environment["data"], SETS.get(environment["data"]["name"])
    if known is None:
        return []
    words = []
    assigned = sum(map(sum, environment["partition"]["histogram"]))
    # Equal shares leave out less than one example per client.
    if assigned <= known.train - environment["partition"]["clients"]:
        words.append(f"{assigned:,} of {known.train:,} training images")
    if data["test_examples"] != known.test:
        words.append(f"{data['test_examples']:,} of {known.test:,} test images")
    if known.is_lossless and "JPEG" in data["source"]:
        words.append("images compressed again as JPEG")
    return [f"data: {', '.join(words)}"] if words else []
