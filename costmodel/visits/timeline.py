"""The timelines and costs of a batch of visits: each a download, then computing, then an upload.

The visits of a batch are solved together in numpy, link by link: downloads, computing and uploads wait for each other
only within a visit. Where access points share air, downloads compete with uploads, and `costmodel.visits.event_batch`
solves the batch. `costmodel.clock` simulates the same visits one by one and agrees to the bit. Nothing here reads the
host's clock.

A message begins to flow after the handshake of its connection (`costmodel.network.tcp`), at once or with slow start
(`costmodel.network.senders`), flows over the shared links (`costmodel.network.transfers`), and takes half a round-trip
time more. A message of no bytes takes no time. The download opens the connection: a visit without one uploads over a
connection taken as open. A connection that has not been used for `Transport.reconnect` is closed, and set up again by
the next message, also by an upload after as much computing. An idle radio that connects first (`Transport.promotion`)
delays the handshake.

A battery limits computing and both messages, but not the radio's tails, nor what a device draws while it waits or is
away: these are charged after the visit. The joules per bit of a message are reserved before it begins: a message that
the battery cannot pay for never begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.network.senders import Path
from costmodel.network.tcp import is_idle, wire_bits
from costmodel.network.transfers import TransferTimes, transfer_batch
from costmodel.visits.accounting import ComputePhase, Timeline, Transfer, account_visits, radio_joules
from costmodel.visits.event_batch import solve_by_events
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.work import Works

__all__ = ["Timeline", "solve", "solve_beside"]


def solve(
    starts: ArrayLike,
    works: Works,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics | None = None,
    until: float = math.inf,
) -> Timeline:
    """The timeline of a batch of visits until ``until``, absolute seconds."""
    return solve_beside(None, starts, works, conditions, links, behaviour, until).timeline


def solve_beside(
    leftovers: Leftovers | None,
    starts: ArrayLike,
    works: Works,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics | None = None,
    until: float = math.inf,
) -> Solution:
    """`solve`, while ``leftovers`` flow over the same links; their clients are not among those of the visits."""
    behaviour = behaviour or ClientDynamics()
    beside = None if leftovers is None or not len(leftovers) else _Beside(leftovers, links, behaviour, until)
    start = np.asarray(starts, np.float64)
    assert start.shape == (len(works),) == (len(conditions),), (start.shape, len(works), len(conditions))
    assert np.isfinite(start).all(), start
    if links.airtime is not None and len(works):
        assert beside is None, "leftovers where messages share air"
        return Solution(solve_by_events(start, works, conditions, links, behaviour, until))
    lost = behaviour.losses(conditions, start)
    used = conditions.last_message if links.transport.depends_on_disuse else conditions.last_down
    if links.transport.reconnect < math.inf:
        conditions = conditions.disconnected(_is_closed(start, used, links))
    down = _transfer(
        DOWN, start, used, works.bytes_down, np.minimum(lost, until), conditions, links, behaviour, beside=beside
    )
    seconds = conditions.compute_seconds(works.flops, works.steps)
    charge = conditions.charge - radio_joules(DOWN, down, conditions)
    cut = np.minimum(np.minimum(lost, until), _flat(down.end, charge, conditions.train_watts, conditions, behaviour))
    compute_end, computed = behaviour.computing(conditions, down.end, seconds)
    computing = ComputePhase(down.end, cut, _by(cut, compute_end), seconds, computed)
    charge = charge - conditions.train_watts * computed
    if links.transport.depends_on_disuse:
        used = np.where(works.bytes_down > 0, down.end, used)
    up = _transfer(
        UP, computing.end, used, works.bytes_up, np.minimum(lost, until), conditions, links, behaviour, charge, beside
    )
    if links.transport.reconnect < math.inf:
        renewed = _is_closed(up.begin, used, links) & (works.bytes_up > 0)
        down = replace(down, threshold=np.where(renewed, math.inf, down.threshold))
    timeline = account_visits(start, down, computing, up, works, conditions, behaviour, until)
    return Solution(timeline, (down, up), *((None, None) if beside is None else beside.ended()))


def _transfer(
    direction: int,
    begin: Doubles,
    used: Doubles,
    nbytes: NDArray[np.int64],
    cut: Doubles,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics,
    charge: Doubles | None = None,
    beside: _Beside | None = None,
) -> Transfer:
    """One message of each visit. ``used``: absolute seconds at which its client's last message ended."""
    bits = wire_bits(nbytes.astype(np.float64)) * conditions.noise[:, direction]
    watts, joules_per_bit = conditions.radio(direction)
    charge = (conditions.charge if charge is None else charge) - joules_per_bit * bits
    promotion, handshake, slowly, is_new = _opening(direction, begin, used, conditions, links, behaviour)
    # A message that never begins leaves the connection as it is.
    is_reset = is_new & (nbytes > 0) & np.isfinite(begin)
    threshold = np.where(is_reset, math.inf, conditions.threshold[:, direction])
    cut = np.minimum(cut, _flat(begin, charge, watts, conditions, behaviour, promotion))
    flows = _Flows(conditions, begin + (promotion + handshake), bits, cut, slowly, threshold)
    times = flows.sent(direction, links, behaviour) if beside is None else beside.sent(direction, flows)
    end = np.where(nbytes > 0, times.finish + conditions.rtt / 2, begin)
    return Transfer(
        begin, cut, _by(cut, end), bits, times.sent, times.contention_seconds, times.paused, times.threshold, promotion
    )


