"""Whole runs of a run set on the nodes of a Ray cluster, each on any node with processors for its workers.

A run whose node dies is made on another: it goes on after its last round where the nodes see the same files, and begins
anew elsewhere. Only `scenarios.cluster.ray_driver` imports this module.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from edge.protocol.files import write_text
from scenarios.cluster.run_keeper import RunKeeper, RunNews, RunOrder, packed_folder, unpack

MOST_TRIES = 3
END_SECONDS = 10.0
NEWS_AND_STOP = 2
"""A keeper waits for news, and is told to stop meanwhile."""


@dataclass
class PlacedRun:
    """A run on its way."""

    slot: int
    told: Mapping[str, Any]
    path: Path
    """Of its folder here"""
    keeper: Any
    news: Any
    """The reply that is awaited"""
    tries: int = 1
    is_stopped: bool = False


class ClusterRuns:
    """The runs that are made at the same time, by the numbers of their slots."""

    def __init__(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self._answer = answer
        self._runs: dict[int, PlacedRun] = {}
        self._token = f".seen-{secrets.token_hex(8)}"
        self._folders: set[Path] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a run is on its way."""
        return bool(self._runs)

    def obey(self, told: Mapping[str, Any]) -> None:
        """Begin, stop or drop a run."""
        if "run" in told:
            self._begin(told["run"])
        elif "stop" in told and told["stop"] in self._runs:
            placed = self._runs[told["stop"]]
            placed.is_stopped = True
            placed.keeper.stop.remote(told["reason"])
        elif "drop" in told and told["drop"] in self._runs:
            self._end(told["drop"])

    def turn(self) -> None:
        """Pass on what the runs have said."""
        waiting = {placed.news: slot for slot, placed in self._runs.items()}
        if not waiting:
            return
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for reference in ready:
            self._heed(self._runs[waiting[reference]])

    def end(self) -> None:
        """End all runs at once; what they have committed stays where it is."""
        ends = [placed.keeper.end.remote() for placed in self._runs.values()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
        for placed in self._runs.values():
            ray.kill(placed.keeper)
        self._runs.clear()
        for folder in self._folders:
            (folder / self._token).unlink(missing_ok=True)

    def _begin(self, told: Mapping[str, Any]) -> None:
        path = Path(told["run"]["path"])
        if path.parent not in self._folders:
            write_text(path.parent / self._token, "")
            self._folders.add(path.parent)
        keeper, news = self._kept(told, path)
        self._runs[told["slot"]] = PlacedRun(told["slot"], told, path, keeper, news)

    def _kept(self, told: Mapping[str, Any], path: Path) -> tuple[Any, Any]:
        order = RunOrder(dict(told["host"]), dict(told["run"]), self._token, packed_folder(path))
        gpus = 0 if str(told["host"]["device"]) == "cpu" else 1
        wanted = {"num_cpus": told["host"]["workers"], "num_gpus": gpus, "max_concurrency": NEWS_AND_STOP}
        keeper = ray.remote(RunKeeper).options(**wanted).remote(order)
        return keeper, keeper.news.remote()

    def _heed(self, placed: PlacedRun) -> None:
        try:
            news: RunNews = ray.get(placed.news)
        except RayActorError as error:
            self._try_again(placed, error)
            return
        except RayError as error:
            self._fail(placed, str(error).strip().splitlines()[-1])
            return
        if news.archive:
            _replace(placed.path, news.archive)
        for said in news.said:
            self._answer({"slot": placed.slot, "said": self._here(said, placed)})
        if news.is_over:
            self._end(placed.slot)
        elif news.status is not None:
            self._fail(placed, f"its process ended with exit code {news.status}")
        else:
            placed.news = placed.keeper.news.remote()

    @staticmethod
    def _here(said: dict[str, Any], placed: PlacedRun) -> dict[str, Any]:
        """What a run says, with the path of its folder on this machine."""
        if "began" in said:
            return {"began": str(placed.path)}
        if "ended" in said:
            return {"ended": {**said["ended"], "run_dir": str(placed.path)}}
        return said

    def _try_again(self, placed: PlacedRun, error: Exception) -> None:
        placed.tries += 1
        if placed.is_stopped or placed.tries > MOST_TRIES:
            self._fail(placed, f"its node was lost: {str(error).strip().splitlines()[0]}")
            return
        self._answer({"note": f"{placed.told['run']['name']}: its node was lost; it is made on another"})
        placed.keeper, placed.news = self._kept(placed.told, placed.path)

    def _fail(self, placed: PlacedRun, why: str) -> None:
        self._answer({"slot": placed.slot, "said": {"failed": why, "is_users": False}})
        self._end(placed.slot)

    def _end(self, slot: int) -> None:
        # Ray ends an actor that nobody refers to any more, once it has done what it was told.
        self._runs.pop(slot).keeper.end.remote()


def _replace(folder: Path, archive: bytes) -> None:
    """Put what is in an archive in place of a folder."""
    new = folder.with_name(f".{folder.name}-new")
    shutil.rmtree(new, ignore_errors=True)
    unpack(archive, new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
