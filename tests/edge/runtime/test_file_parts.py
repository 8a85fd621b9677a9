"""Files come in parts, are continued where they were broken off, and are whole and right, or absent."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edge.protocol.config import ShippedFile
from edge.protocol.messages import MOST_REQUESTS, PART_NBYTES, FetchFile, FilePart, Ping, Shutdown
from edge.runtime.file_parts import PartReceiver, RunEndedError, TransferError
from tests.edge.runtime.part_source import HonestSource, LostError, shipped

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


def test_more_than_a_file_has_is_not_taken_for_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "small.partial").write_bytes(b"far too long")
    receiver(HonestSource([b"small"])).fill(tmp_path, shipped("data", {"small": b"small"}), "data")
    assert (tmp_path / "small").read_bytes() == b"small"


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


def test_a_disk_that_is_too_small_or_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    too_much = ShippedFile("data", "x", "0" * 64, 1 << 60)
    with pytest.raises(TransferError, match=rf"data: 1,152,921,504,607 MB to receive, and {tmp_path} has .* free"):
        receiver(HonestSource([])).fill(tmp_path, [too_much], "data")
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match=rf"{tmp_path}/file: cannot be written: File exists"):
        receiver(HonestSource([])).fill(tmp_path / "file", [too_much], "data")
