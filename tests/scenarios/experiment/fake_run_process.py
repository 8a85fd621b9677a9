"""Speaks as a run process does, and trains nothing: names of runs say what becomes of them. Nothing here is a test."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def answer(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)


def make(run: dict[str, Any], workers: int) -> None:
    name, path = run["name"], Path(run["path"])
    if name.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("wrong"):
        answer({"failed": f"no data for {name}", "is_users": True})
    elif name.startswith("broken"):
        answer({"failed": "ValueError: no such thing", "is_users": False})
    elif name.startswith("endless"):
        answer({"began": str(path)})
        answer({"stopped": True} if sys.stdin.readline() else {})
    else:
        answer({"note": f"{name} has {workers} workers"})
        answer({"began": str(path)})
        answer({"ended": {"name": name, "run_dir": str(path), "stopped_by": "rounds", "pid": os.getpid()}})


def main() -> None:
    workers = json.loads(sys.stdin.readline())["host"]["workers"]
    for line in sys.stdin:
        said = json.loads(line)
        if "run" not in said:
            return
        make(said["run"], workers)


main()
