"""What decides when messages of visits begin to flow and when they are cut: connections, radios and batteries.

The same formulas serve a batch of visits (`costmodel.visits.timeline`) and a single one (`costmodel.visits.live_visit`,
as a batch of one), so both agree to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN
from costmodel.network.links import Links
from costmodel.network.senders import Path
from costmodel.network.tcp import is_idle, wire_bits


@dataclass(frozen=True)
class Flows:
    """Messages in one direction; arrays of shape (flows,), times in absolute seconds."""

    conditions: Conditions
    begin: Doubles
    """The time at which bits begin to flow: after the radio's promotion and the handshake"""
    bits: Doubles
    cut: Doubles
    slowly: NDArray[np.bool_]
    """Whether the message starts slowly"""
    threshold: Doubles
    promotion: Doubles
    """Seconds that the radio takes to connect"""

    def paths(self, direction: int, links: Links) -> list[Path]:
        """The path of each message."""
        conditions = self.conditions
        columns = (conditions.rtt, self.slowly, conditions.loss, self.threshold, conditions.loss_seed[:, direction])
        queue = 8.0 * links.transport.queue
        return [Path(*row, queue) for row in zip(*(column.tolist() for column in columns), strict=True)]


def flows(
    direction: int,
    begin: Doubles,
    used: Doubles,
    nbytes: Doubles,
    cut: Doubles,
    charge: Doubles,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics,
) -> Flows:
    """One message of each visit, from ``begin`` until ``cut`` or until its battery is empty; (visits,) each.

    ``used``: absolute seconds at which its client's last message ended; ``charge``: joules left.
    """
    rtt, transport = conditions.rtt, links.transport
    bits = wire_bits(nbytes) * conditions.noise[:, direction]
    closed = is_closed(begin, used, links) if transport.reconnect < math.inf else np.False_
    is_new = (conditions.last_down <= behaviour.since(conditions, begin)) | closed
    connects = is_new if direction == DOWN else closed
    handshake = np.where(connects, transport.connect_round_trips * rtt, 0.0)
    slowly = (is_new | is_idle(begin, conditions.last_used(direction), rtt)) & transport.slow_start
    promotion = conditions.promotion_seconds  # zeros, if it is not counted
    if transport.promotion:
        promotion = np.where(_disuse(begin, used) > conditions.awake_seconds, conditions.promotion_seconds, 0.0)
    # A message that never begins leaves the connection as it is.
    is_reset = is_new & (nbytes > 0) & np.isfinite(begin)
    threshold = np.where(is_reset, math.inf, conditions.threshold[:, direction])
    watts, joules_per_bit = conditions.radio(direction)
    cut = battery_cut(cut, begin, charge - joules_per_bit * bits, watts, conditions, behaviour, promotion)
    return Flows(conditions, begin + (promotion + handshake), bits, cut, slowly, threshold, promotion)


def is_closed(begin: Doubles, used: Doubles, links: Links) -> NDArray[np.bool_]:
    """Whether each connection has been closed by ``begin`` since its last message ended at ``used``; -inf: none."""
    return (used > -math.inf) & (_disuse(begin, used) > links.transport.reconnect)


def _disuse(begin: Doubles, used: Doubles) -> Doubles:
    """Seconds without a message before ``begin``; 0 for a message that never begins."""
    return np.subtract(begin, used, out=np.zeros_like(begin), where=begin < math.inf)


def battery_cut(
    cut: Doubles,
    begin: Doubles,
    charge: Doubles,
    watts: Doubles,
    conditions: Conditions,
    behaviour: ClientDynamics,
    promotion: Doubles | float = 0.0,
) -> Doubles:
    """``cut``, or the time at which the battery is empty, if that is earlier; (visits,) each.

    The device draws ``watts`` from ``begin`` on, after the radio's promotion. ``charge``: joules left; inf on mains.
    """
    if not np.isfinite(charge).any():
        return cut
    first = conditions.promotion_watts * promotion
    later = promotion + _lasts(charge - first, watts)
    seconds = np.where(charge < first, _lasts(charge, conditions.promotion_watts), later)
    return np.minimum(cut, behaviour.after(conditions, begin, seconds))


def _lasts(charge: Doubles, watts: Doubles) -> Doubles:
    """Seconds for which a charge, in joules, lasts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(watts > 0, np.maximum(charge, 0.0) / watts, np.where(charge < 0, 0.0, math.inf))
