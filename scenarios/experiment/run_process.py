"""A run process: makes runs of a run set, one after another, with one fork server for all of them.

It is a `scenarios.run.child_process.ChildProcess`, and receives

    {"run": {"name", "path", "scenario", "scenario_name", "needs", "enough", "out", "device", "workers"}}
                                    as `scenarios.experiment.executors.run_request` has it; null: there are no more
    {"stop": REASON}                the run ends with its round, as after Ctrl-C, and was stopped by this

and sends

    {"started": true}               its folder is there
    {"round": {..}}                 a `RoundFinished`
    {"note": TEXT}                  for the scenario's author
    {"ended": {..}}, {"failed": TEXT, "is_users": FLAG}, {"stopped": true}
                                    as `scenarios.experiment.executors.outcome` has them

When its channel ends it ends at once; its fork server then ends its workers. Every round that was committed stays.
"""

from __future__ import annotations

import os
import queue
import threading
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.rounds.budget import USER
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import Loaded, load_resolved
from scenarios.config.tables import value_at
from scenarios.experiment import executors
from scenarios.experiment.executors import ProcessRun
from scenarios.experiment.run_set import NamedSummary, PlannedRun, make_run
from scenarios.run.child_process import Channel, parent_channel
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver


def main() -> None:
    channel = parent_channel()
    requests: queue.SimpleQueue[ProcessRun | None] = queue.SimpleQueue()
    reasons: list[str] = []

    def listen() -> None:
        for message in iter(channel.receive, None):
            if "stop" in message:
                reasons.append(message["stop"])
                continue
            requests.put(message["run"])
            if message["run"] is None:
                return
        os._exit(1)  # whoever asked is gone

    threading.Thread(target=listen, daemon=True).start()
    request = requests.get()
    if request is None:
        return
    instructions: Any = value_at(request["scenario"], "train.instructions")
    with WorkerLauncher(instructions=instructions) as launcher:
        while request is not None:
            channel.send(executors.outcome(partial(_make, request, channel, launcher, reasons)))
            request = requests.get()


class ProgressSender(RunObserver):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        self._channel.send({"started": True})

    def on_round(self, progress: RoundFinished) -> None:
        self._channel.send({"round": executors.round_message(progress)})

    def on_note(self, note: str) -> None:
        self._channel.send({"note": note})


def _make(request: ProcessRun, channel: Channel, launcher: WorkerLauncher, reasons: list[str]) -> NamedSummary:
    """Make a run that ends with its round once there are ``reasons``."""
    host = Host(
        Path(request["out"]),
        request["workers"],
        request["device"],
        observers=[ProgressSender(channel)],
        stopped_by=lambda: reasons[0] if reasons else USER,
    )
    loaded = load_resolved(request["scenario_name"], request["scenario"])
    run = PlannedRun(request["name"], loaded, request["needs"], request["enough"])
    return make_run(run, Path(request["path"]), host, launcher, lambda: bool(reasons))


if __name__ == "__main__":
    main()
