"""What a worker lacks of a run's files is fetched once, and what its machine has is used first."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.data.content import content_sha256
from edge.data.decoded_cache import decoded_files, found_row, open_data
from edge.data.locate import search_paths
from edge.protocol import config
from edge.protocol.config import DataConfig, Job, PartitionConfig, ShippedFile
from edge.protocol.messages import MOST_REQUESTS, PART_NBYTES, FetchFile, FilePart, Ping, Shutdown
from edge.runtime.file_parts import PartReceiver, RunEndedError, TransferError
from edge.runtime.file_transfer import fetch_files
from tests.edge.data.made_up import write_parquet
from tests.edge.protocol.mutations import JOB
from tests.edge.runtime.part_source import HonestSource, LostError, shipped


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no folder of data."""
    monkeypatch.delenv("FEDBR_DATA", raising=False)


def asked(cache: Path, files: list[ShippedFile], **more: Any) -> Job:
    return replace(JOB, cache=str(cache), shipped=tuple(files), fingerprint={"torch": "2.0"}, **more)


def quiet(text: str) -> None:
    """Nobody reads the log."""


# --- modules ----------------------------------------------------------------------------------------------------------

MODULES = {"lent_one.py": b"NUMBER = 1\n", "lent_two/__init__.py": b"", "lent_two/inner.py": b"NUMBER = 2\n"}


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The import path, which is restored with the modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return sys.path


def test_the_runs_modules_are_searched_last_and_fetched_once(tmp_path: Path, path: list[str]) -> None:
    job, source, before = asked(tmp_path, shipped("source", MODULES)), HonestSource(MODULES.values()), list(path)
    local = fetch_files(source, job, say=quiet)
    assert (local.shipped, local.data) == ((), JOB.data)
    (folder,) = (tmp_path / "received" / "source").glob("*")
    assert sys.path == [*before, str(folder)]
    assert {name: (folder / name).read_bytes() for name in MODULES} == MODULES
    __import__("lent_two.inner")
    assert sys.modules["lent_two.inner"].NUMBER == 2
    again = HonestSource([])
    fetch_files(again, job, say=quiet)
    assert (again.requests, sys.path) == ([], [*before, str(folder)])


def test_modules_of_another_run_are_forgotten_and_those_that_somebody_has_changed_are_fetched_anew(
    tmp_path: Path, path: list[str]
) -> None:
    for content in (b"NUMBER = 1\n", b"NUMBER = 5\n"):
        fetch_files(HonestSource([content]), asked(tmp_path, shipped("source", {"lent_one.py": content})), say=quiet)
        __import__("lent_one")
        assert f"NUMBER = {sys.modules['lent_one'].NUMBER}\n".encode() == content
    assert [entry for entry in sys.path if "received" in entry] == [sys.path[-1]]
    changed = Path(sys.path[-1]) / "lent_one.py"
    changed.write_bytes(b"NUMBER = 6\n")
    fetch_files(HonestSource([content]), asked(tmp_path, shipped("source", {"lent_one.py": content})), say=quiet)
    assert changed.read_bytes() == content


def test_this_machines_own_modules_are_used_if_they_are_the_runs_and_refused_if_not(
    tmp_path: Path, path: list[str]
) -> None:
    job, own = asked(tmp_path, shipped("source", MODULES)), tmp_path / "own"
    (own / "lent_two").mkdir(parents=True)
    for name, content in MODULES.items():
        (own / name).write_bytes(content)
    sys.path.insert(0, str(own))
    fetch_files(HonestSource([]), job, takes_sources=False, say=quiet)
    (own / "lent_two" / "inner.py").unlink()
    with pytest.raises(TransferError, match="this machine has other modules of lent_two, but lacks this"):
        fetch_files(HonestSource([]), job, say=quiet)
    (own / "lent_two" / "inner.py").write_bytes(b"NUMBER = 3\n")
    with pytest.raises(TransferError, match=f"{own}/lent_two/inner.py: differs from the run's module of this name"):
        fetch_files(HonestSource([]), job, say=quiet)
    fetch_files(HonestSource([]), replace(job, fingerprint={}), say=quiet)  # of a run with --any-machine


