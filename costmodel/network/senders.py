"""The sender of one message: TCP's window in slow start, under random loss and in outages.

TCP sends a window and waits for a round trip before it sends the next, twice as wide, until a window takes as long as
the round trip: then the link is full and the rest flows. On a shared link the time of a window depends on the other
flows, so it is known only when the window has been sent (`Sender`); `costmodel.network.fair_link` gives the rates.
Nothing here knows of other messages, nor whether the connection is new.

**Random loss.** A lost segment makes cubic's window 0.7 of what it was, and Reno's 0.5, after which it grows slowly:
with the loss probability p it is 1.22 / sqrt(p) segments on average (Mathis, Semke, Mahdavi, Ott, 1997), whatever the
link could carry. Losses are drawn, and the window follows them (RFC 9438), so that messages differ as they do on real
links. The window of a connection that has lost a segment stays with it: the next message doubles its own up to there,
and no further. What a window has beyond the pipe waits in the queue before the link, so that losses on a short path
leave the link full. A sender whose window is narrower than the pipe leaves the link idle while it repairs a loss (RFC
6937), and one whose window is too narrow to tell it of a loss waits for its timer (Padhye et al., 1998). BBR's model of
the path ignores losses of this order.

**Outages.** What is sent into an outage is lost. The sender tries again when its timer ends, each time after twice as
long (RFC 6298), and goes on, with a new window, at the first try after the outage; after a quarter of an
hour the connection is given up, and a new one is made when the outage ends.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from costmodel.network.fair_link import Served
from costmodel.network.tcp import FRAME_BITS, IDLE_FLOOR_SECONDS

# RFC 6928: ten segments before the first acknowledgement.
INITIAL_WINDOW_BITS = 10 * FRAME_BITS
# RFC 6298 lets a timer end at this, which Linux does: no try is later than this after the one before it.
LONGEST_TIMER_SECONDS = 120.0
# Linux gives a connection up after 15 tries in vain (tcp_retries2), and the program connects as soon as it can. Without
# this, tries at 120 s would miss every up time of a link whose outages repeat at a period that divides 120 s.
GIVE_UP_SECONDS = 924.6


class Congestion(NamedTuple):
    """How a window grows and is cut."""

    beta: float
    """The part of it that a loss leaves"""
    scale: float
    """C of RFC 9438, segments per second cubed; 0: it grows by `growth` alone"""

    @property
    def growth(self) -> float:
        """Segments per round trip by which it grows at least, so that its mean is that of Reno (RFC 9438, 4.3)."""
        return 3 * (1 - self.beta) / (1 + self.beta)

    def target(self, widest: float, seconds: float, least: float) -> float:
        """The window ``seconds`` after its curve is level at ``widest``; at least ``least``."""
        return max(widest + self.scale * seconds**3, least) if self.scale else least

    def seconds_to_widest(self, widest: float, window: float) -> float:
        """From a ``window`` to where the curve is level."""
        return math.cbrt(max(widest - window, 0.0) / self.scale) if self.scale else 0.0


CUBIC, RENO = Congestion(0.7, 0.4), Congestion(0.5, 0.0)  # RFC 9438, RFC 5681
CONGESTION = {"cubic": CUBIC, "reno": RENO}
# Linux leaves slow start when round trips have become longer by an eighth, within these bounds, and the window has so
# many segments (HyStart).
HYSTART_SECONDS, HYSTART_SEGMENTS = (0.004, 0.016), 16.0
# Padhye et al.: the probability that a loss in a window of w segments ends with the timer is about min(1, 3 / w). With
# selective acknowledgements and probes of the tail it is much less; this fits what was measured at 2 to 60 ms, as does
# the next.
TIMER_SHARE, TIMER_SEGMENTS, TIMER_POWER = 0.7, 3.0, 3
# Round trips for which a loss leaves that part of the pipe empty that the new window does not fill.
REPAIR_ROUND_TRIPS = 2.0


def next_try(begin: float, now: float, rtt: float) -> float:
    """The first time, not before ``now``, at which a sender tries again that got no answer from ``begin`` on."""
    if now - begin > GIVE_UP_SECONDS:
        return now
    timer, time = rtt + IDLE_FLOOR_SECONDS, begin
    while time < now:
        time += timer
        timer = min(2.0 * timer, LONGEST_TIMER_SECONDS)
    return time


@dataclass(frozen=True, slots=True)
class Path:
    """The path of one message."""

    rtt: float = 0.0
    """Seconds; 0: windows are as wide as the link can carry, and the timer is that of no round trip"""
    starts_slowly: bool = True
    """Whether the connection is new or has been idle"""
    loss: float = 0.0
    """Probability that a segment is lost, for senders whose window it narrows"""
    threshold: float = math.inf
    """Segments of the connection's window at the end of the message before, up to which it doubles; inf: it never lost
    a segment"""
    seed: int = 0
    """Of the losses"""
    queue: float = math.inf
    """Bits that wait before the link at most, for senders that lose segments"""
    congestion: Congestion = CUBIC

    @property
    def is_lossy(self) -> bool:
        """Whether losses may narrow the window."""
        return self.loss > 0 and self.rtt > 0


class Window:
    """Segments in flight after slow start, from one loss to the next.

    As long as the window is wider than the pipe, the link is full, and what is too much waits in its queue. A window
    that is wider than pipe and queue together loses a segment there.
    """

    _OWN = "_least", "_limit", "_queue", "_rtt", "_seconds", "_turn", "_widest", "pipe", "segments", "threshold"
    __slots__ = (*_OWN, "_congestion")

    def __init__(self, segments: float, rate: float, path: Path, threshold: float = math.inf) -> None:
        """``segments``: the window after slow start; ``threshold``: as of `Path`; ``rate``: the link's, bit/s."""
        self._congestion, self._rtt, self._queue = path.congestion, path.rtt, path.queue / FRAME_BITS
        self.threshold = threshold
        self._widest = self._least = self.segments = self._seconds = self._turn = 0.0
        assert rate > 0, rate
        self.follow(rate)
        begin = min(segments, threshold, self._limit)
        self._begin(max(begin, min(threshold / self._congestion.beta, self._limit)), begin)

    @property
    def is_full(self) -> bool:
        """Whether the window fills the pipe."""
        return self.segments >= self.pipe

    @property
    def kept(self) -> float:
        """`Path.threshold` of the connection's next message."""
        return self.threshold if self.threshold == math.inf else self.segments

    def follow(self, rate: float) -> None:
        """The pipe is that of a link of ``rate`` bit/s from now on; a window that is wider by now stays so."""
        self.pipe = rate * self._rtt / FRAME_BITS
        self._limit = self.pipe + self._queue

    def advance(self, sent: float, seconds: float) -> None:
        """Grow while ``sent`` segments are acknowledged, in so many ``seconds``."""
        self._seconds += seconds
        # By so much for each window that is acknowledged.
        self._least = math.sqrt(self._least**2 + 2.0 * self._congestion.growth * sent)
        target = self._congestion.target(self._widest, self._seconds - self._turn, self._least)
        self.segments = max(self.segments, min(target, self._limit))

    def lose(self) -> float:
        """A segment is lost; returns the seconds for which the sender waits, in the mean."""
        timer = TIMER_SHARE * min(1.0, TIMER_SEGMENTS / self.segments) ** TIMER_POWER
        self.threshold = max(self._congestion.beta * self.segments, 2.0)
        idle = REPAIR_ROUND_TRIPS * max(0.0, 1.0 - self.threshold / self.pipe)
        self._begin(self.segments, self.threshold)
        return timer * (self._rtt + IDLE_FLOOR_SECONDS) + idle * self._rtt

    def _begin(self, widest: float, segments: float) -> None:
        self._widest, self._least, self.segments = widest, segments, segments
        self._seconds = 0.0
        self._turn = self._congestion.seconds_to_widest(widest, segments)


