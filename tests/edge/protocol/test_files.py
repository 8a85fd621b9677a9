"""Files are whole or absent, and what lies behind a link is neither written nor read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.protocol import client_state
from edge.protocol.files import folder_lock, opened, write_bytes, write_text
from tests.toy import vector


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "thesis.tex"
    path.parent.mkdir()
    path.write_text("years of work")
    return path


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "file"])
def test_what_lies_where_a_file_is_begun_is_replaced_and_not_written_into(
    kind: str, precious: Path, tmp_path: Path
) -> None:
    part = tmp_path / "a.toml.part"
    if kind == "link":
        part.symlink_to(precious)
    elif kind == "hard link":
        part.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.write_text("half a fi")
    write_bytes(tmp_path / "a.toml", b"whole")
    assert (tmp_path / "a.toml").read_bytes() == b"whole"
    assert precious.read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.toml", "elsewhere"]


def test_nobody_else_may_write_what_was_written_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_only_ordinary_files_are_opened(precious: Path, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(precious)
    os.mkfifo(pipe)
    for path, why in ((link, "is a link"), (pipe, "is no ordinary file"), (Path("/dev/zero"), "is no ordinary file")):
        with pytest.raises(OSError) as refused:
            opened(path)
        assert (refused.value.filename, refused.value.strerror) == (str(path), why)
    with opened(precious) as file:
        assert file.read() == b"years of work"


def test_a_folder_is_locked_once_and_through_no_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    with folder_lock(folder), pytest.raises(BlockingIOError, match="run"), folder_lock(folder):
        pass
    with folder_lock(folder):
        assert list(folder.iterdir()) == []
    with pytest.raises(NotADirectoryError), folder_lock(link):
        pass


def test_what_a_client_keeps_is_neither_read_nor_written_through_a_link(precious: Path, tmp_path: Path) -> None:
    kept = {"model": {"body": vector(1.0)}}
    real, link = tmp_path / "3-0.safetensors", tmp_path / "3-1.safetensors"
    client_state.write(str(real), kept)
    link.symlink_to(real)
    with pytest.raises(client_state.StateError, match=r"3-1.safetensors: is a link"):
        client_state.read(str(link))
    link.unlink()
    link.symlink_to(precious)
    client_state.write(str(link), kept)
    assert precious.read_text() == "years of work"
    assert client_state.read(str(link))["model"]["body"].data.tolist() == [1.0]