def test_a_worker_may_refuse_the_runs_code(tmp_path: Path, path: list[str]) -> None:
    job = asked(tmp_path, shipped("source", MODULES))
    with pytest.raises(TransferError, match=r"--no-sources: the run needs lent_one\.py, which this machine lacks"):
        fetch_files(HonestSource([]), job, takes_sources=False, say=quiet)
    assert list(tmp_path.iterdir()) == []


# --- partition and data -----------------------------------------------------------------------------------------------


def test_no_path_that_a_run_names_is_opened_here_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    data = DataConfig(partition=PartitionConfig("file", file=str(tmp_path / "mine.json")))
    with pytest.raises(TransferError, match="the run names the file of its partition, and does not send it"):
        fetch_files(HonestSource([]), asked(tmp_path, [], data=data), say=quiet)
    for wrong in ("../../mine", "/home", "0f" * 31):  # it becomes the name of a folder
        with pytest.raises(ValueError, match="data_sha256"):
            config.from_json(Job, config.to_json(asked(tmp_path, [], data_sha256=wrong)))


@pytest.fixture
def run_data(tmp_path: Path) -> tuple[DataConfig, str, dict[str, bytes]]:
    """MNIST in six images, decoded where the run is: its configuration, hash and files."""
    config = DataConfig("mnist", root=str(write_parquet(tmp_path / "source")))
    data = open_data(config, tmp_path / "run")
    files = decoded_files(config, tmp_path / "run", data.sha256)
    assert files == decoded_files(config, tmp_path / "run", data.sha256)  # from the record of their hashes
    contents = {name: path.read_bytes() for name, (path, _) in files.items()}
    assert {file.name: file.sha256 for file in shipped("data", contents)} == {n: sha for n, (_, sha) in files.items()}
    return replace(config, root=None, download=False), data.sha256, contents


def test_a_data_set_that_is_nowhere_here_is_fetched_once_and_is_the_runs(
    tmp_path: Path, run_data: tuple[DataConfig, str, dict[str, bytes]]
) -> None:
    config, sha256, contents = run_data
    job = asked(tmp_path / "here", shipped("data", contents), data=config, data_sha256=sha256)
    fetch_files(HonestSource(contents.values()), job, say=quiet)
    data = open_data(config, tmp_path / "here", sha256)
    assert (data.sha256, data.train.x.shape) == (sha256, (6, 1, 28, 28))
    assert content_sha256({"train_y": data.train.y}) == content_sha256({"train_y": np.load(_array(tmp_path))})
    assert data.source == "decoded before (lossless images)"
    again = HonestSource([])
    fetch_files(again, job, say=quiet)
    own = replace(config, root=str(tmp_path / "source"))
    fetch_files(again, replace(job, data=own, cache=str(tmp_path / "other")), say=quiet)  # a copy of its own
    fetch_files(again, replace(job, cache=str(tmp_path / "run")), say=quiet)  # the run's machine itself
    assert again.requests == []
    assert found_row(config, tmp_path / "here", sha256).classes == 10
    assert search_paths(None, tmp_path / "here")[0].folder == tmp_path / "here"


def _array(folder: Path) -> Path:
    (file,) = (folder / "run" / "data" / "v1").glob("mnist-*/train_y.npy")
    return file


def test_data_of_another_content_than_the_run_says_are_removed(
    tmp_path: Path, run_data: tuple[DataConfig, str, dict[str, bytes]]
) -> None:
    config, sha256, contents = run_data
    for forged in (
        contents | {"train_y.npy": contents["test_y.npy"]},
        contents | {"meta.json": json.dumps({"sha256": sha256, "arrays": ["../train_x"]}).encode()},
    ):
        job = asked(tmp_path / "here", shipped("data", forged), data=config, data_sha256=sha256)
        with pytest.raises(TransferError, match=f"data set mnist: what the run has sent was removed: {tmp_path}/here"):
            fetch_files(HonestSource(forged.values()), job, say=quiet)
        assert list((tmp_path / "here" / "received" / "data").iterdir()) == []


