"""Whether the data of a run are those that papers used: how many examples, and whether images were compressed again.

Read from what a run says of its data in ``environment.json``; the data themselves are never opened.
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
    """What the data of a run are not, in words; empty for a set of which nothing is known here."""
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    data, known = environment["data"], SETS.get(environment["data"]["name"])
    if known is None:
        return []
    words = []
    held = sum(map(sum, environment["partition"]["histogram"]))
    if held <= known.train - environment["partition"]["clients"]:  # equal shares leave less than one each to nobody
        words.append(f"{held:,} of {known.train:,} training images")
    if data["test_examples"] != known.test:
        words.append(f"{data['test_examples']:,} of {known.test:,} test images")
    if known.is_lossless and "JPEG" in data["source"]:
        words.append("images compressed again as JPEG")
    return [f"data: {', '.join(words)}"] if words else []
