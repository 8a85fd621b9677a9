"""Remote workers get parts of files that the job lists, within bounds, and of nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.workers.file_sender import FileSender
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.registry import Worker
from edge.protocol.config import ShippedFile
from edge.protocol.messages import (
    PART_NBYTES,
    FetchFile,
    FilePart,
    Hello,
    Message,
    Ping,
    Pong,
    Shutdown,
    Welcome,
    WireError,
)
from tests.edge.runtime.part_source import shipped
from tests.pools import ALICE, Host, Peer, meanwhile

CONTENT = bytes(PART_NBYTES) + b"end"


class Sent:
    """What is sent, and whether it has left the queue."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.has_left = True
        self.ended: list[str] = []

    def send(self, worker: Worker, message: Message) -> None:
        self.messages.append(message)

    def send_tracked(self, worker: Worker, message: Message) -> Any:
        self.messages.append(message)
        return self

    @property
    def done(self) -> bool:
        return self.has_left

    def end(self, worker: Worker, why: str) -> None:
        self.ended.append(why)


@pytest.fixture
def files(tmp_path: Path) -> dict[ShippedFile, Path]:
    """One file of two parts, and one of one."""
    listed = shipped("data", {"big": CONTENT, "small": b"small"})
    (tmp_path / "big").write_bytes(CONTENT)
    (tmp_path / "small").write_bytes(b"small")
    return {file: tmp_path / file.name for file in listed}


def serving(files: dict[ShippedFile, Path], sent: Any) -> FileSender:
    return FileSender(files, sent)


def remote(number: int = 0) -> Worker:
    return Worker(number, 0, f"remote-{number}", None, "key")


def test_parts_are_sent_by_hash_and_offset_each_with_a_ping(files: dict[ShippedFile, Path]) -> None:
    (big, _), sent = files, Sent()
    sender = serving(files, sent)
    began = time.monotonic()
    sender.requested(remote(), FetchFile(big.sha256, PART_NBYTES))
    sender.requested(remote(), FetchFile(big.sha256, 0))
    assert sent.messages == [
        FilePart(big.sha256, PART_NBYTES, b"end"),
        Ping(),
        FilePart(big.sha256, 0, bytes(PART_NBYTES)),
        Ping(),
    ]
    assert sender.last_sent_at >= began


@pytest.mark.parametrize(
    ("key", "sha256", "offset", "why"),
    [
        ("", "", 0, "a FetchFile of a worker that reaches the files of the run"),
        ("key", "0" * 64, 0, f"file {'0' * 64} is not one of those that the job lists"),
        ("key", "", PART_NBYTES + 3, "part at 524291 of a file of 524291 bytes"),
    ],
)
def test_what_no_worker_may_request(
    files: dict[ShippedFile, Path], key: str, sha256: str, offset: int, why: str
) -> None:
    (big, _), sent = files, Sent()
    worker = Worker(0, 0, "remote-0", None, key)
    with pytest.raises(WireError) as error:
        serving(files, sent).requested(worker, FetchFile(sha256 or big.sha256, offset))
    assert (str(error.value), sent.messages) == (why, [])


def test_a_worker_gets_no_more_than_the_files_have_and_a_new_one_may_begin_anew(files: dict[ShippedFile, Path]) -> None:
    (big, small), sent = files, Sent()
    sender = serving(files, sent)
    for file, offset in ((big, 0), (big, PART_NBYTES), (small, 0)):
        sender.requested(remote(), FetchFile(file.sha256, offset))
    with pytest.raises(WireError, match="more parts than the files of the job have: they have 524296 bytes"):
        sender.requested(remote(), FetchFile(small.sha256, 0))
    sender.requested(remote(1), FetchFile(small.sha256, 0))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Path.unlink, "big cannot be sent: No such file or directory"),
        (lambda path: path.write_bytes(b"short"), "big cannot be sent: it is shorter than 524288 bytes, and was not"),
    ],
)
def test_a_file_that_is_gone_ends_the_worker_and_not_the_run(
    files: dict[ShippedFile, Path], change: Callable[[Path], object], why: str
) -> None:
    (big, _), sent = files, Sent()
    change(files[big])
    serving(files, sent).requested(remote(), FetchFile(big.sha256, 0))
    assert (sent.ended, sent.messages) == ([why], [])


@pytest.fixture
def host(
    files: dict[ShippedFile, Path], launcher: WorkerLauncher, tmp_path: Path, short_folder: Path
) -> Iterator[Host]:
    """A pool that listens, and has these files."""
    host = Host(0, launcher, tmp_path)
    host.pool.files = files
    with host.pool:
        yield host


def test_over_real_sockets_a_joining_worker_gets_files_and_one_that_requests_another_is_dismissed(
    files: dict[ShippedFile, Path], host: Host
) -> None:
    (big, small), heard = files, list[Message]()

    def join() -> None:
        with Peer(host.endpoint, ALICE) as alice:
            alice.say(Hello())
            welcome = alice.hear()[1]
            assert isinstance(welcome, Welcome) and welcome.job.shipped == (big, small)
            alice.run_id = welcome.job.run_id
            for file, offset in ((big, 0), (big, PART_NBYTES), (small, 0)):
                assert alice.hear()[1] == Ping()
                alice.say(FetchFile(file.sha256, offset))
                heard.append(alice.hear()[1])
            assert alice.hear()[1] == Ping()
            alice.say(Pong())
            alice.say(FetchFile("f" * 64, 0))
            heard.append(alice.hear()[1])

    with meanwhile(join):
        host.until(lambda: len(heard) == 4)
    why = f"its message was refused: from remote-1: file {'f' * 64} is not one of those that the job lists"
    assert heard == [
        FilePart(big.sha256, 0, bytes(PART_NBYTES)),
        FilePart(big.sha256, PART_NBYTES, b"end"),
        FilePart(small.sha256, 0, b"small"),
        Shutdown(why),
    ]
