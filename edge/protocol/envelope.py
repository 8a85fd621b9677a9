"""The envelope: what only the transport needs, and nobody is charged for."""

from __future__ import annotations

from dataclasses import dataclass

from edge.protocol.limits import Buffer, packb, unpackb
from edge.protocol.message_fields import as_list, is_version
from edge.protocol.messages import expect

MAX_SECONDS = 1e8
"""Three years over one task."""
MAX_NOTE = 1000
MAX_NUMBER = 1 << 63


@dataclass(frozen=True)
class Envelope:
    """What the transport alone needs; not charged to anybody."""

    worker: str
    """The identity of the worker that sends or receives."""
    sequence: int = 0
    """Which task; 0 for messages that belong to none."""
    state_in: str | None = None
    """File of what the client kept from its last visit."""
    state_out: str | None = None
    """File for what it keeps from this one."""
    evict: tuple[bytes, ...] = ()
    """Versions that the worker may drop."""
    wall_seconds: float = 0.0
    """How long the worker took over the task."""
    weight: float = 0.0
    """The client's part of the round's mean, 0..1: with which the worker adds its update up. 0: it is sent whole."""
    retired_slots: tuple[int, ...] = ()
    """Seats of workers that have left for lack of memory: theirs is shared out among the others
    (`edge.runtime.gpu_share`)."""
    telemetry: str = ""
    """What the worker has measured of itself, for the record of the run."""

    def pack(self) -> bytes:
        """As one frame."""
        values = [self.worker, self.sequence, self.state_in, self.state_out, list(self.evict)]
        return packb([*values, self.wall_seconds, self.weight, list(self.retired_slots), self.telemetry])

    @classmethod
    def parse(cls, raw: Buffer) -> Envelope:
        values = as_list(unpackb(raw), 9, "envelope")
        worker, sequence, state_in, state_out, forget, wall_seconds, share, left, note = values
        expect(isinstance(worker, str), "envelope: worker", worker)
        expect(type(sequence) is int and 0 <= sequence < MAX_NUMBER, "envelope: sequence", sequence)
        for name, value in (("state_in", state_in), ("state_out", state_out)):
            expect(value is None or isinstance(value, str), f"envelope: {name}", value)
        expect(isinstance(forget, list) and all(map(is_version, forget)), "envelope: evict", forget)
        expect(
            isinstance(wall_seconds, float) and 0 <= wall_seconds < MAX_SECONDS, "envelope: wall_seconds", wall_seconds
        )
        expect(isinstance(share, float) and 0 <= share <= 1, "envelope: weight", share)
        expect(isinstance(left, list) and all(map(_is_worker_slot, left)), "envelope: retired_slots", left)
        expect(isinstance(note, str) and len(note) <= MAX_NOTE, "envelope: telemetry", note)
        return cls(worker, sequence, state_in, state_out, tuple(forget), wall_seconds, share, tuple(left), note)


def _is_worker_slot(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER
