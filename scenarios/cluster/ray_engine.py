"""A Ray cluster as the engine of a run (`RayEngine`) or of several (`RayRuns`), in the process of the command.

Ray places, restarts and scales. A single run stays where the command was given, and exchanges tasks and replies with
its node agents as with any remote workers: over ZeroMQ, with keys that are made for it and handed over by Ray. If the
head of the cluster dies, it goes on with the agents that are connected. Of several runs, each is made as a whole on a
node. Nothing here imports Ray.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import secrets
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import quote
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import PoolError
from edge.runtime.keys import new_pair
from scenarios.cluster.keepers import agent_environment
from scenarios.config.errors import Argument, ScenarioError
from scenarios.experiment.executors import ProcessRun
from scenarios.run.child_process import ChildProcess, Message
from scenarios.run.host import Host

DRIVER = "scenarios.cluster.ray_driver"
RAY, AUTO, LOCAL = "ray", "auto", "local"
ADDRESS = re.compile(r"(?:ray://)?([^\s:/]+|\[[0-9A-Fa-f:.%\w]+\]):([0-9]{1,5})")
NODES = 256
"""Nodes of one run, over all of its time: each has a key of its own, so that the run sees them as different places."""
CONNECT_SECONDS = 120.0
LOG_LINE = re.compile(r"^\[[^\]]* (?P<level>[A-Z]) [^\]]*\] \S+:\d+: +(?:.*Check failed: )?(?P<text>.*)$", re.MULTILINE)
FATAL = "C"
"""Level of what Ray says before it ends its process; a trace of calls follows."""
MAX_PORT = 65535
END_SECONDS = 20.0
WAIT_SECONDS = 30.0
"""``--wait`` of an agent: for the run's first answer, or for the run to come back."""
NEXT_AGENT_SECONDS = 120.0
"""Wait of a run that has lost all agents for the next: Ray may start a keeper, or a node, anew."""
PRIVATE_CLUSTER = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for: loopback alone
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # with Ray's 15, any other program of this machine holds up the run
}
"""Environment of a cluster that is started here: only this user's processes, with a token that they get, may use it."""

_log = logging.getLogger("fedbr.ray")


