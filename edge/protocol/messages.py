"""The messages between worker and coordinator, and the values that each may have. Never their encoding.

Those of visits are defined in `edge.protocol.visit_messages`, and named here, too. Order and encoding of all are in
`edge.protocol.codec`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.protocol.client_state import SEPARATOR
from edge.protocol.config import SPLITS, EvalSplit, Job, ModelProfile
from edge.protocol.message_checks import WireError as WireError
from edge.protocol.message_checks import expect as expect
from edge.protocol.message_checks import printable as printable
from edge.protocol.message_checks import reject as reject
from edge.protocol.message_checks import shown as shown
from edge.protocol.payload import VERSION_NBYTES, Payload, Vector
from edge.protocol.visit_messages import MAX_BATCH as MAX_BATCH
from edge.protocol.visit_messages import MAX_BATCH_VECTORS as MAX_BATCH_VECTORS
from edge.protocol.visit_messages import Choice as Choice
from edge.protocol.visit_messages import Train as Train
from edge.protocol.visit_messages import Update as Update
from edge.protocol.visit_messages import Updates as Updates
from edge.protocol.visit_messages import Visits as Visits
from edge.protocol.visit_messages import expect_finite

Totals = dict[str, dict[str, NDArray[np.int64]]]
"""slot -> key -> sum of clients' vectors, in the units of `edge.protocol.fixed_point`"""

VERSION = re.compile(f"[0-9a-f]{{{2 * VERSION_NBYTES}}}")
"""A version in hexadecimal digits."""
NO_RUN = ""
"""The run id of a hello and of its welcome: a worker learns the run from the welcome."""
MAX_ERROR_TEXT = 4000
"""Characters of an `Error`, and of the reason of a `Shutdown`: each becomes a line of a log."""
MAX_TRACEBACK = 16_000
"""Characters of the traceback of an `Error`, for who asks for it."""
PART_NBYTES = 1 << 19
"""Bytes of a `FilePart`, which travels in a header (`edge.protocol.limits.MAX_HEADER_NBYTES`)."""
MOST_REQUESTS = 8
"""Parts of files that a worker may have requested and not received."""
SHA256 = re.compile("[0-9a-f]{64}")
GLOBAL = -1
"""The client number of an `Evaluate` on the global test set."""
ACCURACY, LOSS = "accuracy", "loss"
"""The metrics of every evaluation: the number of correct examples, and the sum of their cross-entropy."""
SUBVALUE = "/"
"""Between the name of a metric and that of one of its values, as in ``class-accuracy/3``."""
BEFORE, VALIDATION = "before", "validation"
"""In place of the name of a metric: accuracy and loss of a client's model before its adaptation (``before/accuracy``),
and on the client's validation examples (``validation/accuracy``)."""
BEFORE_ACCURACY, VALIDATION_ACCURACY = f"{BEFORE}{SUBVALUE}{ACCURACY}", f"{VALIDATION}{SUBVALUE}{ACCURACY}"
LOCAL_MODEL = "local model"
"""The slot of a whole local model that is measured (`edge.training.measured_visit`)."""

MAX_WORKERS = 4096
"""Workers of one node agent."""
MAX_VALUES, MAX_VALUE_NAME = 2000, 100
"""Values of a `Score`, and characters of their names."""


def further_values(job: Job) -> tuple[str, ...]:
    """Names of the values of an evaluation on a client beside those of its metrics, in the order of measurement."""
    groups = [BEFORE] if job.adapt_before else []
    groups += [job.eval_select] if job.eval_select else []
    return tuple(f"{group}{SUBVALUE}{name}" for group in groups for name in (ACCURACY, LOSS))


@dataclass(frozen=True)
class Hello:
    """A worker has connected, or a node agent."""

    workers: int = 1
    """Tasks that it does at a time: the workers of a node agent."""

    def __post_init__(self) -> None:
        expect(0 < self.workers <= MAX_WORKERS, "hello: workers", self.workers)


@dataclass(frozen=True)
class Capacity:
    """A node agent does fewer tasks at a time than it has said: workers of its machine have left for lack of memory."""

    workers: int
    """Those that are left."""

    def __post_init__(self) -> None:
        expect(0 < self.workers < MAX_WORKERS, "capacity: workers", self.workers)


@dataclass(frozen=True)
class Welcome:
    """The answer to `Hello`: the job of the run."""

    job: Job


@dataclass(frozen=True)
class Ping:
    """Requests a `Pong` from the worker's main loop."""


@dataclass(frozen=True)
class Pong:
    """The answer to a ping, with sequence 0; or to a cancel, with its sequence: that task is not queued any more."""


@dataclass(frozen=True)
class Describe:
    """Requests `Described`."""

    data: bool
    """Whether to open the data set, or describe the model alone."""


@dataclass(frozen=True)
class Described:
    """The profile of model and data, and the initial vectors."""

    description: ModelProfile
    payload: Payload


@dataclass(frozen=True)
class Tensors:
    """Vectors for the worker's cache, by version, until an envelope evicts them."""

    vectors: tuple[Vector, ...]


@dataclass(frozen=True)
class MappedTensors:
    """The same, in files in the memory of this machine, for workers that the coordinator has started."""

    folder: str
    sizes: Mapping[str, int]
    """Version in hexadecimal digits, which is the name of a file of raw little-endian float32 numbers -> how many."""

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            expect(VERSION.fullmatch(name) is not None, "mapped: version", name)
            expect(size > 0, f"mapped: {name}", size)


