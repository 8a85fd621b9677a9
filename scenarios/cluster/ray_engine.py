"""A Ray cluster as the engine of runs: this side of `scenarios.cluster.ray_driver`, in the process of the command.

Ray places, restarts and scales. The run itself stays where the command was given, and exchanges tasks and replies with
its node agents as with any remote workers: over ZeroMQ, with keys that are made for this run and handed over by Ray.
Nothing here imports Ray. If the cluster's head dies, the run goes on with the agents that are connected.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import quote
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import PoolError
from edge.runtime.keys import KeyPair, new_pair
from scenarios.cluster.agent_keeper import agent_environment
from scenarios.config.errors import ScenarioError

DRIVER = "scenarios.cluster.ray_driver"
RAY, AUTO, LOCAL = "ray", "auto", "local"
ADDRESS = re.compile(r"(?:ray://)?([^\s:/]+|\[[0-9A-Fa-f:.%\w]+\]):([0-9]{1,5})")
NODES = 256
"""Nodes of one run, over all of its time: each has a key of its own, so that the run sees them as different places."""
CONNECT_SECONDS = 120.0
CONNECTING = f"connecting, for {CONNECT_SECONDS:g} s at most"
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
    """What there is when it is connected."""

    nodes: int
    cpus: float
    gpus: float
    most_cpus: float
    """Of one node"""

    def __str__(self) -> str:
        counts = ((self.nodes, "node"), (self.cpus, "core"), (self.gpus, "GPU"))
        return ", ".join(f"{count:g} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count)


def check_address(option: str, address: str) -> str:
    """An address as Ray wants it; ScenarioError for none, and where Ray is not installed."""
    if address not in (RAY, AUTO) and not is_address(address):
        raise ScenarioError(f"{option} {address}: must be ray, auto, HOST:PORT or ray://HOST:PORT")
    if importlib.util.find_spec("ray") is None:
        raise ScenarioError(f"{option} {address}: Ray is not installed here; pip install 'fedbr-edge[ray]'")
    return LOCAL if address == RAY else address


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT or ray://HOST:PORT, with a port that there can be."""
    match = ADDRESS.fullmatch(text)
    return match is not None and int(match[2]) <= MAX_PORT


