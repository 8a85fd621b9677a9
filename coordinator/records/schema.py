"""The tables of a ledger: their columns and the meaning of the values.

Tables ``rounds``, ``visits``, ``payload_shapes``, ``evaluations``, ``states``, ``client_vectors``, ``checkpoints`` and
``meta``, and the method's own table, hold virtual facts, equal for any number of workers; ``host_rounds`` and
``host_events`` hold facts of this machine. ``logged`` holds what a method logs: as repeatable as that is, and in no
hash, so that a method may log what it likes. The view ``transfers`` derives the bytes of every block in every visit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from edge.protocol.messages import EvaluatedQuantity
from edge.protocol.payload import ITEM_NBYTES, Shapes


class RoundRow(NamedTuple):
    """One committed round. Times are virtual and absolute; amounts are totals of the visits that ended in it."""

    round: int
    """From 0; reports, tables and messages count rounds from 1"""
    start_s: float
    end_s: float
    participants: int
    """Training visits that counted"""
    accuracy: float | None
    """On the test set after this round; None if the model was not evaluated"""
    test_loss: float | None
    train_loss: float | None
    """Mean over visits of their mean local cross-entropy"""
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    flops: float
    nominal_flops: float
    joules: float
    busy_s: float
    """Seconds of all visits"""
    wasted_s: float
    wasted_bytes: int
    wasted_joules: float
    """Seconds, bytes and joules of visits that did not count"""
    critical: int | None
    """The client whose visit the server's step waited for last; None without visits"""
    bottleneck: str
    """The part that has to be faster for a shorter round (`coordinator.records.bottleneck`), one of `BOTTLENECKS`; ''
    without visits"""
    model_sha256: str
    cut_by: str = ""
    """The rule whose budget left out or interrupted visits of this round, the run's last; '' for a whole round"""
    score: float | None = None
    """The value of the metric by which the run is judged, where that is not the accuracy (``train.loss``)"""
    epsilon: float | None = None
    """Differential privacy spent by the end of this round; None without ``privacy``, or without noise"""

    @property
    def judged(self) -> float | None:
        """The value by which the run is judged after this round; None if the model was not evaluated."""
        return self.accuracy if self.score is None else self.score


SPENT = ("bytes_down", "bytes_up", "nominal_bytes", "flops", "nominal_flops", "joules")
"""Columns of a round that a run has spent the sum of"""

OWN_LINK, SERVER_LINK, COMPUTE, WAITING = "own link", "server link", "compute", "waiting"
ANY_FLEET = (OWN_LINK, SERVER_LINK, COMPUTE, WAITING)
"""Bottlenecks that are shown of every run, with no rounds, too"""
GATEWAY, AIR, LAN, WAN = "gateway", "air", "LAN", "WAN"
"""Links or air that some clients share and links to aggregators, by their names in `costmodel.network.links.Links`, and
the links between aggregators and the server"""
ROUND_TRIPS, SERVER, DEADLINE = "round trips", "server", "deadline"
"""Connecting, the first windows, and the way itself; the server's handling of updates, and its device where it
trains (``split``); the end of the round's time"""
BOTTLENECKS = (*ANY_FLEET, GATEWAY, AIR, LAN, WAN, ROUND_TRIPS, SERVER, DEADLINE)
TRAIN, NO_OP, DOWNLOAD_ONLY, UPDATE_REJECTED, FAILED = "train", "zeroed", "listen", "refused", "failed"
TRAINED = (TRAIN, NO_OP)
"""Kinds of visit whose updates counted"""
FAULTY = (NO_OP, UPDATE_REJECTED, FAILED)
"""Kinds of visit whose updates failed a check"""
EVALUATE, NOT_SCORED = "evaluate", "unscored"
EVALUATION = (EVALUATE, NOT_SCORED)
"""Kinds of visit that only evaluate (``eval.charged``)"""
SETUP, SHARE, UNMASK, DROPPED = "setup", "share", "unmask", "dropped"
PHASES = (SETUP, SHARE, UNMASK, DROPPED)
"""Kinds of visit that are phases of secure aggregation (``privacy.secagg``); the last is of those that were lost"""
LEFTOVER = "leftover"
"""Kind of visit that is only what is left of a late visit (``rounds.on_late``)"""
NO_TRAINING = (*EVALUATION, *PHASES, LEFTOVER)
"""Kinds of visit that neither train nor were meant to; only some runs have them"""
COUNTED = (*TRAINED, DOWNLOAD_ONLY, EVALUATE, SETUP, SHARE, UNMASK)
"""Kinds of visit that counted"""
KINDS = (*COUNTED, "late", "lost", "cut", UPDATE_REJECTED, FAILED, NOT_SCORED, DROPPED, LEFTOVER)
"""All kinds of visit: those that counted, then those that were wasted"""


