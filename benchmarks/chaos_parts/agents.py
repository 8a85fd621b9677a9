"""A run whose work is done by two node agents, under fire: the agents, their fork servers and workers, the coordinator.

All processes of a drill have one ``TMPDIR``, by which those are found that outlive their parents: none may.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.chaos_parts.drill import MOST_RESTARTS, Drill, grandchildren, processes_in, rows
from benchmarks.harness import FEDBR
from edge.runtime.keys import make

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
    """One node agent."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.psutil = popen, psutil.Process(popen.pid)
        self.restarts = 0


class AgentDrill(Drill):
    """One run under fire."""

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
