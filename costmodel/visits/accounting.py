"""The costs of visits, from the times of their parts: bytes, FLOPs, joules, and seconds of contention and absence.

A visit that is cut or lost is charged its costs until then. Nothing here knows why a part ended when it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN, UP
from costmodel.visits.exchange import ExchangeTimes
from costmodel.visits.work import Works

WHOLE_BITS = 1e-6
"""Bits of a message that rounding may lose."""
COSTS = (
    *("bytes_down", "bytes_up", "flops", "computed", "contention_seconds", "paused_seconds"),
    *("joules_spent", "idle_joules", "compute_joules", "receive_joules", "send_joules"),
)
"""Columns of `Timeline` that add up over the parts of a visit."""


@dataclass(frozen=True)
class Timeline:
    """Times and costs of visits; arrays of shape (visits,), times in absolute seconds.

    A time is inf where the visit ends before it; a visit that is cut or lost is charged its costs until then.
    """

    start: Doubles
    down_end: Doubles
    compute_end: Doubles
    up_end: Doubles
    lost: Doubles
    """The time at which the visit lost its client; inf: never, or not by ``until``."""
    bytes_down: NDArray[np.int64]
    """Whole bytes sent."""
    bytes_up: NDArray[np.int64]
    flops: Doubles
    joules_spent: Doubles
    """Joules of the visit: of computing, of the radio, and the device's baseline at all times of it."""
    idle_joules: Doubles
    """These of its pauses. The four parts add up to ``joules_spent``, but for rounding."""
    compute_joules: Doubles
    receive_joules: Doubles
    """Of the download, with the radio's promotion before it and its tail after it"""
    send_joules: Doubles
    contention_seconds: Doubles
    """Seconds lost to other transfers over the same links."""
    paused_seconds: Doubles
    """Seconds for which the client was away, or its message waited for an outage to pass."""
    computed: Doubles
    """Seconds of computing."""
    progress: Doubles
    """The part of all computing that was done, with what goes back and forth meanwhile"""
    threshold_down: Doubles
    """`costmodel.network.senders.Path.threshold` of the client's next download."""
    threshold_up: Doubles
    """The same of its next upload."""
    connect_down: Doubles
    """Seconds before the download's first bits: of the radio's promotion and the handshake."""
    own_down: Doubles
    """Seconds of the download for which the client's own link set the rate; what is left of a message are round trips
    (connecting, windows, the way of the last byte) and pauses."""
    access_down: Doubles
    """Seconds for which the link or the air that the clients of its site share set it, then the server's link."""
    server_down: Doubles
    connect_up: Doubles
    own_up: Doubles
    access_up: Doubles
    server_up: Doubles
    exchange: ExchangeTimes | None = None
    """What went back and forth while it computed, as far as it did; None: nothing does"""

    def __len__(self) -> int:
        return self.start.size

    @property
    def columns(self) -> dict[str, Any]:
        """All that it has, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}

    @property
    def end(self) -> Doubles:
        """The time at which the server has the whole upload, or has lost the client; inf if the visit goes on."""
        return np.minimum(self.up_end, self.lost)

    @property
    def joules(self) -> Doubles:
        """Joules of the whole visit; inf for a visit that is cut."""
        return np.where(np.isfinite(self.end), self.joules_spent, math.inf)

    def only(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Timeline:
        """Those of a mask, or at these indices."""
        return Timeline(**{name: column[which] for name, column in self.columns.items()})

    @staticmethod
    def joined(each: Sequence[Timeline]) -> Timeline:
        """The visits of all of these, one after the other."""
        exchanges = [one.exchange for one in each if one.exchange is not None]
        names = each[0].columns.keys() - {"exchange"}
        columns = {name: np.concatenate([getattr(one, name) for one in each]) for name in names}
        return Timeline(**columns, exchange=ExchangeTimes.joined(exchanges) if exchanges else None)

    def after(self, before: Timeline, since: float) -> Timeline:
        """These visits from ``since`` on, by when they had cost as much as ``before``."""
        costs = {name: np.maximum(getattr(self, name) - getattr(before, name), 0) for name in COSTS}
        ends = {name: np.maximum(getattr(self, name), since) for name in ("start", "down_end", "compute_end", "up_end")}
        return replace(self, **costs, **ends)

    def waiting_joules(self, end: float, conditions: Conditions) -> Doubles:
        """Joules of the baseline from each visit's end to ``end`` (absolute seconds); 0 for a visit that is cut."""
        return conditions.idle_watts * np.maximum(end - self.up_end, 0.0)

    def seconds(self, until: float) -> Doubles:
        """Seconds of each visit before ``until`` (absolute seconds)."""
        return np.maximum(np.minimum(self.end, until) - self.start, 0.0)


