"""The messages between worker and coordinator, and the envelope of each, with the range of each field.

A field of type `Attached` is in frames of its own, or in the envelope; all others are in the header, under their names.
The fields of a visit's variant are in the header's map ``choice``, beside the method's own numbers.
`edge.protocol.serialization` has the order of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder
from numpy.typing import NDArray

from edge.protocol.client_state import SEPARATOR
from edge.protocol.config import ACCURACY as ACCURACY
from edge.protocol.config import EvalSplit, Job, ModelProfile
from edge.protocol.logged import MOST_NAMES, LoggedName, expect_recordable
from edge.protocol.payload import VERSION_NBYTES, EncodedVectors, Payload, Vector
from edge.protocol.variant import PLAIN, Variant
from edge.protocol.wire import (
    MAX_LENGTH,
    Buffer,
    Count,
    Finite,
    FiniteSize,
    Fraction,
    Int,
    Positive,
    Sha256,
    expect,
    pack_as,
    unpackb,
)
from edge.protocol.wire import WireError as WireError
from edge.protocol.wire import printable as printable

T = TypeVar("T")

Totals = dict[str, dict[str, NDArray[np.int64]]]
"""slot -> key -> sum of clients' vectors, in the units of `edge.protocol.fixed_point`"""

NO_RUN = ""
"""The run id of a hello and of its welcome: a worker learns the run from the welcome."""
MAX_ERROR_TEXT = 4000
"""Characters of an `Error`, and of the reason of a `Shutdown`: each becomes a line of a log."""
MAX_TRACEBACK = 16_000
"""Characters of the traceback of an `Error`, for who asks for it."""
PART_NBYTES = 1 << 19
"""Bytes of a `FilePart`, which travels in a header (`edge.protocol.wire.MAX_HEADER_NBYTES`)."""
MOST_REQUESTS = 8
"""Parts of files that a worker may have requested and not received."""
GLOBAL = -1
"""The client number of an `Evaluate` on the global test set."""
LOSS = "loss"
"""The metric of every evaluation beside the one that a run is judged by: the sum of the loss."""
SUBVALUE = "/"
"""Between the words of the name of an `EvaluatedQuantity`; no metric's name has it."""
BEFORE: Literal["before"] = "before"
VALIDATION: Literal["validation"] = "validation"
"""Kinds of evaluation: of a client's model before its adaptation, and on the client's validation examples."""
LOCAL_MODEL = "local model"
"""The slot of a whole local model that is measured (`edge.training.trainer.MeasuredVisit`)."""

MAX_SECONDS = 1e8
"""Three years over one task."""
MAX_TELEMETRY = 1000
"""Characters."""

MAX_WORKERS = 4096
"""Workers of one node agent."""
MAX_VALUES, MAX_VALUE_NAME = 2000, 100
"""Values of a `Score`, and characters of their metrics and parts."""
MAX_BATCH = 1024
"""Visits of one `Visits`, and updates of one `Updates`."""
MAX_BATCH_VECTORS = 1 << 16
"""Vectors of one `Updates`: a short header can announce many empty ones for each update."""

MAX_BATCH_NUMBERS = 64
"""Names of the numbers of one `Updates`: a short header can hold many of them for each update, too."""

ATTACHED = Meta(extra={"attached": True})
Attached = Annotated[T, ATTACHED]
"""A field that is not in the header under its name."""
Choice = Mapping[str, Any]
"""name -> integer of 64 bits, or finite float, as methods see a server's choice for a visit"""
ChosenNumbers = Annotated[Mapping[str, Int | Finite], Meta(max_length=MAX_LENGTH)]
Text = Annotated[str, Meta(max_length=MAX_ERROR_TEXT)]
Version = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * VERSION_NBYTES}}}\Z")]
"""The version of a vector in hexadecimal digits."""
VersionBytes = Annotated[bytes, Meta(min_length=VERSION_NBYTES, max_length=VERSION_NBYTES)]
EvaluatedClient = Annotated[int, Meta(ge=GLOBAL)]
ValueName = Annotated[str, Meta(min_length=1, max_length=MAX_VALUE_NAME)]
Column = Annotated[Sequence[T], Meta(min_length=1, max_length=MAX_BATCH)]
"""One item for each visit of a batch."""


