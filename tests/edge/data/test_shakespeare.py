"""The roles of plays: a small file in the set's own format, and the real one where it is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.data.decoded_cache import open_data
from edge.data.partitioning import partition_data
from edge.data.registry import DataError
from edge.data.shakespeare import LETTERS, encoded, windows
from edge.protocol.config import DataConfig, PartitionConfig
from tests import peak

A, B = LETTERS.index("A"), LETTERS.index("B")
COLUMNS: dict[str, Any] = {
    "play": ["lear", "hamlet", "hamlet"],
    "role": ["FOOL", "OPHELIA", "GHOST"],
    "speeches": [1, 1, 1],
    "text": ["AB" * 100, "Good my lord", "Remember me"],
}


def write_roles(root: Path, **changes: Any) -> Path:
    (root / "shakespeare").mkdir(parents=True)
    pq.write_table(pa.table({**COLUMNS, **changes}), root / "shakespeare" / "shakespeare.parquet")
    return root


def test_an_example_is_a_character_and_those_before_it_padded_at_the_end() -> None:
    x, y = windows(np.array([5, 6, 7, 8, 9], np.uint8), 3)
    assert x.tolist() == [[5, 0, 0], [5, 6, 0], [5, 6, 7], [6, 7, 8]]
    assert y.tolist() == [5, 6, 7, 8]  # classes begin with 0, tokens with 1
    short, _ = windows(np.array([5, 6], np.uint8), 3)
    assert short.tolist() == [[5, 0, 0]]
    assert encoded("\n AaB{ aaa", "a role").tolist() == [1, 2, A + 1, A + 29, B + 1, 81, 2, *[A + 29] * 3]


def test_one_text_in_many_rows_is_refused_by_all_their_bytes(tmp_path: Path) -> None:
    file, rows = tmp_path / "shakespeare.parquet", 2000
    columns = {"play": ["lear"] * rows, "role": [f"r{row}" for row in range(rows)], "text": ["A" * 100_000] * rows}
    encoding = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table(columns), file, compression="zstd", **encoding)
    assert file.stat().st_size < 400_000
    read = "from edge.data.shakespeare import read; from edge.data.registry import DATASETS"
    said, grown_mb = peak.refusal(read, "read(DATASETS['shakespeare'], [path])", file)
    assert said == f"{file}: its texts are longer than 16,777,216 bytes"
    assert grown_mb < 120


def test_each_role_is_a_client_whose_last_fifth_is_tested(tmp_path: Path) -> None:
    data = open_data(DataConfig("shakespeare", root=str(write_roles(tmp_path))), tmp_path / "cache")
    assert (data.train.x.shape[1], data.train.x.dtype.name, data.train.y.dtype.name) == (80, "uint8", "int64")
    config = DataConfig("shakespeare", clients=3, partition=PartitionConfig("natural"))
    shares = partition_data(config, data)
    # GHOST and OPHELIA of hamlet, then FOOL: 11, 12 and 200 characters, of which 8, 9 and 160 are for training. The
    # first of each part is no example.
    assert [*map(len, shares.train)] == [7, 8, 159]
    assert [*map(len, shares.test)] == [2, 2, 39]
    fool = shares.train[2]
    assert data.train.x[fool[0]].tolist() == [A + 1] + [0] * 79
    assert data.train.x[fool[79]].tolist() == [A + 1, B + 1] * 40
    assert data.train.x[fool[80]].tolist() == [B + 1, A + 1] * 40
    assert data.train.y[fool[:3]].tolist() == [B, A, B]
    # No character of the training part is in a test example: the first has one character before it.
    assert data.test.x[shares.test[2][0]].tolist() == [A + 1] + [0] * 79


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"text": ["AB" * 9, "Good my lord", "Remember mé"]}, "GHOST of hamlet: has 'é', which is none of the 81 char"),
        ({"role": ["FOOL", "GHOST", "GHOST"]}, "row 2: GHOST of hamlet is there twice"),
        ({"role": [1, 2, 3]}, "row 0: play, role, text must be text"),
        ({name: [] for name in COLUMNS}, "there are no roles"),
    ],
)
def test_a_file_of_other_content_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    config = DataConfig("shakespeare", root=str(write_roles(tmp_path, **changes)))
    with pytest.raises(DataError, match=complaint):
        open_data(config, tmp_path / "cache")


def test_the_real_plays_have_580_roles(tmp_path: Path) -> None:
    root = Path(os.environ.get("FEDBR_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (root / "shakespeare" / "shakespeare.parquet").is_file():
        pytest.skip(f"no shakespeare below {root}; name a folder in FEDBR_TEST_DATA")
    data = open_data(DataConfig("shakespeare", root=str(root)), tmp_path)
    assert data.train.ids is not None and data.test.ids is not None
    trained, tested = np.bincount(data.train.ids), np.bincount(data.test.ids)
    # 3,575,028 characters; of each role the first of both parts are no examples.
    assert (len(trained), len(tested), len(data.train.y) + len(data.test.y)) == (580, 580, 3_575_028 - 2 * 580)
    # The longest role has 44,617 characters: int(0.8 x 44,617) = 35,693 in its training part.
    assert (trained.max(), tested[trained.argmax()]) == (35_692, 8_923)
    assert len(np.unique(np.concatenate([data.train.y, data.test.y]))) == 81
