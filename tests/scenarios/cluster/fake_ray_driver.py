"""A process that speaks as `scenarios.cluster.ray_driver` does, whose cluster is itself: actors are its own objects.

``FAKE_RUN_PROCESS`` in its environment names the module of run processes. The first node of a run named ``lost`` is
lost when it is asked for news, and so are all nodes of one named ``doomed``. Nothing here is a test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ray.exceptions import RayActorError

from scenarios.cluster import keepers, ray_driver, ray_runs
from scenarios.cluster.keepers import RunOrder
from scenarios.run.child_process import parent_channel

Futures = list[Future[Any]]
_placed: Counter[str] = Counter()


class FakeActor:
    """The handle of an actor with two threads."""

    def __init__(self, kind: type[Any], order: RunOrder) -> None:
        self._name = str(order.request["name"])
        _placed[self._name] += 1
        self._actor, self._threads = kind(order), ThreadPoolExecutor(2)

    def __getattr__(self, method: str) -> SimpleNamespace:
        is_lost = self._name == "doomed" or (self._name == "lost" and _placed[self._name] == 1)
        called = self._lose if is_lost and method == "news" else getattr(self._actor, method)
        return SimpleNamespace(remote=partial(self._threads.submit, called))

    def _lose(self) -> None:
        self._actor.end()
        raise RayActorError(error_msg="The actor died unexpectedly")


class FakeRay:
    """The part of Ray that places runs."""

    @staticmethod
    def remote(kind: type[Any]) -> SimpleNamespace:
        return SimpleNamespace(options=lambda **wanted: SimpleNamespace(remote=partial(FakeActor, kind)))

    @staticmethod
    def wait(futures: Sequence[Future[Any]], num_returns: int, timeout: float) -> tuple[Futures, Futures]:
        ready, others = wait(futures, timeout)
        return list(ready), list(others)

    @staticmethod
    def get(future: Future[Any]) -> Any:
        return future.result()

    @staticmethod
    def kill(actor: FakeActor) -> None: ...


if __name__ == "__main__":
    size = {"nodes": 2, "cpus": 2, "gpus": 0, "most_cpus": 1}
    channel = parent_channel()
    channel.send({"cluster": {"address": "here", "own_address": "127.0.0.1", **size}})
    module = os.environ.get("FAKE_RUN_PROCESS", keepers.RUN_PROCESS)
    with patch.object(ray_runs, "ray", FakeRay), patch.object(keepers, "RUN_PROCESS", module):
        ray_driver._serve(channel)
