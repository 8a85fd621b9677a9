"""Key pairs by which a run and the workers that join it know each other: made, kept in files, read. Never a socket.

They are CURVE pairs (https://rfc.zeromq.org/spec/26), each key 40 letters of Z85. ``NAME.key`` holds both halves and is
for its owner alone; ``NAME.pub`` holds the public one and is for everybody else.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import zmq

PRIVATE, PUBLIC = ".key", ".pub"
OTHERS = 0o077
"""Permission bits of a file that let others than its owner at it."""
MAX_NBYTES = 4096
"""Longer files are no key files."""


class KeyFileError(ValueError):
    """A key file that cannot be made or used; the text names it."""


@dataclass(frozen=True)
class KeyPair:
    """Both halves, in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


def make(name: str, folder: Path) -> tuple[Path, Path]:
    """A new pair as NAME.key, mode 0600, and NAME.pub. KeyFileError if either exists: nothing is overwritten."""
    if not name or Path(name).name != name:
        raise KeyFileError(f"{name!r}: must be the name of a file, without slashes")
    private, public = folder / (name + PRIVATE), folder / (name + PUBLIC)
    both = dict(zip(("public", "secret"), zmq.curve_keypair(), strict=True))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(public):
            raise FileExistsError
        _write(private, 0o600, f"key pair {name}: keep this file to yourself", both)
        _write(public, 0o644, f"public key of {name}", {"public": both["public"]})
    except FileExistsError:
        raise KeyFileError(f"{folder}: there is a key {name} already, and keys are never overwritten") from None
    except OSError as error:
        raise KeyFileError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return private, public


def read_pair(path: Path) -> KeyPair:
    """The pair of a NAME.key. KeyFileError if it is not one, or if others than its owner may read it."""
    found = _read(path, "public", "secret")
    if path.stat().st_mode & OTHERS:
        raise KeyFileError(f"{path}: others may read this secret key; to close it: chmod 600 {path}")
    if zmq.curve_public(found["secret"]) != found["public"]:
        raise KeyFileError(f"{path}: its two halves are not a pair")
    return KeyPair(found["public"], found["secret"])


def read_public(path: Path) -> bytes:
    """The public key of a NAME.pub; KeyFileError if it is not one."""
    return _read(path, "public")["public"]


def _write(path: Path, mode: int, title: str, keys: dict[str, bytes]) -> None:
    # Never open to others, not even for a moment; and never what lies there already, nor what a link there points to.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    lines = [f"# FedBR Edge, {title}", *(f'{half} = "{key.decode()}"' for half, key in keys.items())]
    with os.fdopen(handle, "w") as file:
        file.write("\n".join([*lines, ""]))


def _read(path: Path, *halves: str) -> dict[str, bytes]:
    try:
        with path.open("rb") as file:
            found = tomllib.loads(file.read(MAX_NBYTES).decode())
        if found.keys() != set(halves):
            raise ValueError
        return {half: _key(found[half]) for half in halves}
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, zmq.ZMQError):  # of the encoding, of TOML, or of what stands in it
        what = "public key (NAME.pub)" if halves == ("public",) else "key pair (NAME.key)"
        raise KeyFileError(f"{path}: not a {what}, as `fedbr keys NAME` makes it") from None


def _key(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError
    key = text.encode("ascii")
    zmq.curve_public(key)  # raises for what is not 32 bytes in Z85: every other number has a public half
    return key
