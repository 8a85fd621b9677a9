"""Runs under fire, for `benchmarks.chaos`: with local workers, with node agents, on a Ray cluster.

All processes of a drill with node agents have one ``TMPDIR``, by which those are found that outlive their parents:
none may.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.harness import FEDBR, committed, processes_in, rows
from edge.runtime.keys import make
from tests.scenarios.cluster.ray_nodes import RayNodes, kill

SCENARIO = ("digits", "stop.target_accuracy=1.0", "train.local_epochs=2")
MOST_RESTARTS = 3
"""Of a fork server in one process: it may die no more often."""


def chain(folder: Path) -> list[str]:
    """The hashes of the rounds that are committed."""
    return [row["chain"] for row in rows(folder, "SELECT chain FROM rounds ORDER BY round")]


def grandchildren(process: psutil.Process) -> list[psutil.Process]:
    """The workers that the fork servers of a process have started, by their pids; none if it has ended."""
    processes = []
    with contextlib.suppress(psutil.Error):
        for launcher in process.children():
            with contextlib.suppress(psutil.Error):
                processes += launcher.children()
    return sorted(processes, key=lambda one: one.pid)


class Drill:
    """One run under fire. A subclass overrides `strike`, and `finish` if there is something to do after the last fault.

    ``options``: of ``fedbr run`` and ``fedbr resume``, for how the work is done.
    """

    stuck_seconds = 300.0
    """In which a run under fire must commit a round or end, else it hangs."""
    pause_seconds = (0.5, 5.0)
    """Between two faults; a run takes some two seconds to start, an agent five."""

    def __init__(
        self, out: Path, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random, *options: str
    ) -> None:
        self.out, self.folder, self.rounds, self.rng = out, out / "digits" / "fire", rounds, rng
        self.left = faults
        self.faults: Counter[str] = Counter()
        self.environment: Mapping[str, str] = os.environ
        self.logs: dict[int, Path] = {}
        on = (*options, "--quiet", "--no-report")
        self._first = [*FEDBR, "run", *SCENARIO, *overrides, "--out", str(out), "--run-id", "fire", *on]
        self._again = [*FEDBR, "resume", str(self.folder), *on]
        self._committed, self._committed_at = -1, time.monotonic()
        self.coordinator: subprocess.Popen[bytes]

    def strike(self) -> str | None:
        """Do harm; the name of the fault, None if there was nothing to be harmed."""
        raise NotImplementedError

    def finish(self) -> None:
        """After the last fault, or after a run that has ended before it."""

    def play(self) -> None:
        """To the end of the run; RuntimeError if it fails or hangs."""
        self.start_coordinator()
        pause = self.rng.uniform(*self.pause_seconds)
        while self.left and not self.wait(pause):
            pause = 0.2  # until there is something to be harmed
            fault = None
            with contextlib.suppress(psutil.Error):
                fault = self.strike()
            if fault:
                self.left -= 1
                self.faults[fault] += 1
                pause = self.rng.uniform(*self.pause_seconds)
        self.finish()
        while not self.wait(1.0):
            pass

    def wait(self, seconds: float) -> bool:
        """Whether the run ends within these seconds. RuntimeError if it fails or hangs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.coordinator.poll() is not None and self.has_finished():
                return True
            self.check_progress()
            time.sleep(0.05)
        return False

    def has_finished(self) -> bool:
        """Whether the run whose process has ended was finished."""
        if self.coordinator.returncode:
            raise RuntimeError(f"{self.folder}: {self.last_words(self.coordinator)} after {dict(self.faults)}")
        return True

    def check_progress(self) -> None:
        if (rounds := committed(self.folder)) != self._committed:
            self._committed, self._committed_at = rounds, time.monotonic()
        if time.monotonic() - self._committed_at > self.stuck_seconds:
            raise RuntimeError(f"{self.folder}: no round in {self.stuck_seconds:g} s after {dict(self.faults)}")

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        path = self.out / f"process-{len(self.logs)}-{time.monotonic_ns()}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log, env=self.environment)
        self.logs[process.pid] = path
        return process

    def last_words(self, process: subprocess.Popen[bytes]) -> str:
        """The exit code of a process, and its last lines on stderr."""
        lines = self.logs[process.pid].read_text(errors="replace").splitlines()
        return f"exit code {process.returncode}: {' / '.join(lines[-20:])}"

    def start_coordinator(self) -> None:
        """Begin the run, or resume it."""
        self.coordinator = self.start(self._again if (self.folder / "scenario.toml").is_file() else self._first)

    def kill_coordinator(self, *moment_seconds: float) -> None:
        """SIGKILL, and resume it after a moment between two limits, if they are given."""
        self.coordinator.kill()
        self.coordinator.wait()
        if moment_seconds:
            time.sleep(self.rng.uniform(*moment_seconds))
        self.start_coordinator()

    def close(self) -> None:
        """End all that it has started."""
        self.coordinator.kill()
        self.coordinator.wait()