class EvaluatedQuantity(NamedTuple):
    """A quantity that an evaluation has measured: a metric, or one of its parts, of which model and on which
    examples."""

    metric: ValueName
    part: ValueName | None = None
    """One of several values of the metric, such as a class"""
    kind: Literal["before", "validation"] | None = None
    """`BEFORE` or `VALIDATION`; None: of the model that a client uses, on the examples of ``eval.split``"""
    rate: Fraction | None = None
    """Rate of a narrower part of the global model"""
    exit: Positive | None = None
    """Number of the exit, 1, 2, .., of a model with several"""

    @property
    def name(self) -> str:
        """Its name for readers, such as ``class-accuracy/3``, ``before/accuracy`` or ``rate 0.5/accuracy``."""
        rate = None if self.rate is None else f"rate {self.rate:g}"
        exit = None if self.exit is None else f"exit {self.exit}"
        return SUBVALUE.join(filter(None, (self.kind, rate, exit, self.metric, self.part)))


CORRECT, CROSS_ENTROPY = EvaluatedQuantity(ACCURACY), EvaluatedQuantity(LOSS)
"""The quantities of every evaluation of a classifier."""


def further_quantities(job: Job) -> tuple[EvaluatedQuantity, ...]:
    """The quantities of an evaluation on a client beside its metrics, in the order of measurement."""
    kinds, names = (BEFORE if job.adapt_before else None, job.eval_select), (job.train.score, LOSS)
    return tuple(
        EvaluatedQuantity(name, kind=kind) for kind in kinds if kind is not None for name in dict.fromkeys(names)
    )


class Message(Struct, frozen=True):
    """One message, of either direction."""


class Hello(Message, frozen=True):
    """A worker has connected, or a node agent."""

    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] = 1
    """Tasks that it does at a time: the workers of a node agent."""


class Capacity(Message, frozen=True):
    """A node agent does fewer tasks at a time than it has said: workers of its machine have left for lack of memory."""

    workers: Annotated[int, Meta(ge=1, lt=MAX_WORKERS)]
    """The tasks that are left to it at a time."""


class Welcome(Message, frozen=True):
    """The answer to `Hello`: the job of the run."""

    job: Job


class Ping(Message, frozen=True):
    """Requests a `Pong` from the worker's main loop."""


class Pong(Message, frozen=True):
    """The answer to a ping, with sequence 0; or to a cancel, with its sequence: that task is not queued any more."""


class Describe(Message, frozen=True):
    """Requests `Described`."""

    data: bool
    """Whether to open the data set, or describe the model alone."""


class Described(Message, frozen=True):
    """The profile of model and data, and the initial vectors."""

    description: ModelProfile
    payload: Attached[Payload]


class Tensors(Message, frozen=True):
    """Vectors for the worker's cache, by version, until an envelope evicts them."""

    vectors: Attached[tuple[Vector, ...]]


class MappedTensors(Message, frozen=True):
    """The same, in files in the memory of this machine, for workers that the coordinator has started."""

    folder: str
    sizes: Annotated[Mapping[Version, Positive], Meta(max_length=MAX_LENGTH)]
    """Version, which is the name of a file of raw little-endian float32 numbers -> how many."""


class ClientState(Message, frozen=True):
    """Client state to or from a worker that does not reach the files of the run. Not charged.

    It is sent right ahead of the task that needs it, and right ahead of the update of the visit that changed it, with
    that task's sequence.
    """

    client: Count
    payload: Attached[Payload]
    """The vectors of one file of `edge.protocol.client_state`."""

    def __post_init__(self) -> None:
        for slot in self.payload:
            expect(SEPARATOR not in slot, "ClientState: slot", slot)


class Train(Message, frozen=True):
    """One visit of one client. Charged."""

    client: Count
    round: Count
    lr: FiniteSize
    choice: ChosenNumbers
    """The method's choice for this visit, by name (FedBR: ``alpha``)."""
    payload: Attached[Payload]
    variant: Attached[Variant] = PLAIN


class Update(Message, frozen=True):
    """The answer to `Train`. Charged as if its vectors came with it, also where the worker has added them up."""

    client: Count
    round: Count
    numbers: Annotated[Mapping[str, float], Meta(max_length=MAX_LENGTH)]
    """Measurements of the visit, by name (losses, samples, steps)."""
    payload: Attached[Payload]
    """Its vectors as they are; empty if the worker has added them to its partial sum."""
    logged: Attached[Mapping[str, float]] = {}
    """Numbers that the method has logged in the visit, by name; NaN for a number that was not finite. It travels in the
    envelope, and is charged to nobody."""
    encoded: Attached[EncodedVectors] = {}
    """Vectors that a codec has encoded; none as soon as they are decoded."""
    variant: Attached[Variant] = PLAIN
    """That of its visit, which the receiver adds. It does not travel."""
    by: Attached[str] = ""
    """The remote worker that trained it; empty for a local one. It does not travel."""
    problem: Attached[str | None] = None
    """Why it cannot be used, or empty; None if it has not been examined. It does not travel."""

    @property
    def loss(self) -> float | None:
        """Mean training loss; None for a visit without a step, which has none."""
        return self.numbers["loss"] if self.numbers.get("steps", 1.0) > 0 else None