@dataclass(frozen=True)
class ClientState:
    """Client state to or from a worker that does not reach the files of the run. Not charged.

    It is sent right ahead of the task that needs it, and right ahead of the update of the visit that changed it, with
    that task's sequence.
    """

    client: int
    payload: Payload
    """The vectors of one file of `edge.protocol.client_state`."""

    def __post_init__(self) -> None:
        expect(self.client >= 0, "kept: client", self.client)
        for slot in self.payload:
            expect(SEPARATOR not in slot, "kept: slot", slot)


@dataclass(frozen=True)
class FetchPartial:
    """Requests a worker's partial sum of a round."""

    round: int

    def __post_init__(self) -> None:
        expect(self.round >= 0, "collect: round", self.round)


@dataclass(frozen=True)
class PartialSum:
    """The answer to `FetchPartial`, which empties the worker's sum."""

    round: int
    clients: int
    """Number of updates in it; 0 if the worker has none of that round."""
    totals: Totals

    def __post_init__(self) -> None:
        expect(self.round >= 0, "sums: round", self.round)
        expect(self.clients >= 0, "sums: clients", self.clients)


@dataclass(frozen=True)
class Evaluate:
    """Examples ``start`` to ``stop`` (exclusive) of a client, or of the global test set."""

    start: int
    stop: int
    client: int
    """`GLOBAL` for the global test set."""
    payload: Payload
    round: int = 0
    """Of a client: the round of a visit that began now; so are ``lr`` and ``choice``, as in `Train`."""
    lr: float = 0.0
    choice: Choice = field(default_factory=dict)
    split: EvalSplit = "test"

    def __post_init__(self) -> None:
        expect(self.client >= GLOBAL, "evaluate: client", self.client)
        expect(self.split in SPLITS, "evaluate: split", self.split)
        expect(self.round >= 0, "evaluate: round", self.round)
        expect(math.isfinite(self.lr) and self.lr >= 0, "evaluate: lr", self.lr)
        expect_finite("evaluate", self.choice)
        expect(0 <= self.start <= self.stop, "evaluate: start, stop", (self.start, self.stop))


@dataclass(frozen=True)
class Score:
    """The answer to `Evaluate`. A sum need not be finite, since a model may have diverged."""

    start: int
    client: int
    values: Mapping[str, tuple[float, int]]
    """Name -> (sum, number of examples or measurements in it), in the order of measurement."""
    payload: Payload = field(default_factory=dict)
    """Vectors that metrics give, in slots of their names, if the job collects them."""

    def __post_init__(self) -> None:
        expect(self.client >= GLOBAL, "score: client", self.client)
        expect(self.start >= 0, "score: start", self.start)
        expect(len(self.values) <= MAX_VALUES, "score: number of values", len(self.values))
        for name, (_, count) in self.values.items():
            expect(0 < len(name) <= MAX_VALUE_NAME and name.isprintable(), "score: name of a value", name)
            expect(count >= 0, f"score: {name}: count", count)
        for name in (ACCURACY, BEFORE_ACCURACY, VALIDATION_ACCURACY):
            correct, count = self.values.get(name, (0.0, 0))
            expect(0 <= correct <= count, "score: correct, count", (correct, count))

    @property
    def examples(self) -> int | None:
        """The number of examples whose accuracy and loss it has; None unless it has both."""
        counts = {self.values.get(name, (0.0, None))[1] for name in (ACCURACY, LOSS)}
        return counts.pop() if len(counts) == 1 else None


@dataclass(frozen=True)
class Cancel:
    """Cancels a task; a `Pong` with its sequence answers it."""


@dataclass(frozen=True)
class Error:
    """A task, or the worker's start, ended in an exception."""

    kind: str
    """The exception's type."""
    text: str
    traceback: str = ""
    """Where it was raised, as Python prints it; '' if there is nothing to say."""

    def __post_init__(self) -> None:
        longest = max(len(self.kind), len(self.text))
        expect(longest <= MAX_ERROR_TEXT, "error: characters", longest)
        expect(len(self.traceback) <= MAX_TRACEBACK, "error: traceback: characters", len(self.traceback))


@dataclass(frozen=True)
class FetchFile:
    """Requests the part of a file of `Job.shipped` that begins at ``offset``. Not charged."""

    sha256: str
    offset: int

    def __post_init__(self) -> None:
        expect(SHA256.fullmatch(self.sha256) is not None, "fetch: sha256", self.sha256)
        expect(self.offset >= 0, "fetch: offset", self.offset)


@dataclass(frozen=True)
class FilePart:
    """The answer to `FetchFile`. Not charged."""

    sha256: str
    """Of the whole file."""
    offset: int
    content: bytes = field(repr=False)
    """`PART_NBYTES` bytes; the last part of a file may be shorter."""

    def __post_init__(self) -> None:
        expect(SHA256.fullmatch(self.sha256) is not None, "part: sha256", self.sha256)
        expect(self.offset >= 0, "part: offset", self.offset)
        expect(len(self.content) <= PART_NBYTES, "part: bytes", len(self.content))


@dataclass(frozen=True)
class Shutdown:
    """Ends the worker."""

    why: str = ""
    """Why a remote worker, whose process the coordinator cannot end, is dismissed before the end of the run."""

    def __post_init__(self) -> None:
        expect(len(self.why) <= MAX_ERROR_TEXT, "bye: characters", len(self.why))


Message = (
    Hello
    | Capacity
    | Welcome
    | Ping
    | Pong
    | Describe
    | Described
    | Tensors
    | MappedTensors
    | ClientState
    | Train
    | Visits
    | Update
    | Updates
    | FetchPartial
    | PartialSum
    | Evaluate
    | Score
    | Cancel
    | Error
    | Shutdown
    | FetchFile
    | FilePart
)