@dataclass(frozen=True)
class ClusterSize:
    nodes: int
    cpus: float
    gpus: float
    most_cpus: float
    """Of one node"""

    def __str__(self) -> str:
        counts = ((self.nodes, "node"), (self.cpus, "core"), (self.gpus, "GPU"))
        return ", ".join(f"{count:g} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count)


def check_address(address: str) -> str:
    """An address as Ray wants it; ScenarioError for none, and where Ray is not installed."""
    if address not in (RAY, AUTO) and not is_address(address):
        raise ScenarioError(Argument("on", address), ": must be ray, auto, HOST:PORT or ray://HOST:PORT")
    if importlib.util.find_spec("ray") is None:
        raise ScenarioError(Argument("on", address), ": Ray is not installed here; pip install 'fedbr-edge[ray]'")
    return LOCAL if address == RAY else address


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT or ray://HOST:PORT, with a port that there can be."""
    match = ADDRESS.fullmatch(text)
    return match is not None and int(match[2]) <= MAX_PORT


class RayConnection:
    """A cluster, by a process that speaks with it (`scenarios.cluster.ray_driver`), as a context: when it is left,
    nothing that was placed there remains."""

    def __init__(self, address: str, on_note: Callable[[str], None] = lambda note: None) -> None:
        """``on_note``: is called with events of the cluster, in another thread. ScenarioError."""
        self.cluster_name, self._given, self._address = f"Ray cluster {address}", address, check_address(address)
        self.on_note = on_note
        self._is_ending = False
        self.is_lost = False

    def on_message(self, message: Message | None) -> None:
        """A subclass handles messages of the driver here, in another thread; None: the connection is lost."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Connect to the cluster, or start one. ScenarioError if there is none at the address."""
        is_own = self._address == LOCAL
        connecting = f"connecting, for {CONNECT_SECONDS:g} s at most"
        self.on_note(f"{self.cluster_name}: {'starting a cluster here' if is_own else connecting}")
        private = {**PRIVATE_CLUSTER, "RAY_AUTH_TOKEN": secrets.token_hex(32)} if is_own else {}
        environment = agent_environment() | {"RAY_USAGE_STATS_ENABLED": "0"} | private
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = ChildProcess(DRIVER, self._address, env=environment, errors=self._errors)
        try:
            timer = threading.Timer(CONNECT_SECONDS, self._process.kill)
            timer.start()
            first = self._process.channel.receive()
            timer.cancel()
            if first is None:
                self._errors.seek(0)
                last = last_word(self._errors.read().decode(errors="replace"))
                why = f"no answer: {last}" if last else f"no answer within {CONNECT_SECONDS:g} s"
                first = {"unreachable": why}
            if "cluster" not in first:
                raise ScenarioError(Argument("on", self._given), f": {first['unreachable']}")
        except BaseException:
            self._end(0.0)
            raise
        cluster = first["cluster"]
        self.address, own = str(cluster["address"]), str(cluster["own_address"])
        self._own_host = f"[{own}]" if ":" in own else own
        self.size = ClusterSize(cluster["nodes"], cluster["cpus"], cluster["gpus"], cluster["most_cpus"])
        self._process.channel.listen(self._on_driver_message)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(END_SECONDS)

    def _end(self, seconds: float) -> None:
        self._is_ending = True
        self._process.end(seconds)
        self._errors.close()

    def send(self, message: Message) -> None:
        """Send a message to the driver; without effect once the connection is lost."""
        self._process.channel.send(message)

    def _on_driver_message(self, message: Message | None) -> None:
        if message is None:
            if self._is_ending:
                return
            self._errors.seek(0)
            _log.warning("the process that speaks with Ray has ended%s", quote(self._errors.read()))
            self.is_lost = True
        elif "note" in message:
            self.on_note(message["note"])
            return
        self.on_message(message)


class RayEngine(RayConnection):
    """Node agents on a cluster."""

    def __init__(self, address: str, workers: int | None = None, listen: str | None = None) -> None:
        """``workers``: per node, by default as many as Ray gives processors; ``listen``: ``tcp://HOST:PORT`` at which
        the nodes reach this machine, by default the address that they see and any port. ScenarioError."""
        super().__init__(address)
        self._workers, self._listen = workers, listen
        self._pair = new_pair()
        self._agents = [new_pair() for _ in range(NODES)]
        self.names: dict[str, str] = {}
        """Public key -> node, filled in as agents are placed"""
        self._token = secrets.token_hex(8)
        self._device = "cpu"
        self._hopeless = ""

    def serve(self, device: str) -> RemoteAccess:
        """The port for the run's agents, which are placed once it is open (`on_event`)."""
        self._device = device
        self.on_note(f"{self.cluster_name}: the cluster at {self.address} has {self.size}; each node gets an agent")
        return RemoteAccess(
            self._listen or f"tcp://{self._own_host}:*",
            self._pair.public,
            self._pair.secret,
            [pair.public.decode() for pair in self._agents],
            names=self.names,
            next_worker_seconds=NEXT_AGENT_SECONDS,
        )

    def on_event(self, event: HostEvent) -> None:
        """Place the agents as soon as the run listens for them."""
        if event.kind == "listening":
            request = {
                "token": self._token,
                # this machine's address in place of all addresses
                "endpoint": re.sub(r"^tcp://(0\.0\.0\.0|\[::\]|\*):", f"tcp://{self._own_host}:", event.detail),
                "server": self._pair.public.decode(),
                "keys": [(pair.public.decode(), pair.secret.decode()) for pair in self._agents],
                "device": self._device,
                "workers": self._workers,
                "wait_seconds": WAIT_SECONDS,
            }
            self.send({"serve": request})

    def check(self) -> None:
        """PoolError if no node's agent can join the run."""
        if self._hopeless:
            raise PoolError(f"{self.cluster_name}: {self._hopeless}")

    def on_message(self, message: Message | None) -> None:
        if message is None:
            lost = "the connection to the cluster is lost; the run goes on with the nodes it has"
            self.on_note(f"{self.cluster_name}: {lost}")
            return
        name = f"node {message.get('name')}"
        if "placed" in message:
            self.names[message["key"]] = name
            _log.info("%s: an agent is placed, with %g cores", name, message["CPU"])
        elif "log" in message:
            for line in message["log"]:
                _log.info("%s: %s", name, line)
        elif "failed" in message:
            end = "; it is left out" if message["is_left_out"] else ""
            self.on_note(f"{name}: {message['why']}{end}")
        elif "hopeless" in message:
            self._hopeless = message["hopeless"]
        else:
            _log.info("%s: %s", name, message)


class RayRuns(RayConnection):
    """Whole runs on a cluster: the `scenarios.experiment.executors.RunPlaces` of a run set."""

    def __init__(self, address: str, workers: int | None, parallel: int | None, on_note: Callable[[str], None]) -> None:
        """``workers``: of one run, by default as many as the cores allow where all runs have as many; ``parallel``: the
        most runs at a time, by default as many as there is room for. ScenarioError."""
        super().__init__(address, on_note)
        self._workers, self._parallel = workers, parallel
        self._listeners: dict[int, Callable[[Message | None], None]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self.on_note(f"{self.cluster_name}: the cluster at {self.address} has {self.size}")
        return self

    def shares(self, host: Host, runs: int) -> list[int]:
        """The workers of each slot. ScenarioError if no node has as many cores as a run is to have workers."""
        return run_shares(self.size.cpus, self.size.most_cpus, runs, self._parallel, self._workers)

    def open(self, slot: int, on_message: Callable[[Message | None], None]) -> None:
        """Open a place for one run after another; each is made on a node of its own choice."""
        self._listeners[slot] = on_message

    def begin(self, slot: int, request: ProcessRun | None) -> None:
        """Have a run made, as `scenarios.experiment.run_process` receives it; None: there are no more."""
        if request is not None:
            places = {name: str(Path(request[name]).resolve()) for name in ("out", "path")}
            self.send({"slot": slot, "run": {**request, **places}})
        if self.is_lost:
            self._listeners[slot](None)

    def stop(self, slot: int, why: str) -> None:
        """Have the run end with its round, stopped by ``why``."""
        self.send({"slot": slot, "stop": why})

    def close(self, slot: int, at_once: bool) -> str:
        """Drop the run, if ``at_once``; the reason for which the slot is lost, if it is."""
        if at_once:
            self.send({"slot": slot, "drop": True})
        return "the connection to the cluster is lost"

    def on_message(self, message: Message | None) -> None:
        if message is None:
            for listener in list(self._listeners.values()):
                listener(None)
        else:
            self._listeners[message["slot"]](message["message"])


def run_shares(cpus: float, most_cpus: float, missing: int, parallel: int | None, workers: int | None) -> list[int]:
    """The workers of each of the runs that a cluster makes at the same time.

    ``cpus``: cores of all nodes; ``most_cpus``: of the largest node. ScenarioError for ``workers`` that no node has.
    """
    if (workers or 1) > most_cpus:
        raise ScenarioError(
            Argument("workers", str(workers or 1)),
            f": a run needs a node with as many cores; the largest has {most_cpus:g}",
        )
    count = min(missing, parallel or missing, int(cpus // (workers or 1)))
    each = workers or max(1, int(min(most_cpus, cpus // max(1, count))))
    return [each] * count


def last_word(errors: str) -> str:
    """The reason for which a process that used Ray has ended, from its stderr; '' if there is none."""
    fatal = [line["text"] for line in LOG_LINE.finditer(errors) if line["level"] == FATAL]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return fatal[0] if fatal else LOG_LINE.sub(r"\g<text>", lines[-1]) if lines else ""
