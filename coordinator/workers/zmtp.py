"""What ZMTP shows of a connection whose content is sealed: a greeting, commands, and how long frames are.

ZMTP 3.1 (https://rfc.zeromq.org/spec/37) with CURVE (https://rfc.zeromq.org/spec/26). Bytes in, lengths out: never a
socket.
"""

from __future__ import annotations

from typing import NamedTuple

GREETING_NBYTES, SIGNATURE_NBYTES = 64, 10
LONG, COMMAND = 2, 4
"""Flags of a frame: its length takes eight bytes; it is a command."""
MAX_COMMAND_NBYTES = 4096
"""Of one command before a key is known; CURVE's have 200 and about 260 bytes."""
COMMANDS = 2
"""That a client sends before its key is known: HELLO and INITIATE."""
READY = b"\x05READY"
"""How the server's answer to an allowed key begins; ERROR is the other one."""
SEALED_NBYTES = 33
"""What CURVE adds to a frame: name, nonce and authenticator of a MESSAGE command, and the frame's own flags."""
RECORD_NBYTES = 64
"""What libzmq keeps of a frame beside its bytes, of which there may be none."""


class RefusedError(Exception):
    """Bytes that no worker sends; the text says what is wrong with them."""


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
        """The next bytes; the frames of which the first bytes are known by now."""
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
    """What a client sends before its key is known."""

    def __init__(self) -> None:
        self._came = bytearray()
        self._greeted = 0
        self._commands = 0

    @property
    def is_over(self) -> bool:
        """Whether the command has passed that brings the key."""
        return self._commands == COMMANDS

    def feed(self, data: bytes) -> bytes:
        """The next bytes; those that may pass: of the greeting as it comes, and at most one whole command.

        `RefusedError` for anything else. Feed nothing to see whether there is another command.
        """
        self._came += data
        if self._greeted < GREETING_NBYTES:
            return self._greeting()
        return self._command()

    def _greeting(self) -> bytes:
        if self._came and not self._greeted and self._came[0] != 0xFF:
            raise RefusedError("it does not speak ZMTP")
        if len(self._came) < SIGNATURE_NBYTES and not self._greeted:
            return b""
        if not self._greeted and self._came[SIGNATURE_NBYTES - 1] != 0x7F:
            raise RefusedError("it does not speak ZMTP")
        part = self._take(GREETING_NBYTES - self._greeted)
        self._greeted += len(part)
        return part

    def _command(self) -> bytes:
        if self.is_over and self._came:
            raise RefusedError("it goes on before its key is known")
        if len(self._came) < 2:
            return b""
        is_long = bool(self._came[0] & LONG)
        head = 9 if is_long else 2
        if not self._came[0] & COMMAND:
            raise RefusedError("a message before its key is known")
        if len(self._came) < head:
            return b""
        nbytes = int.from_bytes(self._came[1:head], "big")
        if nbytes > MAX_COMMAND_NBYTES:
            raise RefusedError(f"a command of {nbytes} bytes before its key is known")
        if len(self._came) < head + nbytes:
            return b""
        self._commands += 1
        return self._take(head + nbytes)

    def _take(self, nbytes: int) -> bytes:
        part = bytes(self._came[:nbytes])
        del self._came[:nbytes]
        return part


def cost(nbytes: int) -> int:
    """What a message's part of so many bytes weighs on its way: sealed, in its frame, with libzmq's record of it."""
    return frame_cost(nbytes + SEALED_NBYTES)


def frame_cost(nbytes: int) -> int:
    """The same of a sealed frame, by its announced length."""
    return nbytes + (9 if nbytes > 255 else 2) + RECORD_NBYTES
