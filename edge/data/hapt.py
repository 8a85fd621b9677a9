"""HAPT: activities of 30 people with a phone at the waist, as windows of 2.56 seconds; each person is a client.

J.-L. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita: Smartphone-Based Recognition of Human Activities and
Postural Transitions, UCI Machine Learning Repository, 2015, https://doi.org/10.24432/C54G7M. Acceleration (g) and
angular velocity (rad/s) in three directions, 50 times a second; the people did a protocol of activities twice.

Windows of 128 samples that overlap by half: D. Anguita et al., A Public Domain Dataset for Human Activity Recognition
Using Smartphones, ESANN 2013. Here a window has one activity throughout, so that no two intervals of the labels share a
sample. Classes are the authors' numbers less one: walking, upstairs, downstairs, sitting, standing, laying, and six
transitions from one posture to another, which only the set of 12 classes has.

Of each activity of a person the last 30 % of the windows, by time, are test examples: as large a part as the authors'
test people. A training window that shares samples with a test window is left out. An activity's time, since the
protocol has an order: the end of a recording has stairs alone.

The authors' files are ``RawData/acc_expXX_userYY.txt``, ``gyro_expXX_userYY.txt`` and ``labels.txt``. One Parquet file
with a row per sample is read too: ``user``, ``sequence`` (the sample's number, which begins again with a recording),
``acc_x`` .. ``gyro_z``, and ``label``, -1 without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.data.locate import is_file
from edge.data.registry import DataError, DataSet, Decoded, Split
from edge.data.source_files import opened

LAYOUT = "hapt/RawData/ of the authors' archive, or hapt/hapt.parquet,"
SIGNALS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
ACTIVITIES = 12
STEP = 64
"""Samples from the start of a window to that of the next"""
TEST_FRACTION = 0.3
MOST_SAMPLES = 10_000_000
"""Limit of samples; the set has 1,122,772 in all"""
MOST_NBYTES = 10_000_000
"""Limit of one of the authors' files, which have 0.6 MB"""

Recording = tuple[int, NDArray[np.float32], NDArray[np.int64]]
"""(person, (samples, 6) signals, (samples,) activities 1 .. 12, or less than 1 for none)"""