class VisitRow(NamedTuple):
    """One visit of one client, in the round in which it ended."""

    visit: int
    """Number of the visit, in the order in which visits began"""
    round: int
    client: int
    device: str
    network: str
    kind: str
    """Visits that counted: ``train``, ``zeroed`` (its update failed a check and counted as no change), ``listen``
    (download only), ``evaluate`` (it evaluated the client's model), ``setup``, ``share`` and ``unmask`` (phases of
    secure aggregation). Visits that did not: ``late`` (after the round's
    end), ``lost`` (the client left, crashed or ran out of power), ``cut`` (the run ended), ``refused`` (its update
    failed a check), ``failed`` (no worker could train it), ``unscored`` (an evaluation, ``lost`` or ``cut``),
    ``dropped`` (a phase, ``lost`` or ``cut``, or of a round that is lost), ``leftover`` (what a late visit did in a
    later round)."""
    staleness: int
    """Server steps between the start of the visit and the use of its update; 0 in synchronous rounds"""
    start_s: float
    down_end_s: float
    compute_end_s: float
    up_end_s: float
    shared_s: float
    """Contention: seconds lost because others used the same links"""
    paused_s: float
    """Seconds in which the client was unavailable"""
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    flops: float
    nominal_flops: float
    joules: float
    samples: int
    """Examples trained on, counted once per epoch; the planned number if the visit did not count"""
    steps: int
    """Local steps; as planned, also of a visit that was interrupted"""
    loss: float | None
    down_payload: str
    """Vectors of the download, by their name in `PayloadShapeRow`; '' if the visit did not count"""
    up_payload: str
    """Vectors of the upload; '' if there was none, or the visit did not count. Where lengths depend on numbers, also
    of a visit that was trained and did not count: what it would have sent"""
    idle_joules: float
    """The part of ``joules`` while the client was away, or waited for the round's end. These four add up to ``joules``,
    but for rounding; each is the whole device's, its baseline included. The hash chain has ``joules`` and leaves them
    out."""
    compute_joules: float
    receive_joules: float
    """While the client downloaded, also behind others on a shared link, and its radio woke up before and after that"""
    send_joules: float
    """The same of the upload"""
    rate: float | None = 1.0
    """Rate of the part of the model that the visit had, 1 for the whole; None of leftovers, which are parts of late
    visits. The hash chain has the lengths of payloads, and leaves this out"""