class Sender:
    """The sender of one message: its unsent rest, its window, and its timer in an outage.

    A message is sent in parts: `next_part`, then `part_sent`, or `broken_off`, or `stalls` where an outage begins. One
    that was broken off may go on from there: `numbers`, then `restore`.
    """

    __slots__ = (
        "_acknowledged",
        "_contended",
        "_left",
        "_part",
        "_path",
        "_paused_since",
        "_rest",
        "_since",
        "_stalled_since",
        "_window",
        "access_seconds",
        "contention_seconds",
        "is_fresh",
        "own_seconds",
        "paused",
        "resumes_at",
        "sent",
        "server_seconds",
        "tries_at",
    )

    def __init__(self, bits: float, path: Path) -> None:
        self._left, self._part, self._path = bits, 0.0, path
        self._window = INITIAL_WINDOW_BITS if path.starts_slowly and path.rtt > 0 else math.inf
        self._acknowledged = -math.inf
        self._stalled_since = self._paused_since = self.tries_at = math.inf
        # Bits that are left of a part that was broken off, and the seconds of contention that it has been charged.
        self._rest = self._contended = 0.0
        # When the next part may begin after the last one that was sent, and when a stalled sender tries again.
        self.resumes_at = -math.inf
        self.sent = self.contention_seconds = self.paused = 0.0
        # When the part under way began or went on, and the seconds for which each link set the rate: its own, the
        # access link, the server's. The rest of its time are round trips.
        self._since = 0.0
        self.own_seconds = self.access_seconds = self.server_seconds = 0.0
        # Whether no part of it has begun, and no outage either.
        self.is_fresh = True

    @property
    def threshold(self) -> float:
        """`Path.threshold` of the connection's next message."""
        return self._path.threshold

    def next_part(self, now: float, rate: float) -> tuple[float, float]:
        """(bits that may be sent from ``now`` on, bit/s at most), over the sender's own link of ``rate`` bit/s."""
        self._since = now
        if self._rest > 0.0:
            return self._rest, rate
        self._begin(now)
        if 0 < rate * self._path.rtt <= self._window:
            self._window = math.inf
        self._part = min(self._window, self._left)
        return self._part, rate

    def cap(self, rate: float) -> float:
        """Bit/s at most of the part under way, over a link that has ``rate`` bit/s by now."""
        return rate

    def part_sent(self, served: Served) -> float | None:
        """Account a part that has been sent.

        Returns the absolute time at which the next part may begin, or None if all has been sent.
        """
        self._left -= self._part
        acknowledged, contended = self._acknowledged, self._contended
        self._rest = self._contended = 0.0
        if self._left <= 0.0:
            self._book(served, served.contention_seconds)
            return None
        # Only contention after the acknowledgement delays the message.
        contention_seconds = min(contended + served.contention_seconds, max(served.finish - acknowledged, 0.0))
        waits = served.finish < acknowledged
        self._book(served, contention_seconds - contended, waits)
        if waits:
            self._window *= 2.0
            self.resumes_at = acknowledged
        else:
            self._window = math.inf
            self.resumes_at = served.finish
        return self.resumes_at

    def broken_off(self, now: float, served: Served | None) -> None:
        """The message is cut: account the part under way, if there is one."""
        if served is not None:
            self._book(served, served.contention_seconds)
            self._contended += served.contention_seconds
            # Rounding may leave nothing of a part that has not ended.
            self._rest = max((self._rest or self._part) - served.sent, math.ulp(self._part))
        elif self.is_stalled:
            self.paused += now - self._paused_since
            self._paused_since = now

    def numbers(self) -> tuple[float, ...]:
        """All that changes while a message is sent, in this order."""
        return tuple(float(getattr(self, name)) for name in _NUMBERS)

    def restore(self, numbers: tuple[float, ...]) -> None:
        """Go on from the `numbers` of another sender of the same message and path."""
        for name, number in zip(_NUMBERS, numbers, strict=False):
            setattr(self, name, number)

    # --- outages --------------------------------------------------------------------------------------------------

    @property
    def is_stalled(self) -> bool:
        """Whether it waits for its timer after an outage began."""
        return self._stalled_since < math.inf

    def stalls(self, now: float, served: Served | None = None) -> None:
        """An outage interrupts the part under way, ``served`` so far, or lasts when the next part should begin."""
        self._left -= self._part - self._rest if self._rest else 0.0
        self._rest = self._contended = 0.0
        if served is not None:
            self._left -= served.sent
            self._book(served, served.contention_seconds)
        if not self.is_stalled:
            self._stalled_since = self._paused_since = now
        self.is_fresh = False
        self.tries_at = math.inf

    def try_at(self, now: float) -> float | None:
        """The time of the next try of a stalled sender whose link is up again; None if it has been asked for."""
        if self.tries_at < math.inf:
            return None
        self.tries_at = next_try(self._stalled_since, now, self._path.rtt)
        return self.tries_at

    def may_begin(self, now: float) -> bool:
        """Whether a part may begin: always, but for a stalled sender at its tries alone."""
        return not self.is_stalled or now == self.tries_at

    def _begin(self, now: float) -> None:
        if self.is_stalled:
            self.paused += now - self._paused_since
            self._stalled_since = self._paused_since = self.tries_at = math.inf
            self._restart()
        self.is_fresh = False
        self._acknowledged = now + self._path.rtt

    def _restart(self) -> None:
        """After its timer has ended, a sender begins with a new window."""
        if self._path.rtt > 0:
            self._window = INITIAL_WINDOW_BITS

    def _book(self, served: Served, contention_seconds: float, waits: bool = False) -> None:
        """``waits``: whether the next part waits for an acknowledgement, so that no link has delayed it."""
        self.sent += served.sent
        self.contention_seconds += contention_seconds
        self.paused += served.paused
        if not waits:
            held = served.access_seconds + served.server_seconds
            self.access_seconds += served.access_seconds
            self.server_seconds += served.server_seconds
            self._book_own(served.finish - self._since - held - served.paused - served.window_seconds)

    def _book_own(self, seconds: float) -> None:
        if seconds > 0.0:  # rounding may leave less
            self.own_seconds += seconds


_NUMBERS = tuple(name for name in Sender.__slots__ if name != "_path")


class LossySender(Sender):
    """A `Sender` that loses segments at random.

    A part ends where a segment is lost, or where the window has become as wide as the pipe. From there the sender
    follows its link's rate, however that changes; a narrower window keeps the mean rate that it has over the part.
    """

    __slots__ = ("_draws", "_losses", "_rate", "_steady", "_threshold", "_until_loss", "_wait")

    def __init__(self, bits: float, path: Path) -> None:
        super().__init__(bits, path)
        self._steady: Window | None = None
        self._threshold = path.threshold
        self._rate, self._wait = math.inf, 0.0
        self._losses, self._draws = random.Random(path.seed), 0
        self._until_loss = self._next_loss()

    @property
    def threshold(self) -> float:
        return self._threshold if self._steady is None else self._steady.kept

    def next_part(self, now: float, rate: float) -> tuple[float, float]:
        self._since = now
        if self._rest > 0.0:
            return self._rest, self.cap(rate)
        self._begin(now)
        self._wait, self._rate = 0.0, math.inf
        if rate == 0:  # the window of a paused client will be old; nothing is known of the losses in its first one
            self._part = min(INITIAL_WINDOW_BITS, self._window, self._left)
            return self._part, rate
        segments = self._window / FRAME_BITS
        if self._steady is None and (segments >= self._threshold or self._window >= rate * self._path.rtt):
            self._steady = self._window_at(segments, self._threshold, rate)
        if self._steady is not None:
            self._steady.follow(rate)
            self._part, self._rate = self._steady_part(self._steady, rate)
            self._acknowledged = -math.inf  # the next part does not wait for it
        else:
            self._part = min(self._window, self._left)
            acknowledged, self._until_loss = self._until_loss, self._until_loss - self._part / FRAME_BITS
            segments += acknowledged  # by the time at which the sender learns of a loss
        if self._until_loss <= 0:
            self._steady = self._steady or self._window_at(segments, math.inf, rate)
            self._wait = self._steady.lose() + FRAME_BITS / rate  # it is sent again
            self._until_loss = self._next_loss()
        return self._part, min(self._rate, rate)

    def cap(self, rate: float) -> float:
        return min(rate, self._rate)

    def part_sent(self, served: Served) -> float | None:
        if super().part_sent(served) is None:
            return None
        self.resumes_at += self._wait
        return self.resumes_at

    def numbers(self) -> tuple[float, ...]:
        window = (
            [math.nan] * len(_OF_WINDOW) if self._steady is None else [getattr(self._steady, x) for x in _OF_WINDOW]
        )
        return *super().numbers(), *(getattr(self, name) for name in _OF_LOSSES), float(self._draws), *window

    def restore(self, numbers: tuple[float, ...]) -> None:
        super().restore(numbers)
        rest = numbers[len(_NUMBERS) :]
        for name, number in zip(_OF_LOSSES, rest, strict=False):
            setattr(self, name, number)
        draws, *window = rest[len(_OF_LOSSES) :]
        while self._draws < draws:
            self._draws += 1
            self._losses.random()
        if not math.isnan(window[0]):
            self._steady = Window(1.0, 1.0, self._path)
            for name, number in zip(_OF_WINDOW, window, strict=True):
                setattr(self._steady, name, number)

    def _book_own(self, seconds: float) -> None:
        if self._rate == math.inf:  # else its window sets the rate
            super()._book_own(seconds)

    def _window_at(self, segments: float, threshold: float, rate: float) -> Window:
        """The window of a sender that leaves slow start with so many ``segments``."""
        rtt, (least, most) = self._path.rtt, HYSTART_SECONDS
        longer = min(max(rtt / 8, least), most)
        widest = max(rate * (rtt + longer) / FRAME_BITS, HYSTART_SEGMENTS)
        return Window(min(segments, widest), rate, self._path, threshold)

    def _steady_part(self, window: Window, rate: float) -> tuple[float, float]:
        """(bits of the part that begins with this window, bit/s at most; inf: as the link can carry)."""
        left = self._left / FRAME_BITS
        until = min(left, self._until_loss)
        if window.is_full:
            segments, at_most = until, math.inf
            window.advance(until, until * FRAME_BITS / rate)
        else:
            segments, at_most = self._growing(window, rate, until, left)
        self._until_loss -= segments
        return (self._left if segments == left else segments * FRAME_BITS), at_most

    def _growing(self, window: Window, rate: float, until: float, left: float) -> tuple[float, float]:
        """(segments until the window fills the pipe, or ``until``; their mean rate), round trip by round trip.

        ``left``: segments of the message that are unsent.
        """
        segments = seconds = 0.0
        while segments < until and not window.is_full:
            wide, rest = window.segments, until - segments
            sent = min(wide, rest)
            end = until if sent == rest else segments + sent
            # No acknowledgement is waited for at the end of the message.
            trip = 0.0 if end == left else self._path.rtt * sent / wide
            seconds += max(trip, sent * FRAME_BITS / rate)
            segments = end
            window.advance(sent, self._path.rtt * sent / wide)
        return segments, segments * FRAME_BITS / seconds

    def _restart(self) -> None:
        super()._restart()
        if self._steady is not None:
            self._steady.lose()
            self._threshold, self._steady = self._steady.threshold, None

    def _next_loss(self) -> float:
        """Segments until the next loss: exponential, as the loss of each is independent of the others."""
        self._draws += 1
        return -math.log1p(-self._losses.random()) / self._path.loss


