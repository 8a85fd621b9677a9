"""Key files: for their owner alone, never overwritten, and refused by name when they are not what they should be."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from edge.runtime.keys import KeyFileError, make, read_pair, read_public


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    before = os.umask(0)  # the mode must not be the umask's merit
    yield
    os.umask(before)


def refused(read: object, path: Path) -> str:
    assert callable(read)
    with pytest.raises(KeyFileError) as error:
        read(path)
    return str(error.value).removeprefix(f"{path}: ")


def test_a_pair_is_two_files_and_the_secret_half_is_its_owners_alone(tmp_path: Path) -> None:
    private, public = make("alice", tmp_path / "new")
    assert (private, public) == (tmp_path / "new" / "alice.key", tmp_path / "new" / "alice.pub")
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    pair = read_pair(private)
    assert read_public(public) == pair.public == zmq.curve_public(pair.secret)
    assert pair.secret.decode() not in public.read_text() + repr(pair)


@pytest.mark.parametrize("there", ["alice.key", "alice.pub"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).symlink_to(tmp_path / "nowhere")  # not even through a link that leads nowhere
    with pytest.raises(KeyFileError, match="there is a key alice already"):
        make("alice", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    private, _ = make("alice", tmp_path)
    for mode in (0o640, 0o604, 0o620):
        private.chmod(mode)
        assert refused(read_pair, private) == f"others may read this secret key; to close it: chmod 600 {private}"


def test_other_files_are_named(tmp_path: Path) -> None:
    private, public = make("alice", tmp_path)
    other, _ = make("bob", tmp_path)
    half = "public key (NAME.pub), as `fedbr worker --new-keys NAME` makes it"
    both = "key pair (NAME.key), as `fedbr worker --new-keys NAME` makes it"
    assert refused(read_public, private) == f"not a {half}"
    assert refused(read_pair, public) == f"not a {both}"
    assert refused(read_public, tmp_path / "no.pub") == "cannot be read: No such file or directory"
    assert refused(read_public, tmp_path) == "cannot be read: Is a directory"
    for text in ("", "public = 3", 'public = "short"', f'public = "{"~" * 40}"', "[", "\xff"):
        public.write_bytes(text.encode("latin-1"))
        assert refused(read_public, public) == f"not a {half}", text
    mixed = [private.read_text().splitlines()[1], other.read_text().splitlines()[2]]
    private.write_text("\n".join(mixed))
    assert refused(read_pair, private) == "its public key does not belong to its secret key"