class ConditionsRow(NamedTuple):
    """Figures of one visit's device and links, so that its times and joules can be computed by hand.

    In no hash. Leftovers have none: theirs are those of the visits whose they are.

    Computing takes ``(steps x step_s + flops / flops_per_s + codec_s) x jitter`` seconds. A message of n bytes has
    ``8 x 1514 / 1448 x n`` bits on the wire, times its noise. Its seconds are those of connecting, those for
    which each link set its rate (the client's own; that of a gateway, the air or a LAN; the server's), pauses, half a
    round trip at its end, and the rest: windows of slow start and repairs of losses.
    """

    visit: int
    round: int
    flops_per_s: float
    step_s: float
    """Overhead of each local step"""
    codec_s: float
    """Seconds of encoding and decoding"""
    jitter: float
    """Factor on the seconds of computing"""
    down_bps: float
    """Rate of the client's own link on the wire, bit/s; where rates vary with time, before they do"""
    up_bps: float
    rtt_s: float
    loss: float
    """Probability that a segment is lost, where that narrows the sender's window"""
    noise_down: float
    """Factor on the bits of the download"""
    noise_up: float
    connect_down_s: float
    """Seconds of the radio's promotion and the handshake"""
    own_down_s: float
    access_down_s: float
    server_down_s: float
    connect_up_s: float
    own_up_s: float
    access_up_s: float
    server_up_s: float
    idle_watts: float
    """Power of the whole device, like the others"""
    train_watts: float
    receive_watts: float
    transmit_watts: float


class StepsRow(NamedTuple):
    """What one visit exchanged while it trained, of a model that is cut (``split``), by what its seconds went into.

    Its seconds of computing (`VisitRow.compute_end_s` less ``down_end_s``) are these and pauses. In no hash.
    """

    visit: int
    round: int
    down_bits: float
    """Of all messages of steps to the client, on the wire"""
    up_bits: float
    device_s: float
    """For which its device computed"""
    down_s: float
    """On the client's own link, to it"""
    up_s: float
    trips_s: float
    """Of round trips"""
    served_s: float
    """For which the server's device computed for it"""
    queued_s: float
    """For which it waited for that device, which others used"""
    access_down_s: float
    """For which it waited for links that others used: its site's (a gateway's, the air or a LAN), or the server's"""
    server_down_s: float
    access_up_s: float
    server_up_s: float

    @property
    def seconds(self) -> float:
        """For which its device did not compute."""
        return self.down_s + self.up_s + self.trips_s + self.served_s + self.queued_s + self.shared_s

    @property
    def shared_s(self) -> float:
        """For which it waited for any link."""
        return self.access_down_s + self.server_down_s + self.access_up_s + self.server_up_s


ENERGY = {"idle_joules": "idle", "compute_joules": "compute", "receive_joules": "receive", "send_joules": "send"}
"""Columns of ``visits`` that divide its joules -> what the client did"""
CHAINED = VisitRow._fields.index("idle_joules")
"""Columns of a visit that the hash chain covers, the first ones"""


class PayloadShapeRow(NamedTuple):
    """One vector of a payload: a message without its header."""

    payload: str
    """Name of the payload's lengths (`payload_name`); visits refer to it"""
    round: int
    """The first round with a payload of these lengths"""
    slot: str
    key: str
    nbytes: int
    """As it is sent: 4 bytes a number, or what a codec makes of them"""


class EvaluationRow(NamedTuple):
    """One value of an evaluation, beside the accuracy and loss that the round has."""

    round: int
    """The round after which the model was evaluated"""
    client: int
    """The client whose model and examples were used; -1: the test set, with the global model or an aggregator's own"""
    metric: str
    value: float | None
    """The mean over ``count`` examples or measurements; None if it is not finite, or beyond `edge.protocol.bounds`"""
    count: int  # type: ignore[assignment]  # a tuple's method of this name is not used
    part: str | None = None
    """One of several values of the metric, such as a class"""
    kind: str | None = None
    """``before``: a client's model before its adaptation; ``validation``: on its validation examples; else None"""
    rate: float | None = None
    """Rate of a narrower part of the global model"""
    exit: int | None = None
    """Number of the exit, from 1, of a model with several"""
    aggregator: int | None = None
    """Number of the aggregator that has the model of its own"""

    @property
    def quantity(self) -> EvaluatedQuantity:
        """The quantity that the value is of, as workers measure it."""
        return EvaluatedQuantity(self.metric, self.part, self.kind, self.rate, self.exit)  # type: ignore[arg-type]


