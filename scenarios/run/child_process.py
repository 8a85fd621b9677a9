"""Processes of the product's own that work for this one, and the channel to them: JSON objects, one per line.

`multiprocessing` starts none of them. Its ``spawn`` imports the user's ``__main__`` again, which a notebook or a script
without a guard does not survive; it gives a process no environment and no session of its own, keeps a resource tracker
running, and unpickles what it receives.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from edge.protocol import interpreter

Message = dict[str, Any]


class Channel:
    """One end of a connection between two processes. Its end is seen by the other one, however this process dies."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._lines = end, end.makefile("rb")
        self._listener: threading.Thread | None = None

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message; without effect if the other process has ended, which `receive` says."""
        line = json.dumps(message, default=lambda number: number.item()).encode() + b"\n"  # NumPy's numbers, too
        with suppress(OSError):
            self._socket.sendall(line)

    def receive(self) -> Message | None:
        """The next message, once it is there; None if the other process has ended, or closed its channel."""
        with suppress(OSError):
            line = self._lines.readline()
            if line.endswith(b"\n"):  # else the other process was killed while it wrote
                return dict(json.loads(line))
        return None

    def listen(self, on_message: Callable[[Message | None], None]) -> None:
        """Call ``on_message`` with every message in a thread of its own, and with None when there are no more."""

        def receive_all() -> None:
            for message in iter(self.receive, None):
                on_message(message)
            on_message(None)

        self._listener = threading.Thread(target=receive_all, daemon=True)
        self._listener.start()

    def close_sending(self) -> None:
        """Have the other process receive None; it may still send."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end, after the last call of the listener."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._listener is not None:
            self._listener.join()
        self._lines.close()
        self._socket.close()


def parent_channel() -> Channel:
    """The channel to the process that started this one as a `ChildProcess`; stdin is empty from now on."""
    end = socket.socket(fileno=os.dup(0))  # not inherited by processes that are started from here
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return Channel(end)


class ChildProcess:
    """A module as another process (`edge.protocol.interpreter`), which must end when its `parent_channel` does.

    A terminal's Ctrl-C goes to this process alone. Whatever the other one prints, such as by a user's module, goes to
    stderr, or to ``errors``.
    """

    def __init__(self, module: str, *words: str, env: Mapping[str, str], errors: IO[bytes] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                interpreter.command(module, *words),
                stdin=theirs.fileno(),
                stdout=2 if errors is None else errors,
                stderr=errors,
                env=env,
                start_new_session=True,
            )
        self.channel = Channel(ours)

    def kill(self) -> None:
        """End it now, and whatever ends with it."""
        self._process.kill()

    def has_ended(self) -> bool:
        """Whether it has. Its channel may be open still, in a process that it has forked."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # so that its id belongs to its group until `end`
        return self._process.returncode is not None or os.waitid(os.P_PID, self._process.pid, how) is not None

    def end(self, seconds: float, with_group: bool = False) -> int:
        """Have it end; its exit status. It is killed if it has not ended within so many seconds.

        ``with_group``: all processes of its group are killed then, too.
        """
        self.channel.close_sending()
        if not self.has_ended():
            process, poll = os.pidfd_open(self._process.pid), select.poll()
            poll.register(process, select.POLLIN)
            poll.poll(1000 * seconds)
            os.close(process)
        if with_group:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        status = self._process.wait()
        self.channel.close()
        return status
