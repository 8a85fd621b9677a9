"""Sends the files that a job lists to remote workers that lack them: decoded data, partition, users' modules.

A worker requests a part by the hash of the file and an offset (`edge.protocol.messages.FetchFile`); no path ever comes
over the network. What one worker can cause is bounded: at most `MOST_REQUESTS` of its requests wait, at most as many
parts are in memory until libzmq has encrypted them, and in all it is sent no more bytes than the files have. A worker
that is lost begins anew, at the offsets that it has reached.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from coordinator.workers.message_sender import MessageSender
from coordinator.workers.registry import Worker
from edge.protocol.config import ShippedFile
from edge.protocol.files import opened
from edge.protocol.messages import MOST_REQUESTS, PART_NBYTES, FetchFile, FilePart, Ping, WireError


@dataclass(eq=False)
class _Transfer:
    worker: Worker
    requests: deque[FetchFile] = field(default_factory=deque)
    """Those that wait."""
    unsent: list[zmq.MessageTracker] = field(default_factory=list)
    nbytes: int = 0
    """Bytes of all parts that were requested."""


class FileSender:
    """Answers requests for parts of files."""

    def __init__(self, files: Mapping[ShippedFile, Path], sender: MessageSender) -> None:
        """``files``: those that the job lists, and where they are. None is opened before a part of it is requested."""
        self._files = {file.sha256: (file.nbytes, path) for file, path in files.items()}
        self._nbytes = sum(file.nbytes for file in files)
        self._sender = sender
        self._transfers: dict[int, _Transfer] = {}
        self.last_sent_at = float("-inf")
        """When a part was last sent to any worker, in monotonic seconds."""

    def requested(self, worker: Worker, request: FetchFile) -> None:
        """Send a part, now or when earlier ones have left the queue. WireError for a request beyond the bounds."""
        if not worker.key:
            raise WireError("a FetchFile of a worker that reaches the files of the run")
        if request.sha256 not in self._files:
            raise WireError(f"file {request.sha256} is not one of those that the job lists")
        nbytes, _ = self._files[request.sha256]
        if request.offset >= nbytes:
            raise WireError(f"part at {request.offset} of a file of {nbytes} bytes")
        transfer = self._transfers.setdefault(worker.number, _Transfer(worker))
        transfer.nbytes += min(PART_NBYTES, nbytes - request.offset)
        if transfer.nbytes > self._nbytes:
            raise WireError(f"more parts than the files of the job have: they have {self._nbytes} bytes")
        if len(transfer.requests) >= MOST_REQUESTS:
            raise WireError(f"more than {MOST_REQUESTS} requests of parts wait")
        transfer.requests.append(request)
        self._send(transfer)

    def send_due(self) -> None:
        """Send parts that wait, to all workers."""
        for transfer in list(self._transfers.values()):
            if transfer.worker.dead:
                del self._transfers[transfer.worker.number]
            elif transfer.requests:
                self._send(transfer)

    def _send(self, transfer: _Transfer) -> None:
        transfer.unsent = [tracker for tracker in transfer.unsent if not tracker.done]
        while transfer.requests and len(transfer.unsent) < MOST_REQUESTS and not transfer.worker.dead:
            request = transfer.requests.popleft()
            nbytes, path = self._files[request.sha256]
            length = min(PART_NBYTES, nbytes - request.offset)
            try:
                with opened(path) as file:
                    file.seek(request.offset)
                    content = file.read(length)
                if len(content) < length:
                    raise OSError(0, f"it is shorter than {request.offset + length} bytes, and was not", str(path))
            except OSError as error:
                transfer.requests.clear()
                self._sender.end(transfer.worker, f"{path.name} cannot be sent: {error.strerror}")
                return
            part = FilePart(request.sha256, request.offset, content)
            transfer.unsent.append(self._sender.send_tracked(transfer.worker, part))
            self._sender.send(transfer.worker, Ping())  # the worker ignores pings until its last part has come
            self.last_sent_at = time.monotonic()
