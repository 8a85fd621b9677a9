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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.chaos_parts.processes import (
    SCENARIO,
    command,
    processes_in,
    rows,
    workers_of,
)
from edge.runtime.keys import make

AGENT, AGENT_STOPPED = "agent killed", "agent stopped"
AGENTS_FORK_SERVER, AGENTS_WORKER = "agent's fork server killed", "agent's worker killed"
LISTENING_COORDINATOR = "coordinator of agents killed"
NO_AGENT = "run ended without agents and resumed"
WEIGHTS = {AGENT: 4, AGENTS_FORK_SERVER: 2, AGENTS_WORKER: 4, LISTENING_COORDINATOR: 3}
AGENTS, WORKERS_EACH = 2, 2
MOST_RESTARTS = 3
"""Of the fork server in one agent: it may die no more often."""
PAUSE_SECONDS = (0.5, 5.0)
"""Between two faults; an agent takes some five seconds to start."""
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
LOOK_SECONDS = 0.2
STUCK_SECONDS = 300.0
"""In which a run under fire must commit a round: its agents may load anew, one after the other, on a busy machine."""
WITHOUT_AGENTS = "no worker has been there"
"""In the error of a run that has lost all agents, and may be resumed."""
STOPPED_QUIETLY = (0, 4, -signal.SIGTERM)
"""Exit codes of an agent that the run or SIGTERM has ended, the last before it has begun to wait."""


