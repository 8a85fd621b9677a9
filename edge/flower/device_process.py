"""The process of a device that stays: Flower starts a new one for every message, and to import torch takes seconds.

A ClientApp of a SuperNode asks the process over a socket in a folder that only this user may enter, and starts it if
there is none. It does one message after another, and ends with the process that starts ClientApps. What its client
keeps travels with each message, so that nothing is lost with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from edge.protocol import interpreter
from edge.runtime.task_runner import error_of

Work = Callable[[RecordDict, Context], RecordDict]
"""(records of a message, context with the node's state, which may be changed) -> records of the answer"""
START_SECONDS = 300.0
"""Longest wait for a new process: torch comes from a memory card."""
WATCH_SECONDS = 0.5
started: dict[int, subprocess.Popen[bytes]] = {}
"""owner -> its process, if it was started here: it outlives the message, and is waited for by nobody"""


class DeviceProcessError(OSError):
    """The process has ended over a message, or could not be started."""


def is_short_lived() -> bool:
    """Whether Flower has started this process for one message."""
    return Path(sys.argv[0]).name == "flwr-clientapp"


def ask(name: str, content: RecordDict, context: Context, owner: int, app: Path | None = None) -> RecordDict:
    """Have the process of ``owner`` do the work of this name; the context gets the state that it leaves.

    ``owner``: the process that it ends with; ``app``: the folder of an app with modules of a user's own, which has a
    process of its own. DeviceProcessError; the work's errors as of `serve`.
    """
    try:
        with _connected(owner, app) as connection:
            header = {"name": name, "node_config": dict(context.node_config)}
            for part in (json.dumps(header).encode(), _packed(content), _packed(context.state)):
                connection.send_bytes(part)
            answer, state = (connection.recv_bytes() for _ in range(2))
    except EOFError:
        raise DeviceProcessError("the training process of this device has ended: out of memory?") from None
    context.state = _unpacked(state)
    return _unpacked(answer)


def _packed(content: RecordDict) -> bytes:
    packed: bytes = recorddict_to_proto(content).SerializeToString()
    return packed


def _unpacked(packed: bytes) -> RecordDict:
    return recorddict_from_proto(ProtoRecordDict.FromString(packed))


def _connected(owner: int, app: Path | None) -> Connection:
    of_app = "" if app is None else f"-{hashlib.sha256(str(app).encode()).hexdigest()[:12]}"
    folder = Path(tempfile.gettempdir()) / f"fedbr-device-{os.getuid()}-{owner}{of_app}"
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
        raise DeviceProcessError(f"{folder}: is not a folder of this user alone")
    socket = folder / "socket"
    with suppress(FileNotFoundError, ConnectionRefusedError):
        return Client(str(socket), "AF_UNIX")
    words = interpreter.command("edge.flower.device_process", str(socket), str(owner))
    environment = dict(os.environ) | interpreter.variables(sys.path)
    process = started[owner] = subprocess.Popen(words, env=environment)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(str(socket), "AF_UNIX")
        time.sleep(0.05)
    raise DeviceProcessError(f"the training process of this device did not start: exit code {process.poll()}")


def serve(socket: Path, owner: int, works: Mapping[str, Work]) -> None:
    """Do the work of messages until ``owner`` has ended. A message whose work fails is answered with an `Error`."""
    from edge.flower.device_records import error_records

    threading.Thread(target=_end_with, args=(socket, owner), daemon=True).start()
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection, suppress(EOFError, BrokenPipeError):
                header = json.loads(connection.recv_bytes())
                content, state = (_unpacked(connection.recv_bytes()) for _ in range(2))
                context = Context(0, 0, header["node_config"], state, {})
                try:
                    answer = works[header["name"]](content, context)
                except Exception as error:  # the server decides what becomes of it
                    answer = error_records(error_of(error))
                connection.send_bytes(_packed(answer))
                connection.send_bytes(_packed(context.state))


def _end_with(socket: Path, owner: int) -> None:
    """End this process when the other one has."""
    while True:
        try:
            os.kill(owner, 0)
        except OSError:
            _leave(socket)
        time.sleep(WATCH_SECONDS)


def _leave(socket: Path) -> None:
    """End this process, whatever it does, and leave nothing behind."""
    with suppress(OSError):
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()
    os._exit(0)


if __name__ == "__main__":
    from edge.protocol.plugins import load
    from edge.training import trainer as trainer  # what the first message would wait for

    at = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C that ends the owner, too
    signal.signal(signal.SIGTERM, lambda *_: _leave(at))
    serve(at, int(sys.argv[2]), load("edge.flower.device_client:WORKS"))