@dataclass(frozen=True)
class _Flows:
    """The messages of a batch in one direction; arrays of shape (flows,)."""

    conditions: Conditions
    begin: Doubles
    bits: Doubles
    cut: Doubles
    slowly: NDArray[np.bool_]
    threshold: Doubles

    def sent(self, direction: int, links: Links, behaviour: ClientDynamics) -> TransferTimes:
        conditions, sites = self.conditions, links.access_capacity(direction)
        return transfer_batch(
            self.begin,
            self.bits,
            conditions.rate(direction),
            links.capacity(direction),
            self.cut,
            rtt=np.where(self.slowly, conditions.rtt, 0.0),
            paths=_paths(direction, conditions, self.slowly, self.threshold, behaviour),
            access_link=conditions.access_link if sites else None,
            access_capacity=sites,
            varying=behaviour.varying(conditions, direction),
            outage=behaviour.outages(conditions, direction),
        )


class _Beside:
    """Leftovers that flow beside the messages of a batch."""

    def __init__(self, leftovers: Leftovers, links: Links, behaviour: ClientDynamics, until: float) -> None:
        self._leftovers, self._links, self._behaviour, self._until = leftovers, links, behaviour, until
        lost = behaviour.losses(leftovers.conditions, leftovers.begin)
        self._cut = np.minimum(np.minimum(lost, until), leftovers.told)
        self._times = TransferTimes(*(np.full(len(leftovers), value) for value in (math.inf, 0.0, 0.0, 0.0, math.inf)))

    def sent(self, direction: int, flows: _Flows) -> TransferTimes:
        """The times of ``flows``; those of the leftovers are kept."""
        which = self._leftovers.direction == direction
        ours = self._leftovers.only(which)
        watts, joules_per_bit = ours.conditions.radio(direction)
        charge = ours.conditions.charge - joules_per_bit * ours.left
        flat = _flat(ours.begin, charge, watts, ours.conditions, self._behaviour)
        self._cut[which] = np.minimum(self._cut[which], flat)
        everyone = _Flows(
            flows.conditions.followed_by(ours.conditions),
            np.concatenate((flows.begin, ours.begin)),
            np.concatenate((flows.bits, ours.left)),
            np.concatenate((flows.cut, self._cut[which])),
            np.concatenate((flows.slowly, np.zeros(len(ours), bool))),
            np.concatenate((flows.threshold, np.full(len(ours), math.inf))),
        )
        times = everyone.sent(direction, self._links, self._behaviour)
        for name, column in vars(times).items():
            getattr(self._times, name)[which] = column[flows.bits.size :]
        return TransferTimes(*(column[: flows.bits.size] for column in vars(times).values()))

    def ended(self) -> tuple[Timeline, Doubles]:
        """(the costs of the leftovers, their bits that are left)."""
        return self._leftovers.ended(self._cut, self._times, self._until), self._leftovers.left - self._times.sent