class _AgentProcess:
    """One node agent."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.psutil = popen, psutil.Process(popen.pid)
        self.restarts = 0

    def workers(self) -> list[psutil.Process]:
        """Its workers, none if it has not joined or has ended."""
        with contextlib.suppress(psutil.Error):
            return workers_of(self.psutil)
        return []


class AgentDrill:
    """One run under fire."""

    def __init__(self, out: Path, name: str, overrides: Sequence[str], faults: int, rng: random.Random) -> None:
        self.folder, self.rng = out / "digits" / name, rng
        self.faults: Counter[str] = Counter()
        self._to_come = drawn(faults, rng)
        self._struck: list[tuple[str, float]] = []  # (fault, Unix time)
        self._out, self._temporary = out, out / "tmp"
        self._temporary.mkdir()
        for pair in ("run", "agent"):
            make(pair, out)
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        keys = ("--keys", str(out / "run.key"), "--allow", str(out / "agent.pub"))
        listening = ("--listen", endpoint, *keys, "--workers", "0", "--quiet", "--no-report")
        self._first = command("run", *SCENARIO, *overrides, *listening, "--out", str(out), "--run-id", name)
        self._again = command("resume", str(self.folder), *listening)
        joining = ("--connect", endpoint, "--keys", str(out / "agent.key"), "--server", str(out / "run.pub"))
        self._join = command("worker", *joining, "--workers", str(WORKERS_EACH), "--wait", str(WAIT_SECONDS))
        self._started, self._logs = 0, dict[int, Path]()
        self._committed, self._committed_at = -1, time.monotonic()
        self._agents: list[_AgentProcess] = []

    def play(self) -> None:
        """To the end of the run; RuntimeError if it fails, hangs, or leaves a process behind."""
        self._coordinator = self._start(self._first)
        try:
            self._agents = [_AgentProcess(self._start(self._join)) for _ in range(AGENTS)]
            pause = self.rng.uniform(*PAUSE_SECONDS)
            while not self._is_over(pause):
                pause = LOOK_SECONDS  # until there is something to be harmed
                if self._strike(self._to_come[-1]):
                    self.faults[self._to_come.pop()] += 1
                    pause = self.rng.uniform(*PAUSE_SECONDS)
            for agent in self._agents:
                self._leave(agent.popen)
            await_end(processes_in(self._temporary), "the run")
        finally:
            for process in processes_in(self._temporary):
                process.kill()
            for popen in (self._coordinator, *(agent.popen for agent in self._agents)):
                popen.wait()

    def requeue_seconds(self, fault: str) -> list[float]:
        """From each such fault until the run had lost the agent, and requeued its tasks."""
        lost = rows(self.folder, "SELECT wall_s FROM host_events WHERE kind = 'worker_died' ORDER BY wall_s")
        return lost_after(fault, self._struck, [row["wall_s"] for row in lost])

    # --- waiting --------------------------------------------------------------------------------------------------

    def _is_over(self, seconds: float) -> bool:
        """Whether the run ends within these seconds, or ever if no fault is to come. RuntimeError if it hangs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or not self._to_come:
            if self._coordinator.poll() is not None and self._has_finished():
                return True
            self._look_after_agents()
            self._check_progress()
            time.sleep(LOOK_SECONDS)
        return False

    def _check_progress(self) -> None:
        (committed,) = rows(self.folder, "SELECT COUNT(*) AS rounds FROM rounds") or [{"rounds": 0}]
        if committed["rounds"] != self._committed:
            self._committed, self._committed_at = committed["rounds"], time.monotonic()
        if time.monotonic() - self._committed_at > STUCK_SECONDS:
            raise RuntimeError(f"{self.folder}: no round in {STUCK_SECONDS:g} s after {dict(self.faults)}")

    def _has_finished(self) -> bool:
        """Whether the run that has ended was finished; one that has lost all agents is resumed."""
        code, said = self._coordinator.returncode, self._said(self._coordinator)
        if code == 3 and WITHOUT_AGENTS in said:
            self.faults[NO_AGENT] += 1
            self._resume()
        elif code:
            raise RuntimeError(f"{self.folder}: {said} after {dict(self.faults)}")
        return bool(code == 0)

    def _look_after_agents(self) -> None:
        """Replace agents that a run without agents has ended; without one they end only when the run is finished."""
        for agent in list(self._agents):
            if agent.popen.poll():
                if not self.faults[NO_AGENT]:
                    raise RuntimeError(f"{self.folder}: {self._said(agent.popen)} after {dict(self.faults)}")
                self._replace(agent)

    def _leave(self, agent: subprocess.Popen[bytes]) -> None:
        """Wait for an agent's end, which SIGTERM brings about if it finds no run; RuntimeError if it ends badly."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(LEAVE_SECONDS)
        if agent.poll() is None:
            agent.terminate()
        if agent.wait(LEAVE_SECONDS) not in STOPPED_QUIETLY or "Traceback" in self._said(agent):
            raise RuntimeError(f"{self.folder}: {self._said(agent)} at the end of the run")

    # --- faults ---------------------------------------------------------------------------------------------------

    def _strike(self, what: str) -> bool:
        """Do harm; whether there was something to be harmed."""
        if what == LISTENING_COORDINATOR:
            self._kill(what, psutil.Process(self._coordinator.pid))
            self._coordinator.wait()
            self._pause()
            self._resume()
            return True
        at_work = [(agent, workers) for agent in self._agents if (workers := agent.workers())]
        if what == AGENTS_FORK_SERVER:
            at_work = [(agent, workers) for agent, workers in at_work if agent.restarts < MOST_RESTARTS]
        if not at_work:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            self._strike_agent(what, *self.rng.choice(at_work))
            return True
        return False

    def _strike_agent(self, what: str, agent: _AgentProcess, workers: Sequence[psutil.Process]) -> None:
        if what == AGENT:
            self._kill(what, agent.psutil)
            self._pause()
            self._replace(agent)
        elif what == AGENT_STOPPED:
            self._mark(what)
            agent.psutil.suspend()
            time.sleep(STOP_SECONDS)
            agent.psutil.resume()
        elif what == AGENTS_FORK_SERVER:
            agent.restarts += 1
            self._kill(what, *agent.psutil.children())
        else:
            self._kill(what, self.rng.choice(workers))

    def _kill(self, what: str, *processes: psutil.Process) -> None:
        """SIGKILL, after which those that they had started must end, too."""
        for process in processes:
            theirs = process.children(recursive=True)
            self._mark(what)
            process.kill()
            await_end(theirs, f"process {process.pid}, which was killed")

    def _mark(self, what: str) -> None:
        self._struck.append((what, time.time()))

    def _pause(self) -> None:
        time.sleep(self.rng.uniform(*MOMENT_SECONDS))

    # --- processes ------------------------------------------------------------------------------------------------

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        self._started += 1
        path, environment = self._out / f"process-{self._started}.log", os.environ | {"TMPDIR": str(self._temporary)}
        with path.open("wb") as log:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log, env=environment)
        self._logs[process.pid] = path
        return process

    def _said(self, process: subprocess.Popen[bytes]) -> str:
        """The exit code of a process, and its last lines on stderr."""
        lines = self._logs[process.pid].read_text(errors="replace").splitlines()
        return f"exit code {process.returncode}: {' / '.join(lines[-20:])}"

    def _replace(self, agent: _AgentProcess) -> None:
        agent.popen.wait()
        self._agents[self._agents.index(agent)] = _AgentProcess(self._start(self._join))

    def _resume(self) -> None:
        self._coordinator = self._start(self._again if (self.folder / "scenario.toml").is_file() else self._first)


def drawn(faults: int, rng: random.Random) -> list[str]:
    """Faults in random order; one is the stop of an agent, if there are not too few."""
    stops = [AGENT_STOPPED] * (faults >= FEWEST_WITH_STOP)
    found = [*rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=faults - len(stops)), *stops]
    rng.shuffle(found)
    return found


def lost_after(fault: str, struck: Sequence[tuple[str, float]], lost: Sequence[float]) -> list[float]:
    """Seconds from each such fault until the first loss before the next fault, if there is one.

    ``struck``: (fault, Unix time), and ``lost``: Unix times, both in order.
    """
    ends = [*(at for _, at in struck[1:]), float("inf")]
    first = [
        next((each - at for each in lost if at <= each < end), None) for (_, at), end in zip(struck, ends, strict=True)
    ]
    return [seconds for (what, _), seconds in zip(struck, first, strict=True) if what == fault and seconds is not None]


def await_end(processes: Sequence[psutil.Process], owner: str) -> None:
    """Wait until processes have ended; RuntimeError for those that outlive the one that they belong to."""
    _, orphans = psutil.wait_procs(processes, ORPHAN_SECONDS)
    if orphans:
        raise RuntimeError(f"{owner}, has left {[' '.join(orphan.cmdline()[-4:]) for orphan in orphans]}")


def free_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
