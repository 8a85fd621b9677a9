"""A run process: ``python -m scenarios.experiment.run_process`` makes runs of a run set, one after another.

It has one fork server for all of them, and speaks one JSON object per line. From stdin:

    {"host": {"out": PATH, "device": NAME, "workers": COUNT}}      first
    {"run": {"name": .., "path": .., "scenario": TOML, "scenario_name": .., "needs": {..}}}
    {"stop": REASON}                the run ends with its round, as after Ctrl-C, and was stopped by this
    {"end": true}                   there are no more runs

To stdout:

    {"began": PATH}                 of the run's folder
    {"round": {..}}                 a `RoundFinished`
    {"note": TEXT}                  for the scenario's author
    {"ended": {..}}                 the run's summary
    {"failed": TEXT, "is_users": FLAG}
    {"stopped": true}               the user stopped the run before its first round

At the end of stdin, which the kernel brings about however the other process dies, it ends at once; its fork server then
ends its workers. Every round that was committed stays.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.rounds.budget import USER
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from edge.protocol.scratch import scratch
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.experiment.run_set import PlannedRun, make_run, reason
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver

Answer = Callable[[dict[str, Any]], None]


class Commands:
    """What the other process says: runs, one after another, and whether to stop."""

    def __init__(self) -> None:
        self._runs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stopped_by: str | None = None
        self.host = json.loads(sys.stdin.readline())["host"]
        threading.Thread(target=self._listen, daemon=True).start()

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._stopped_by is not None

    def stopped_by(self) -> str:
        """Why to stop."""
        return self._stopped_by or USER

    def next_run(self) -> dict[str, Any] | None:
        """The next run, once it is named; None if there is none."""
        return self._runs.get()

    def _listen(self) -> None:
        for line in sys.stdin:
            said = json.loads(line)
            if "run" in said:
                self._runs.put(said["run"])
            elif "stop" in said:
                self._stopped_by = said["stop"]
            else:
                self._runs.put(None)
                return
        os._exit(1)  # whoever asked is gone


def main() -> None:
    """Make all runs."""
    answer = _answers()
    commands = Commands()
    told = commands.host
    host = Host(
        Path(told["out"]),
        told["workers"],
        told["device"],
        observers=[Answers(answer)],
        stopped_by=commands.stopped_by,
    )
    with WorkerLauncher() as launcher:
        while (run := commands.next_run()) is not None:
            answer(_outcome(run, host, launcher, commands))


class Answers(RunObserver):
    """Tells the other process of a run."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        self._answer({"began": str(folder)})

    def on_round(self, progress: RoundFinished) -> None:
        self._answer({"round": packed(progress)})

    def on_note(self, note: str) -> None:
        self._answer({"note": note})


def _answers() -> Answer:
    """Writes answers to stdout; all else that is printed, such as by a user's module, goes to stderr from now on."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(said: dict[str, Any]) -> None:
        channel.write(json.dumps(said, default=lambda number: number.item()) + "\n")
        channel.flush()

    return answer


def _outcome(run: dict[str, Any], host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
    try:
        planned = PlannedRun(run["name"], _loaded(run), run["needs"])
        return {"ended": make_run(planned, Path(run["path"]), host, launcher, stopped)}
    except Stopped:
        return {"stopped": True}
    except Exception as error:
        return {"failed": reason(error), "is_users": isinstance(error, ScenarioError)}


def _loaded(run: dict[str, Any]) -> Loaded:
    with scratch() as folder:
        file = folder / "scenario.toml"
        file.write_text(run["scenario"], encoding="utf-8")
        return replace(load(str(file)), name=run["scenario_name"])


def packed(progress: RoundFinished) -> dict[str, Any]:
    """A round's progress as JSON; `scenarios.experiment.parallel` reads it."""
    return {
        "row": list(progress.row),
        "rounds": progress.rounds,
        "bytes_down": progress.bytes_down,
        "bytes_up": progress.bytes_up,
        "chosen": list(progress.chosen.items()),
    }


if __name__ == "__main__":
    main()
