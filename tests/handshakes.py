"""What a client of ZMTP 3.1 with CURVE sends before its key is known, with zeros for what is sealed.

https://rfc.zeromq.org/spec/37, https://rfc.zeromq.org/spec/26
"""

from __future__ import annotations

import struct


def frame(flags: int, body: bytes) -> bytes:
    """A frame with these flags, 1 more, 4 command."""
    if len(body) > 255:
        return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 1]) + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Signature, version, mechanism, as-server, filler"""
HELLO = frame(4, b"\x05HELLO" + bytes(194))
INITIATE = frame(4, b"\x08INITIATE" + bytes(250))
