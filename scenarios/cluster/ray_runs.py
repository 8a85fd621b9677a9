"""Whole runs of a run set on the nodes of a Ray cluster, each on any node with processors for its workers.

A run whose node dies is made on another: it goes on after its last round where the nodes see the same files, and begins
anew elsewhere. Ray repeats neither: it would begin a generator again at its first value and pass over as many as it
has given before, and a client (``ray://``) has no generators; so actors are asked for news. Only
`scenarios.cluster.ray_driver` imports this module.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from edge.protocol.files import write_text
from scenarios.cluster.keepers import RunKeeper, RunNews, RunOrder, packed_folder, unpack
from scenarios.experiment.executors import ProcessRun
from scenarios.run.child_process import Channel, Message

MOST_TRIES = 3
END_SECONDS = 10.0
NEWS_AND_STOP = 2
"""A keeper waits for news, and is stopped meanwhile."""


@dataclass
class PlacedRun:
    slot: int
    request: ProcessRun
    """As `scenarios.experiment.run_process` receives it"""
    keeper: Any
    news: Any
    tries: int = 1
    is_stopped: bool = False


class ClusterRuns:
    """The runs that are made at the same time, by the numbers of their slots."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.runs: dict[int, PlacedRun] = {}
        self._token = f".seen-{secrets.token_hex(8)}"
        self._folders: set[Path] = set()

    def handle(self, request: Message) -> None:
        """Begin, stop or drop the run of a slot."""
        slot = request["slot"]
        if "run" in request:
            folder = Path(request["run"]["path"]).parents[1]
            if folder not in self._folders:
                write_text(folder / self._token, "")
                self._folders.add(folder)
            self.runs[slot] = PlacedRun(slot, request["run"], *self._placed(request["run"]))
        elif slot in self.runs and "stop" in request:
            self.runs[slot].is_stopped = True
            self.runs[slot].keeper.stop.remote(request["stop"])
        elif slot in self.runs:
            self._end(slot)

    def turn(self) -> None:
        """Pass on the messages of the runs."""
        waiting = {placed.news: placed for placed in self.runs.values()}
        if waiting:
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for reference in ready:
                self._pass_on(waiting[reference])

    def end(self) -> None:
        """End all runs at once; what they have committed stays where it is."""
        ends = [placed.keeper.end.remote() for placed in self.runs.values()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
        for placed in self.runs.values():
            ray.kill(placed.keeper)
        self.runs.clear()
        for folder in self._folders:
            (folder / self._token).unlink(missing_ok=True)

    def _placed(self, run: ProcessRun) -> tuple[Any, Any]:
        """The keeper of a run, and its first news."""
        order = RunOrder(run, self._token, packed_folder(Path(run["path"])))
        gpus = 0 if run["device"] == "cpu" else 1
        wanted = {"num_cpus": run["workers"], "num_gpus": gpus, "max_concurrency": NEWS_AND_STOP}
        keeper = ray.remote(RunKeeper).options(**wanted).remote(order)
        return keeper, keeper.news.remote()

    def _pass_on(self, placed: PlacedRun) -> None:
        try:
            news: RunNews = ray.get(placed.news)
        except RayActorError as error:
            placed.tries += 1
            if placed.is_stopped or placed.tries > MOST_TRIES:
                self._fail(placed, f"its node was lost: {str(error).strip().splitlines()[0]}")
                return
            self._channel.send({"note": f"{placed.request['name']}: its node was lost; it is made on another"})
            placed.keeper, placed.news = self._placed(placed.request)
            return
        except RayError as error:
            self._fail(placed, str(error).strip().splitlines()[-1])
            return
        if news.archive:  # in place of the folder
            folder = Path(placed.request["path"])
            new = folder.with_name(f".{folder.name}-new")
            shutil.rmtree(new, ignore_errors=True)
            unpack(news.archive, new)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        for message in news.messages:
            self._channel.send({"slot": placed.slot, "message": message})
        if news.is_over:
            self._end(placed.slot)
        else:
            placed.news = placed.keeper.news.remote()

    def _fail(self, placed: PlacedRun, why: str) -> None:
        self._channel.send({"slot": placed.slot, "message": {"failed": why, "is_users": False}})
        self._end(placed.slot)

    def _end(self, slot: int) -> None:
        # Ray ends an actor that nobody refers to any more, once it has done what it was told.
        self.runs.pop(slot).keeper.end.remote()
