"""``fedbr``, and when its workers and its first round were there: ``python -m benchmarks.engine_parts.watch WORDS``.

Prints one JSON line after the command's own: Unix seconds of both, null for what was not seen.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from unittest import mock

from coordinator.records.store import Ledger
from coordinator.workers.scheduler import TaskScheduler
from scenarios.cli.main import run_command


def main(words: list[str]) -> int:
    """The command's exit code."""
    workers = int(words[words.index("--workers") + 1])
    seen: dict[str, float] = {}
    ready_of: dict[TaskScheduler, set[Any]] = {}
    ready, commit = TaskScheduler.ready, Ledger.commit

    def on_ready(scheduler: TaskScheduler, worker: Any, *arguments: Any, **named: Any) -> Any:
        of = ready_of.setdefault(scheduler, set())
        of.add(worker)
        if len(of) == workers:
            seen.setdefault("ready", time.time())
        return ready(scheduler, worker, *arguments, **named)

    def on_commit(ledger: Ledger, *arguments: Any, **named: Any) -> Any:
        result = commit(ledger, *arguments, **named)
        seen.setdefault("committed", time.time())
        return result

    with mock.patch.object(TaskScheduler, "ready", on_ready), mock.patch.object(Ledger, "commit", on_commit):
        code = run_command(words)
    print(json.dumps({"ready": seen.get("ready"), "committed": seen.get("committed")}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
