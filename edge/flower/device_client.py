"""A device of a deployed scenario: the ClientApp that trains the visits of one client, with what it keeps between them.

`edge.flower.device_records` has its messages. The node's configuration says which client it is (``partition-id``), and
where its data is (``data-root``); beside these ``device`` (cpu, cuda:N) and ``cache``. What the client keeps is in the
node's state, Flower's `Context.state`, by the names that the server gives; only the state after the last visit that
counted is needed, and the one after the last visit may become that.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from msgspec import structs

from edge.data.registry import DataError
from edge.flower import device_process
from edge.flower.device_records import (
    Frames,
    Joined,
    error_records,
    joined_records,
    read_join,
    read_train,
    update_records,
)
from edge.protocol.client_state import MISSING, SEPARATOR
from edge.protocol.codecs.codecs import Codecs
from edge.protocol.config import BOARDS, CPU, Job, from_json
from edge.protocol.home import cache_folder
from edge.protocol.messages import Train
from edge.protocol.payload import Payload, Vector
from edge.protocol.scratch import scratch
from edge.runtime.task_runner import error_of

if TYPE_CHECKING:
    from edge.training.trainer import LocalTrainer

JOB, STATE, HELD = "fedbr.job", "fedbr.state", "fedbr.held"
"""Records of a node's state: the job; name -> file of a client state; version of a downloaded vector -> its numbers."""


class LostStateError(ValueError):
    """This node lacks what its client keeps: it was restarted within the run."""


def client_app(folder: Path | None = None) -> ClientApp:
    """The app of a device; ``folder``: that of the app, if it has modules of a user's own."""
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    app = ClientApp()
    app.query("join")(_answering("join", folder))
    app.train()(_answering("train", folder))
    return app


def _answering(name: str, folder: Path | None) -> Callable[[Message, Context], Message]:
    """A function of Flower that does one of `WORKS`, and answers with its exception in words if there is one."""

    def answer(message: Message, context: Context) -> Message:
        try:
            if device_process.is_short_lived():
                content = device_process.ask(name, message.content, context, os.getppid(), folder)
            else:
                content = WORKS[name](message.content, context)
        except Exception as error:  # the server decides what becomes of it
            content = error_records(error_of(error))
        return Message(content, reply_to=message)

    return answer


def join(content: RecordDict, context: Context) -> RecordDict:
    """Take the job of a run, and forget what was kept for another. ValueError for a node that cannot be a client."""
    raw = read_join(content)
    trainer, client = _trainer(raw, context), _client(context)
    clients, name, sha256 = trainer.client_indices.train, trainer.job.data.name, trainer.job.data_sha256
    count = context.node_config.get("num-partitions", len(clients))
    if not 0 <= client < len(clients) or count != len(clients):
        raise ValueError(
            f"node config: partition-id = {client} of num-partitions = {count}: the scenario has data.clients = "
            f"{len(clients)}"
        )
    if trainer.job.data.partition.kind != BOARDS and trainer.data.sha256 != sha256:
        raise DataError(f"data set {name}: this node's is {trainer.data.sha256[:16]}, the server's is {sha256[:16]}")
    context.state[STATE] = context.state[HELD] = ConfigRecord()
    context.state[JOB] = ConfigRecord({"json": raw})
    counts = trainer.class_counts(clients[client]).tolist()
    return joined_records(Joined(client, counts, len(trainer.client_indices.validation[client])))


