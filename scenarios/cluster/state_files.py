"""Client states on the machine of a node agent: files for the tasks that are there, and for the next visits of their
clients. Never a socket.

The run's own files have the states before an update counts; these spare the way back. So any of them may be dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edge.protocol import client_state
from edge.protocol.payload import Payload

SUFFIX = ".safetensors"
SWEEP_FILES = 1000
"""New files between two looks for files that nobody needs, at least."""


@dataclass(frozen=True)
class _Kept:
    name: str
    """The name in the run."""
    path: Path
    nbytes: int


class StateFiles:
    """The files in one folder. The names of the run are never used as paths."""

    def __init__(self, folder: Path, most_nbytes: int) -> None:
        """``most_nbytes``: of the states that are kept for later visits; the oldest are dropped first."""
        self._folder, self._most_nbytes = folder, most_nbytes
        self._made = 0
        self._kept: dict[int, _Kept] = {}  # client -> its state after its last visit here, the oldest first
        self._users: Counter[Path] = Counter()  # open tasks, and one more for a state that is kept
        self._nbytes = 0
        self._sweeps_at = SWEEP_FILES

    def write(self, payload: Payload) -> str:
        """A new file with a state that has come, for one task. `StateError` if the disk fails."""
        path = self.new()
        client_state.write(path, payload)
        return path

    def new(self) -> str:
        """The path of a new file, for one task."""
        self._made += 1
        if self._made >= self._sweeps_at:
            self._sweep()
        path = self._folder / f"{self._made}{SUFFIX}"
        self._users[path] += 1
        return str(path)

    def held(self, client: int, name: str) -> str | None:
        """The file of a client's state of this name, for one more task; None if it is not here."""
        kept = self._kept.get(client)
        if kept is None or kept.name != name:
            return None
        self._users[kept.path] += 1
        return str(kept.path)

    def keep(self, client: int, name: str, path: str) -> None:
        """Keep a task's file after the task, as the client's newest state."""
        self._drop(client)
        kept = self._kept[client] = _Kept(name, Path(path), Path(path).stat().st_size)
        self._users[kept.path] += 1
        self._nbytes += kept.nbytes
        while self._nbytes > self._most_nbytes:
            self._drop(next(iter(self._kept)))

    def release(self, *paths: str | None) -> None:
        """A task is over, and needs these files no more."""
        for path in (Path(each) for each in paths if each is not None):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the files that workers wrote after their tasks had been cancelled."""
        self._sweeps_at = self._made + max(SWEEP_FILES, len(self._users))
        for path in self._folder.iterdir():
            if path.suffix == SUFFIX and path not in self._users:  # one that is being written has another name
                path.unlink(missing_ok=True)

    def _drop(self, client: int) -> None:
        kept = self._kept.pop(client, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
            self.release(str(kept.path))
