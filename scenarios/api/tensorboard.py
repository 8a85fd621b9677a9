"""TensorBoard: a run's numbers per round as an event file. Needs ``pip install 'fedbr-edge[tensorboard]'``, not torch.

Written directly rather than by tensorboard's own `EventFileWriter`, which starts a thread.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from scenarios.api.callbacks import Callback, CommittedRound


class TensorBoard(Callback):
    """Writes the numbers of each round to ``<folder>/<scenario>/<run id>``: steps are rounds, counted from 1.

    Tags are the fields of `CommittedRound`: ``accuracy``, ``virtual_seconds``, ``total_bytes_up``, .. A run that is
    resumed goes on in a further file of the same folder.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = Path(folder)
        self._files: dict[Path, BinaryIO] = {}
        """Folder of a run -> its event file, while it works"""

    def on_start(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        """Begin an event file."""
        where = self._folder / folder.resolve().parent.name / folder.resolve().name
        where.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"
        )
        self._files[folder] = (where / name).open("wb")
        self._write(folder, Event(wall_time=time.time(), file_version="brain.Event:2"))

    def on_round(self, round: CommittedRound) -> None:
        """Write a round's numbers."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in round.numbers().items()]
        self._write(round.folder, Event(wall_time=time.time(), step=round.round, summary=Summary(value=values)))

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        for folder in list(self._files) if summary is None else [Path(summary["run_dir"])]:
            if folder in self._files:
                self._files.pop(folder).close()

    def _write(self, folder: Path, event: Event) -> None:
        RecordWriter(self._files[folder]).write(event.SerializeToString())
        self._files[folder].flush()