class AggregatorRow(NamedTuple):
    """One message between an aggregator and what is above it, in runs with tiers (``fleet.tiers``)."""

    round: int
    tier: int
    """From 0, the tier next to the clients"""
    aggregator: int
    direction: str
    """``up`` or ``down``"""
    start_s: float
    end_s: float | None
    """None if it was lost"""
    nbytes: int
    """As far as it was sent"""
    joules: float
    """Energy of the aggregator while it sends or receives"""
    idle_joules: float
    """Energy of its baseline from its message before this one on"""
    shared_s: float
    """Contention: seconds lost because other aggregators used the same links"""
    price: float
    held_s: float = 0.0
    """Seconds for which such a link, and not the aggregator's own, set the rate of the message"""


class LoggedRow(NamedTuple):
    """One number that a method has logged in a round (`edge.protocol.logged`)."""

    round: int
    client: int | None
    """The client whose visit logged it; None for the server's side"""
    name: str
    value: float | None
    """None if it was not finite"""


class HostEvent(NamedTuple):
    """An event of this machine's processes; never part of the result."""

    kind: str
    """worker_started, worker_joined, worker_memory, worker_retired, worker_died, task_failed, task_repeated,
    task_given_up, late_reply, message_refused, listening, checkpoint_damaged, machine_changed,
    app_raised, app_failed, app_changed"""
    worker: str
    """Number of the worker; '' if the event concerns no known worker"""
    detail: str
    wall_seconds: float
    """Unix time"""


@dataclass(frozen=True)
class MethodTable:
    """A method's own ledger table, for the decisions and feedback of its server side in each visit."""

    name: str
    row: type[NamedTuple]
    """Columns; the first two are ``round`` and ``client``"""
    reports: Mapping[str, str] = field(default_factory=dict)
    """Name of a number in an update -> the column that holds it, for replays"""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in TABLES:
            raise ValueError(f"a method's table cannot be named {self.name!r}: use another plain word")
        columns = get_type_hints(self.row)
        if list(columns)[:2] != ["round", "client"] or not set(columns.values()) <= _TYPES.keys():
            raise ValueError(f"table {self.name}: columns must be round, client, and others of type int, float or str")


_TYPES: Mapping[Any, str] = {
    int: "INTEGER",
    float: "REAL",
    str: "TEXT",
    float | None: "REAL",
    int | None: "INTEGER",
    str | None: "TEXT",
}


@cache
def column_types(row: type[NamedTuple]) -> Mapping[str, str]:
    """Column -> its SQL type."""
    return MappingProxyType({name: _TYPES[python_type] for name, python_type in get_type_hints(row).items()})


def create(table: str, row: type[NamedTuple], extra: str = "") -> str:
    """The SQL statement that creates a table of such rows."""
    columns = ", ".join(f'"{name}" {sql_type}' for name, sql_type in column_types(row).items())
    return f"CREATE TABLE {table} ({columns}{extra})"


TRANSFERS = """CREATE VIEW transfers AS
    WITH
        directions (direction) AS (VALUES ('down'), ('up')),
        weights AS (SELECT payload, SUM(nbytes) AS nbytes FROM payload_shapes GROUP BY payload),
        messages AS (
            SELECT visit, round, client, direction, down_payload = '' AS cut,
                CASE direction WHEN 'down' THEN down_payload ELSE up_payload END AS payload,
                CASE direction WHEN 'down' THEN bytes_down ELSE bytes_up END AS nbytes
            FROM visits, directions
        )
    SELECT visit, round, client, direction, '' AS slot, CASE WHEN cut THEN 'cut' ELSE 'header' END AS "key",
        messages.nbytes - COALESCE(weights.nbytes, 0) AS nbytes
        FROM messages LEFT JOIN weights USING (payload) WHERE cut OR payload != ''
    UNION ALL
    SELECT visit, messages.round, client, direction, slot, "key", payload_shapes.nbytes
        FROM messages JOIN payload_shapes USING (payload) WHERE NOT cut"""