class RayEngine:
    """A connection to a cluster as a context: when it is left, nothing that was placed there remains.

    Its events, notes and errors come in through a thread of its own.
    """

    def __init__(
        self, address: str, workers: int | None = None, option: str = "--on", listen: str | None = None
    ) -> None:
        """``workers``: per node, by default as many as Ray gives processors; ``listen``: ``tcp://HOST:PORT`` at which
        the nodes reach this machine, by default the address that they see and any port. ScenarioError."""
        self._named, self._address = f"{option} {address}", check_address(option, address)
        self._workers, self._listen = workers, listen
        self._pair = new_pair()
        self._agents = [new_pair() for _ in range(NODES)]
        self.names: dict[str, str] = {}
        """Public key -> node, filled in as agents are placed"""
        self.on_note: Callable[[str], None] = lambda note: None
        """Told of what happens at the cluster; to be set before the context is entered"""
        self._has_left: set[str] = set()
        self._token = secrets.token_hex(8)
        self._device = "cpu"
        self._hopeless = ""
        self._own_address = ""
        self._is_ending = False
        self._listener: threading.Thread | None = None
        self._said: dict[int, Callable[[dict[str, Any] | None], None]] = {}

    def __enter__(self) -> Self:
        """Connect to the cluster, or start one. ScenarioError if there is none at the address."""
        self.on_note(f"{self._named}: {'starting a cluster here' if self._address == LOCAL else CONNECTING}")
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", DRIVER, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment(),
            start_new_session=True,  # a terminal's Ctrl-C goes to this process alone
        )
        try:
            self._begin()
        except BaseException:
            self._end(0.0)
            raise
        return self

    def _environment(self) -> dict[str, str]:
        own = {**PRIVATE_CLUSTER, "RAY_AUTH_TOKEN": secrets.token_hex(32)} if self._address == LOCAL else {}
        return agent_environment() | {"RAY_USAGE_STATS_ENABLED": "0"} | own

    def _begin(self) -> None:
        first = self._first_answer()
        if "cluster" not in first:
            raise ScenarioError(f"{self._named}: {first['unreachable']}")
        found = first["cluster"]
        self._own_address = found["own_address"]
        self.size = ClusterSize(found["nodes"], found["cpus"], found["gpus"], found["most_cpus"])
        self.address = str(found["address"])
        self._listener = threading.Thread(target=self._listen_to_driver, daemon=True)
        self._listener.start()

    def _first_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(CONNECT_SECONDS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return dict(json.loads(line))
        self._errors.seek(0)
        last = last_word(self._errors.read().decode(errors="replace"))
        return {"unreachable": f"no answer: {last}" if last else f"no answer within {CONNECT_SECONDS:g} s"}

    def _last_words(self) -> str:
        self._errors.seek(0)
        return quote(self._errors.read())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(END_SECONDS)

    def _end(self, seconds: float) -> None:
        self._is_ending = True
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._listener is not None:
            self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    # --- agents of a run ------------------------------------------------------------------------------------------

    def serve(self, device: str) -> RemoteAccess:
        """The port for the run's agents, which are placed once it is open (`on_event`)."""
        self._device = device
        self.on_note(f"{self._named}: the cluster at {self.address} has {self.size}; each node gets an agent")
        host = f"[{self._own_address}]" if ":" in self._own_address else self._own_address
        keys = [pair.public.decode() for pair in self._agents]
        return RemoteAccess(
            self._listen or f"tcp://{host}:*",
            self._pair.public,
            self._pair.secret,
            keys,
            names=self.names,
            next_worker_seconds=NEXT_AGENT_SECONDS,
        )

    def on_event(self, event: HostEvent) -> None:
        """Place the agents as soon as the run listens for them."""
        if event.kind == "listening":
            self._send({"serve": self._told(_reachable(event.detail, self._own_address))})

    def _told(self, endpoint: str) -> dict[str, Any]:
        return {
            "token": self._token,
            "endpoint": endpoint,
            "server": self._pair.public.decode(),
            "keys": [_as_text(pair) for pair in self._agents],
            "device": self._device,
            "workers": self._workers,
            "wait_seconds": WAIT_SECONDS,
        }

    def check(self) -> None:
        """PoolError if no node's agent can join the run."""
        if self._hopeless:
            raise PoolError(f"{self._named}: {self._hopeless}")

    # --- whole runs -----------------------------------------------------------------------------------------------

    def begin_run(
        self, slot: int, host: Mapping[str, Any], run: Mapping[str, Any], heed: Callable[[dict[str, Any] | None], None]
    ) -> None:
        """Make a run on some node. ``heed`` is told what it says, by another thread; None if the cluster is lost."""
        self._said[slot] = heed
        if self._process.poll() is not None:
            heed(None)
        self._send({"run": {"slot": slot, "host": dict(host), "run": dict(run)}})

    def stop_run(self, slot: int, reason: str) -> None:
        """The run of this slot is to end with its round."""
        self._send({"stop": slot, "reason": reason})

    def drop_run(self, slot: int) -> None:
        """The run of this slot is to end at once."""
        self._send({"drop": slot})

    def forget_run(self, slot: int) -> None:
        """Nobody listens to the run of this slot any more."""
        self._said.pop(slot, None)

    # --- the driver -----------------------------------------------------------------------------------------------

    def _send(self, told: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # its end is noted
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()

    def _listen_to_driver(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heed(json.loads(line))
        if not self._is_ending:
            self.on_note(f"{self._named}: the connection to the cluster is lost; the run goes on with the nodes it has")
            _log.warning("the process that speaks with Ray has ended%s", self._last_words())
        for heed in list(self._said.values()):
            heed(None)

    def _heed(self, said: dict[str, Any]) -> None:
        name = f"node {said.get('name')}"
        if "slot" in said:
            if said["slot"] in self._said:  # else nobody listens any more
                self._said[said["slot"]](said["said"])
        elif "placed" in said:
            self.names[said["key"]] = name
            _log.info("%s: an agent is placed, with %g cores", name, said["CPU"])
        elif "said" in said:
            for line in said["said"]:
                _log.info("%s: %s", name, line)
        elif "failed" in said:
            end = "; it is left out" if said["is_left_out"] else ""
            self.on_note(f"{name}: {said['why']}{end}")
        elif "hopeless" in said:
            self._hopeless = said["hopeless"]
        elif "note" in said:
            self.on_note(said["note"])
        else:
            _log.info("%s: %s", name, said)


def last_word(errors: str) -> str:
    """Why a process that used Ray has ended, of what it wrote to stderr; '' if nothing says it."""
    fatal = [line["text"] for line in LOG_LINE.finditer(errors) if line["level"] == FATAL]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return fatal[0] if fatal else LOG_LINE.sub(r"\g<text>", lines[-1]) if lines else ""


def _as_text(pair: KeyPair) -> tuple[str, str]:
    return pair.public.decode(), pair.secret.decode()


def _reachable(endpoint: str, own_address: str) -> str:
    """The endpoint with this machine's address in place of all addresses."""
    host = f"[{own_address}]" if ":" in own_address else own_address
    return re.sub(r"^tcp://(0\.0\.0\.0|\[::\]|\*):", f"tcp://{host}:", endpoint)
