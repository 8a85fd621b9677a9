"""Paths that a user shares have no home folder and no user name, and lead to the same files when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.protocol.home import abbreviated, expanded, shared


@pytest.fixture(autouse=True)
def _ada(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOME": "/home/ada", "LOGNAME": "ada", "USER": "ada"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/home/ada", "~"),
        ("/home/ada/own/devices.toml", "~/own/devices.toml"),
        ("/scratch/ada/cifar", "/scratch/$USER/cifar"),
        ("/home/adam/x", "/home/adam/x"),
        ("/data/ada-lovelace", "/data/ada-lovelace"),
    ],
)
def test_a_path_is_written_without_its_user_and_read_as_the_same(path: str, written: str) -> None:
    assert abbreviated(path) == written
    assert expanded(written) == Path(path)


def test_paths_within_a_text_are_abbreviated_and_so_are_all_texts_of_a_result() -> None:
    text = "Parquet in /home/ada/data (a subset), beside /home/ada; not /home/ada2"
    assert abbreviated(text) == "Parquet in ~/data (a subset), beside ~; not /home/ada2"
    result = {"runs": [{"run_dir": "/home/ada/runs/a", "rounds": 3}], "note": None}
    assert shared(result) == {"runs": [{"run_dir": "~/runs/a", "rounds": 3}], "note": None}