@dataclass(frozen=True)
class Transfer:
    """One message of each visit; arrays of shape (visits,), times in absolute seconds."""

    begin: Doubles
    cut: Doubles
    """The time at which the visit is cut, unless this message has ended"""
    end: Doubles
    """The time at which the last byte has arrived; inf if not by ``cut``"""
    bits: Doubles
    """Bits of the whole message"""
    sent: Doubles
    """Bits sent by ``cut``"""
    contention_seconds: Doubles
    paused: Doubles
    threshold: Doubles
    """`costmodel.network.senders.Path.threshold` of the connection's next message"""
    promotion: Doubles
    """Seconds that the radio takes to connect before it"""
    connect_seconds: Doubles
    """These, and seconds of the handshake; 0 without a message"""
    own_seconds: Doubles
    access_seconds: Doubles
    server_seconds: Doubles
    """Seconds for which the client's own link, its site's, or the server's set the rate"""


@dataclass(frozen=True)
class ComputePhase:
    """The computing of each visit between its two messages; arrays of shape (visits,), times in absolute seconds."""

    begin: Doubles
    cut: Doubles
    end: Doubles
    seconds: Doubles
    """Seconds of work that it takes at the device's nominal speed"""
    computed: Doubles
    """Seconds of computing until ``end``; only these of visits that reach it count"""
    exchange: ExchangeTimes | None = None
    """What goes back and forth in ``seconds``; None: nothing"""


def computing_watts(conditions: Conditions, exchange: ExchangeTimes | None, seconds: Doubles) -> Doubles:
    """(visits,) Watts of the device on the average of its computing, the radio of its exchange included.

    ``seconds``: of computing, with the exchange. While the device waits, it draws its baseline.
    """
    if exchange is None:
        return conditions.train_watts
    computes, receives, sends, idles = _watts(conditions, exchange, seconds)
    return computes + receives + sends + idles