def numbers_of_loss(loss: float | None) -> dict[str, float]:
    """Numbers of an `Update` that has this loss."""
    return {"loss": 0.0, "steps": 0.0} if loss is None else {"loss": loss}


class Visits(Message, frozen=True):
    """Several visits that need the same vectors: columns with one item for each. Each is charged as a `Train`."""

    sequences: Column[Positive]
    """Numbers of the tasks"""
    clients: Column[Count]
    rounds: Column[Count]
    lrs: Column[FiniteSize]
    weights: Column[Fraction]
    """Aggregation weights, as in the envelope of a `Train`"""
    state_in: Column[str | None]
    state_out: Column[str | None]
    choice: Annotated[Mapping[str, Column[Int | Finite]], Meta(max_length=MAX_LENGTH)]
    payload: Attached[Payload]
    variants: Attached[Sequence[Variant]] = ()
    """One for each, all with the same fields; none if visits of the run do not differ"""

    def __post_init__(self) -> None:
        others = (self.clients, self.rounds, self.lrs, self.weights, self.state_in, self.state_out)
        variants = [self.variants] if self.variants else []
        _expect_columns("Visits", self.sequences, *others, *self.choice.values(), *variants)

    def tasks(self) -> Iterator[tuple[int, float, str | None, str | None, Train]]:
        """(sequence, weight, state_in, state_out, visit) of each."""
        choices = by_row(self.choice, len(self.sequences))
        payloads = [self.payload] * len(self.sequences)
        variants = self.variants or [PLAIN] * len(self.sequences)
        visits = map(Train, self.clients, self.rounds, self.lrs, choices, payloads, variants)
        yield from zip(self.sequences, self.weights, self.state_in, self.state_out, visits, strict=True)


class Updates(Message, frozen=True):
    """Several updates that report the same numbers, in columns. Each is charged as an `Update`."""

    sequences: Column[Positive]
    """Numbers of the tasks"""
    clients: Column[Count]
    rounds: Column[Count]
    seconds: Column[FiniteSize]
    """How long the worker took over each task"""
    numbers: Annotated[Mapping[str, Column[float]], Meta(max_length=MAX_BATCH_NUMBERS)]
    logged: Annotated[Mapping[LoggedName, Column[float]], Meta(max_length=MOST_NAMES)] = {}
    """As of `Update`; all have logged the same names"""
    payloads: Attached[Sequence[Payload]] = ()
    """One for each, all of the same shapes; none if all have been added to the worker's partial sum"""
    encoded: Attached[Sequence[EncodedVectors]] = ()
    """One for each, all of the same lengths; none if nothing is encoded"""

    def __post_init__(self) -> None:
        others = (self.clients, self.rounds, self.seconds, *self.numbers.values(), *self.logged.values())
        vectors = [column for column in (self.payloads, self.encoded) if column]
        _expect_columns("Updates", self.sequences, *others, *vectors)
        for name, column in self.logged.items():
            expect_recordable(f"Updates: logged: {name}", column)

    def replies(self) -> Iterator[tuple[int, float, Update]]:
        """(sequence, seconds, update) of each."""
        count = len(self.sequences)
        payloads = self.payloads or [{} for _ in range(count)]
        encoded = self.encoded or [{} for _ in range(count)]
        numbers, logged = by_row(self.numbers, count), by_row(self.logged, count)
        updates = map(Update, self.clients, self.rounds, numbers, payloads, logged, encoded)
        yield from zip(self.sequences, self.seconds, updates, strict=True)


def by_row(columns: Mapping[str, Sequence[T]], count: int) -> list[dict[str, T]]:
    """The ``count`` rows of columns by name."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows or [{} for _ in range(count)]


def _expect_columns(name: str, sequences: Sequence[int], *columns: Sequence[object]) -> None:
    """WireError unless the sequences are distinct, and all columns as long."""
    lengths = [len(sequences), *map(len, columns)]
    expect(len(set(lengths)) == 1, f"{name}: lengths", lengths)
    expect(len(set(sequences)) == len(sequences), f"{name}: tasks", sequences[:8])


class FetchPartial(Message, frozen=True):
    """Requests a worker's partial sum of a round."""

    round: Count


class PartialSum(Message, frozen=True):
    """The answer to `FetchPartial`, which empties the worker's sum."""

    round: Count
    clients: Count
    """Number of updates in it; 0 if the worker has none of that round."""
    totals: Attached[Totals]


