"""Passages of 20 words from Python's documentation, with the topic as the class; they need no download.

The Python Language Reference and the Python Standard Library, as the help topics that come with Python
(``pydoc_data.topics``). Their text differs between versions of Python, and with it the hash of the data. Every topic
gives its first 150 passages at most, of consecutive words; about one in five is a test example, stratified by topic.
A word's number is a hash of its letters, so that no vocabulary has to be kept.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.data.registry import DataError, DataSet, Decoded
from edge.data.scikit_learn import stratified

COMES_WITH = "Python"
"""The package with the files of the set, so that no folder is searched."""
TOPICS = (
    "assignment",
    "comparisons",
    "compound",
    "customization",
    "debugger",
    "execmodel",
    "formatstrings",
    "string-methods",
    "strings",
    "typesmapping",
)
"""The classes, in order: topics of which none contains another."""
MOST_PASSAGES = 150
TEST_FRACTION = 0.2


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The file inside Python; ``places`` are ignored."""
    spec = importlib.util.find_spec("pydoc_data")
    folders = spec.submodule_search_locations if spec is not None else None
    file = Path(next(iter(folders))) / "topics.py" if folders else None
    return (file,) if file is not None and file.is_file() else ()


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, passages in the order of the topics; DataError if a topic is missing."""
    assert row.vocabulary is not None
    topics = importlib.import_module("pydoc_data.topics").topics
    missing = [topic for topic in TOPICS if topic not in topics]
    if missing:
        raise DataError(f"{files[0]}: this version of Python has no help topic {missing[0]!r}")
    by_topic = [passages(topics[topic], row.shape[0], row.vocabulary)[:MOST_PASSAGES] for topic in TOPICS]
    x = np.concatenate(by_topic)
    y = np.repeat(np.arange(len(TOPICS)), [len(some) for some in by_topic])
    return stratified(x, y, int(TEST_FRACTION * len(y)))


def passages(text: str, length: int, vocabulary: int) -> NDArray[np.int32]:
    """(passages, length) token numbers 1 .. vocabulary - 1; the last passage is padded with 0."""
    words = re.findall(r"[a-z_]+", text.lower())
    numbers = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
    numbers += [0] * (-len(numbers) % length)
    return np.array(numbers, dtype=np.int32).reshape(-1, length)