def files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The Parquet file, or the authors' labels and signals, in the first place with either; empty if absent."""
    for place in places:
        if is_file(place / "hapt" / "hapt.parquet"):
            return (place / "hapt" / "hapt.parquet",)
        raw = place / "hapt" / "RawData"
        if is_file(raw / "labels.txt"):
            return (raw / "labels.txt", *sorted(raw.glob("acc_*.txt")), *sorted(raw.glob("gyro_*.txt")))
    return ()


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, person by person; DataError naming the file that does not fit."""
    recordings = _parquet(files[0]) if files[0].suffix == ".parquet" else _raw(files)
    # (person, class) -> (place in time, window), in the order of time
    by_activity: dict[tuple[int, int], list[tuple[int, NDArray[np.float32]]]] = {}
    _, length = row.shape
    base = 0
    for person, signals, activities in recordings:
        edges = np.flatnonzero(np.diff(activities)) + 1
        for begin, end in zip([0, *edges], [*edges, len(activities)], strict=True):
            label = int(activities[begin]) - 1 if len(activities) else -1
            if 0 <= label < row.classes:
                for start in range(begin, end - length + 1, STEP):
                    window = signals[start : start + length].T  # (channels, length)
                    by_activity.setdefault((person, label), []).append((base + start, window))
        base += len(activities) + length  # windows of two recordings never overlap
        if base > MOST_SAMPLES:
            raise DataError(f"{files[0].parent}: more than {MOST_SAMPLES:,} samples")
    parts: dict[str, list[tuple[NDArray[np.float32], int, int]]] = {"train": [], "test": []}
    for (person, label), windows in sorted(by_activity.items(), key=lambda item: item[0]):
        count = len(windows) - int(TEST_FRACTION * len(windows) + 0.5)
        tested = windows[count:]
        # Of training windows only the last can reach into the first test window.
        kept = [each for each in windows[:count] if not tested or each[0] + length <= tested[0][0]]
        for name, chosen in (("train", kept), ("test", tested)):
            parts[name] += [(window, label, person) for _, window in chosen]
    if not parts["train"] or not parts["test"]:
        raise DataError(f"{files[0]}: has no windows of {length} samples of one activity for training and test")
    train, test = (
        Split(np.stack([x for x, _, _ in part]), np.array([y for _, y, _ in part]), np.array([p for _, _, p in part]))
        for part in parts.values()
    )
    return Decoded(train, test, "")


def _parquet(file: Path) -> Iterator[Recording]:
    # Imported here, since a filled cache does not need it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ("user", "sequence", *SIGNALS, "label")
    try:
        with pq.ParquetFile(file) as parquet:
            if parquet.metadata.num_rows > MOST_SAMPLES:
                raise DataError(f"{file}: {parquet.metadata.num_rows:,} samples; the most is {MOST_SAMPLES:,}")
            missing = [name for name in columns if name not in parquet.schema_arrow.names]
            if missing:
                raise DataError(f"{file}: no column {missing[0]}; it has {', '.join(parquet.schema_arrow.names)}")
            for name in columns:  # texts and lists may unpack to any length
                kind = parquet.schema_arrow.field(name).type
                if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                    raise DataError(f"{file}: column {name} must hold numbers, not {kind}")
            table = parquet.read(columns=list(columns))
        if any(table.column(name).null_count for name in columns):
            raise DataError(f"{file}: a value is missing")
        person, sequence, activities = (table.column(name).to_numpy().astype(np.int64) for name in
                                        ("user", "sequence", "label"))  # fmt: skip
        signals = np.stack([table.column(name).to_numpy().astype(np.float32) for name in SIGNALS], axis=1)
    except DataError:
        raise
    except Exception as error:  # damaged files raise every kind of error in Arrow
        raise DataError(f"{file}: not a readable Parquet file: {error}") from error
    edges = np.flatnonzero((np.diff(person) != 0) | (np.diff(sequence) != 1)) + 1
    for begin, end in zip([0, *edges], [*edges, len(person)], strict=True):
        if end > begin:
            yield int(person[begin]), signals[begin:end], activities[begin:end]


def _raw(files: Sequence[Path]) -> Iterator[Recording]:
    labels, *signals = files
    by_name = {file.name: file for file in signals}
    intervals = _numbers(labels, 5).astype(np.int64)
    for name, file in by_name.items():
        match = re.fullmatch(r"acc_exp(\d+)_user(\d+)\.txt", name)
        if match is None:
            continue
        other = f"gyro{name.removeprefix('acc')}"
        if other not in by_name:
            raise DataError(f"{file}: {other} is missing beside it")
        both = [_numbers(each, 3) for each in (file, by_name[other])]
        if len(both[0]) != len(both[1]):
            raise DataError(f"{file}: {len(both[0])} samples, but {other} has {len(both[1])}")
        experiment, person = map(int, match.groups())
        activities = np.full(len(both[0]), -1, np.int64)
        for _, _, activity, first, last in intervals[(intervals[:, :2] == (experiment, person)).all(axis=1)]:
            if not (1 <= first <= last <= len(activities) and 1 <= activity <= ACTIVITIES):
                raise DataError(
                    f"{labels}: activity {activity} at {first} .. {last}, {name} has 1 .. {len(activities)}"
                )
            activities[first - 1 : last] = activity  # samples are counted from 1
        yield person, np.concatenate(both, axis=1).astype(np.float32), activities


def _numbers(file: Path, columns: int) -> NDArray[np.float64]:
    """(rows, columns) of a text file."""
    try:
        with opened(file, MOST_NBYTES) as lines:
            numbers = np.loadtxt(lines, ndmin=2)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: cannot be read: {error}") from error
    if numbers.shape[1:] != (columns,):
        raise DataError(f"{file}: {numbers.shape[1]} columns, not {columns}")
    return numbers