class LocalDrill(Drill):
    """Local workers, their fork server and the coordinator are killed; workers are stopped, which must be found out."""

    KILL, STOP, COORDINATOR = "worker killed", "worker stopped", "coordinator killed"
    FORK_SERVER, AFTER = "fork server killed", "coordinator killed after its last commit"
    stuck_seconds = 120.0
    pause_seconds = (0.2, 4.0)
    _restarts = 0

    def strike(self) -> str | None:
        fault = self.rng.choices((self.KILL, self.STOP, self.FORK_SERVER, self.COORDINATOR), (5, 1, 2, 4))[0]
        if fault == self.COORDINATOR:
            self._restarts = 0
            self.kill_coordinator()
            return fault
        if not (victims := grandchildren(psutil.Process(self.coordinator.pid))):
            return None
        if fault == self.FORK_SERVER and self._restarts == MOST_RESTARTS:
            fault = self.KILL
        if fault == self.FORK_SERVER:
            self._restarts += 1
            victims[0].parent().kill()
        else:
            self.rng.choice(victims).send_signal(signal.SIGSTOP if fault == self.STOP else signal.SIGKILL)
        return fault

    def finish(self) -> None:
        """Kill the coordinator once more when all rounds are committed, if it has not ended by then."""
        while self.coordinator.poll() is None:
            if committed(self.folder) == self.rounds:
                time.sleep(self.rng.uniform(0.0, 1.0))
                if self.coordinator.poll() is None:
                    self.kill_coordinator()
                    self.faults[self.AFTER] += 1
                return
            self.check_progress()
            time.sleep(0.01)


# --- node agents ------------------------------------------------------------------------------------------------------

AGENT, AGENT_STOPPED = "agent killed", "agent stopped"
AGENTS_FORK_SERVER, AGENTS_WORKER = "agent's fork server killed", "agent's worker killed"
LISTENING_COORDINATOR = "coordinator of agents killed"
NO_AGENT = "run ended without agents and resumed"
WEIGHTS = {AGENT: 4, AGENTS_FORK_SERVER: 2, AGENTS_WORKER: 4, LISTENING_COORDINATOR: 3}
AGENTS, WORKERS_EACH = 2, 2
MOMENT_SECONDS = (0.0, 2.0)
"""Until another agent is started in the place of one, and until a coordinator is resumed."""
STOP_SECONDS = 22.0
"""More than the four heartbeats of silence after which an agent is lost."""
FEWEST_WITH_STOP = 5
"""Faults of a drill from which on one is a stop."""
ORPHAN_SECONDS = 15.0
"""In which workers end after the process that they belong to: their fork server kills them after two."""
LEAVE_SECONDS = 20.0
"""In which an agent ends by itself when the run has ended, unless it has not joined yet."""
WAIT_SECONDS = 240
"""For a coordinator that was killed: on a busy machine it takes more than a minute to be back."""
WITHOUT_AGENTS = "no worker has been there"
"""In the error of a run that has lost all agents, and may be resumed."""
STOPPED_QUIETLY = (0, 4, -signal.SIGTERM)
"""Exit codes of an agent that the run or SIGTERM has ended, the last before it has begun to wait."""


