"""The parts of ZMTP that an encrypted connection shows: a greeting, commands, and lengths of frames.

ZMTP 3.1 (https://rfc.zeromq.org/spec/37) with CURVE (https://rfc.zeromq.org/spec/26). Bytes in, lengths out. Never a
socket.
"""

from __future__ import annotations

from typing import NamedTuple

GREETING_NBYTES, SIGNATURE_NBYTES = 64, 10
LONG, COMMAND = 2, 4
"""Flags of a frame: its length takes eight bytes; it is a command."""
MAX_COMMAND_NBYTES = 4096
"""Longest command before a key is known; CURVE's have 200 and about 260 bytes."""
COMMANDS = 2
"""Number of commands that a client sends before its key is known: HELLO and INITIATE."""
READY = b"\x05READY"
"""First bytes of the server's reply to an allowed key; to any other it is ERROR."""
SEALED_NBYTES = 33
"""Bytes that CURVE adds to a frame: name, nonce and authenticator of a MESSAGE command, and the frame's own flags."""
RECORD_NBYTES = 64
"""Bytes of libzmq's record of a frame, beside its content, which may be empty."""


class RefusedError(Exception):
    """Bytes that no worker sends; the text has the reason."""


class FrameHead(NamedTuple):
    """A frame that has begun."""

    nbytes: int
    """As announced."""
    head: bytes
    """Its first bytes, as many as `READY` has if it is so long."""


class Frames:
    """The frames of one direction, as their bytes pass."""

    def __init__(self) -> None:
        self._skip = GREETING_NBYTES
        self._header, self._head = bytearray(), bytearray()
        self._nbytes: int | None = None

    def feed(self, data: bytes) -> list[FrameHead]:
        """Take the next bytes; returns the frames whose first bytes are complete now."""
        at, begun = 0, []
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
            elif self._nbytes is None:
                self._header.append(data[at])
                at += 1
                if len(self._header) == (9 if self._header[0] & LONG else 2):
                    self._nbytes = int.from_bytes(self._header[1:], "big")
            if self._nbytes is not None:
                step = min(len(READY), self._nbytes) - len(self._head)
                self._head += data[at : at + step]
                at = min(at + step, len(data))
                if len(self._head) == min(len(READY), self._nbytes):
                    begun.append(FrameHead(self._nbytes, bytes(self._head)))
                    self._skip, self._nbytes = self._nbytes - len(self._head), None
                    self._header.clear()
                    self._head.clear()
        return begun


class Handshake:
    """The bytes that a client sends before its key is known."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._greeted = 0
        self._commands = 0

    @property
    def is_over(self) -> bool:
        """Whether the command that contains the key has passed."""
        return self._commands == COMMANDS

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those that may pass: any part of the greeting, or one whole command.

        `RefusedError` for anything else. Empty ``data`` gives the next command, if it is complete.
        """
        self._received += data
        if not self._greeted:
            if self._received and self._received[0] != 0xFF:
                raise RefusedError("it does not speak ZMTP")
            if len(self._received) < SIGNATURE_NBYTES:
                return b""
            if self._received[SIGNATURE_NBYTES - 1] != 0x7F:
                raise RefusedError("it does not speak ZMTP")
        if self._greeted < GREETING_NBYTES:
            part = self._take(GREETING_NBYTES - self._greeted)
            self._greeted += len(part)
            return part
        if self.is_over and self._received:
            raise RefusedError("it goes on before its key is known")
        if len(self._received) < 2:
            return b""
        is_long = bool(self._received[0] & LONG)
        head = 9 if is_long else 2
        if not self._received[0] & COMMAND:
            raise RefusedError("a message before its key is known")
        if len(self._received) < head:
            return b""
        nbytes = int.from_bytes(self._received[1:head], "big")
        if nbytes > MAX_COMMAND_NBYTES:
            raise RefusedError(f"a command of {nbytes} bytes before its key is known")
        if len(self._received) < head + nbytes:
            return b""
        self._commands += 1
        return self._take(head + nbytes)

    def _take(self, nbytes: int) -> bytes:
        part = bytes(self._received[:nbytes])
        del self._received[:nbytes]
        return part


def cost(nbytes: int) -> int:
    """Bytes counted for a part of a message: encrypted, in its frame, with libzmq's record of it."""
    return frame_cost(nbytes + SEALED_NBYTES)


def frame_cost(nbytes: int) -> int:
    """Bytes counted for an encrypted frame of this announced length."""
    return nbytes + (9 if nbytes > 255 else 2) + RECORD_NBYTES
