"""What the port of remote workers bounds: connections, what is sent without a key, and how large one message is."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import zmq

from coordinator.workers import listener as listeners
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.listener import Listener
from coordinator.workers.zmtp import FrameHead, Frames, Handshake, RefusedError
from edge.protocol import messages
from tests.handshakes import GREETING, HELLO, INITIATE, frame
from tests.pools import ALICE, BOB, Host, Opener, Peer, answer, meanwhile, sums, visit

MB = 1_000_000


# --- lengths of frames ------------------------------------------------------------------------------------------------


def test_frames_are_told_apart_by_their_lengths_however_their_bytes_come() -> None:
    stream = GREETING + frame(4, b"\x05READY" + bytes(30)) + frame(0, b"") + frame(0, bytes(300)) + frame(1, b"abc")
    known = [FrameHead(36, b"\x05READY"), FrameHead(0, b""), FrameHead(300, bytes(6)), FrameHead(3, b"abc")]
    assert Frames().feed(stream) == known
    one_by_one = Frames()
    assert [found for byte in stream for found in one_by_one.feed(bytes([byte]))] == known


def test_a_handshake_passes_command_by_command() -> None:
    handshake = Handshake()
    assert handshake.feed(GREETING[:5]) == b""  # it may be anything yet
    assert handshake.feed(GREETING[5:11]) == GREETING[:11]
    assert handshake.feed(GREETING[11:] + HELLO + INITIATE[:100]) == GREETING[11:]
    assert handshake.feed(b"") == HELLO
    assert handshake.feed(b"") == b""
    assert not handshake.is_over
    assert handshake.feed(INITIATE[100:]) == INITIATE
    assert handshake.is_over


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "it does not speak ZMTP"),
        (b"\xff" + bytes(9), "it does not speak ZMTP"),
        (GREETING + frame(0, b"a message"), "a message before its key is known"),
        (GREETING + b"\x06" + struct.pack(">Q", 4097), "a command of 4097 bytes before its key is known"),
        (GREETING + HELLO + INITIATE + b"\x04", "it goes on before its key is known"),
    ],
)
def test_nothing_else_passes_before_a_key_is_known(sent: bytes, why: str) -> None:
    handshake = Handshake()
    with pytest.raises(RefusedError, match=why):
        handshake.feed(sent)
        while handshake.feed(b""):
            pass


# --- without a key ----------------------------------------------------------------------------------------------------


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


def connect(endpoint: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5.0, source_address=(source, 0))


def pour(connection: socket.socket, most: int) -> int:
    """Send zeros until nobody takes them any more; how many were taken."""
    sent, zeros = 0, bytes(MB)
    with suppress(OSError):
        while sent < most:
            sent += connection.send(zeros)
    return sent


@pytest.mark.parametrize("ahead", [b"", GREETING + HELLO + INITIATE], ids=["", "initiate"])
def test_what_is_sent_without_a_key_costs_no_memory(listening: Opener, ahead: bytes) -> None:
    host, before = listening(1), rss()
    announced = b"\x06" + struct.pack(">Q", (1 << 32) - 1)
    taken = []

    def attack() -> None:
        for _ in range(3):
            with connect(host.endpoint) as connection:
                connection.sendall(ahead + announced)
                taken.append(pour(connection, 300 * MB))

    with meanwhile(attack):
        host.until(lambda: len(taken) == 3)
    assert max(taken) < 10 * MB  # what fits into the system's buffers
    assert rss() - before < 50 * MB
    assert sums(host.pool, [visit(0)]) == {0: [0.0, 1.0]}


def test_a_connection_has_ten_seconds_to_show_its_key(listening: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listeners.HANDSHAKE_SECONDS == 10.0
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 0.5)
    host = listening(1)
    silent, greeted = connect(host.endpoint), connect(host.endpoint)
    with silent, greeted:
        greeted.sendall(GREETING[:20])
        host.until(lambda: host.of("connections_closed"))
        silent.settimeout(5.0)
        assert silent.recv(1) == b""
    assert host.of("connections_closed")[0].endswith("; the last: from 127.0.0.1: no handshake within 0.5 s")


CROWD = """
import socket, sys, time
host, port, source, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
crowd = [socket.create_connection((host, port), source_address=(source, 0)) for _ in range(count)]
time.sleep(0.5)
open_still = 0
for each in crowd:
    each.setblocking(False)
    try:
        open_still += each.recv(1) != b""
    except BlockingIOError:
        open_still += 1
    except ConnectionError:
        pass
