"""The process of a ServerApp without its cold start: one process has imported Flower and torch, and is forked for each.

``python -m tests.scenarios.flower.warm_server_app DESCRIPTOR`` answers each request on a socket, which are the
descriptors of stdin and stderr, with the id of the forked process. Beyond that it is what it always is.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from scenarios.flower import server_process
from scenarios.run.child_process import Channel
from tests.warm import exit_quickly

IMPORTED = (
    "edge.flower.wire",
    "scenarios.flower.grid",
    "flwr.serverapp.strategy",
    "flwr.clientapp",
    "sklearn.datasets",
)


class ForkedProcess:
    """In place of a `scenarios.run.child_process.ChildProcess`."""

    def __init__(self, warm: socket.socket, errors: IO[bytes]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(warm, [b"fork"], [theirs.fileno(), errors.fileno()])
            self.pid = int(warm.recv(64))
        self.channel, self._end = Channel(ours), os.pidfd_open(self.pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def has_ended(self) -> bool:
        return bool(select.select([self._end], [], [], 0.0)[0])

    def end(self, seconds: float, with_group: bool = False) -> int:
        self.channel.close_sending()
        if not select.select([self._end], [], [], seconds)[0]:
            self.kill()
            select.select([self._end], [], [])
        if with_group:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        os.close(self._end)
        self.channel.close()
        return 0


def starter(warm: socket.socket) -> Any:
    """What starts a ServerApp's process, called as `ChildProcess` is."""

    def start(module: str, *, env: Mapping[str, str], errors: IO[bytes]) -> ForkedProcess:
        return ForkedProcess(warm, errors)

    return start


def serve(requests: socket.socket) -> None:
    """Fork for each request; returns in the process that was forked for it. Ends when there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, 64, 2)
        if not text:
            os._exit(0)  # at once, as in `tests.warm`
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for descriptor, places in zip(descriptors, ((0,), (1, 2)), strict=True):
                for place in places:
                    os.dup2(descriptor, place)
                os.close(descriptor)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(b"%d" % pid)


if __name__ == "__main__":
    clock = server_process.VirtualTime()  # before Flower binds any function of the clock
    server_process.VirtualTime = lambda: clock  # type: ignore[assignment,misc]
    for imported in IMPORTED:
        importlib.import_module(imported)
    with socket.socket(fileno=int(sys.argv[1])) as opened:
        serve(opened)
    try:
        server_process.main()
    except SystemExit as ended:
        exit_quickly(ended.code)
    exit_quickly(0)