"""The bytes of one block in one direction of one visit. Slot '' and key 'header' for the header; slot '' and key 'cut'
for all bytes of a visit that did not count."""

FORMAT = 9
"""The format of a ledger, kept as ``user_version``; raised with its tables or with what its chain begins with. Another
one is refused"""
CONDITIONS = "conditions"
"""The table of `ConditionsRow`."""
SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)",
    create("rounds", RoundRow, ", chain TEXT, files TEXT, PRIMARY KEY (round)"),
    create("visits", VisitRow, ", PRIMARY KEY (visit)"),
    create("payload_shapes", PayloadShapeRow),
    create(CONDITIONS, ConditionsRow),
    "CREATE TABLE states (client INTEGER, round INTEGER, file TEXT, sha256 TEXT, PRIMARY KEY (client, round))",
    "CREATE TABLE client_vectors "
    "(client INTEGER, slot TEXT, round INTEGER, file TEXT, sha256 TEXT, PRIMARY KEY (client, slot, round))",
    "CREATE TABLE checkpoints (round INTEGER PRIMARY KEY, file TEXT, sha256 TEXT)",
    "CREATE TABLE host_rounds (round INTEGER PRIMARY KEY, wall_s REAL)",
    "CREATE TABLE host_events (kind TEXT, worker TEXT, detail TEXT, wall_s REAL)",
    TRANSFERS,
)
EVALUATIONS = "evaluations"
"""The table of `EvaluationRow`, which a ledger has from the first such row on."""
AGGREGATORS = "aggregators"
"""The table of `AggregatorRow`, which runs with tiers have."""
LOGGED = "logged"
"""The table of `LoggedRow`, which a ledger has from the first such row on."""
STEPS = "steps"
"""The table of `StepsRow`, which runs of a model that is cut have."""
TABLES = (
    *("meta", "rounds", "visits", "payload_shapes", "transfers", CONDITIONS, EVALUATIONS, AGGREGATORS, LOGGED, STEPS),
    *("states", "client_vectors", "checkpoints", "host_rounds", "host_events"),
)
"""Names that a method's own table must not have"""


Lengths = Mapping[str, Mapping[str, int]]
"""slot -> key -> bytes of the vector in a message, as it is or as a codec has encoded it"""


def lengths(shapes: Shapes, encoded: Lengths | None = None) -> Lengths:
    """The bytes of vectors of these shapes, some of which are ``encoded``; in the order of the shapes."""
    frames = encoded or {}
    return {
        slot: {key: frames.get(slot, {}).get(key, ITEM_NBYTES * size) for key, size in sizes.items()}
        for slot, sizes in shapes.items()
    }


def payloads_of(rows: Iterable[PayloadShapeRow]) -> dict[str, dict[str, dict[str, int]]]:
    """Name of a payload -> slot -> key -> bytes of the vector."""
    payloads: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        payloads.setdefault(row.payload, {}).setdefault(row.slot, {})[row.key] = row.nbytes
    return payloads


def payload_name(lengths: Lengths) -> str:
    """A name for the lengths of a payload's vectors: 16 hexadecimal digits of their hash."""
    return _payload_name(
        tuple((slot, key, nbytes) for slot, by_key in lengths.items() for key, nbytes in by_key.items())
    )


@lru_cache(maxsize=1024)
def _payload_name(parts: tuple[tuple[str, str, int], ...]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def payload_rows(name: str, round: int, lengths: Lengths) -> list[PayloadShapeRow]:
    """The rows of one payload, in the order of its vectors."""
    return [
        PayloadShapeRow(name, round, slot, key, nbytes)
        for slot, by_key in lengths.items()
        for key, nbytes in by_key.items()
    ]
