"""The columns of a recorded trace over the clients of a fleet, which replace figures of their devices and networks.

Each client follows a row of the trace, drawn once; each row comes once before any comes twice. Nothing here reads a
file: that is `costmodel.fleet.traces`.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import Doubles, Streams
from costmodel.fleet.traces import Capacities, Cases, Machines, Users
from costmodel.network.tcp import WIRE_FACTOR

ClientTrace = Capacities | Users | Cases | Machines
"""The traces of clients' speeds and links; other traces have availability and rates over time."""


class TraceColumns:
    """The columns of a trace over clients; each method returns ``otherwise`` where the trace has no such column."""

    def __init__(self, trace: ClientTrace | None, case: int, clients: int, streams: Streams) -> None:
        """``case`` is the number of a population of `Cases`; ValueError if the trace does not have it."""
        self._speed: Doubles | None = None
        self._flops: Doubles | None = None
        self._rates: list[Doubles | None] = [None, None]
        self._rtt: Doubles | None = None
        self._cv: list[Doubles] | None = None
        if isinstance(trace, Capacities):
            self._speed = float(np.median(trace.compute_seconds)) / trace.compute_seconds
            self._rates = [trace.bits_per_second] * 2
        elif isinstance(trace, Users):
            self._rates, self._cv = [trace.down, trace.up], [trace.down_cv, trace.up_cv]
        elif isinstance(trace, Cases):
            if case not in trace.cases:
                raise ValueError(
                    f"there is no case {case} in the trace: choose from {', '.join(map(str, trace.cases))}"
                )
            mean, cv = trace.cases[case]
            self._rates, self._cv = [mean, None], [cv, cv]
        elif isinstance(trace, Machines):
            self._flops, self._rates, self._rtt = trace.flops_per_second, [trace.down, trace.up], trace.rtt_seconds
        rows = next((column.size for column in self._rates if column is not None), 1)
        self._rows = streams("trace", 0, 0).permutation(rows)[np.arange(clients) % rows]

    def speed(self, otherwise: Doubles) -> Doubles:
        """FLOP/s: the trace's, or ``otherwise`` times the client's speed relative to the trace's median row."""
        if self._flops is not None:
            return self._flops[self._rows]
        return otherwise if self._speed is None else otherwise * self._speed[self._rows]

    def rate(self, direction: int, otherwise: Doubles) -> Doubles:
        """bit/s on the wire: traces have measured throughput, so headers are added."""
        column = self._rates[direction]
        return otherwise if column is None else WIRE_FACTOR * column[self._rows]

    def rtt(self, otherwise: Doubles) -> Doubles:
        """Round-trip times in seconds."""
        return otherwise if self._rtt is None else self._rtt[self._rows]

    def cv(self) -> Doubles | None:
        """(clients, 2) standard deviation over mean of the rates down and up; None: not in the trace."""
        return None if self._cv is None else np.stack(self._cv, axis=1)[self._rows]