def _opening(
    direction: int, begin: Doubles, used: Doubles, conditions: Conditions, links: Links, behaviour: ClientDynamics
) -> tuple[Doubles, Doubles, NDArray[np.bool_], NDArray[np.bool_]]:
    """(seconds of the radio's promotion, seconds of the handshake, whether the message starts slowly, whether its
    connection is new); (visits,) each."""
    rtt, transport = conditions.rtt, links.transport
    closed = _is_closed(begin, used, links)
    is_new = (conditions.last_down <= behaviour.since(conditions, begin)) | closed
    connects = is_new if direction == DOWN else closed
    handshake = np.where(connects, transport.connect_round_trips * rtt, 0.0)
    slowly = (is_new | is_idle(begin, conditions.last_used(direction), rtt)) & transport.slow_start
    promotion: Doubles = conditions.promotion_seconds  # zeros, if it is not counted
    if transport.promotion:
        promotion = np.where(_disuse(begin, used) > conditions.awake_seconds, conditions.promotion_seconds, 0.0)
    return promotion, handshake, slowly, is_new


def _is_closed(begin: Doubles, used: Doubles, links: Links) -> NDArray[np.bool_]:
    """Whether each connection has been closed by ``begin`` since its last message ended at ``used``; -inf: no
    message."""
    if links.transport.reconnect == math.inf:
        return np.zeros(begin.shape, bool)
    return (used > -math.inf) & (_disuse(begin, used) > links.transport.reconnect)


def _disuse(begin: Doubles, used: Doubles) -> Doubles:
    """Seconds without a message before ``begin``; 0 for a message that never begins."""
    return np.subtract(begin, used, out=np.zeros_like(begin), where=begin < math.inf)


def _paths(
    direction: int,
    conditions: Conditions,
    slowly: NDArray[np.bool_],
    threshold: Doubles,
    behaviour: ClientDynamics,
) -> list[Path]:
    """The path of each message; none where no message loses a segment or meets an outage."""
    if not (conditions.loss > 0).any() and not behaviour.has_outages:
        return []
    seeds = conditions.loss_seed[:, direction]
    columns = (conditions.rtt, slowly, conditions.loss, threshold, seeds)
    return [Path(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _flat(
    begin: Doubles,
    charge: Doubles,
    watts: Doubles,
    conditions: Conditions,
    behaviour: ClientDynamics,
    promotion: Doubles | float = 0.0,
) -> Doubles:
    """The time at which the battery is empty, if ``watts`` are drawn from ``begin`` on, after so many seconds of the
    radio's promotion; inf on mains."""
    if not np.isfinite(charge).any():
        return np.full(len(conditions), math.inf)
    first = conditions.promotion_watts * promotion
    later = promotion + _lasts(charge - first, watts)
    seconds = np.where(charge < first, _lasts(charge, conditions.promotion_watts), later)
    return behaviour.after(conditions, begin, seconds)


def _lasts(charge: Doubles, watts: Doubles) -> Doubles:
    """Seconds for which a charge, in joules, lasts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(watts > 0, np.maximum(charge, 0.0) / watts, np.where(charge < 0, 0.0, math.inf))


def _by(cut: Doubles, times: Doubles) -> Doubles:
    return np.where(times <= cut, times, math.inf)
