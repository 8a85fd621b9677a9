"""What decides when messages of visits begin to flow and when they are cut: connections, radios and batteries.

The same formulas serve the arrays of a batch of visits (`costmodel.visits.timeline`) and the numbers of a single one
(`costmodel.visits.live_visit`), so both agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, NamedTuple

import numpy as np

from costmodel.arrays import Doubles, Number, Truth, where
from costmodel.config import Transport
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import DOWN
from costmodel.network.tcp import is_idle, wire_bits


class MessageConditions(NamedTuple, Generic[Number]):
    """The columns of `Conditions` that a message in one direction depends on; numbers for a single visit."""

    rtt: Number
    noise: Number
    last_down: Number
    last_used: Number
    threshold: Number
    awake_seconds: Number
    promotion_seconds: Number
    promotion_watts: Number
    watts: Number
    joules_per_bit: Number


def message_conditions(direction: int, conditions: Conditions) -> MessageConditions[Doubles]:
    """The conditions of the messages of these visits; (visits,) each."""
    watts, joules_per_bit = conditions.radio(direction)
    return MessageConditions(
        conditions.rtt,
        conditions.noise[:, direction],
        conditions.last_down,
        conditions.last_used(direction),
        conditions.threshold[:, direction],
        conditions.awake_seconds,
        conditions.promotion_seconds,
        conditions.promotion_watts,
        watts,
        joules_per_bit,
    )


class Flows(NamedTuple, Generic[Number]):
    """Messages in one direction, (flows,) each, or the numbers of one; times in absolute seconds."""

    begin: Number
    """The time at which bits begin to flow: after the radio's promotion and the handshake"""
    bits: Number
    cut: Number
    slowly: Truth
    """Whether the message starts slowly"""
    threshold: Number
    promotion: Number
    """Seconds that the radio takes to connect"""
    connect: Number
    """Seconds from the message's beginning to that of its bits: these, and the handshake"""


def flows(
    direction: int,
    begin: Number,
    used: Number,
    nbytes: Number,
    cut: Number,
    charge: Number,
    conditions: MessageConditions[Number],
    transport: Transport,
    since: Number,
    ends: Callable[[Number, Number], Number],
) -> Flows[Number]:
    """One message of each visit, from ``begin`` until ``cut`` or until its battery is empty.

    ``used``: absolute seconds at which its client's last message ended; ``charge``: joules left; ``since``, ``ends``:
    of `costmodel.fleet.dynamics.ClientDynamics`, ``ends`` from (begin, seconds) of work.
    """
    bits = wire_bits(nbytes) * conditions.noise
    closed: Truth = transport.reconnect < math.inf and is_closed(begin, used, transport)
    is_new = (conditions.last_down <= since) | closed
    connects = is_new if direction == DOWN else closed
    handshake: Number = where(connects, transport.connect_round_trips * conditions.rtt, 0.0)
    slowly = (is_new | is_idle(begin, conditions.last_used, conditions.rtt)) & transport.slow_start
    promotion = conditions.promotion_seconds  # zeros, if it is not counted
    if transport.promotion:
        promotion = where(_disuse(begin, used) > conditions.awake_seconds, promotion, 0.0)
    # A message that never begins leaves the connection as it is.
    is_reset = is_new & (nbytes > 0) & (begin < math.inf)
    threshold: Number = where(is_reset, math.inf, conditions.threshold)
    reserve = charge - conditions.joules_per_bit * bits
    cut = battery_cut(cut, begin, reserve, conditions.watts, ends, promotion, conditions.promotion_watts)
    connect = promotion + handshake
    return Flows(begin + connect, bits, cut, slowly, threshold, promotion, connect)


def is_closed(begin: Number, used: Number, transport: Transport) -> Truth:
    """Whether each connection has been closed by ``begin`` since its last message ended at ``used``; -inf: none."""
    return (used > -math.inf) & (_disuse(begin, used) > transport.reconnect)


def _disuse(begin: Number, used: Number) -> Number:
    """Seconds without a message before ``begin``; 0 for a message that never begins."""
    begins = begin < math.inf
    seconds: Number = where(begins, begin, 0.0) - where(begins, used, 0.0)
    return seconds


def battery_cut(
    cut: Number,
    begin: Number,
    charge: Number,
    watts: Number,
    ends: Callable[[Number, Number], Number],
    promotion: Number | float = 0.0,
    promotion_watts: Number | float = 0.0,
) -> Number:
    """``cut``, or the time at which the battery is empty, if that is earlier; ``ends`` as in `flows`.

    The device draws ``watts`` from ``begin`` on, after the radio's promotion. ``charge``: joules left; inf on mains.
    """
    if not np.any(charge < math.inf) if isinstance(charge, np.ndarray) else charge == math.inf:
        return cut
    first = promotion_watts * promotion
    later = promotion + _lasts(charge - first, watts)
    empty = ends(begin, where(charge < first, _lasts(charge, promotion_watts), later))
    earlier: Number = where(empty < cut, empty, cut)
    return earlier


def _lasts(charge: Number, watts: Number | float) -> Number:
    """Seconds for which a charge, in joules, lasts."""
    left = where(charge > 0, charge, 0.0)
    seconds: Number = where(watts > 0, left / where(watts > 0, watts, 1.0), where(charge < 0, 0.0, math.inf))
    return seconds
