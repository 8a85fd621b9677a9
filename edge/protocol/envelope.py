"""The envelope of a message: fields that only the transport needs, and that are charged to nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from edge.protocol.limits import Buffer, packb, unpackb
from edge.protocol.logged import expect_names
from edge.protocol.message_fields import as_list
from edge.protocol.messages import expect
from edge.protocol.payload import VERSION_NBYTES

MAX_SECONDS = 1e8
"""Three years over one task."""
MAX_TELEMETRY = 1000
"""Characters."""
MAX_NUMBER = 1 << 63


@dataclass(frozen=True)
class Envelope:
    """The fields of one message that only the transport needs."""

    worker: str
    """The identity of the worker that sends or receives."""
    sequence: int = 0
    """The number of the task; 0 for messages that belong to none."""
    state_in: str | None = None
    """File of the client's state after its last visit."""
    state_out: str | None = None
    """File for its state after this visit."""
    evict: tuple[bytes, ...] = ()
    """Block versions that the worker may drop."""
    wall_seconds: float = 0.0
    """How long the worker took over the task."""
    weight: float = 0.0
    """The client's aggregation weight, 0..1, if the worker adds its update to a partial sum; 0: it is sent whole."""
    retired_slots: tuple[int, ...] = ()
    """Slots of workers that have left for lack of memory; the others divide their memory (`edge.runtime.gpu_share`)."""
    telemetry: str = ""
    """The worker's measurements of itself, for the record of the run."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """`Update.logged` of the update that it comes with."""

    def pack(self) -> bytes:
        """As one frame."""
        values: list[object] = [self.worker, self.sequence, self.state_in, self.state_out, b"".join(self.evict)]
        values += [self.wall_seconds, self.weight, list(self.retired_slots), self.telemetry, dict(self.logged)]
        return packb(values)

    @classmethod
    def parse(cls, raw: Buffer) -> Envelope:
        values = as_list(unpackb(raw), 10, "envelope")
        worker, sequence, state_in, state_out, evict, wall_seconds, weight, retired_slots, telemetry, logged = values
        expect(isinstance(worker, str), "envelope: worker", worker)
        expect(type(sequence) is int and 0 <= sequence < MAX_NUMBER, "envelope: sequence", sequence)
        for name, value in (("state_in", state_in), ("state_out", state_out)):
            expect(value is None or isinstance(value, str), f"envelope: {name}", value)
        expect(isinstance(evict, bytes) and len(evict) % VERSION_NBYTES == 0, "envelope: evict", evict)
        expect(
            isinstance(wall_seconds, float) and 0 <= wall_seconds < MAX_SECONDS, "envelope: wall_seconds", wall_seconds
        )
        expect(isinstance(weight, float) and 0 <= weight <= 1, "envelope: weight", weight)
        expect(
            isinstance(retired_slots, list) and all(map(_is_worker_slot, retired_slots)),
            "envelope: retired_slots",
            retired_slots,
        )
        expect(isinstance(telemetry, str) and len(telemetry) <= MAX_TELEMETRY, "envelope: telemetry", telemetry)
        expect(isinstance(logged, dict), "envelope: logged", logged)
        expect_names("envelope", logged)
        for name, number in logged.items():
            expect(isinstance(number, float) and not math.isinf(number), f"envelope: logged: {name}", number)
        versions = tuple(evict[at : at + VERSION_NBYTES] for at in range(0, len(evict), VERSION_NBYTES))
        slots = tuple(retired_slots)
        return cls(worker, sequence, state_in, state_out, versions, wall_seconds, weight, slots, telemetry, logged)


def _is_worker_slot(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER
