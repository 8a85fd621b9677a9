"""Receives files in parts over the connection to the coordinator, and goes on where an earlier transfer has ended.

A file is ``NAME.partial`` until it is whole and has the right hash; what is there of it is never requested again. A few
requests are under way at a time, across files, so that many small files do not cost a round trip each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from edge.protocol.config import ShippedFile
from edge.protocol.messages import MOST_REQUESTS, PART_NBYTES, FetchFile, FilePart, Message, Ping, Shutdown
from edge.protocol.serialization import Envelope

PARTIAL = ".partial"
CHECK_SECONDS = 1.0
"""Between two checks for a lost connection while no part comes."""
PROGRESS_SECONDS = 5.0
"""Between two lines of the log."""
READ_NBYTES = 1 << 20


class TransferError(ValueError):
    """A file of the run cannot be received; the text has the reason."""


class RunEndedError(Exception):
    """The run has ended, or has dismissed this worker, during a transfer: see `CoordinatorConnection.shutdown`."""


class PartSource(Protocol):
    """The part of a `edge.runtime.connection.CoordinatorConnection` that is used here."""

    def send(self, message: Message) -> None:
        """Queue a message."""
        ...

    def has_message(self, seconds: float) -> bool:
        """Whether there is a message, or one comes within ``seconds``."""
        ...

    def receive(self) -> tuple[Envelope, Message]:
        """The next message."""
        ...

    def refuse(self, sequence: int, reason: str) -> None:
        """Answer an invalid message."""
        ...


class PartReceiver:
    """Fills folders with files that the run has."""

    def __init__(self, source: PartSource, say: Callable[[str], None], check: Callable[[], None]) -> None:
        """``say``: writes a line of the log; ``check``: called before each part, and each second without one.

        ``check`` may raise any error but OSError, which ends the transfer.
        """
        self._source, self._say, self._check = source, say, check

    def fill(self, folder: Path, files: Sequence[ShippedFile], what: str) -> None:
        """Have these files in a folder, each whole; ``what``: a name for all of them in the log.

        TransferError names the file and both hashes if one came wrong, which is then removed; or the path that cannot
        be written. RunEndedError.
        """
        lacking = [_IncomingFile(file, folder) for file in files if not (folder / file.name).is_file()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._receive(lacking, what)
        except OSError as error:
            raise TransferError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error

    def _receive(self, lacking: Sequence[_IncomingFile], what: str) -> None:
        for file in lacking:
            file.begin()
        progress = _Progress(what, sum(file.nbytes for file in lacking), sum(file.there for file in lacking), self._say)
        if lacking:
            progress.check_disk(lacking[0].path.parent)
        requests = ((file, at) for file in lacking for at in range(file.there, file.nbytes, PART_NBYTES))
        sent = deque[tuple[_IncomingFile, int]]()
        while True:
            for file, offset in islice(requests, MOST_REQUESTS - len(sent)):
                self._source.send(FetchFile(file.sha256, offset))
                sent.append((file, offset))
            if not sent:
                break
            file, offset = sent.popleft()
            part = self._part(file.sha256, offset, min(PART_NBYTES, file.nbytes - offset))
            file.append(part)
            progress.add(len(part))
        self._say(f"{what}: received, {_amount(progress.nbytes)}")

    def _part(self, sha256: str, offset: int, nbytes: int) -> bytes:
        self._check()
        while True:
            while not self._source.has_message(CHECK_SECONDS):
                self._check()
            envelope, message = self._source.receive()
            if isinstance(message, FilePart):
                if (message.sha256, message.offset, len(message.content)) != (sha256, offset, nbytes):
                    raise TransferError(f"the run sent another part than the requested one, {sha256} at {offset}")
                return message.content
            if isinstance(message, Shutdown):
                raise RunEndedError
            if not isinstance(message, Ping):  # each part is followed by another
                self._source.refuse(envelope.sequence, f"a {type(message).__name__} where a part of a file was due")


class _IncomingFile:
    """A file of which a part may be there."""

    def __init__(self, file: ShippedFile, folder: Path) -> None:
        self._name, self.sha256, self.nbytes = file.name, file.sha256, file.nbytes
        self.path = folder / file.name
        self._partial = self.path.with_name(self.path.name + PARTIAL)
        self._digest = hashlib.sha256()
        self.there = 0
        """Bytes that were there at the beginning."""
        self._nbytes_now = 0

    def begin(self) -> None:
        """Read what is there. Errors as of `append`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._partial.is_file() and self._partial.stat().st_size > self.nbytes:  # of something else
            self._partial.unlink()
        with self._partial.open("a+b") as handle:
            handle.seek(0)
            while block := handle.read(READ_NBYTES):
                self._digest.update(block)
            self.there = self._nbytes_now = handle.tell()
        if self.there == self.nbytes:
            self._finish()

    def append(self, content: bytes) -> None:
        """Write a part behind the others. TransferError if the file is whole now, and has another hash than it must."""
        with self._partial.open("ab") as handle:
            handle.write(content)
        self._digest.update(content)
        self._nbytes_now += len(content)
        if self._nbytes_now == self.nbytes:
            self._finish()

    def _finish(self) -> None:
        """Give the file its name, or remove it."""
        found = self._digest.hexdigest()
        if found != self.sha256:
            self._partial.unlink(missing_ok=True)
            raise TransferError(
                f"{self._name}: received with SHA-256 {found} instead of {self.sha256}; it was removed, and will be "
                "requested anew"
            )
        with self._partial.open("ab") as handle:
            os.fsync(handle.fileno())
        self._partial.replace(self.path)


class _Progress:
    """Lines of the log about one transfer."""

    def __init__(self, what: str, nbytes: int, there: int, say: Callable[[str], None]) -> None:
        self._what, self.nbytes, self._there, self._say = what, nbytes, there, say
        self._said_at = time.monotonic()
        if there < nbytes:
            say(f"{what}: {_amount(nbytes)} from the run" + (f", {_amount(there)} of it are here" if there else ""))

    def check_disk(self, folder: Path) -> None:
        """TransferError if the disk is too small."""
        free, needed = shutil.disk_usage(folder).free, self.nbytes - self._there
        if needed > free:
            raise TransferError(f"{self._what}: {_amount(needed)} to receive, and {folder} has {_amount(free)} free")

    def add(self, nbytes: int) -> None:
        """So many more bytes are there."""
        self._there += nbytes
        if time.monotonic() >= self._said_at + PROGRESS_SECONDS:
            self._said_at = time.monotonic()
            self._say(f"{self._what}: {_amount(self._there)} of {_amount(self.nbytes)}")


def _amount(nbytes: int) -> str:
    scale, unit = (1e6, "MB") if nbytes >= 1e6 else (1e3, "kB")
    value = nbytes / scale
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
