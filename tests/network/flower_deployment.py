"""A deployment of Flower in a network under test: a SuperLink at the server's end, a SuperNode at each client's.

All processes are Flower's own programs. They end with the deployment, and so does what they have started.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.network.lab import Lab, command
from tests.network.peer import SERVER

PORT = 8000
BIN = Path(sys.executable).parent
START_SECONDS, ENDING_SECONDS = 180.0, 10.0


class Deployment:
    """An exported app on the ends of a lab; a context manager.

    ``folder``: for Flower's files and the run. ``clients``: of the scenario, the first of which are at the lab's ends.
    """

    def __init__(self, lab: Lab, app: Path, folder: Path, clients: int) -> None:
        self.lab, self.app, self.folder, self.clients = lab, app, folder, clients
        self.environment = {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        }

    def __enter__(self) -> Deployment:
        (self.folder / "flwr").mkdir(parents=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n'
        )
        link = ["--insecure", "--host", "0.0.0.0", "--port", str(PORT), "--disable-runtime-dependency-installation"]
        self._start(SERVER, "flower-superlink", *link)
        self._await_line(SERVER, "Uvicorn running on")
        for number, name in enumerate(self.lab.clients):
            config = f"partition-id={number} num-partitions={self.clients}"
            words = ["--insecure", "--superlink", f"10.77.0.1:{PORT}", "--node-config", config]
            self._start(name, "flower-supernode", *words)
        for name in self.lab.clients:
            self._await_line(name, "SuperNode ID")
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes that are in the lab's namespaces beside its own: peers are its children."""
        for wish in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + ENDING_SECONDS
            while (left := self._processes()) and time.monotonic() < until:
                for process in left:
                    with suppress(ProcessLookupError):
                        os.kill(process, wish)
                time.sleep(1.0)

    def run(self, *settings: str) -> None:
        """Start the app; it goes on by itself."""
        words = [
            "flwr",
            "run",
            str(self.app),
            "lab",
            "--run-config",
            f'out="{self.folder / "runs"}" {" ".join(settings)}',
        ]
        inside = ["ip", "netns", "exec", self.lab.namespace(SERVER)]
        subprocess.run([*inside, *words], env={**os.environ, **self.environment}, check=True, timeout=120)

    def rounds(self, count: int, seconds: float) -> list[dict[str, str]]:
        """The first rows of ``rounds.csv``, once there are so many. TimeoutError."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for file in self.folder.glob("runs/*/*/rounds.csv"):
                with file.open(newline="") as rows:
                    found = list(csv.DictReader(rows))
                if len(found) >= count:
                    return found[:count]
            time.sleep(1.0)
        raise TimeoutError(f"{count} rounds did not end within {seconds:g} s")

    def times(self, name: str, text: str) -> list[float]:
        """When an end has logged lines with this text, in seconds."""
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [float(line.split(maxsplit=1)[0]) for line in lines if text in line]

    def _await_line(self, name: str, text: str) -> None:
        """Wait until the log of an end has this text. TimeoutError with the end of the log."""
        log, until = self.folder / f"{name}.log", time.monotonic() + START_SECONDS
        while text not in (said := log.read_text() if log.exists() else ""):
            if time.monotonic() > until:
                raise TimeoutError(f"{name}: {said[-1000:]}")
            time.sleep(0.5)

    def _start(self, name: str, *words: str) -> None:
        settings = [f"{key}={value}" for key, value in self.environment.items()]
        log = self.folder / f"{name}.log"
        stamp = 'while read -r line; do echo "$(date +%s.%N) $line"; done'
        self.lab.start(name, ["env", *settings, "sh", "-c", f'"$@" 2>&1 </dev/null | {stamp} >{log}', "sh", *words])

    def _processes(self) -> Sequence[int]:
        peers = self.lab.peers
        every = (
            command("ip", "netns", "pids", self.lab.namespace(name)).split() for name in (SERVER, *self.lab.clients)
        )
        return [number for numbers in every for number in map(int, numbers) if number not in peers]
