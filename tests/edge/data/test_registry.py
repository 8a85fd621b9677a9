"""The table of data sets, and the search for one: in which order, and what is said when it is nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.data.locate import find_data, locate, missing, search_paths
from edge.data.registry import DATASETS, DataError, DataSet, dataset

OWN_ROW = DataSet("own", "A user's own", 2, (1, 4, 4), (1, 4, 4), "plain", "made up")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDBR_DATA", raising=False)


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_row_may_be_of_ones_own_module_and_an_unknown_name_gets_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataError, match=r"data\.name: no data set 'cifar-10'; did you mean 'cifar10'\?"):
        dataset("cifar-10")
    monkeypatch.setitem(sys.modules, "my_sets", sys.modules[__name__])
    assert dataset("my_sets:OWN_ROW") is OWN_ROW
    with pytest.raises(DataError, match="is not a data set"):
        dataset("my_sets:touch")
    with pytest.raises(DataError, match=r"cannot load 'no_such_module:ROW'"):
        dataset("no_such_module:ROW")


def test_a_named_root_is_the_only_place_and_a_training_file_alone_is_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(
        tmp_path / "shelf/mnist/train.parquet",
        tmp_path / "shelf/mnist/test.parquet",
        tmp_path / "femnist/train.parquet",
    )
    monkeypatch.setenv("FEDBR_DATA", str(tmp_path / "shelf"))
    assert find_data("mnist", str(tmp_path / "elsewhere")) is None
    assert locate(DATASETS["femnist"], search_paths(str(tmp_path), None)) is None
    assert "scikit-learn" in str(find_data("digits", str(tmp_path)))


def test_the_environment_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, cache = tmp_path / "shelf", tmp_path / "cache"
    touch(cache / "mnist/train.parquet", cache / "mnist/test.parquet")
    monkeypatch.setenv("FEDBR_DATA", str(shelf))
    assert find_data("mnist", None, cache) == f"Parquet in {cache}/mnist"
    touch(shelf / "mnist/train.parquet", shelf / "mnist/val.parquet")
    assert find_data("mnist", None, cache) == f"Parquet in {shelf}/mnist"


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(tmp_path: Path) -> None:
    searched = search_paths(None, tmp_path)
    text = str(missing(DATASETS["cifar10"], searched, "data.download is false"))
    assert text == (
        f"data set cifar10 not found. Looked in: the user cache ({tmp_path}), $FEDBR_DATA is not set. To get it: put "
        "cifar10/train.parquet and cifar10/test.parquet, or torchvision's files (cifar-10-batches-py/) below a folder "
        "and name that folder as data.root or in $FEDBR_DATA. Not downloaded: data.download is false."
    )