def _watts(
    conditions: Conditions, exchange: ExchangeTimes, seconds: Doubles
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """(visits,) Watts of computing, receiving, sending and waiting on the average of computing with an exchange."""
    own, radio = seconds - exchange.seconds, []
    of_way = (DOWN, exchange.down_seconds, exchange.down_bits), (UP, exchange.up_seconds, exchange.up_bits)
    for way, at_work, bits in of_way:
        watts, joules_per_bit = conditions.radio(way)
        radio.append(watts * at_work + joules_per_bit * bits)
    waits = np.maximum(exchange.seconds - exchange.down_seconds - exchange.up_seconds, 0.0)
    parts = (conditions.train_watts * own, *radio, conditions.idle_watts * waits)
    computes, receives, sends, idles = (
        np.divide(part, seconds, out=np.zeros_like(seconds), where=seconds > 0) for part in parts
    )
    return computes, receives, sends, idles


def account_visits(
    start: Doubles,
    down: Transfer,
    computing: ComputePhase,
    up: Transfer,
    works: Works,
    conditions: Conditions,
    behaviour: ClientDynamics,
    until: float,
) -> Timeline:
    """The timeline of visits, from the times of their parts."""
    if np.isfinite(up.end).all():
        return _account_of_done(start, down, computing, up, works, conditions, behaviour.pauses)
    intervals = _interval(down), _interval(computing), _interval(up)
    interval = intervals[1]
    done = np.isfinite(computing.end)
    worked = np.where(done, computing.computed, interval)
    if behaviour.pauses:
        present = _until_cut(computing, conditions, behaviour.present_seconds)
        worked = np.where(done, computing.computed, np.minimum(present, interval))
    progress = worked if behaviour.speed.is_constant else _until_cut(computing, conditions, behaviour.computed)
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(done | (computing.seconds == 0), 1.0, np.minimum(progress / computing.seconds, 1.0))
    begun = np.isfinite(computing.begin) & (computing.begin <= computing.cut)
    cut = np.where(np.isfinite(down.end), np.where(done, up.cut, computing.cut), down.cut)
    is_lost = ~np.isfinite(up.end) & (cut < until)
    computed = np.where(begun, worked, 0.0)
    paused = down.paused + up.paused + (np.where(begun, interval - worked, 0.0) if behaviour.pauses else 0.0)
    return Timeline(
        start,
        down.end,
        computing.end,
        up.end,
        lost=np.where(is_lost, cut, math.inf),
        bytes_down=whole_bytes(works.message_down, down) + _exchanged(works, DOWN, fraction, begun),
        bytes_up=whole_bytes(works.message_up, up) + _exchanged(works, UP, fraction, begun),
        flops=np.where(done, works.flops, np.where(begun, works.flops * fraction, 0.0)),
        **_joules(down, up, intervals, computed, paused, works, conditions, computing),
        paused_seconds=paused,
        computed=_own_share(computing, computed),
        progress=np.where(begun, fraction, 0.0),
        threshold_down=down.threshold,
        threshold_up=up.threshold,
        **_limits(down, up, computing, np.where(begun, fraction, 0.0)),
    )


def _account_of_done(
    start: Doubles,
    down: Transfer,
    computing: ComputePhase,
    up: Transfer,
    works: Works,
    conditions: Conditions,
    pauses: bool,
) -> Timeline:
    """`account_visits` for visits that all reach their ends: several times faster."""
    # An end is never past its cut, so intervals need not be clipped.
    interval, seconds = computing.end - computing.begin, computing.computed
    intervals = down.end - down.begin, interval, up.end - up.begin
    paused = down.paused + up.paused + (interval - seconds if pauses else 0.0)
    return Timeline(
        start,
        down.end,
        computing.end,
        up.end,
        lost=np.full(start.size, math.inf),
        bytes_down=works.bytes_down,
        bytes_up=works.bytes_up,
        flops=works.flops,
        **_joules(down, up, intervals, seconds, paused, works, conditions, computing),
        paused_seconds=paused,
        computed=_own_share(computing, seconds),
        progress=np.ones(start.size),
        threshold_down=down.threshold,
        threshold_up=up.threshold,
        **_limits(down, up, computing, np.ones(start.size)),
    )


def _own_share(computing: ComputePhase, computed: Doubles) -> Doubles:
    """(visits,) seconds for which the device computes, of those of computing with an exchange."""
    exchange, whole = computing.exchange, computing.seconds
    if exchange is None:
        return computed
    return computed * np.divide(whole - exchange.seconds, whole, out=np.zeros_like(whole), where=whole > 0)


def _limits(down: Transfer, up: Transfer, computing: ComputePhase, progress: Doubles) -> dict[str, Any]:
    """The columns of `Timeline` that say what set the pace of each message and of its exchange, and for how long.

    ``progress``: (visits,) the part of computing that was done.
    """
    found: dict[str, Any] = {
        f"{link}_{way}": getattr(transfer, f"{link}_seconds")
        for way, transfer in (("down", down), ("up", up))
        for link in ("connect", "own", "access", "server")
    }
    found["contention_seconds"] = down.contention_seconds + up.contention_seconds
    if computing.exchange is None:
        return found
    exchange = found["exchange"] = computing.exchange.done(progress)
    for way in ("down", "up"):
        found[f"own_{way}"] = found[f"own_{way}"] + getattr(exchange, f"{way}_seconds")
        for link in (f"access_{way}", f"server_{way}"):
            found[link] = found[link] + getattr(exchange, link)
            found["contention_seconds"] = found["contention_seconds"] + getattr(exchange, link)
    return found


def radio_joules(direction: int, transfer: Transfer, conditions: Conditions) -> Doubles:
    """Joules of the device until a transfer ends or is cut, without pauses and without the tail after it."""
    return _radio_joules(direction, transfer, _interval(transfer), conditions)


def _radio_joules(direction: int, transfer: Transfer, interval: Doubles, conditions: Conditions) -> Doubles:
    watts, joules_per_bit = conditions.radio(direction)
    if not transfer.promotion.any():
        return watts * np.maximum(interval - transfer.paused, 0.0) + joules_per_bit * transfer.sent
    promoted = np.minimum(transfer.promotion, interval)
    at_work = np.maximum(interval - transfer.paused - promoted, 0.0)
    return watts * at_work + joules_per_bit * transfer.sent + conditions.promotion_watts * promoted


def _joules(
    down: Transfer,
    up: Transfer,
    intervals: tuple[Doubles, Doubles, Doubles],
    computed: Doubles,
    paused: Doubles,
    works: Works,
    conditions: Conditions,
    phase: ComputePhase,
) -> dict[str, Any]:
    """The columns of `Timeline` with joules, (visits,) each; ``intervals``: seconds of each part.

    The device draws its baseline at all times; computing and radio add to it. So with a worse link a visit never takes
    fewer joules, the waiting after it included: each second of waiting less is one of a transfer more.

    The radio stays awake after a message for its tail, or until the client's next message. The next visit is unknown
    when the tail of this one is charged, in full. So a visit that begins within the tail of a message before it is
    charged so much less for the tail of its own last message; one that is interrupted has no such tail to charge.
    """
    tail = conditions.tail_seconds
    sends = works.message_up > 0
    first = np.where(works.message_down > 0, down.begin, np.where(sends, up.begin, math.inf))
    last_tail = np.minimum(tail, np.maximum(first - conditions.last_message, 0.0))
    after_down = np.where(
        np.isfinite(down.end) & (works.message_down > 0),
        np.where(sends, np.minimum(tail, intervals[1]), last_tail),
        0.0,
    )
    after_up = np.where(np.isfinite(up.end) & sends, last_tail, 0.0)
    transfers = ((DOWN, down, intervals[0]), (UP, up, intervals[2]))
    messages = [_radio_joules(direction, transfer, interval, conditions) for direction, transfer, interval in transfers]
    computing, pauses = conditions.train_watts * computed, conditions.idle_watts * paused
    joules: Doubles = messages[0] + computing + messages[1]
    # Ledgers and their hashes hold these bits: the parts below are not added up for them.
    joules += pauses + conditions.tail_watts * (after_down + after_up)
    if phase.exchange is not None:
        computes, receives, sends_on, idles = _watts(conditions, phase.exchange, phase.seconds)
        own, idle = computes * computed, np.maximum(pauses, 0.0) + idles * computed
        receive = messages[0] + conditions.tail_watts * after_down + receives * computed
        send = messages[1] + conditions.tail_watts * after_up + sends_on * computed
        parts = {"idle_joules": idle, "compute_joules": own, "receive_joules": receive, "send_joules": send}
        return {"joules_spent": idle + own + receive + send, **parts}
    return {
        "joules_spent": joules,
        "idle_joules": np.maximum(pauses, 0.0),  # rounding may leave a pause of less than nothing
        "compute_joules": computing,
        "receive_joules": messages[0] + conditions.tail_watts * after_down,
        "send_joules": messages[1] + conditions.tail_watts * after_up,
    }


def _exchanged(works: Works, direction: int, fraction: Doubles, begun: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(visits,) whole bytes that have been exchanged in this fraction of computing."""
    if works.exchanges is None:
        return np.zeros(len(works), np.int64)
    nbytes = works.exchanges.bytes_down if direction == DOWN else works.exchanges.bytes_up
    return np.where(begun, np.floor(np.where(begun, fraction, 0.0) * nbytes + WHOLE_BITS), 0).astype(np.int64)


def _until_cut(
    computing: ComputePhase, conditions: Conditions, seconds: Callable[[int, float, float], float]
) -> Doubles:
    """``seconds`` of (client, begin, cut) of computing that was cut; 0 for visits without."""
    begun = np.isfinite(computing.begin) & ~np.isfinite(computing.end)
    intervals = zip(conditions.clients.tolist(), computing.begin.tolist(), computing.cut.tolist(), begun, strict=True)
    return np.array([seconds(client, begin, cut) if has_begun else 0.0 for client, begin, cut, has_begun in intervals])


def whole_bytes(nbytes: NDArray[np.int64], transfer: Transfer) -> NDArray[np.int64]:
    """Whole bytes of messages of ``nbytes`` bytes that have been sent; all of a message that has ended."""
    fraction = np.divide(transfer.sent, transfer.bits, out=np.zeros_like(transfer.bits), where=transfer.bits > 0)
    part = np.floor(np.minimum(fraction, 1.0) * nbytes + WHOLE_BITS).astype(np.int64)
    return np.where(np.isfinite(transfer.end), nbytes, part)


def _interval(part: Transfer | ComputePhase) -> Doubles:
    """Seconds of a part before its cut; 0 if it never began."""
    begun = np.isfinite(part.begin) & (part.begin <= part.cut)
    return np.where(begun, np.minimum(part.end, part.cut) - np.where(begun, part.begin, 0.0), 0.0)
