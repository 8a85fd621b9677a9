"""One cache and several processes: what is in it is built once, whoever is killed over it; without it, work goes on."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.data.atomic_cache import text_once
from edge.data.decoded_cache import open_data
from edge.data.partitioning import cached_partition, partition_data
from edge.protocol.config import DataConfig, PartitionConfig
from tests.edge.data import describer

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([describer.__name__])


class Describer:
    """A process of its own that describes the shipped scenario, once it is told to."""

    def __init__(self, folder: Path, stuck: str = "nowhere") -> None:
        self._told, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=describer.work, args=(folder, stuck, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def go(self) -> None:
        assert self._told.recv() == "ready"
        self._told.send("go")

    def said(self) -> str:
        """The hash of the data; EOFError if it has died."""
        said = str(self._told.recv())
        self.process.join(60)
        assert self.process.exitcode == 0
        return said


Describers = Callable[..., Describer]


@pytest.fixture
def describers() -> Iterator[Describers]:
    """Starts describers; none outlives the test, however that ends."""
    started: list[Describer] = []

    def start(folder: Path, stuck: str = "nowhere") -> Describer:
        started.append(Describer(folder, stuck))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join()


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines() if (folder / "log").exists() else []


def hidden(folder: Path) -> list[Path]:
    """Locks, and what is not whole."""
    return [path for path in (folder / "cache").rglob("*") if path.name.startswith(".") or path.suffix == ".part"]


@pytest.mark.long
def test_two_that_begin_together_on_an_empty_cache_build_everything_once(
    describers: Describers, tmp_path: Path
) -> None:
    both = [describers(tmp_path), describers(tmp_path)]
    for one in both:
        one.go()
    first, second = (one.said() for one in both)
    assert first == second
    assert len(first) == 64
    assert log(tmp_path) == ["flops_per_example", "read", "partition_data"]
    assert hidden(tmp_path) == []


def test_one_that_is_killed_while_it_builds_neither_blocks_the_other_nor_leaves_anything(
    describers: Describers, tmp_path: Path
) -> None:
    slow, other = describers(tmp_path, "read"), describers(tmp_path)
    slow.go()
    limit = time.monotonic() + 60
    while "read" not in log(tmp_path):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert len(hidden(tmp_path)) == 2  # a lock, and the folder that is being filled
    other.go()
    slow.process.kill()
    slow.process.join()
    assert len(other.said()) == 64
    assert log(tmp_path) == ["flops_per_example", "read", "read", "partition_data"]
    assert hidden(tmp_path) == []


def test_a_partition_and_a_text_that_cannot_be_kept_are_made_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = DataConfig("digits", clients=3, partition=PartitionConfig("dirichlet", alpha=0.5))
    data = open_data(config, tmp_path)
    (tmp_path / "shares").write_text("a file, not a folder")
    shares, expected = cached_partition(config, data, tmp_path), partition_data(config, data)
    assert [share.tolist() for share in shares.train] == [share.tolist() for share in expected.train]
    assert text_once(tmp_path / "shares" / "x", lambda: "made") == "made"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[1] == f"cannot write to the cache {tmp_path / 'shares' / 'x'}: File exists; going on without it"
