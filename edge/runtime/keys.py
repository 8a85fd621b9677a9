"""Files of the key pairs by which a run and its remote workers authenticate each other. Never a socket.

They are CURVE pairs (https://rfc.zeromq.org/spec/26), each key 40 letters of Z85. ``NAME.key`` has both keys and is for
its owner alone; ``NAME.pub`` has the public key and is for everybody else. The certificates of `zmq.auth` would be
written over files that exist, and secret ones with a mode that lets others read them.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import zmq

PRIVATE, PUBLIC = ".key", ".pub"
OTHERS = 0o077
"""Permission bits of others than the owner."""
MAX_NBYTES = 4096
"""Longest key file."""


class KeyFileError(ValueError):
    """A key file that cannot be made or used; the text names it."""


@dataclass(frozen=True)
class KeyPair:
    """Public and secret key, in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


def make(name: str, folder: Path) -> tuple[Path, Path]:
    """A new pair as NAME.key, mode 0600, and NAME.pub. KeyFileError if either exists: nothing is overwritten."""
    if not name or Path(name).name != name:
        raise KeyFileError(f"{name!r}: must be the name of a file, without slashes")
    private, public = folder / (name + PRIVATE), folder / (name + PUBLIC)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(public):
            raise FileExistsError
        pair = new_pair()
        write_pair(pair, name, folder)
        write_public(pair.public, name, folder)
    except FileExistsError:
        raise KeyFileError(f"{folder}: there is a key {name} already, and keys are never overwritten") from None
    except OSError as error:
        raise KeyFileError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return private, public


def new_pair() -> KeyPair:
    """A new pair, of which there is no file."""
    return KeyPair(*zmq.curve_keypair())


def write_pair(pair: KeyPair, name: str, folder: Path) -> Path:
    """Write NAME.key, mode 0600, and return its path. OSError, also if there is such a file."""
    path = folder / (name + PRIVATE)
    _write(path, 0o600, f"key pair {name}: keep this file to yourself", {"public": pair.public, "secret": pair.secret})
    return path


def write_public(public: bytes, name: str, folder: Path) -> Path:
    """Write NAME.pub and return its path. OSError, also if there is such a file."""
    path = folder / (name + PUBLIC)
    _write(path, 0o644, f"public key of {name}", {"public": public})
    return path


def read_pair(path: Path) -> KeyPair:
    """The pair of a NAME.key. KeyFileError if it is not one, or if others than its owner may read it."""
    found = _read(path, "public", "secret")
    if path.stat().st_mode & OTHERS:
        raise KeyFileError(f"{path}: others may read this secret key; to close it: chmod 600 {path}")
    if zmq.curve_public(found["secret"]) != found["public"]:
        raise KeyFileError(f"{path}: its public key does not belong to its secret key")
    return KeyPair(found["public"], found["secret"])


def read_public(path: Path) -> bytes:
    """The public key of a NAME.pub; KeyFileError if it is not one."""
    return _read(path, "public")["public"]


def _write(path: Path, mode: int, title: str, keys: dict[str, bytes]) -> None:
    # O_EXCL: with its mode from the beginning, and never over a file or a link that exists
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    lines = [f"# FedBR Edge, {title}", *(f'{name} = "{key.decode()}"' for name, key in keys.items())]
    with os.fdopen(handle, "w") as file:
        file.write("\n".join([*lines, ""]))


def _read(path: Path, *names: str) -> dict[str, bytes]:
    try:
        with path.open("rb") as file:
            found = tomllib.loads(file.read(MAX_NBYTES).decode())
        if found.keys() != set(names):
            raise ValueError
        return {name: _key(found[name]) for name in names}
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, zmq.ZMQError):  # of the encoding, of TOML, or of the keys
        what = "public key (NAME.pub)" if names == ("public",) else "key pair (NAME.key)"
        raise KeyFileError(f"{path}: not a {what}, as `fedbr worker --new-keys NAME` makes it") from None


def _key(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError
    key = text.encode("ascii")
    zmq.curve_public(key)  # raises for anything but 32 bytes in Z85
    return key