# --- in parts ---------------------------------------------------------------------------------------------------------


BIG = bytes(range(256)) * (PART_NBYTES // 256 * 2) + b"end"
"""Three parts, the last of three bytes."""


def receiver(source: HonestSource, said: list[str] | None = None) -> PartReceiver:
    return PartReceiver(source, ([] if said is None else said).append, lambda: None)


def test_files_come_whole_in_parts_and_few_requests_are_under_way(tmp_path: Path) -> None:
    contents = {"big": BIG, "empty": b"", "package/small.py": b"x = 1\n", "package/same.py": b"x = 1\n"}
    source, said = HonestSource(contents.values()), list[str]()
    receiver(source, said).fill(tmp_path / "into", shipped("source", contents), "four files")
    assert {name: (tmp_path / "into" / name).read_bytes() for name in contents} == contents
    assert len(list((tmp_path / "into").rglob("*"))) == 5  # and the package's folder; nothing else is left
    assert [request.offset for request in source.requests] == [0, PART_NBYTES, 2 * PART_NBYTES, 0, 0]
    assert source.most_waiting == 5 <= MOST_REQUESTS
    assert said == ["four files: 1.0 MB from the run", "four files: received, 1.0 MB"]


def test_a_transfer_goes_on_where_the_last_one_has_ended(tmp_path: Path) -> None:
    source = HonestSource([BIG, b"other"])
    files = shipped("data", {"big": BIG, "other": b"other"})
    source.dies_after = 1
    with pytest.raises(LostError):
        receiver(source).fill(tmp_path, files, "data")
    assert [path.name for path in tmp_path.iterdir()] == ["big.partial", "other.partial"]
    again, said = HonestSource([BIG, b"other"]), list[str]()
    receiver(again, said).fill(tmp_path, files, "data")
    assert [request.offset for request in again.requests] == [PART_NBYTES, 2 * PART_NBYTES, 0]
    assert (tmp_path / "big").read_bytes() == BIG
    assert said[0] == "data: 1.0 MB from the run, 524 kB of it are here"
    third = HonestSource([])
    receiver(third).fill(tmp_path, files, "data")
    assert third.requests == []


def test_a_file_of_another_hash_is_removed_and_both_hashes_are_named(tmp_path: Path) -> None:
    right, wrong = hashlib.sha256(b"right").hexdigest(), hashlib.sha256(b"wrong").hexdigest()
    source = HonestSource([])
    source.contents[right] = b"wrong"
    with pytest.raises(TransferError) as error:
        receiver(source).fill(tmp_path, shipped("data", {"train_x.npy": b"right"}), "data")
    assert str(error.value) == (
        f"train_x.npy: received with SHA-256 {wrong} instead of {right}; it was removed, and will be requested anew"
    )
    assert list(tmp_path.iterdir()) == []


SHA = hashlib.sha256(b"small").hexdigest()


@pytest.mark.parametrize(
    "part",
    [FilePart(SHA, 1, b"small"), FilePart(SHA, 0, b"smaller"), FilePart("0" * 64, 0, b"small")],
    ids=["another offset", "another length", "another file"],
)
def test_a_part_that_was_not_requested_ends_the_transfer(tmp_path: Path, part: FilePart) -> None:
    source = HonestSource([])
    source.waiting.append(part)
    with pytest.raises(TransferError, match="the run sent another part than the requested one"):
        receiver(source).fill(tmp_path, shipped("data", {"small": b"small"}), "data")


def test_the_end_of_the_run_ends_the_transfer_and_what_belongs_to_no_transfer_is_refused(tmp_path: Path) -> None:
    source = HonestSource([])
    source.waiting.extend([Ping(), FetchFile(SHA, 0), Shutdown()])
    with pytest.raises(RunEndedError):
        receiver(source).fill(tmp_path, shipped("data", {"small": b"small"}), "data")
    assert source.refused == ["a FetchFile where a part of a file was due"]