class Evaluate(Message, frozen=True):
    """Examples ``start`` to ``stop`` (exclusive) of a client, or of the global test set."""

    start: Count
    stop: Count
    client: EvaluatedClient
    """`GLOBAL` for the global test set."""
    payload: Attached[Payload]
    round: Count = 0
    """For a client: the round of a visit that began now, with that of ``lr``, as in `Train`."""
    lr: FiniteSize = 0.0
    choice: ChosenNumbers = {}
    """For a client: as in `Train`."""
    split: EvalSplit = "test"
    variant: Attached[Variant] = PLAIN
    """For a client: as in `Train`; for the global test set: the window at which parts of the model are evaluated."""

    def __post_init__(self) -> None:
        expect(self.start <= self.stop, "Evaluate: start, stop", (self.start, self.stop))


class Score(Message, frozen=True):
    """The answer to `Evaluate`. A sum need not be finite, since a model may have diverged."""

    start: Count
    client: EvaluatedClient
    values: Annotated[Mapping[EvaluatedQuantity, tuple[float, Count]], Meta(max_length=MAX_VALUES)]
    """Quantity -> (sum, number of examples or measurements in it), in the order of measurement."""
    payload: Attached[Payload] = {}
    """Vectors that metrics give, in slots of their names, if the job collects them."""

    def __post_init__(self) -> None:
        for quantity, (total, count) in self.values.items():
            expect(quantity.name.isprintable(), "Score: name of a value", quantity.name)
            if (quantity.metric, quantity.part) == (ACCURACY, None):
                expect(0 <= total <= count, "Score: correct, count", (total, count))

    @property
    def losses(self) -> int | None:
        """How many losses it has, of examples or of tokens; None unless it has any, or where its accuracy is of
        others."""
        counts = {self.values[of][1] for of in (CORRECT, CROSS_ENTROPY) if of in self.values}
        return counts.pop() if len(counts) == 1 and CROSS_ENTROPY in self.values else None


class Cancel(Message, frozen=True):
    """Cancels a task; a `Pong` with its sequence answers it."""


class Error(Message, frozen=True):
    """A task, or the worker's start, ended in an exception."""

    kind: Text
    """The exception's type."""
    text: Text
    traceback: Annotated[str, Meta(max_length=MAX_TRACEBACK)] = ""
    """Where it was raised, as Python prints it; '' if there is nothing to say."""


class FetchFile(Message, frozen=True):
    """Requests the part of a file of `Job.shipped` that begins at ``offset``. Not charged."""

    sha256: Sha256
    offset: Count


class FilePart(Message, frozen=True):
    """The answer to `FetchFile`. Not charged."""

    sha256: Sha256
    """The hash of the whole file."""
    offset: Count
    content: Annotated[bytes, Meta(max_length=PART_NBYTES)]
    """`PART_NBYTES` bytes; the last part of a file may be shorter."""


class Shutdown(Message, frozen=True):
    """Ends the worker."""

    why: Text = ""
    """Why a remote worker, whose process the coordinator cannot end, is dismissed before the end of the run."""


class Envelope(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields of one message that only the transport needs."""

    worker: str
    """The identity of the worker that sends or receives."""
    sequence: Count = 0
    """The number of the task; 0 for messages that belong to none."""
    state_in: str | None = None
    """File of the client's state after its last visit."""
    state_out: str | None = None
    """File for its state after this visit."""
    evict: tuple[VersionBytes, ...] = ()
    """Block versions that the worker may drop."""
    wall_seconds: Annotated[float, Meta(ge=0, lt=MAX_SECONDS)] = 0.0
    """How long the worker took over the task."""
    weight: Fraction = 0.0
    """The client's aggregation weight, if the worker adds its update to a partial sum; 0: it is sent whole."""
    retired_slots: Annotated[tuple[Count, ...], Meta(max_length=MAX_LENGTH)] = ()
    """Slots of workers that have left for lack of memory; the others divide their memory (`edge.runtime.gpu_share`)."""
    telemetry: Annotated[str, Meta(max_length=MAX_TELEMETRY)] = ""
    """The worker's measurements of itself, for the record of the run."""
    logged: Annotated[Mapping[LoggedName, float], Meta(max_length=MOST_NAMES)] = {}
    """`Update.logged` of the update that it comes with."""

    def pack(self) -> bytes:
        """As one frame."""
        return pack_as(_ENVELOPE, self, "envelope")

    @classmethod
    def parse(cls, raw: Buffer) -> Envelope:
        envelope = unpackb(_ENVELOPE, raw, "envelope")
        expect_recordable("envelope: logged", envelope.logged.values())
        return envelope


_ENVELOPE = Decoder(Envelope)