_OF_LOSSES = ("_rate", "_threshold", "_until_loss", "_wait")
_OF_WINDOW = Window._OWN
SENDER_NUMBERS = len(_NUMBERS) + len(_OF_LOSSES) + 1 + len(_OF_WINDOW)
"""Length of `Sender.numbers` at most"""


class WholeSender(Sender):
    """A `Sender` over links that know windows: its message is one part, or one from each outage to the next."""

    __slots__ = ("_kept", "path")

    def __init__(self, bits: float, path: Path) -> None:
        super().__init__(bits, replace(path, starts_slowly=False))
        self.path, self._kept = path, path.threshold

    @property
    def threshold(self) -> float:
        return self._kept

    def part_sent(self, served: Served) -> float | None:
        self._kept = served.threshold
        return super().part_sent(served)

    def broken_off(self, now: float, served: Served | None) -> None:
        if served is not None:
            self._kept = served.threshold
        super().broken_off(now, served)

    def stalls(self, now: float, served: Served | None = None) -> None:
        super().stalls(now, served)
        if served is not None:
            # After its timer a sender begins with a new window, up to a part of the old one; other segments are lost.
            self._kept = max(self.path.congestion.beta * served.threshold, 2.0)
            self.path = replace(self.path, starts_slowly=True, threshold=self._kept, seed=self.path.seed + 1)

    def _restart(self) -> None:
        """The link begins with a new window."""


def sender(bits: float, path: Path, numbers: tuple[float, ...] = ()) -> Sender:
    """The sender of a message of ``bits`` bits on the wire; ``numbers``: of one that was broken off, and goes on."""
    message = LossySender(bits, path) if path.is_lossy else Sender(bits, path)
    if numbers:
        message.restore(numbers)
    return message