print(open_still, flush=True)
sys.stdin.read()
"""


@contextmanager
def crowd(endpoint: str, source: str, count: int) -> Iterator[int]:
    """So many silent connections from an address, in a process of their own; how many of them stay open."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    words = [sys.executable, "-c", CROWD, host, port, source, str(count)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_silent_connections_are_capped_and_others_still_join(listening: Opener) -> None:
    host = listening(1)
    with ExitStack() as stack:
        one = stack.enter_context(crowd(host.endpoint, "127.0.0.1", 400))
        assert one == 64
        others = [stack.enter_context(crowd(host.endpoint, f"127.0.0.{n}", 100)) for n in range(2, 5)]
        assert others == [64, 64, 64]
        assert stack.enter_context(crowd(host.endpoint, "127.0.0.9", 10)) == 0  # 256 in all
        assert sums(host.pool, [visit(0)]) == {0: [0.0, 1.0]}
    host.until(lambda: host.of("connections_closed"))
    assert "connections" in host.of("connections_closed")[0]
    with Peer(host.endpoint, ALICE) as alice, meanwhile(alice.join):
        host.until(lambda: host.of("worker_joined"))


# --- with a key -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([8 * MB] * 150, "a message of more than 16000000 bytes, the most that any has"),
        ([100 * MB], "a frame of 100000033 bytes; the largest message has 16000000"),
    ],
    ids=["150 parts of 8 MB", "one part of 100 MB"],
)
def test_a_message_that_is_too_large_is_refused_as_it_comes(
    launcher: WorkerLauncher, tmp_path: Path, parts: Sequence[int], why: str
) -> None:
    host = Host(1, launcher, tmp_path)
    host.pool.most_nbytes = 16 * MB
    with host.pool:
        chunk, most = bytes(max(parts)), 0
        before = rss()

        def attack() -> None:
            with Peer(host.endpoint, ALICE) as alice:
                alice.join()
                alice._socket.send_multipart([chunk] * len(parts), copy=False)
                assert alice.failure() == zmq.EVENT_DISCONNECTED

        with meanwhile(attack):
            deadline = time.monotonic() + 20
            while not host.of("worker_died"):
                assert time.monotonic() < deadline
                host.pool.submit([], lambda task, reply: None)
                most = max(most, rss())
                time.sleep(0.01)
        # the sender is in this process too: it seals what it sends, one part at a time
        assert most - before < 2 * max(parts) + 40 * MB
        host.until(lambda: host.of("connections_closed"))
        assert host.of("connections_closed") == [f"1 closed, 1 so far; the last: from 127.0.0.1: {why}"]
        assert sums(host.pool, [visit(0)]) == {0: [0.0, 1.0]}


def test_honest_messages_wait_for_a_busy_coordinator_however_many_they_are(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    host = Host(0, launcher, tmp_path)
    host.pool.most_nbytes = 3 * MB  # the vectors of a visit have 0.8 MB
    with host.pool, Peer(host.endpoint, ALICE) as alice:
        joined = threading.Event()

        def work() -> None:
            alice.join()
            joined.set()
            for _ in range(40):
                sequence, task = alice.hear()
                alice.say(answer(task), sequence)

        with meanwhile(work):
            host.until(joined.is_set)
            order = host.pool.submit([visit(n) for n in range(40)], lambda task, reply: None)
            time.sleep(2.5)  # longer than a connection may have sent too much when nothing is there to be taken
            order.wait()
        assert host.of("worker_died") == []
        (connection,) = host.pool._sockets.listener._connections.values()  # type: ignore[union-attr]
        assert connection.credited > 32 * MB
        assert connection.sent - connection.credited < 20_000  # heartbeats alone


def test_what_was_sent_over_a_lost_connection_is_not_waited_for_though_its_sender_has_connected_again(
    listening: Opener,
) -> None:
    host = listening(0)
    with Peer(host.endpoint, ALICE) as alice:
        listener = host.pool._sockets.listener
        assert isinstance(listener, Listener)

        def work() -> None:
            alice.join().hear()
            (connection,) = listener._connections.values()
            connection.worker.shutdown(socket.SHUT_RDWR)  # libzmq connects again by itself, and says nothing of it
            with Peer(host.endpoint, BOB, "remote-2") as bob:
                bob.join()
                while isinstance((heard := bob.hear())[1], messages.Ping):  # whether it was bob's connection
                    pass
                bob.say(answer(heard[1]), heard[0])

        with meanwhile(work):
            assert sums(host.pool, [visit(3)]) == {3: [3.0, 4.0]}
        host.until(lambda: host.of("worker_died"))
    assert host.of("worker_died")[0] == "worker 0, a remote worker, is gone: its connection was lost"