def train(content: RecordDict, context: Context) -> RecordDict:
    """One visit. Its seconds are those of the training and of codecs: not of the start of the process, nor of data."""
    if JOB not in context.state:
        raise LostStateError("this node has not joined the run, or was restarted since")
    raw = read_join(RecordDict({"job": context.state.config_records[JOB]}))
    trainer, kept = _trainer(raw, context), context.state.config_records[STATE]
    task, frames, state_in, state_out = read_train(content)
    if task.client != _client(context):
        raise ValueError(f"a visit of client {task.client} at the node of client {_client(context)}")
    _ = trainer.net, trainer.train_set, trainer.client_indices  # made in a new process
    begun = time.monotonic()
    held = _Held(context.state.config_records[HELD])
    task = _decoded(trainer.codecs, task, frames, held)
    with scratch() as folder:
        path_in, path_out = (str(folder / name) if name else None for name in (state_in, state_out))
        if path_in is not None:
            if state_in not in kept:
                raise LostStateError(f"this node lacks the state {state_in} of client {task.client}; {MISSING}")
            Path(path_in).write_bytes(kept[state_in])  # type: ignore[arg-type]  # bytes, as they were kept
        update = trainer.train(task, path_in, path_out)
        if path_out is not None:
            before = {state_in: kept[state_in]} if state_in else {}
            context.state[STATE] = ConfigRecord({**before, state_out: Path(path_out).read_bytes()})
    context.state[HELD] = held.record()
    return update_records(update, time.monotonic() - begun)


WORKS: Mapping[str, device_process.Work] = {"join": join, "train": train}


def _client(context: Context) -> int:
    client = context.node_config.get("partition-id")
    if isinstance(client, bool) or not isinstance(client, int):
        raise ValueError(f"node config: partition-id = {client!r}: must be the number of this node's client")
    return client


def _trainer(raw: bytes, context: Context) -> LocalTrainer:
    """The trainer of a job with this node's device and paths."""
    given = context.node_config
    root = given.get("data-root")
    cache = str(given.get("cache") or cache_folder())
    place = None if root is None else str(root)
    return _made_once(raw, str(given.get("device", CPU)), place, cache, _client(context))


@lru_cache(maxsize=1)
def _made_once(raw: bytes, device: str, root: str | None, cache: str, client: int) -> LocalTrainer:
    """One trainer for all visits of a process."""
    from edge.training.trainer import LocalTrainer

    job = from_json(Job, raw)
    data, sha256 = replace(job.data, root=root), job.data_sha256
    if data.partition.kind == BOARDS:  # what lies here is this client's, and has another hash than the server's
        data, sha256 = replace(data, partition=replace(data.partition, options={"client": client})), ""
    return LocalTrainer(replace(job, device=device, cache=cache, data=data, data_sha256=sha256))


class _Held:
    """The versions of vectors that this client has downloaded and codecs take differences from, by their content."""

    def __init__(self, record: ConfigRecord) -> None:
        self._record = record
        self._kept: dict[str, bytes] = {}
        """Versions that later visits may need: what the server took differences from, and what has come now"""
        self._seen = set[str]()

    def before(self, slot: str, key: str, version: bytes) -> Vector:
        """The version that the server names; LostStateError."""
        name = SEPARATOR.join((slot, key, version.hex()))
        raw = self._record.get(name)
        if not isinstance(raw, bytes):
            raise LostStateError(f"this node lacks the version of {slot}/{key} that a frame is the difference from")
        self._kept[name] = raw
        return Vector(np.frombuffer(raw, np.float32))

    def note(self, slot: str, key: str, vector: Vector) -> None:
        """A vector has come that the next frame may be the difference from."""
        self._seen.add(SEPARATOR.join((slot, key)))
        self._kept[SEPARATOR.join((slot, key, vector.version.hex()))] = vector.data.tobytes()

    def record(self) -> ConfigRecord:
        """The versions kept now: of vectors that have not come in this visit, all that were."""
        others = {name: raw for name, raw in self._record.items() if name.rpartition(SEPARATOR)[0] not in self._seen}
        return ConfigRecord({**others, **self._kept})


def _decoded(codecs: Codecs, task: Train, frames: Frames, held: _Held) -> Train:
    """The visit with all its vectors; ``held`` gets those that later frames may be differences from."""
    down = codecs.of(task.variant).down
    payload: Payload = {slot: dict(vectors) for slot, vectors in task.payload.items()}
    for (slot, key), frame in frames.items():
        reference = held.before(slot, key, frame.before) if frame.before else None
        payload.setdefault(slot, {})[key] = frame.decode(down, codecs.seed, slot, key, reference)
    for slot, vectors in payload.items() if codecs.config.of == "update" else ():
        for key, vector in vectors.items():
            if down.codec(slot, key, vector.data.size) is not None:
                held.note(slot, key, vector)
    return structs.replace(task, payload=payload)