class Agent:
    """A node agent, and how often its fork server was killed."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.psutil = popen, psutil.Process(popen.pid)
        self.restarts = 0


class AgentDrill(Drill):
    """The agents are killed and stopped; their fork servers and workers, and the coordinator, are killed."""

    def __init__(self, out: Path, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random) -> None:
        for pair in ("run", "agent"):
            make(pair, out)
        with socket.create_server(("127.0.0.1", 0)) as free:
            endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        keys = ("--keys", str(out / "run.key"), "--allow", str(out / "agent.pub"))
        super().__init__(out, overrides, rounds, faults, rng, "--listen", endpoint, *keys, "--workers", "0")
        joining = ("--connect", endpoint, "--keys", str(out / "agent.key"), "--server", str(out / "run.pub"))
        self._join = [*FEDBR, "worker", *joining, "--workers", str(WORKERS_EACH), "--wait", str(WAIT_SECONDS)]
        self._plan = draw_faults(faults, rng)
        self._strikes: list[tuple[str, float]] = []  # (fault, Unix time)
        self._temporary = out / "tmp"
        self._temporary.mkdir()
        self.environment = os.environ | {"TMPDIR": str(self._temporary)}
        self._agents = [Agent(self.start(self._join)) for _ in range(AGENTS)]

    def requeue_seconds(self) -> list[float]:
        """From each kill of an agent until the run had lost it, and requeued its tasks."""
        lost = rows(self.folder, "SELECT wall_s FROM host_events WHERE kind = 'worker_died' ORDER BY wall_s")
        return lost_after(AGENT, self._strikes, [row["wall_s"] for row in lost])

    def has_finished(self) -> bool:
        """A run that has lost all agents is resumed."""
        if self.coordinator.returncode == 3 and WITHOUT_AGENTS in self.last_words(self.coordinator):
            self.faults[NO_AGENT] += 1
            self.start_coordinator()
            return False
        return super().has_finished()

    def check_progress(self) -> None:
        """Also replace agents that a run without agents has ended: without one they end only with the whole run."""
        super().check_progress()
        for agent in list(self._agents):
            if agent.popen.poll():
                if not self.faults[NO_AGENT]:
                    raise RuntimeError(f"{self.folder}: {self.last_words(agent.popen)} after {dict(self.faults)}")
                self._replace(agent)

    def play(self) -> None:
        """Also RuntimeError if an agent ends badly, or leaves a process behind. SIGTERM ends one that finds no run."""
        super().play()
        for agent in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.popen.wait(LEAVE_SECONDS)
            if agent.popen.poll() is None:
                agent.popen.terminate()
            if agent.popen.wait(LEAVE_SECONDS) not in STOPPED_QUIETLY or "Traceback" in self.last_words(agent.popen):
                raise RuntimeError(f"{self.folder}: {self.last_words(agent.popen)} at the end of the run")
        await_end(processes_in(self._temporary), "the run")

    def close(self) -> None:
        for process in processes_in(self._temporary):
            process.kill()
        for popen in (self.coordinator, *(agent.popen for agent in self._agents)):
            popen.wait()

    def strike(self) -> str | None:
        fault = self._plan[-1]
        if fault == LISTENING_COORDINATOR:
            self._strikes.append((fault, time.time()))
            self._kill(psutil.Process(self.coordinator.pid))
            self.kill_coordinator(*MOMENT_SECONDS)
            return self._plan.pop()
        busy = [(agent, workers) for agent in self._agents if (workers := grandchildren(agent.psutil))]
        if fault == AGENTS_FORK_SERVER:
            busy = [(agent, workers) for agent, workers in busy if agent.restarts < MOST_RESTARTS]
        if not busy:
            return None
        agent, workers = self.rng.choice(busy)
        self._strikes.append((fault, time.time()))
        if fault == AGENT:
            self._kill(agent.psutil)
            time.sleep(self.rng.uniform(*MOMENT_SECONDS))
            self._replace(agent)
        elif fault == AGENT_STOPPED:
            agent.psutil.suspend()
            time.sleep(STOP_SECONDS)
            agent.psutil.resume()
        elif fault == AGENTS_FORK_SERVER:
            agent.restarts += 1
            for process in agent.psutil.children():
                self._kill(process)
        else:
            self._kill(self.rng.choice(workers))
        return self._plan.pop()

    @staticmethod
    def _kill(process: psutil.Process) -> None:
        """SIGKILL of a process, after which those that it had started must end, too."""
        theirs = process.children(recursive=True)
        process.kill()
        await_end(theirs, f"process {process.pid}, which was killed")

    def _replace(self, agent: Agent) -> None:
        agent.popen.wait()
        self._agents[self._agents.index(agent)] = Agent(self.start(self._join))


def draw_faults(faults: int, rng: random.Random) -> list[str]:
    """Faults in random order; one is the stop of an agent, if there are not too few."""
    stops = [AGENT_STOPPED] * (faults >= FEWEST_WITH_STOP)
    plan = [*rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=faults - len(stops)), *stops]
    rng.shuffle(plan)
    return plan


def lost_after(fault: str, strikes: Sequence[tuple[str, float]], lost: Sequence[float]) -> list[float]:
    """Seconds from each such fault until the first loss before the next fault, if there is one.

    ``strikes``: (fault, Unix time), and ``lost``: Unix times, both in order.
    """
    ends = [*(at for _, at in strikes[1:]), float("inf")]
    first = [
        next((each - at for each in lost if at <= each < end), None) for (_, at), end in zip(strikes, ends, strict=True)
    ]
    return [seconds for (what, _), seconds in zip(strikes, first, strict=True) if what == fault and seconds is not None]


def await_end(processes: Sequence[psutil.Process], owner: str) -> None:
    """Wait until processes have ended; RuntimeError for those that outlive the one that they belong to."""
    _, orphans = psutil.wait_procs(processes, ORPHAN_SECONDS)
    if orphans:
        raise RuntimeError(f"{owner}, has left {[' '.join(orphan.cmdline()[-4:]) for orphan in orphans]}")


# --- a Ray cluster ----------------------------------------------------------------------------------------------------

NODE, COORDINATOR, HEAD = "node killed", "coordinator killed", "head killed"
BELOW = {"agent killed": 0, "agent's fork server killed": 1, "agent's worker killed": 2}
"""Fault -> depth of the process below the agent."""


class ClusterDrill(Drill):
    """Nodes, agents, their fork servers and workers, and the coordinator are killed; at last the head of the cluster,
    after which the run ends with the agents that are connected."""

    pause_seconds = (1.0, 6.0)

    def __init__(
        self, nodes: RayNodes, out: Path, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random
    ) -> None:
        super().__init__(out, overrides, rounds, faults, rng, "--on", nodes.address)
        self.nodes, self.environment = nodes, nodes.environment
        self._alive = [1, 2]
        """Nodes that may be killed, by their number: not the head."""
        self._awaited = 1
        """Rounds without which there is no further fault."""

    def strike(self) -> str | None:
        if (rounds := committed(self.folder)) < min(self._awaited, self.rounds):
            return None
        fault = self.rng.choices((NODE, *BELOW, COORDINATOR), (2, 3, 2, 4, 2))[0]
        if fault == NODE:  # another joins
            node = self.rng.choice(self._alive)
            self.nodes.kill(node)
            self._alive.remove(node)
            self.nodes.add()
            self._alive.append(len(self.nodes.pids) - 1)
        elif fault == COORDINATOR:
            self.kill_coordinator()
        elif not self._kill_below(BELOW[fault]):
            return None
        self._awaited = rounds + 1
        return fault

    def finish(self) -> None:
        kill(self.nodes.pids[0])
        self.faults[HEAD] += 1

    def _kill_below(self, depth: int) -> bool:
        """Kill a process; False if there is none. The agent is its supervisor's child."""
        supervisors = [supervisor for node in (0, *self._alive) for supervisor in self.nodes.agents(node)]
        processes = [child for supervisor in supervisors for child in supervisor.children()]
        for _ in range(depth):
            processes = [child for process in processes for child in process.children()]
        if processes:
            self.rng.choice(sorted(processes, key=lambda one: one.pid)).kill()
        return bool(processes)
